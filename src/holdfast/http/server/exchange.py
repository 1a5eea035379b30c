"""One request over a connection of ours, and its answer.

A whole answer leaves in one write; the head of any other leaves with what there is of its body,
or at once.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from holdfast.http.server.types import ClientLeft, Header, Request, Wire

HELD_BYTES = 64 * 1024
"""How much of a body is held unread before its client has to wait."""
_CLOSE = (b"connection", b"close")
_BODILESS = (204, 304)
_FIT = bytes(byte for byte in range(256) if (byte >= 0x20 and byte != 0x7F) or byte == 0x09)
"""What a line of a head may have in it: no control character but a tab."""
_line = b": ".join
_log = logging.getLogger("uvicorn.error")


class Connection(Protocol):
    """Where requests come from, one after the other."""

    loop: asyncio.AbstractEventLoop
    """Kept, because finding the running one is a call of the system."""
    server_state: ServerState
    tasks: set[asyncio.Task[None]]

    def finish(self, exchange: "Exchange") -> None:
        """Go on with what comes behind an exchange whose answer has been written."""
        ...

    def break_off(self, exchange: "Exchange") -> None:
        """Leave nobody waiting for the rest of an answer, or for all of it."""
        ...


class Exchange(Request):
    """Gives the application what came, and writes out what it answers."""

    connection: Connection
    transport: asyncio.Transport
    flow: FlowControl
    keep_alive = True
    waiting_for_100_continue = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    news: asyncio.Event | None = None
    """Set when something happens, for whoever waits for that."""
    _held_bytes = 0
    _pieces: list[bytes] | None = None
    """What of the body nobody has been told of; none at its end."""
    _unsent = b""
    _has_body = True

    # ── what the connection calls ───────────────────────────────────────────────────────────

    def take(self, piece: bytes) -> None:
        """Take in what came of the body."""
        if self._pieces is None:
            self._pieces = [piece]
        else:
            self._pieces.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > HELD_BYTES:
            self.flow.pause_reading()
        if self.news is not None:
            self.news.set()

    def end_body(self) -> None:
        """All of the body has come."""
        self.more_body = False
        if self._pieces is None:
            self._pieces = []
        if self.news is not None:
            self.news.set()

    def ended(self, task: asyncio.Task[None]) -> None:
        """See what came of the application's work: a client must not wait for what never comes."""
        self.connection.tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if task.cancelled() or failure is not None:
            _log.error("a request broke", exc_info=failure)
        elif self.response_complete or self.disconnected:
            return
        else:
            _log.error("a request was left without the end of its answer")
        self.connection.break_off(self)

    # ── what the application calls ──────────────────────────────────────────────────────────

    async def receive(self) -> tuple[bytes, bool]:
        """Return what has come of the body since the last call, and whether there is more."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        while not (self.disconnected or self.response_complete):
            pieces = self._pieces
            if pieces is not None:
                self._pieces, self._held_bytes = None, 0
                return pieces[0] if len(pieces) == 1 else b"".join(pieces), self.more_body
            self.flow.resume_reading()
            if self.news is None:
                self.news = asyncio.Event()
            await self.news.wait()
            self.news.clear()
        raise ClientLeft

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Write out a whole answer, in one piece."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        length = (b"content-length", b"%d" % len(body))
        head = self._write_head(status, (*headers, length))
        self.response_started = True
        self.transport.write(head if self.method == "HEAD" else head + body)
        self.connection.finish(self)

    async def send(self, message: Any) -> None:
        """Write out a head, or a piece of the body."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._begin(message["status"], message["headers"])
        elif not self.response_complete:
            self._go_on(message["body"], is_last=not message.get("more_body", False))
        else:
            raise RuntimeError(f"{message['type']} was sent behind the end of the answer")

    @property
    def wire(self) -> Wire:
        """What the pieces of an answer can be written to at once."""
        return self

    @property
    def is_writable(self) -> bool:
        """Whether a body of any length has begun, and its client is there and keeps up."""
        return (
            not self.flow.write_paused
            and not self.disconnected
            and self.response_started
            and not self.response_complete
            and self._has_body
        )

    def write(self, body: bytes) -> None:
        """Have a piece of such a body leave before the event loop looks for more.

        What comes in one round of the loop leaves one behind the other: a client that is woken
        by the first finds others there.
        """
        if not self._unsent:
            self.connection.loop.call_soon(self._leave)
        self.sent_bytes += len(body)
        self._unsent += b"%x\r\n%b\r\n" % (len(body), body)

    def _begin(self, status: int, headers: Sequence[Header]) -> None:
        chunked = ((b"transfer-encoding", b"chunked"),)
        self._has_body = self.method != "HEAD" and status not in _BODILESS
        self._unsent = self._write_head(status, (*headers, *chunked) if self._has_body else headers)
        self.response_started = True
        self.connection.loop.call_soon(self._leave)

    def _write_head(self, status: int, headers: Iterable[Header]) -> bytes:
        lines = [*self.connection.server_state.default_headers, *headers]
        if _CLOSE in lines:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(_CLOSE)
        head = STATUS_LINE[status] + b"\r\n".join((*map(_line, lines), b"", b""))
        if head.translate(None, _FIT) != b"\r\n" * (len(lines) + 2):
            raise RuntimeError("a header of the answer has characters that no header may have")
        return head

    def _leave(self) -> None:
        """Write out what there is."""
        unsent, self._unsent = self._unsent, b""
        if unsent and not self.disconnected:
            self.transport.write(unsent)

    def _go_on(self, body: bytes, *, is_last: bool) -> None:
        unsent, self._unsent = self._unsent, b""
        self.sent_bytes += len(body)
        if self._has_body:
            data = b"%b%x\r\n%b\r\n" % (unsent, len(body), body) if body else unsent
            self.transport.write(data + b"0\r\n\r\n" if is_last else data)
        elif unsent:
            self.transport.write(unsent)
        if is_last:
            self.connection.finish(self)
