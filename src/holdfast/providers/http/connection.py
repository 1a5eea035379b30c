"""One connection to an upstream, and the one answer at a time that comes over it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import httptools

from holdfast.core.errors import ProviderFailure
from holdfast.ports.provider import ByteSink
from holdfast.providers.errors import broken

HIGH_WATER_BYTES = 256 * 1024
"""How much of an answer is held unread before its server has to wait."""
MAX_HEAD_BYTES = 256 * 1024
SPARE_BYTES = 16 * 1024
"""How much may be left of an answer that is over for whoever read it."""
_BODILESS = (204, 304)
_LOWERED: dict[bytes, str] = {}
"""Header names in lower case: servers send the same few with every answer."""
MOST_NAMES, MOST_NAME_BYTES = 512, 64


def _lowered(name: bytes) -> str:
    key = name.decode("latin-1").lower()
    if len(_LOWERED) < MOST_NAMES and len(name) <= MOST_NAME_BYTES:
        _LOWERED[name] = key
    return key


class StopReading(Exception):
    """Raised by whoever takes a body and wants no more of it."""


class Disconnected(Exception):
    """The connection went before its answer had a head."""


class Connection(asyncio.Protocol):
    """Reads answers; whoever sends asks for the head first, then for the body as it comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0
        self.is_open = False
        self.idle_since = 0.0
        self._then: Callable[[], None] | None = None
        self._limit: asyncio.TimerHandle
        self._spare = 0
        self._parser = httptools.HttpResponseParser(self)
        self._begin("")

    def _begin(self, method: str) -> None:
        self._method = method
        self.status = 0
        self.raw_headers: dict[str, bytes] = {}
        self._received = 0
        self._pieces: list[bytes] = []
        self._held = 0
        self._is_paused = False
        self.has_head = False
        self.is_complete = False
        self._is_kept = False
        self._failure: ProviderFailure | None = None
        self._sink: ByteSink | None = None
        self._seconds = 0.0
        self._is_full = False
        self._refusal: Exception | None = None

    # ── what the sender calls ───────────────────────────────────────────────────────────────

    def send(self, method: str, pieces: Sequence[bytes]) -> None:
        """Send a request in one go; from now on everything that comes is its answer."""
        self._begin(method)
        self._transport.writelines(pieces)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer, names in lower case."""
        return {name: value.decode("latin-1") for name, value in self.raw_headers.items()}

    @property
    def is_untouched(self) -> bool:
        """Whether not one byte has come since the request was sent."""
        return not self._received

    @property
    def is_reusable(self) -> bool:
        """Whether the answer was read to its end and the server takes another request."""
        return self.is_open and self.is_complete and self._is_kept and not self._pieces

    def wait_for_data(self, seconds: float) -> "asyncio.Future[None]":
        """Return what is done once anything has happened; raise if nothing can any more.

        One timer serves a connection: it is moved, not made.
        """
        if self._failure is not None:
            raise self._failure
        if not self.is_open:
            if not self.has_head:
                raise Disconnected
            raise broken("the upstream's answer was cut off", "upstream_truncated")
        loop = self._loop
        until = self._until = loop.time() + seconds
        if self._timer is None or self._timer.when() > until:
            self._stop_timer()
            self._timer = loop.call_at(until, self._look)
        waiter = self._waiter = loop.create_future()
        return waiter

    async def piece(self, seconds: float) -> bytes:
        """Return what has come of the body, as soon as there is some; nothing at its end."""
        while not self._pieces:
            if self.is_complete:
                return b""
            await self.wait_for_data(seconds)
        return self.taken()

    async def copy_to(self, sink: ByteSink, seconds: float) -> bool:
        """Have the body taken as it comes; return whether it ended before there was enough of it.

        What comes while this waits goes to the sink at once, without anybody being woken for it.
        """
        try:
            while True:
                while self._pieces:
                    if not sink.write(self.taken()):
                        await sink.drain()
                if self.is_complete:
                    return True
                self._sink, self._seconds = sink, seconds
                try:
                    await self.wait_for_data(seconds)
                finally:
                    self._sink = None
                if self._refusal is not None:
                    raise self._refusal
                if self._is_full:
                    self._is_full = False
                    await sink.drain()
        except StopReading:
            return False

    def finish(self, seconds: float, then: Callable[[], None]) -> None:
        """Read the little that is left of an answer that nobody needs any more.

        `then` is called once it is over, or is not to be had so soon, or is not little.
        """
        self.taken()
        self._spare = SPARE_BYTES
        self._then = then
        self._limit = self._loop.call_later(seconds, self._finished)

    def _let_go(self, size: int) -> None:
        self._pieces.clear()
        self._held = 0
        self._spare -= size
        if self.is_complete or self._failure is not None or self._spare < 0:
            self._finished()

    def _finished(self) -> None:
        then, self._then = self._then, None
        if then is not None:
            self._limit.cancel()
            then()

    def taken(self) -> bytes:
        """Return what has come of the body and was not taken before."""
        pieces = self._pieces
        self._pieces = []
        self._held = 0
        if self._is_paused and self.is_open:
            self._is_paused = False
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _hand_over(self, sink: ByteSink) -> None:
        """Give what has come to somebody who waits for it; what they raise is raised there."""
        try:
            # Reading is not paused: whoever waits has taken everything that came before.
            pieces, self._pieces, self._held = self._pieces, [], 0
            if sink.write(pieces[0] if len(pieces) == 1 else b"".join(pieces)):
                self._until = self._loop.time() + self._seconds
                return
            self._is_full = True
        except Exception as exc:  # noqa: BLE001 - it is raised where it belongs
            self._refusal = exc
        self._wake()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._stop_timer()
        if self._then is not None:
            self._then = None
            self._limit.cancel()
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    # ── waiting ─────────────────────────────────────────────────────────────────────────────

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() >= self._until:
            self._waiter.set_exception(TimeoutError())
        else:
            self._timer = self._loop.call_at(self._until, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ── what the event loop calls ───────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Take bytes in; those that nobody asked for end the connection."""
        self._received += len(data)
        if self.is_complete or not self._method:
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._break(f"the upstream's answer cannot be read: {type(exc).__name__}")
        if not self.has_head and self._received > MAX_HEAD_BYTES:
            self._break("the head of the upstream's answer is too long")
        if self._then is not None:
            self._let_go(len(data))
        elif self._sink is not None and self._waiter is not None and not self._waiter.done():
            if self._pieces:
                self._hand_over(self._sink)
            if self.is_complete or self._failure is not None:
                self._wake()
        elif self.has_head or self._failure is not None:
            self._wake()
        if self._held > HIGH_WATER_BYTES and not self._is_paused and self.is_open:
            self._is_paused = True
            self._transport.pause_reading()

    def _break(self, message: str) -> None:
        if not self.is_complete:
            self._failure = broken(message, "upstream_broken_answer")
        self._is_kept = False
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has gone, or we have."""
        self.is_open = False
        if self.has_head and exc is None and self._ends_with_line():
            self.is_complete = True
        self._stop_timer()
        self._wake()
        self._finished()

    def _ends_with_line(self) -> bool:
        """Whether the end of the line is the end of the answer: nothing else says where it is."""
        known = self.raw_headers
        has_length = "content-length" in known or "transfer-encoding" in known
        return not has_length and self.status not in _BODILESS

    # ── what the parser calls ───────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """An answer begins; a second one is not ours."""
        if self.is_complete:
            self._is_kept = False
        else:
            self.raw_headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header; several of a name are one, as the standard has it."""
        key = _LOWERED[name] if name in _LOWERED else _lowered(name)
        known = self.raw_headers
        known[key] = b"%b, %b" % (known[key], value) if key in known else value

    def on_headers_complete(self) -> None:
        """The head is there, unless it only says that the answer is under way."""
        if self.is_complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        self.status = status
        self.has_head = True
        self._is_kept = bool(self._parser.should_keep_alive())
        if self._method == "HEAD":
            # The parser waits for a body that never comes.
            self.is_complete, self._is_kept = True, False

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self.is_complete:
            self._pieces.append(body)
            self._held += len(body)

    def on_message_complete(self) -> None:
        """The answer is all there."""
        if self.has_head:
            self.is_complete = True
