"""One request over a connection of ours, and its answer, as ASGI has them.

Uvicorn's own does the same in many more steps. The head of an answer whose length is known waits
for the body and leaves with it, in one write; every other head leaves with what there is of its
body, or at once.
"""

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from holdfast.ingress.http.asgi import Header, Scope

HELD_BYTES = 64 * 1024
"""How much of a body is held unread before its client has to wait."""
_BODILESS = (204, 304)
_FIT = bytes(byte for byte in range(256) if (byte >= 0x20 and byte != 0x7F) or byte == 0x09)
"""What a line of a head may have in it: no control character but a tab."""


class Exchange(RequestResponseCycle):
    """Gives the application what came, and writes out what it answers."""

    logger = logging.getLogger("uvicorn.error")
    scope: Any

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        *,
        default_headers: list[Header],
        is_kept_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.default_headers = default_headers
        self.keep_alive = is_kept_alive
        self.waiting_for_100_continue = expects_continue
        self.disconnected = False
        self.more_body = True
        self.response_started = False
        self.response_complete = False
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._has_news = False
        self._news: asyncio.Event | None = None
        self._unsent = b""
        self._left_bytes: int | None = None

    # ── what the connection calls ───────────────────────────────────────────────────────────

    def take(self, piece: bytes) -> None:
        """Take in what came of the body."""
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > HELD_BYTES:
            self.flow.pause_reading()
        self.wake()

    def wake(self) -> None:
        """Have whoever waits look at what happened."""
        self._has_news = True
        if self._news is not None:
            self._news.set()

    # ── what the application calls ──────────────────────────────────────────────────────────

    async def receive(self) -> Any:
        """Return what has come of the body since the last call, or that the client has gone."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        if not (self._has_news or self.disconnected or self.response_complete):
            self.flow.resume_reading()
            if self._news is None:
                self._news = asyncio.Event()
            await self._news.wait()
            self._news.clear()
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        self._has_news = False
        pieces, self._pieces = self._pieces, []
        self._held_bytes = 0
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return {"type": "http.request", "body": body, "more_body": self.more_body}

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
    def is_writable(self) -> bool:
        """Whether a body of any length has begun, and its client is there and keeps up."""
        return (
            not self.flow.write_paused
            and not self.disconnected
            and self.response_started
            and not self.response_complete
            and self._left_bytes is None
        )

    def write(self, body: bytes) -> None:
        """Have a piece of such a body leave before the event loop looks for more.

        What comes in one round of the loop leaves one behind the other: a client that is woken
        by the first finds others there.
        """
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._leave)
        self._unsent += b"%x\r\n%b\r\n" % (len(body), body)

    def _begin(self, status: int, headers: list[Header]) -> None:
        self.response_started = True
        length: int | None = None
        lines = [STATUS_LINE[status]]
        for name, value in (*self.default_headers, *headers):
            lines += (name, b": ", value, b"\r\n")
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value == b"close":
                self.keep_alive = False
        count = 1 + len(self.default_headers) + len(headers)
        if not self.keep_alive and (b"connection", b"close") not in headers:
            lines.append(b"connection: close\r\n")
            count += 1
        if self.scope["method"] == "HEAD" or status in _BODILESS:
            length = 0
        elif length is None:
            lines.append(b"transfer-encoding: chunked\r\n")
            count += 1
        head = b"".join(lines)
        if head.translate(None, _FIT) != b"\r\n" * count:
            raise RuntimeError("a header of the answer has characters that no header may have")
        self._left_bytes = length
        self._unsent = head + b"\r\n"
        if length is None:
            asyncio.get_running_loop().call_soon(self._leave)

    def _leave(self) -> None:
        """Write out what there is."""
        unsent, self._unsent = self._unsent, b""
        if unsent and not self.disconnected:
            self.transport.write(unsent)

    def _go_on(self, body: bytes, *, is_last: bool) -> None:
        left = self._left_bytes
        if left is None:
            unsent, self._unsent = self._unsent, b""
            data = b"%b%x\r\n%b\r\n" % (unsent, len(body), body) if body else unsent
            self.transport.write(data + b"0\r\n\r\n" if is_last else data)
        else:
            if self.scope["method"] == "HEAD":
                body = b""
            self._left_bytes = left = left - len(body)
            if left < 0 or (is_last and left):
                raise RuntimeError("the body of the answer is not as long as its head says")
            if self._unsent:
                self.transport.writelines((self._unsent, body) if body else (self._unsent,))
                self._unsent = b""
            else:
                self.transport.write(body)
        if is_last:
            self.response_complete = True
            self.wake()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
