"""WebSocket connections over ASGI: frames in, frames out, refused like any other request."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from holdfast.core.decisions.api_keys import NotAllowed
from holdfast.http.server.types import Header, Receive, Reply, Request, Scope, Send

NORMAL = 1000
POLICY = 1008
TOO_BIG = 1009


class ForeignOrigin(NotAllowed):
    """A web page of another site asks; browsers let it, so we must not."""

    code = "origin_not_allowed"


def check_origin(request: Request, allowed: Sequence[str]) -> None:
    """Refuse web pages of other sites: a handshake is not held to the rules of other requests."""
    origin = request.header(b"origin")
    if origin is None or origin in allowed:
        return
    if urlsplit(origin).netloc.lower() != (request.header(b"host") or "").lower():
        raise ForeignOrigin("web pages of other sites may not connect")


class Socket:
    """One connection; `receive` answers `None` once the client has gone."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._can_answer = "websocket.http.response" in (scope.get("extensions") or {})
        self._is_gone = False

    async def accept(self, headers: Iterable[Header] = ()) -> bool:
        """Take the connection; `False` if the client has gone before."""
        message = await self._receive()
        if message["type"] != "websocket.connect":
            return False
        await self._send({"type": "websocket.accept", "headers": list(headers)})
        return True

    async def refuse(self, reply: Reply) -> None:
        """Answer the handshake as a plain request."""
        await self._receive()
        if not self._can_answer:
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
            self._is_gone = True
            return None
        text = message.get("text")
        return text.encode() if text is not None else message.get("bytes") or b""

    async def send(self, frame: bytes) -> None:
        """Send a frame of text; waits while the client does not read."""
        if self._is_gone:
            return
        try:
            await self._send({"type": "websocket.send", "text": frame.decode()})
        except OSError:
            self._is_gone = True

    async def close(self, code: int = NORMAL) -> None:
        """End the connection."""
        if not self._is_gone:
            self._is_gone = True
            await self._send({"type": "websocket.close", "code": code})
