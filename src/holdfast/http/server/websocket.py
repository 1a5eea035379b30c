"""WebSocket connections, which uvicorn passes as ASGI messages; only this module uses ASGI."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.http.server.memory_budget import Holding
from holdfast.http.server.types import Header, Reply

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

PARTY = "party"
"""Where the state of a connection names whose memory its messages count towards."""
NORMAL = 1000
POLICY = 1008


class WebSocket:
    """One WebSocket connection; `receive` returns `None` once the client has disconnected."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._can_reply = "websocket.http.response" in (scope.get("extensions") or {})
        self._is_closed = False
        self._state: dict[str, str] = scope.get("state") or {}
        self._held: Holding | None = None
        self.received_bytes = 0
        self.sent_bytes = 0
        self.close_code: int | None = None

    @property
    def party(self) -> str:
        """Whose memory the messages count towards; at first the address, later the tenant."""
        return self._state.get(PARTY, "address ")

    @party.setter
    def party(self, party: str) -> None:
        self._state[PARTY] = party

    def take_holding(self) -> Holding | None:
        """Return what the last frame counts already; the caller closes it."""
        held, self._held = self._held, None
        return held

    async def accept(self, headers: Iterable[Header] = ()) -> bool:
        """Accept the handshake; return False if the client has already disconnected."""
        message = await self._receive()
        if message["type"] != "websocket.connect":
            return False
        await self._send({"type": "websocket.accept", "headers": list(headers)})
        return True

    async def reject(self, reply: Reply) -> None:
        """Answer the handshake with an HTTP response."""
        await self._receive()
        if not self._can_reply:
            await self._send({"type": "websocket.close", "code": POLICY})
            return
        await self._send(
            {
                "type": "websocket.http.response.start",
                "status": reply.status,
                "headers": [*reply.headers, (b"content-length", str(len(reply.body)).encode())],
            }
        )
        await self._send({"type": "websocket.http.response.body", "body": reply.body})

    async def receive(self) -> bytes | None:
        """Return the next frame."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            self._is_closed = True
            self.close_code = self.close_code or message.get("code")
            return None
        self._held = message.get("held")
        text = message.get("text")
        frame: bytes = text.encode() if text is not None else message.get("bytes") or b""
        self.received_bytes += len(frame)
        return frame

    async def send(self, frame: bytes) -> None:
        """Send a text frame; wait while the client does not read."""
        if self._is_closed:
            return
        try:
            await self._send({"type": "websocket.send", "text": frame.decode()})
            self.sent_bytes += len(frame)
        except OSError:
            self._is_closed = True

    async def close(self, code: int = NORMAL) -> None:
        """Close the connection."""
        if not self._is_closed:
            self._is_closed = True
            self.close_code = code
            await self._send({"type": "websocket.close", "code": code})
