"""WebSocket connections by uvicorn's protocol; imported with the first of them.

A message that is being received counts towards the body bytes of the process, like a body, and has
to come as fast as one.
"""

import asyncio
import logging
from collections import Counter, deque
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from holdfast.core.errors import HoldfastError
from holdfast.http.server.connection import ServerState, WebSocketFactory, client_network
from holdfast.http.server.errors import RequestTimeout, error_event, reply_for_error
from holdfast.http.server.memory_budget import UNCOUNTED_BYTES, Holding, MemoryBudget
from holdfast.http.server.protocol import LINGER_SECONDS, ConnectionLimits
from holdfast.http.server.types import STEP_BYTES, BodyTooLarge
from holdfast.http.server.websocket import PARTY

FRAGMENT_BYTES = 128
"""What a fragment of a message takes beside its content."""
TRY_AGAIN_LATER, TOO_BIG = 1013, 1009
_encode = msgspec.json.Encoder().encode


class CountedWebSocket(WebSocketsSansIOProtocol):
    """A connection that is counted by its address, and its messages by their party."""

    addresses: Counter[str]
    budget: MemoryBudget
    limits: ConnectionLimits
    body_bytes: int

    _network = ""
    _held: Holding | None = None
    """What the message that is being received counts."""
    _fragment_bytes = 0
    _waiting: asyncio.Task[None] | None = None
    """Waits for room for the rest of a message; nothing is read meanwhile."""
    _timer: asyncio.TimerHandle | None = None
    _received_bytes = 0
    _seconds_ahead = 0.0
    """How long the message may stop, by what has arrived of it."""
    _is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        super().connection_made(transport)
        self._complete: deque[Holding | None] = deque()
        """The holdings of the messages that the application has not received yet."""
        peer = transport.get_extra_info("peername")
        self._network = client_network(str(peer[0]) if peer else "")
        self.app_state = {PARTY: f"address {self._network}"}
        self.addresses[self._network] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """Return what the connection held."""
        super().connection_lost(exc)
        self._end_message()
        if self._waiting is not None:
            self._waiting.cancel()
        while self._complete:
            if (held := self._complete.popleft()) is not None:
                held.close()
        self.addresses[self._network] -= 1
        if not self.addresses[self._network]:
            del self.addresses[self._network]

    # ── receiving ───────────────────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, and count the message that they are part of."""
        if self._is_refused:
            return
        self._received_bytes += len(data)
        super().data_received(data)
        # The library gathers a whole frame, and the base class the frames of a message.
        pending = len(self.conn.reader.buffer) + self._fragment_bytes
        if pending <= UNCOUNTED_BYTES or self.close_sent or self.disconnected:
            return
        if pending > self.body_bytes + STEP_BYTES:
            self._refuse(BodyTooLarge(f"a message has at most {self.body_bytes} bytes"), TOO_BIG)
        elif self._waiting is None:
            self._count(pending)

    def _count(self, pending: int) -> None:
        if self._held is None:
            self._held = self.budget.open(self.scope["state"][PARTY])
            self._received_bytes, self._seconds_ahead = 0, self.limits.body_seconds
            self._timer = self.loop.call_later(self.limits.body_seconds, self._check_rate)
        if pending <= self._held.size or self._held.try_grow(size := pending + STEP_BYTES):
            return
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()
        self._waiting = self.loop.create_task(self._wait(self._held, size))

    async def _wait(self, held: Holding, size: int) -> None:
        """Go on reading once there is room for more of the message."""
        try:
            await held.grow(size)
        except HoldfastError as exc:
            self._refuse(exc, TRY_AGAIN_LATER)
        finally:
            self._waiting = None
        self._resume()

    def _resume(self) -> None:
        is_idle = self._waiting is None and self.queue.empty()
        if self.read_paused and is_idle and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    def _check_rate(self) -> None:
        limits = self.limits
        if self._waiting is None and not self.read_paused:
            self._seconds_ahead += self._received_bytes / limits.body_bytes_per_second
            self._seconds_ahead -= limits.body_seconds
        self._seconds_ahead = min(self._seconds_ahead, limits.body_ahead_seconds)
        self._received_bytes = 0
        if self._seconds_ahead < 0:
            self._refuse(RequestTimeout("the message came too slowly"), TRY_AGAIN_LATER)
        else:
            self._timer = self.loop.call_later(limits.body_seconds, self._check_rate)

    def handle_text(self, event: Any) -> None:
        """Count the first fragment of a message."""
        self._fragment_bytes = len(event.data) + FRAGMENT_BYTES
        super().handle_text(event)

    def handle_bytes(self, event: Any) -> None:
        """Count the first fragment of a message."""
        self._fragment_bytes = len(event.data) + FRAGMENT_BYTES
        super().handle_bytes(event)

    def handle_cont(self, event: Any) -> None:
        """Count another fragment."""
        self._fragment_bytes += len(event.data) + FRAGMENT_BYTES
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        """Pass a message on, with what it counts."""
        before = self.queue.qsize()
        super().send_receive_event_to_app()
        held, self._held = self._held, None
        self._end_message()
        if self.queue.qsize() > before and not self.close_sent:
            self._complete.append(held)
        elif held is not None:
            held.close()

    async def receive(self) -> Any:
        """Return the next event; a message owns its holding."""
        message: dict[str, Any] = dict(await self.queue.get())
        if message["type"] == "websocket.receive":
            message["held"] = self._complete.popleft() if self._complete else None
        self._resume()
        return message

    def _end_message(self) -> None:
        self._fragment_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held is not None:
            self._held.close()
            self._held = None

    def _refuse(self, error: HoldfastError, code: int) -> None:
        """Say why the message cannot be received, drop it, and close the connection."""
        self._is_refused = True
        self.conn.reader.discard()
        self.frames.clear()
        self._end_message()
        if self.close_sent or self.transport.is_closing():
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})
        try:
            self.conn.send_text(_encode(error_event(reply_for_error(error))))
            self.conn.send_close(code, error.code)
            self.transport.write(b"".join(self.conn.data_to_send()))
        except InvalidState:
            self.transport.close()  # before the handshake
        self.close_sent = True
        self._waiting = None
        self._resume()
        # The client reads the error only if its own bytes do not reset the connection.
        self.close_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


def websocket_factory(
    application: Any, addresses: Counter[str], body_bytes: int, limits: ConnectionLimits
) -> WebSocketFactory:
    """Return what makes a WebSocket connection of `application`, counted in `addresses`."""
    attributes = {
        "addresses": addresses,
        "budget": application.body_budget,
        "limits": limits,
        "body_bytes": body_bytes,
    }
    connection = type("CountedWebSocket", (CountedWebSocket,), attributes)
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        # Callers are identified by API key; forwarded addresses are not trusted.
        proxy_headers=False,
        lifespan="off",
        ws=connection,
        ws_max_size=body_bytes,
        # A few compressed bytes can become a message of any size before it is counted.
        ws_per_message_deflate=False,
    )
    logging.getLogger("uvicorn.error").addFilter(_without_client_errors)

    def connect(state: ServerState) -> asyncio.Protocol:
        protocol: asyncio.Protocol = connection(config, state, {})
        return protocol

    return connect


def _without_client_errors(record: logging.LogRecord) -> bool:
    """Drop reports of refused handshakes, and tracebacks of text that is not UTF-8.

    Clients cause both. A refused handshake is in the access log.
    """
    if "without completing handshake" in str(record.msg):
        return False
    if record.exc_info and "Invalid UTF-8" in str(record.msg):
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
