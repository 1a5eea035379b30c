"""Serve an application on a loopback socket with the server protocol of `holdfast serve`."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from holdfast.http.app import Application
from holdfast.http.request.auth import DEFAULT_BODY_BYTES
from holdfast.http.server.connection import ServerState
from holdfast.http.server.exchange import Exchange
from holdfast.http.server.memory_budget import MemoryBudget
from holdfast.http.server.protocol import ConnectionLimits
from holdfast.http.server.run import open_listener, server_config
from holdfast.http.server.types import Request

Address = tuple[str, int]
SEND_BUFFER_BYTES = 128 * 1024
"""Small and fixed, so that a stalled client soon causes backpressure.

Less than two segments of the loopback device would wait for its delayed acknowledgements.
"""
GRACE_SECONDS = 5.0


class HttpServer:
    """Serves an application until `stop`; tracks the clients whose requests are in progress."""

    def __init__(self, application: Application, limits: ConnectionLimits) -> None:
        self.application = application
        self.state = ServerState()
        self.protocol = server_config(
            self,
            limits,
            body_bytes=DEFAULT_BODY_BYTES,
            grace_seconds=GRACE_SECONDS,
        ).protocol
        self._in_progress: dict[Address, asyncio.Event] = {}
        self._server: asyncio.Server | None = None
        self.address: Address = ("127.0.0.1", 0)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.address[1]}"

    @property
    def body_budget(self) -> MemoryBudget:
        """What bodies and messages are counted in."""
        return self.application.body_budget

    async def serve(self, request: Request) -> None:
        """Answer one request."""
        address = cast(Exchange, request).transport.get_extra_info("peername")[:2]
        with self._noted(address) as _:
            await self.application.serve(request)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Serve one WebSocket connection."""
        with self._noted(tuple(scope["client"])) as _:
            await self.application(scope, receive, send)

    def _noted(self, address: Address) -> "_InProgress":
        return _InProgress(self._in_progress, address)

    async def until_done(self, address: Address) -> None:
        """Wait until the request of the client at this address has ended on the server."""
        event = self._in_progress.get(address)
        if event is not None:
            await event.wait()

    async def start(self) -> None:
        """Listen on a free port."""
        listener = open_listener("127.0.0.1", 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.address = listener.getsockname()[:2]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: self.protocol(self.state, loop), sock=listener
        )

    async def stop(self) -> None:
        """Stop the application, close every connection and wait for its requests."""
        assert self._server is not None
        self._server.close()
        await self.application.stop(GRACE_SECONDS)
        for connection in list(self.state.connections):
            transport = cast(Any, connection).transport
            if transport is not None:
                transport.abort()
        while self.state.tasks:
            await asyncio.gather(*self.state.tasks, return_exceptions=True)
            await asyncio.sleep(0)  # from Python 3.12 on, waiting for what is done lets nothing run
        await self._server.wait_closed()


class _InProgress:
    def __init__(self, in_progress: dict[Address, asyncio.Event], address: Address) -> None:
        self._in_progress = in_progress
        self._address = address
        self._event = asyncio.Event()

    def __enter__(self) -> None:
        self._in_progress[self._address] = self._event

    def __exit__(self, *_: object) -> None:
        if self._in_progress.get(self._address) is self._event:
            del self._in_progress[self._address]
        self._event.set()


@asynccontextmanager
async def serving(
    application: Application, limits: ConnectionLimits | None = None
) -> AsyncIterator[HttpServer]:
    """Serve an application for the length of a block."""
    server = HttpServer(application, limits or ConnectionLimits())
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
