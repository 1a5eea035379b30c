"""A small HTTP server for platform simulators, with control by the test that started it."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from holdfast.simulator.state.forms import FormFile, read_form


@dataclass
class PlatformCall:
    """One request to a simulated platform."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    send: Callable[[bytes], Awaitable[None]] | None = None

    def form(self) -> tuple[dict[str, Any], dict[str, FormFile]]:
        """Return the fields and files of a multipart form."""
        return read_form(self.headers.get("content-type", ""), self.body)

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; an empty one is one without fields."""
        value = json.loads(self.body or b"{}")
        return value if isinstance(value, dict) else {}


@dataclass
class PlatformAnswer:
    """A reply to a request."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False
    """Whether the connection closes before the reply."""
    takes_effect: bool = False
    """Of a fault: whether the call is done all the same, and only its answer is lost."""


Handler = Callable[[PlatformCall], Awaitable[PlatformAnswer]]
SocketHandler = Callable[[Any, Any, Any], Awaitable[None]]
"""Serves a WebSocket: the ASGI scope, receive and send."""


class PlatformServer:
    """Serves one simulated platform on its own port, in its own thread."""

    def __init__(self, handle: Handler, on_socket: SocketHandler | None = None) -> None:
        self._handle = handle
        self._on_socket = on_socket
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The address to point a channel at."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen; return when connections are accepted. The port stays the same when restarted."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        if not ready.wait(20):
            raise RuntimeError("the platform simulator did not start")

    def _run(self, ready: threading.Event) -> None:
        asyncio.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self.loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            self._application, log_config=None, lifespan="off",
            access_log=False, ws="websockets-sansio",
            interface="asgi3", timeout_graceful_shutdown=1,
        )  # fmt: skip
        # Connections are accepted from here on, before the server's own start.
        listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
        self.port = listener.getsockname()[1]
        server = self._server = uvicorn.Server(config)
        ready.set()
        try:
            await server.serve(sockets=[listener])
        finally:
            listener.close()

    def stop(self) -> None:
        """Stop listening, as a platform that is down."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(10)
            self._server = self._thread = None

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket" and self._on_socket is not None:
            await self._on_socket(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        call = PlatformCall(
            scope["method"], scope["path"], scope["query_string"].decode(), headers, body
        )

        async def stream(piece: bytes) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        async def start_stream(piece: bytes) -> None:
            kind = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": kind})
            call.send = stream
            await stream(piece)

        call.send = start_stream
        answer = await self._handle(call)
        if call.send is stream:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        if answer.is_cut:
            raise ConnectionResetError("cut on purpose")
        content = answer.body
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        sent = [(b"content-type", b"application/json")]
        sent += [(name.encode(), value.encode()) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": sent})
        await send({"type": "http.response.body", "body": content})
