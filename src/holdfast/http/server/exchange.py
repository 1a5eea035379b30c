"""One request on a connection, and the response to it.

A complete response is one write, unless it is large. The head of a streamed response is written
together with the first chunk if that comes in the same iteration of the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.http.server.connection import STATUS_LINE, FlowControl, ServerState
from holdfast.http.server.memory_budget import UNCOUNTED_BYTES
from holdfast.http.server.types import ClientDisconnected, Header, Request, ValueT

MAX_BUFFERED_BYTES = 64 * 1024
"""Unread body bytes per request; beyond them, reading from the socket pauses."""
PIECE_BYTES = 64 * 1024
"""A response that is larger is written in pieces of this size."""
_CLOSE = (b"connection", b"close")
_BODILESS = (204, 304)
_ALLOWED = bytes(byte for byte in range(256) if (byte >= 0x20 and byte != 0x7F) or byte == 0x09)
"""Bytes that a header line may contain: no control character except tab."""
_join_header = b": ".join
_log = logging.getLogger("holdfast.server")


class ClientConnection(Protocol):
    """The connection that an exchange belongs to."""

    loop: asyncio.AbstractEventLoop
    """Stored, because looking up the running loop costs a system call."""
    server_state: ServerState
    tasks: set[asyncio.Task[None]]

    def finish(self, exchange: "Exchange") -> None:
        """Continue with the next request, now that this exchange's response is written."""
        ...

    def abort(self, exchange: "Exchange") -> None:
        """Close the connection; answer 500 first if no response has started."""
        ...


class Exchange(Request):
    """Pass the request to the application and write its response to the socket."""

    connection: ClientConnection
    transport: asyncio.Transport
    flow: FlowControl
    keep_alive = True
    waiting_for_100_continue = False
    more_body = True
    response_started = False
    response_complete = False
    changed: asyncio.Event | None = None
    """Set when body bytes arrive, the client disconnects or the response is complete."""
    buffered_bytes = 0
    """Size of `pieces`."""
    pieces: list[bytes] | None = None
    """Body bytes that `receive` has not returned yet; `None` if there is nothing to report."""
    _unsent = b""
    _has_body = True

    # ── called by the connection ────────────────────────────────────────────────────────────

    def half_close(self) -> None:
        """Note that the client sends nothing more; `receive` reports it as an empty piece."""
        self.is_half_closed = True
        self.more_body = False
        if self.pieces is None:
            self.pieces = []
        self.notify()

    def notify(self) -> None:
        """Wake the tasks that wait in `receive` or for a disconnect."""
        if self.changed is not None:
            self.changed.set()
        is_gone = self.disconnected or (self.is_half_closed and self.reply_held is not None)
        if is_gone and self.on_disconnected is not None:
            self.on_disconnected()

    def on_task_done(self, task: asyncio.Task[None]) -> None:
        """Close the connection if the application ended without a complete response."""
        self.connection.tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if task.cancelled() or failure is not None:
            _log.error("request failed", exc_info=failure)
        elif self.response_complete or self.disconnected:
            return
        else:
            _log.error("request ended without a complete response")
        self.connection.abort(self)

    @property
    def client_host(self) -> str:
        """The address of the client."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    # ── called by the application ───────────────────────────────────────────────────────────

    async def body(self) -> bytes:
        """Return the whole body; most are short and have arrived in one piece with the head."""
        pieces, size = self.pieces, self.buffered_bytes
        if (
            self.more_body
            or self.disconnected
            or pieces is None
            or len(pieces) != 1
            or size > min(UNCOUNTED_BYTES, self.max_body_bytes)
        ):
            return await super().body()
        self.pieces, self.buffered_bytes = None, 0
        self.content, self.is_read, self.received_bytes = pieces[0], True, size
        return self.content

    async def receive(self) -> tuple[bytes, bool]:
        """Return the body bytes since the last call, and whether more follow."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        while not (self.disconnected or self.response_complete):
            pieces = self.pieces
            if pieces is not None:
                self.pieces, self.buffered_bytes = None, 0
                return pieces[0] if len(pieces) == 1 else b"".join(pieces), self.more_body
            self.flow.resume_reading()
            if self.changed is None:
                self.changed = asyncio.Event()
            await self.changed.wait()
            self.changed.clear()
        raise ClientDisconnected

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> bool:
        """Write a complete response in one write; return whether the client was connected."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():
            return False
        length = (b"content-length", b"%d" % len(body))
        head = self._encode_head(status, (*headers, length))
        self.response_started = True
        if len(body) > PIECE_BYTES and self.method != "HEAD":
            return await self._answer_in_pieces(head, body)
        self.transport.write(head if self.method == "HEAD" else head + body)
        self.connection.finish(self)
        return True

    async def _answer_in_pieces(self, head: bytes, body: bytes) -> bool:
        """Write a large body as the client takes it: what is written is copied by the transport."""
        self.transport.write(head)
        view = memoryview(body)
        for start in range(0, len(body), PIECE_BYTES):
            if self.flow.write_paused and not self.disconnected:
                await self.flow.drain()
            if self.disconnected or self.transport.is_closing():
                return False
            self.transport.write(view[start : start + PIECE_BYTES])
        self.connection.finish(self)
        return True

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Write the head of a streamed response."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected or self.transport.is_closing():
            return
        self._has_body = self.method != "HEAD" and status not in _BODILESS
        if self._has_body and not self.is_http_1_0:
            headers = (*headers, (b"transfer-encoding", b"chunked"))
        self._unsent = self._encode_head(status, headers)
        self.response_started = True
        self.connection.loop.call_soon(self._flush)

    async def send(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Write a chunk of a streamed body; wait while the client does not keep up."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        # uvloop raises on a transport that is closed.
        if self.disconnected or self.transport.is_closing():
            return
        if self.response_complete:
            raise RuntimeError("a chunk was sent after the end of the response")
        data, self._unsent = self._unsent, b""
        self.sent_bytes += len(chunk)
        if self._has_body and chunk:
            # HTTP/1.0 knows no chunks: the body ends with the connection.
            data += chunk if self.is_http_1_0 else b"%x\r\n%b\r\n" % (len(chunk), chunk)
        if self._has_body and is_last and not self.is_http_1_0:
            data += b"0\r\n\r\n"
        if data:
            self.transport.write(data)
        if is_last:
            self.connection.finish(self)

    def push(self, encode: Callable[[ValueT], bytes], value: ValueT) -> bool:
        """Write a value as a chunk at the end of this iteration of the event loop.

        Chunks of one iteration are one write, so that a client that wakes up for the first one
        finds the others too.
        """
        if (
            self.flow.write_paused
            or self.disconnected
            or self.transport.is_closing()
            or not self.response_started
            or self.response_complete
            or not self._has_body
        ):
            return False
        chunk = encode(value)
        if chunk:
            if not self._unsent:
                self.connection.loop.call_soon(self._flush)
            self.sent_bytes += len(chunk)
            self._unsent += chunk if self.is_http_1_0 else b"%x\r\n%b\r\n" % (len(chunk), chunk)
        return True

    def _encode_head(self, status: int, headers: Iterable[Header]) -> bytes:
        lines = [*self.connection.server_state.default_headers, *headers]
        if _CLOSE in lines:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(_CLOSE)
        head = STATUS_LINE[status] + b"\r\n".join((*map(_join_header, lines), b"", b""))
        # Response splitting: the only control characters are the line ends written here.
        if head.translate(None, _ALLOWED) != b"\r\n" * (len(lines) + 2):
            raise RuntimeError("a response header contains a control character")
        return head

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, b""
        if unsent and not self.disconnected and not self.transport.is_closing():
            self.transport.write(unsent)
