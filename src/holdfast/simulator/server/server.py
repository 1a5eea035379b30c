"""The server: uvicorn's protocol on a listening socket that can be closed and reopened."""

import asyncio
import contextlib
import logging
import socket
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from holdfast.simulator.delivery.http_outlet import reset
from holdfast.simulator.server.app import SimulatorApplication
from holdfast.simulator.server.control import Control, is_control
from holdfast.simulator.state.scenario import Scenario
from holdfast.simulator.state.world import World

KEEP_ALIVE_SECONDS = 600
STOP_SECONDS = 2.0
_SILENT = logging.getLogger("holdfast.simulator.connections")
"""Broken connections are intended here: uvicorn must not log them."""
_SILENT.setLevel(logging.CRITICAL + 1)


class _Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which passes its transport to the application."""

    simulator: "SimulatorServer"
    is_control = False

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _SILENT

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        if self.simulator.refuses_next():
            reset(transport)

    def on_headers_complete(self) -> None:
        scope = cast("dict[str, Any]", self.scope)
        scope["simulator.transport"] = self.transport
        self.is_control = is_control(self.url.partition(b"?")[0].decode("latin-1"))
        super().on_headers_complete()


class _SocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, which passes its transport to the application."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _SILENT

    async def run_asgi(self) -> None:
        cast("dict[str, Any]", self.scope)["simulator.transport"] = self.transport
        await super().run_asgi()


class SimulatorServer:
    """A simulator on a port. `start` returns when it accepts connections."""

    def __init__(self, scenario: Scenario, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.world = World(scenario)
        self._host = host
        self.port = port
        self._refusals = 0
        self._application = SimulatorApplication(self.world, Control(self.world, self))
        self._state = ServerState()
        self._listening: asyncio.Server | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The address to point a client at, without /v1."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Listen; port 0 chooses a free port."""
        self._config = uvicorn.Config(
            cast("Any", self._application),
            http=_Protocol,
            ws=_SocketProtocol,
            log_config=None,
            proxy_headers=False,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ws_ping_interval=None,
        )
        self._config.load()
        await self.open()

    async def open(self) -> None:
        """Listen again on the same port; do nothing when already listening."""
        self._cancel_reopening()
        if self._listening is not None:
            return
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._host, self.port))
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._protocol, sock=listener, backlog=2048)

    def _protocol(self) -> asyncio.Protocol:
        protocol = _Protocol(self._config, self._state, {}, _loop=asyncio.get_running_loop())
        protocol.simulator = self
        return protocol

    def refuse(self, connections: int) -> None:
        """Reset the next `connections` connections, and close all idle ones now."""
        self._refusals = connections
        self._drop_idle()

    def refuses_next(self) -> bool:
        """Return whether to refuse the new connection, and count it."""
        if self._refusals <= 0:
            return False
        self._refusals -= 1
        return True

    async def shut(self, seconds: float | None) -> None:
        """Stop listening for `seconds`, or until `open`; control connections stay."""
        self._cancel_reopening()
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self._drop_idle()
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._reopening = loop.call_later(seconds, self._reopen)

    def _cancel_reopening(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    def _reopen(self) -> None:
        task = asyncio.get_running_loop().create_task(self.open())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _drop_idle(self) -> None:
        for connection in list(self._state.connections):
            if isinstance(connection, _Protocol) and not connection.is_control:
                is_idle = connection.cycle is None or connection.cycle.response_complete
                if is_idle:
                    connection.transport.close()

    async def stop(self) -> None:
        """Stop listening, release all held calls, and close all connections."""
        self._cancel_reopening()
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self.world.barriers.release_hanging()
        self.world.barriers.clear()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._drain()
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    async def _drain(self) -> None:
        tasks = set(self._state.tasks) | self._tasks
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS)
        for task in late:
            task.cancel()
        if late:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(late)
