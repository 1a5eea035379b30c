"""One connection to an upstream: it carries one request and its response at a time."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import httptools

from holdfast.core.errors import ProviderFailure
from holdfast.ports.provider import ByteSink
from holdfast.providers.errors import broken

HIGH_WATER_BYTES = 256 * 1024
"""How many unread bytes of a body are buffered before reading from the socket pauses."""
MAX_HEAD_BYTES = 256 * 1024
"""The limit for a response's head, and for the trailers after its body."""
MAX_DISCARDED_BYTES = 16 * 1024
"""How many unneeded bytes of a response are read so that the connection can be reused."""
_NO_BODY = (204, 304)
_END_OF_HEAD = b"\r\n\r\n"


class StopReading(Exception):
    """Raised by a sink that needs no more of the body."""


class Disconnected(Exception):
    """The connection was lost before the head of its response arrived."""


class UpstreamConnection(asyncio.Protocol):
    """Reads responses: first the head, then the body as it arrives."""

    # The state of one response; `send` resets it.
    _method = ""
    status = 0
    has_head = False
    is_complete = False
    _received = 0
    _body_end = 0
    _buffered = 0
    _without_body = 0
    may_reuse = False
    """Whether the server keeps the connection open after this response."""
    may_be_encoded = False
    """Whether the head mentions a Content-Encoding."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        self.is_open = False
        self.idle_since = 0.0
        self._on_finished: Callable[[], None] | None = None
        self._finish_timer: asyncio.TimerHandle
        self._may_discard = 0
        self._failure: ProviderFailure | None = None
        self._is_paused = False
        self._sink: ByteSink | None = None
        self._seconds = 0.0
        self._must_drain = False
        self._sink_error: Exception | None = None
        self._pieces: list[bytes] = []
        # The parser appends body pieces to this list directly, without a Python call per piece.
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._head = b""
        """The head as it arrived. The parser has checked it; its headers are read on demand."""

    # ── for the client ──────────────────────────────────────────────────────────────────────

    def send(self, method: str, pieces: Sequence[bytes]) -> None:
        """Send a request; everything that arrives afterwards is its response."""
        self._method = method
        self.status = 0
        self._head = b""
        self._pieces.clear()
        self.has_head = self.is_complete = self.may_reuse = False
        self._received = self._body_end = self._buffered = self._without_body = 0
        self._transport.writelines(pieces)

    @property
    def headers(self) -> dict[str, str]:
        """The response's headers; names in lower case, values of one name joined by commas."""
        headers: dict[str, str] = {}
        for line in self._head.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(":")
            name, value = name.lower(), value.strip(" \t")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers

    @property
    def is_untouched(self) -> bool:
        """Whether nothing has arrived since the request was sent."""
        return not self._received

    @property
    def is_reusable(self) -> bool:
        """Whether the response was read to its end and the server keeps the connection open."""
        return self.is_open and self.is_complete and self.may_reuse and not self._pieces

    def wait_for_data(self, seconds: float) -> "asyncio.Future[None]":
        """Return a future for the next data; raise if no more can arrive.

        A connection has one timer, which is reused instead of created for each wait.
        """
        if self._failure is not None:
            raise self._failure
        if not self.is_open:
            if not self.has_head:
                raise Disconnected
            raise broken("the upstream's answer was cut off", "upstream_truncated")
        loop = self._loop
        deadline = self._deadline = loop.time() + seconds
        if self._timer is None or self._timer.when() > deadline:
            self._stop_timer()
            self._timer = loop.call_at(deadline, self._check_deadline)
        waiter = self._waiter = loop.create_future()
        return waiter

    async def read_piece(self, seconds: float) -> bytes:
        """Return the part of the body that has arrived; wait for some; empty at the end."""
        while not self._pieces:
            if self.is_complete:
                return b""
            await self.wait_for_data(seconds)
        return self.read_buffered()

    async def copy_to(self, sink: ByteSink, seconds: float) -> bool:
        """Write the body to `sink` as it arrives; return False if the sink stopped early.

        Data that arrives while this waits is written by `data_received`, without a task switch.
        """
        self._must_drain, self._sink_error = False, None
        try:
            while True:
                while self._pieces:
                    if not sink.write(self.read_buffered()):
                        await sink.drain()
                if self.is_complete:
                    return True
                self._sink, self._seconds = sink, seconds
                try:
                    await self.wait_for_data(seconds)
                finally:
                    self._sink = None
                if self._sink_error is not None:
                    raise self._sink_error
                if self._must_drain:
                    self._must_drain = False
                    await sink.drain()
        except StopReading:
            return False

    def discard_rest(self, seconds: float, on_finished: Callable[[], None]) -> None:
        """Read and discard the short rest of a body.

        `on_finished` is called when the rest has arrived, takes too long, or is too long.
        """
        self.read_buffered()
        self._may_discard = MAX_DISCARDED_BYTES
        self._on_finished = on_finished
        self._finish_timer = self._loop.call_later(seconds, self._finish_discarding)

    def _discard(self, size: int) -> None:
        self._pieces.clear()
        self._buffered = 0
        self._may_discard -= size
        if self.is_complete or self._failure is not None or self._may_discard < 0:
            self._finish_discarding()

    def _finish_discarding(self) -> None:
        on_finished, self._on_finished = self._on_finished, None
        if on_finished is not None:
            self._finish_timer.cancel()
            on_finished()

    def read_buffered(self) -> bytes:
        """Return the buffered part of the body."""
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._body_end = self._buffered = 0
        if self._is_paused and self.is_open:
            self._is_paused = False
            self._transport.resume_reading()
        return body

    def abort(self) -> None:
        """Close at once, whatever is in flight."""
        self._stop_timer()
        if self._on_finished is not None:
            self._on_finished = None
            self._finish_timer.cancel()
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    # ── waiting ─────────────────────────────────────────────────────────────────────────────

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() >= self._deadline:
            self._waiter.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ── called by the event loop ────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Parse data; close the connection if no response is expected."""
        size = len(data)
        self._received += size
        if self.is_complete or not self._method:
            self.abort()
            return
        if not self.has_head:
            self._head += data
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._break(f"the upstream's answer is not valid HTTP: {type(exc).__name__}")
        pieces, sink, waiter = self._pieces, self._sink, self._waiter
        if sink is None or waiter is None or waiter.done() or self.is_complete or not pieces:
            self._buffer(size)
            return
        # The path of most chunks of a stream: no further Python call except the sink's. The sink
        # already has everything that arrived before.
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._without_body = 0
        try:
            if sink.write(piece):
                self._deadline = self._loop.time() + self._seconds
                return
            self._must_drain = True
        except Exception as exc:  # noqa: BLE001 - `copy_to` raises it
            self._sink_error = exc
        waiter.set_result(None)

    def _buffer(self, size: int) -> None:
        """Buffer data for the next reader, and wake it."""
        pieces = self._pieces
        if self.is_complete:
            # A second response in the same data does not belong to this request.
            del pieces[self._body_end :]
        elif not pieces:
            self._check_size(size)
        else:
            self._without_body = 0
        self._buffered += size
        if self._on_finished is not None:
            self._discard(size)
            return
        is_waiting_for_body = self._sink is not None and not pieces
        is_news = self._failure is not None or self.is_complete
        if is_news or (self.has_head and not is_waiting_for_body):
            waiter = self._waiter
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        if self._buffered > HIGH_WATER_BYTES and pieces and not self._is_paused and self.is_open:
            self._is_paused = True
            self._transport.pause_reading()

    def _check_size(self, size: int) -> None:
        """Limit the data outside the body: the head and the trailers."""
        if not self.has_head:
            if self._received > MAX_HEAD_BYTES:
                self._break(f"the head of the upstream's answer exceeds {MAX_HEAD_BYTES} bytes")
            return
        self._without_body += size
        if self._without_body > MAX_HEAD_BYTES:
            self._break(f"the trailers of the upstream's answer exceed {MAX_HEAD_BYTES} bytes")

    def _break(self, message: str) -> None:
        if not self.is_complete:
            self._failure = broken(message, "upstream_broken_answer")
        self.may_reuse = False
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response, or fail it if it is not complete."""
        self.is_open = False
        if self.has_head and exc is None and self._ends_with_connection():
            self.is_complete = True
        self._stop_timer()
        self._wake()
        self._finish_discarding()

    def _ends_with_connection(self) -> bool:
        """Return whether the body ends only with the connection."""
        headers = self.headers
        has_length = "content-length" in headers or "transfer-encoding" in headers
        return not has_length and self.status not in _NO_BODY

    # ── called by the parser ────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """Start a response; the server must not send a second one."""
        if self.is_complete:
            self.may_reuse = False

    def on_headers_complete(self) -> None:
        """Complete the head, unless it is an interim response."""
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        # The parser skips empty lines in front of a head.
        head = self._head.lstrip(b"\r\n")
        end = head.index(_END_OF_HEAD)
        if status < 200:
            self._head = head[end + len(_END_OF_HEAD) :]
            return
        head = self._head = head[:end]
        self.may_be_encoded = b"content-encoding" in head.lower()
        self.status = status
        self.has_head = True
        self.may_reuse = bool(self._parser.should_keep_alive())
        if self._method == "HEAD":
            # The parser would wait for a body that is never sent.
            self.is_complete, self.may_reuse = True, False

    def on_message_complete(self) -> None:
        """Complete the response."""
        if self.has_head and not self.is_complete:
            self.is_complete = True
            self._body_end = len(self._pieces)
