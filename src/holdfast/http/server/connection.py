"""The base of client connections: socket, flow control, shared state and WebSocket upgrade.

`HttpProtocol` adds HTTP.
"""

import asyncio
import ipaddress
import logging
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools

KEEP_ALIVE_SECONDS = 75
"""How long a connection without a request is kept open.

Longer than the 60 seconds after which nginx and most load balancers close theirs: if the gateway
closed first, a request that is on its way would be lost.
"""
_log = logging.getLogger("holdfast.server")


def _status_line(status: int) -> bytes:
    phrase = HTTPStatus(status).phrase if status in _KNOWN else ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


_KNOWN = frozenset(HTTPStatus)
STATUS_LINE = {status: _status_line(status) for status in range(100, 600)}


class ServerState:
    """State shared by the connections of a server."""

    def __init__(self) -> None:
        self.total_requests = 0
        self.connections: set[Any] = set()
        """Open connections, of HTTP and of WebSockets."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.default_headers: list[tuple[bytes, bytes]] = []
        """Headers of every response."""


WebSocketFactory = Callable[[ServerState], asyncio.Protocol]


class FlowControl:
    """Pauses reading while a body is not consumed, and writers while the client does not read."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.read_paused = False
        self._paused_at = 0.0
        self.paused_seconds = 0.0
        self.write_paused = False
        self.was_resumed = False
        """Whether the client has taken most of what waited, since this was last reset."""
        self._is_writable = asyncio.Event()
        self._is_writable.set()

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""
        await self._is_writable.wait()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        if not self.read_paused:
            self.read_paused, self._paused_at = True, time.monotonic()
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self.read_paused:
            self.paused_seconds += time.monotonic() - self._paused_at
            self.read_paused = False
            self._transport.resume_reading()

    def take_paused_seconds(self) -> float:
        """Return how long reading was paused since the last call."""
        seconds, self.paused_seconds = self.paused_seconds, 0.0
        if self.read_paused:
            now = time.monotonic()
            seconds, self._paused_at = seconds + now - self._paused_at, now
        return seconds

    def pause_writing(self) -> None:
        """Make writers wait."""
        self.write_paused = True
        self._is_writable.clear()

    def resume_writing(self) -> None:
        """Wake the writers."""
        self.write_paused, self.was_resumed = False, True
        self._is_writable.set()


class ClientSocket(asyncio.Protocol):
    """One client connection, without HTTP."""

    websocket: WebSocketFactory
    """Returns the protocol that a connection continues with after an upgrade."""
    timeout_keep_alive: float = KEEP_ALIVE_SECONDS
    timeout_keep_alive_task: asyncio.TimerHandle | None = None
    """The timer of the connection's deadlines."""
    transport: asyncio.Transport
    flow: FlowControl
    client: tuple[str, int] | None = None
    cycle: Any = None
    """The exchange that is being received, or was last."""
    url = b""
    """The request's target, from the moment that its head is complete."""
    headers: list[tuple[bytes, bytes]]
    scope: Any = None
    logger = _log

    def __init__(
        self, server_state: ServerState, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.server_state = server_state
        self.connections = server_state.connections
        self.tasks = server_state.tasks
        self.pipeline: deque[Any] = deque()
        self.target = bytearray()
        # The parser calls this for each piece of a target, without a Python call.
        self.on_url = self.target.extend
        self.parser: Any = self.new_parser()

    def new_parser(self) -> httptools.HttpRequestParser:
        """Return a parser that calls this connection.

        The rest of a request whose response closed the connection is not an error: it comes with
        requests that were sent without waiting for responses.
        """
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to serve the client."""
        self.connections.add(self)
        self.transport = transport
        self.flow = FlowControl(transport)
        self.client = _peer(transport)

    def pause_writing(self) -> None:
        """Note that the client does not keep up."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has read enough."""
        self.flow.resume_writing()

    def shutdown(self) -> None:
        """Close the connection, after the response in progress."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _unset_keepalive_if_required(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _should_upgrade(self) -> bool:
        """Return whether the request asks for a WebSocket."""
        options: list[bytes] = []
        upgrade = None
        for name, value in self.headers:
            if name == b"connection":
                options = [option.strip().lower() for option in value.split(b",")]
            elif name == b"upgrade":
                upgrade = value.lower()
        return upgrade == b"websocket" and b"upgrade" in options

    def handle_websocket_upgrade(self) -> None:
        """Continue with the WebSocket protocol, which reads the request again."""
        self.connections.discard(self)
        lines = [
            b"%b %b HTTP/1.1" % (self.scope["method"].encode(), self.url),
            *(b"%b: %b" % header for header in self.headers),
        ]
        protocol = type(self).websocket(self.server_state)
        protocol.connection_made(self.transport)
        protocol.data_received(b"\r\n".join((*lines, b"", b"")))
        self.transport.set_protocol(protocol)


def _peer(transport: asyncio.Transport) -> tuple[str, int] | None:
    """Return the client's address, or None if it has already disconnected."""
    peer = transport.get_extra_info("peername")
    return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else None


def client_network(address: str) -> str:
    """Return what connections are counted by: an IPv4 address, or the /64 of an IPv6 address."""
    if ":" not in address or "." in address:
        return address.rpartition(":")[2]
    return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
