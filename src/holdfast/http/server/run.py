"""Run the HTTP protocol on a listening socket: configuration, start and graceful shutdown."""

import asyncio
import contextlib
import logging
import math
import select
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from time import monotonic
from typing import Any, Protocol

import uvicorn

from holdfast.engine.logging import log
from holdfast.http.server.protocol import (
    ConnectionLimits,
    HttpProtocol,
    RequestHandler,
    client_network,
    protocol_class,
)
from holdfast.http.server.websocket import Receive, Scope, Send

FLUSH_SECONDS = 5
"""Time for responses to be written after their turns have ended."""

WAITING_SECONDS = 0.5
"""How long a stop waits for the first request of connections that were just opened."""
QUIET_ROUNDS = 3
"""Rounds of the loop without a new connection after which the listener is closed."""


class ServedApplication(RequestHandler, Protocol):
    """An application that answers HTTP requests directly and WebSockets through ASGI."""

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


def server_config(
    application: ServedApplication,
    limits: ConnectionLimits,
    *,
    body_bytes: int,
    grace_seconds: float,
) -> uvicorn.Config:
    """Return uvicorn's configuration for an application."""
    addresses: Counter[str] = Counter()
    return uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        # Callers are identified by API key; forwarded addresses are not trusted.
        proxy_headers=False,
        server_header=False,
        lifespan="off",
        http=protocol_class(application, limits, addresses),
        ws=_websocket_factory(addresses),
        ws_max_size=body_bytes,
        # Turns get the grace period first; then their responses still have to be written.
        timeout_graceful_shutdown=math.ceil(grace_seconds) + FLUSH_SECONDS,
    )


def _websocket_factory(addresses: Counter[str]) -> Any:
    """Return what makes a WebSocket connection.

    The protocol is imported for the first one: most gateways have none, and it takes 2 MB.
    """
    found: list[Any] = []
    logging.getLogger("uvicorn.error").addFilter(_without_decoding_traceback)

    def connect(**options: Any) -> asyncio.Protocol:
        if not found:
            found.append(_websocket_class(addresses))
        protocol: asyncio.Protocol = found[0](**options)
        return protocol

    return connect


def _without_decoding_traceback(record: logging.LogRecord) -> bool:
    """Take the traceback from uvicorn's report of text that is not UTF-8: clients cause it."""
    if record.exc_info and "Invalid UTF-8" in str(record.msg):
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def _websocket_class(addresses: Counter[str]) -> type[asyncio.Protocol]:
    """Return uvicorn's WebSocket protocol, counting its connections by client address."""
    from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol as WebSocketProtocol

    class CountedWebSocket(WebSocketProtocol):  # type: ignore[misc,valid-type]
        _network = ""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            peer = transport.get_extra_info("peername")
            self._network = client_network(str(peer[0]) if peer else "")
            addresses[self._network] += 1

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            addresses[self._network] -= 1
            if not addresses[self._network]:
                del addresses[self._network]

    return CountedWebSocket


class Server(uvicorn.Server):
    """Uvicorn with our own signal handling: drain, then stop; a second signal stops at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        application: StoppableApplication,
        *,
        grace_seconds: float,
        drain_seconds: float = 0.0,
    ) -> None:
        super().__init__(config)
        assert isinstance(config.http, type)
        assert issubclass(config.http, HttpProtocol)
        self._protocol: type[HttpProtocol] = config.http
        self._application = application
        self._grace_seconds = grace_seconds
        self._drain_seconds = drain_seconds
        self._is_stopping = False
        self._drain_timer: asyncio.TimerHandle | None = None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, let running turns end or cancel them, then close the connections."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        began = monotonic()
        self._protocol.is_draining = True
        if not self.force_exit:
            await self._serve_waiting(sockets or [])
        stopping = asyncio.ensure_future(self._application.stop(self._grace_seconds))
        await super().shutdown(sockets)
        if self.force_exit:
            stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        # Requests that were under way when no turn ran any more may have begun one since.
        await self._application.stop(0.0 if self.force_exit else self._grace_seconds)
        log.info("serve.drained", ms=round((monotonic() - began) * 1000, 1))

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
        self.force_exit = self._is_stopping
        log.info(
            "serve.stopping",
            signal=number.name,
            drain_seconds=self._drain_seconds,
            grace_seconds=self._grace_seconds,
            is_forced=self.force_exit,
        )
        if self._is_stopping or self._drain_seconds <= 0:
            self._exit()
        else:
            # Load balancers see /readyz fail and move on; until then requests still succeed.
            self._application.drain()
            self._protocol.is_draining = True
            loop = asyncio.get_running_loop()
            self._drain_timer = loop.call_later(self._drain_seconds, self._exit)
        self._is_stopping = True

    def _exit(self) -> None:
        self.should_exit = True


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
        listener.listen(2048)
    except OSError as exc:
        listener.close()
        raise OSError(exc.errno, exc.strerror or str(exc), f"{host}:{port}") from exc
    except BaseException:
        listener.close()
        raise
    return listener
