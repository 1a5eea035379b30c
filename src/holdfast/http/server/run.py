"""Run the HTTP protocol on a listening socket: configuration, start and graceful shutdown."""

import asyncio
import contextlib
import math
import select
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from time import gmtime, monotonic, time
from typing import Protocol

import msgspec

from holdfast.engine.logging import log
from holdfast.http.server.connection import ServerState, WebSocketFactory
from holdfast.http.server.memory_budget import MemoryBudget
from holdfast.http.server.protocol import (
    ConnectionLimits,
    HttpProtocol,
    RequestHandler,
    protocol_class,
)
from holdfast.http.server.websocket import Receive, Scope, Send

FLUSH_SECONDS = 5
"""Time for responses to be written after their turns have ended."""

WAITING_SECONDS = 0.5
"""How long a stop waits for the first request of connections that were just opened."""
QUIET_ROUNDS = 3
"""Rounds of the loop without a new connection after which the listener is closed."""
POLL_SECONDS = 0.1
"""How often a stop looks whether the last connections are closed."""
BACKLOG = 2048
DATE_SECONDS = 1.0
"""How long the Date of responses is used."""
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ServedApplication(RequestHandler, Protocol):
    """An application that answers HTTP requests directly and WebSockets through ASGI."""

    @property
    def body_budget(self) -> MemoryBudget:
        """What its bodies and messages are counted in."""
        ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket connection."""
        ...


class StoppableApplication(ServedApplication, Protocol):
    """An application that can be drained and stopped."""

    def drain(self) -> None:
        """Report not ready, and accept requests as before."""
        ...

    async def stop(self, grace_seconds: float) -> None:
        """Let running turns finish for `grace_seconds`, then interrupt them."""
        ...


class ServerConfig(msgspec.Struct, frozen=True):
    """The configuration of a server."""

    protocol: type[HttpProtocol]
    """The class of its connections, bound to the application."""
    flush_seconds: float
    """Time for connections and their requests to end after the listener was closed."""


def server_config(
    application: ServedApplication,
    limits: ConnectionLimits,
    *,
    body_bytes: int,
    grace_seconds: float,
) -> ServerConfig:
    """Return the configuration of a server for an application."""
    addresses: Counter[str] = Counter()
    return ServerConfig(
        protocol_class(
            application,
            limits,
            addresses,
            _websocket_factory(application, addresses, body_bytes, limits),
        ),
        # Turns get the grace period first; then their responses still have to be written.
        flush_seconds=math.ceil(grace_seconds) + FLUSH_SECONDS,
    )


def _websocket_factory(
    application: ServedApplication,
    addresses: Counter[str],
    body_bytes: int,
    limits: ConnectionLimits,
) -> WebSocketFactory:
    """Return the factory of WebSocket connections.

    Uvicorn is imported for the first one: most gateways have none, and it takes 5 MB.
    """
    factories: list[WebSocketFactory] = []

    def connect(state: ServerState) -> asyncio.Protocol:
        if not factories:
            from holdfast.http.server.uvicorn_websocket import websocket_factory

            factories.append(websocket_factory(application, addresses, body_bytes, limits))
        return factories[0](state)

    return connect


def http_date(seconds: float) -> bytes:
    """Return a time as in a Date header, whatever the locale."""
    year, month, day, hour, minute, second, weekday, *_ = gmtime(seconds)
    return (
        f"{_DAYS[weekday]}, {day:02} {_MONTHS[month - 1]} {year} "
        f"{hour:02}:{minute:02}:{second:02} GMT"
    ).encode()


class Server:
    """Serve until a signal: drain, then stop; a second signal stops at once."""

    def __init__(
        self,
        config: ServerConfig,
        application: StoppableApplication,
        *,
        grace_seconds: float,
        drain_seconds: float = 0.0,
    ) -> None:
        self._protocol = config.protocol
        self._flush_seconds = config.flush_seconds
        self._application = application
        self._grace_seconds = grace_seconds
        self._drain_seconds = drain_seconds
        self.server_state = ServerState()
        self._servers: list[asyncio.Server] = []
        self._exit_requested = asyncio.Event()
        self._is_forced = False
        self._is_stopping = False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._date_timer: asyncio.TimerHandle | None = None

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Serve on listening sockets until a signal, then stop."""
        with self.capture_signals():
            await self.startup(sockets)
            await self._exit_requested.wait()
            await self.shutdown(sockets)

    async def startup(self, sockets: list[socket.socket]) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        self._set_date(loop)
        self._servers = [
            await loop.create_server(
                lambda: self._protocol(self.server_state, loop), sock=listener, backlog=BACKLOG
            )
            for listener in sockets
        ]

    def _set_date(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the Date of the responses of the next second."""
        self.server_state.default_headers = [(b"date", http_date(time()))]
        self._date_timer = loop.call_later(DATE_SECONDS, self._set_date, loop)

    async def shutdown(self, sockets: list[socket.socket]) -> None:
        """Stop accepting, let running turns end or cancel them, then close the connections."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        began = monotonic()
        self._protocol.is_draining = True
        if not self._is_forced:
            await self._serve_waiting(sockets)
        stopping = asyncio.ensure_future(self._application.stop(self._grace_seconds))
        await self._close_connections(sockets)
        if self._is_forced:
            stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        # Requests that were under way when no turn ran any more may have begun one since.
        await self._application.stop(0.0 if self._is_forced else self._grace_seconds)
        if self._date_timer is not None:
            self._date_timer.cancel()
        log.info("serve.drained", ms=round((monotonic() - began) * 1000, 1))

    async def _close_connections(self, sockets: list[socket.socket]) -> None:
        """Close the listeners and idle connections; wait for the others, up to a limit."""
        state = self.server_state
        for server in self._servers:
            server.close()
        for listener in sockets:
            listener.close()
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.sleep(POLL_SECONDS)
        try:
            async with asyncio.timeout(self._flush_seconds):
                while (state.connections or state.tasks) and not self._is_forced:  # noqa: ASYNC110 - of two kinds
                    await asyncio.sleep(POLL_SECONDS)
                for server in self._servers:
                    await server.wait_closed()
        except TimeoutError:
            log.error("serve.requests_cancelled", requests=len(state.tasks))
            for task in state.tasks:
                task.cancel()

    async def _serve_waiting(self, listeners: list[socket.socket]) -> None:
        """Accept the connections that wait in the backlog, and read the first request of each.

        Closing the listener would reset them, and a proxy does not repeat a request that it has
        sent. Without a backlog new ones do not get through: their clients try another replica.
        """
        for listener in listeners:
            listener.listen(0)
        ends_at, quiet_rounds = monotonic() + WAITING_SECONDS, 0
        while quiet_rounds < QUIET_ROUNDS and monotonic() < ends_at:
            has_waiting = any(_is_readable(listener) for listener in listeners)
            is_awaited = any(
                isinstance(connection, HttpProtocol) and connection.awaits_first_request
                for connection in self.server_state.connections
            )
            quiet_rounds = 0 if has_waiting or is_awaited else quiet_rounds + 1
            await asyncio.sleep(0.005 if is_awaited else 0)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT for the length of a block."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        self._is_forced = self._is_stopping
        log.info(
            "serve.stopping",
            signal=number.name,
            drain_seconds=self._drain_seconds,
            grace_seconds=self._grace_seconds,
            is_forced=self._is_forced,
        )
        if self._is_stopping or self._drain_seconds <= 0:
            self._exit_requested.set()
        else:
            # Load balancers see /readyz fail and move on; until then requests still succeed.
            self._application.drain()
            self._protocol.is_draining = True
            loop = asyncio.get_running_loop()
            self._drain_timer = loop.call_later(self._drain_seconds, self._exit_requested.set)
        self._is_stopping = True


def _is_readable(listener: socket.socket) -> bool:
    """Whether a connection waits to be accepted."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    return bool(poll.poll(0))


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket with TCP_NODELAY; the address is part of any error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Head and body may be two writes: Nagle would delay the second until the client's ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise OSError(exc.errno, exc.strerror or str(exc), f"{host}:{port}") from exc
    except BaseException:
        listener.close()
        raise
    return listener
