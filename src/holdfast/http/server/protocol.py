"""The HTTP/1.1 server protocol: bounded request heads, errors as JSON, one timer per connection.

It passes requests to the application as `Exchange` values; only WebSocket connections use ASGI.
"""

import asyncio
from collections import Counter
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
import msgspec

from holdfast.engine.clock import RandomIds
from holdfast.engine.logging import log
from holdfast.http.server.connection import (
    STATUS_LINE,
    ClientSocket,
    WebSocketFactory,
    client_network,
)
from holdfast.http.server.errors import error_value
from holdfast.http.server.exchange import MAX_BUFFERED_BYTES, Exchange
from holdfast.http.server.types import Request

_encode = msgspec.json.Encoder().encode
_ids = RandomIds()
MAX_CACHED_NAMES, MAX_CACHED_NAME_BYTES = 512, 64
"""Bounds of the cache of lower-case header names."""


class RequestHandler(Protocol):
    """The application that answers requests."""

    async def serve(self, request: Request) -> None:
        """Answer one request."""
        ...


class HeadTooLarge(Exception):
    """A request head, or its trailers, are larger than `head_bytes`."""


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one client connection; `docs/explanation/limits.md` lists them."""

    head_bytes: int = 64 * 1024
    """Size of a request line with its headers, and of chunked trailers."""
    head_seconds: float = 30.0
    """Time for a request head, and for the first byte of a new connection."""
    body_seconds: float = 5.0
    """Time for a body; what arrives extends it, see `body_bytes_per_second`."""
    body_bytes_per_second: int = 16 * 1024
    """The rate below which a body is given up after `body_seconds`."""
    body_ahead_seconds: float = 30.0
    """How long a body may stop at most, however fast it came before."""
    stall_seconds: float = 60.0
    """A client that accepts less than `STALL_BYTES` of its response meanwhile is disconnected."""
    connections_per_address: int = 1000
    """Open connections of one client address (an IPv6 /64 network counts as one); 0: no limit."""


STALL_BYTES = 8 * 1024
"""What a client has to accept of a response in `stall_seconds`, or all of it."""
LINGER_SECONDS = 2.0
"""How long the input of a rejected client is discarded before its connection is closed."""
CHECK_SECONDS = 5.0
"""How often the deadlines of a connection are checked at least."""
LATE_SECONDS = 1.0
"""A check that comes later than this was held up: the process was stopped, or the machine slept."""


class HttpProtocol(ClientSocket):
    """One client connection."""

    application: RequestHandler
    limits: ConnectionLimits
    addresses: Counter[str]
    """Open connections by client address, shared by all connections of a server."""
    is_draining = False
    """Whether each response closes its connection, so that clients open the next one elsewhere."""
    exchange_class: type[Exchange] = Exchange

    _head_bytes = 0
    """Bytes received since the current head began, without the piece that it began in."""
    _piece_bytes = 0
    """Size of the piece that is being parsed."""
    _max_possible_head = 0
    """Upper bound of the current head's size: the pieces that it came in."""
    _framing_bytes = 0
    """Bytes since the last body byte: chunk headers, extensions and trailers."""
    _trailer_bytes = 0
    _is_in_head = False
    _is_head_too_large = False
    _is_closing = False
    """Whether the last response is written and further input is discarded."""
    _is_upgrading = False
    """Whether the connection is about to become a WebSocket."""
    _reparse_without_upgrade = False
    """Whether the request asks for an upgrade that is declined: it is parsed again without it."""
    _ignore_input = False
    """Whether further bytes are not HTTP requests (after CONNECT, an error or end of input)."""
    _running: Exchange | None = None
    """The exchange whose response is in progress; `cycle` is being received."""
    _idle_since: float | None = None
    _head_since: float | None = None
    _body_deadline = 0.0
    """When the current body is given up, moved forward by what arrives."""
    _body_bytes = 0
    """Body bytes that have not moved the deadline yet."""
    _unsent_bytes = 0
    _stalled_since: float | None = None
    _checked_at = 0.0
    _check_seconds = CHECK_SECONDS
    """How long after the last check the next one is due."""
    _address = ""
    _is_released = False

    # ── called by the event loop ────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection towards its address and start its timer."""
        super().connection_made(transport)
        self._head_since = self._checked_at = self.loop.time()
        self._schedule_check()
        self._address = client_network(self.client[0] if self.client else "")
        self.addresses[self._address] += 1
        limit = self.limits.connections_per_address
        if limit and self.addresses[self._address] > limit:
            message = f"at most {limit} connections per client address are allowed"
            self._reject(429, message, code="too_many_connections")

    @property
    def awaits_first_request(self) -> bool:
        """Whether the connection is open and its client has not sent a request yet."""
        is_new = self.cycle is None and self._idle_since is None
        return is_new and not self._is_closing and not self.transport.is_closing()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, and check that head and framing stay within their limit."""
        if self._ignore_input or self._is_closing:
            return
        if self._idle_since is not None:
            self._idle_since = None
            exchange: Exchange | None = self.cycle
            if exchange is None or not exchange.more_body or self._is_in_head:
                self._head_since = self.loop.time()
        was_in_head = self._is_in_head
        self._piece_bytes = len(data)
        self._framing_bytes += len(data)
        self._max_possible_head += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            # Not a warning: anybody could fill the log with them.
            self.logger.debug("invalid HTTP request")
            self._reject_invalid()
        except httptools.HttpParserUpgrade as upgrade:
            if self._is_upgrading:
                self.handle_websocket_upgrade()
            elif self._reparse_without_upgrade:
                self._reparse(data[upgrade.args[0] :])
        else:
            if was_in_head or self._framing_bytes > self.limits.head_bytes:
                self._check_sizes(was_in_head=was_in_head)

    def _check_sizes(self, *, was_in_head: bool) -> None:
        """Reject a head, chunk extension or trailer that is too long, over all its pieces."""
        if was_in_head and self._is_in_head:
            self._head_bytes += self._piece_bytes
            if self._head_bytes > self.limits.head_bytes:
                self._reject_head()
        elif self._framing_bytes > self.limits.head_bytes and self._is_receiving_body():
            # `on_header` sees only complete trailers.
            self._reject_head()

    def eof_received(self) -> bool:
        """Return whether to keep the connection: a half-closed client still gets its response.

        A client that closes while it receives a stream is taken for gone: a half-close and a close
        look the same, and the stop button of chat clients closes the connection.
        """
        running = self._running
        if self._is_closing or running is None or running.more_body or running.response_started:
            return False
        self._ignore_input = True
        running.half_close()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every exchange of the connection that its client is gone."""
        self.connections.discard(self)
        self._release_address()
        for exchange in (self._running, self.cycle, *self.pipeline):
            if exchange is not None:
                exchange.disconnected = exchange.disconnected or not exchange.response_complete
                exchange.notify()
        # Break the reference cycle: an exchange refers to its connection.
        self.cycle = self._running = None
        self.pipeline.clear()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self._unset_keepalive_if_required()
        self.parser = None

    def _release_address(self) -> None:
        if self._address and not self._is_released:
            self._is_released = True
            self.addresses[self._address] -= 1
            if not self.addresses[self._address]:
                del self.addresses[self._address]

    # ── called by the parser ────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """Start a new request head."""
        self._is_in_head = True
        self._head_since = self.loop.time()
        self._head_bytes = 0
        self._max_possible_head = self._piece_bytes
        self.target.clear()
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header under its lower-case name; drop trailers, which nothing reads."""
        if not self._is_in_head:
            self._trailer_bytes += len(name) + len(value)
            if self._trailer_bytes > self.limits.head_bytes:
                self._is_head_too_large = True
                raise HeadTooLarge
            return
        # Clients repeat the same few names: convert each spelling once.
        name = _LOWER_CASE[name] if name in _LOWER_CASE else _lower(name)
        self.headers += ((name, value),)

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the one in progress (pipelining)."""
        self._is_in_head = False
        self.url = bytes(self.target)
        if self._max_possible_head > self.limits.head_bytes:
            self._measure_head()
        self._head_since = None
        self._body_deadline = self.loop.time() + self.limits.body_seconds
        self._body_bytes, self.flow.paused_seconds = 0, 0.0
        self._framing_bytes = self._trailer_bytes = 0
        parser = self.parser
        path, query, raw_path = _read_url(self.url)
        method = parser.get_method().decode("ascii")
        if parser.should_upgrade() and self._is_upgrade(method):
            return
        exchange = self.exchange_class(method, path, query, self.headers)
        exchange.connection, exchange.transport, exchange.flow = self, self.transport, self.flow
        exchange.raw_path = raw_path
        exchange.is_http_1_0 = parser.get_http_version() == "1.0"
        if (
            self.is_draining
            or self._ignore_input
            or not parser.should_keep_alive()
            or exchange.is_http_1_0
        ):
            exchange.keep_alive = False
        if exchange.by_name.get(b"expect", b"").lower() == b"100-continue":
            exchange.waiting_for_100_continue = True
        previous: Exchange | None = self.cycle
        self.cycle = exchange
        if previous is None or previous.response_complete:
            self._start(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft(exchange)

    def _is_upgrade(self, method: str) -> bool:
        """Decide about an Upgrade or CONNECT; return whether there is no request to start yet.

        The parser treats an upgrade as the end of the request. If we decline it, the body would be
        parsed as further requests (request smuggling), so the request is parsed again without it.
        """
        if method == "CONNECT":
            self._ignore_input = True
            return False
        names = {name for name, _ in self.headers}
        has_body = b"transfer-encoding" in names or b"content-length" in names
        self._is_upgrading = (
            method == "GET"
            and not has_body
            # A response in progress would be written into the WebSocket.
            and self._running is None
            and _is_handshake(self.headers)
            and self._should_upgrade()
        )
        self._reparse_without_upgrade = not self._is_upgrading
        self.scope = {"method": method, "headers": self.headers}
        return True

    def _reparse(self, rest: bytes) -> None:
        """Parse the same head again without its upgrade headers, then the bytes after it."""
        previous = self.parser
        options = b",".join(value for name, value in self.headers if name == b"connection")
        lines = [
            b"%b %b HTTP/%b"
            % (previous.get_method(), self.url, previous.get_http_version().encode()),
            *(b"%b: %b" % field for field in self.headers if field[0] not in _UPGRADE_HEADERS),
        ]
        if b"close" in {option.strip().lower() for option in options.split(b",")}:
            lines.append(b"connection: close")
        self._reparse_without_upgrade = False
        self.parser = self.new_parser()
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _measure_head(self) -> None:
        # A header is followed by ": " and a line end: many short ones count as they were sent.
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limits.head_bytes:
            self._is_head_too_large = True
            raise HeadTooLarge

    def _start(self, exchange: Exchange) -> None:
        self._running = exchange
        task = self.loop.create_task(self.application.serve(exchange))
        self.tasks.add(task)
        task.add_done_callback(exchange.on_task_done)

    def on_body(self, body: bytes) -> None:
        """Buffer body bytes for the exchange, unless the response is already complete."""
        self._framing_bytes = 0
        self._body_bytes += len(body)
        exchange: Exchange = self.cycle
        if self._is_upgrading or self._reparse_without_upgrade or exchange.response_complete:
            return
        if exchange.pieces is None:
            exchange.pieces = [body]
        else:
            exchange.pieces.append(body)
        exchange.buffered_bytes += len(body)
        if exchange.buffered_bytes > MAX_BUFFERED_BYTES:
            self.flow.pause_reading()
        if exchange.changed is not None:
            exchange.changed.set()

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        exchange: Exchange = self.cycle
        if self._is_upgrading or self._reparse_without_upgrade:
            return
        exchange.more_body = False
        if exchange.pieces is None:
            exchange.pieces = []
        if exchange.changed is not None:
            exchange.changed.set()
        if exchange.response_complete:
            self._idle_since = self.loop.time()

    def _is_receiving_body(self) -> bool:
        exchange: Exchange | None = self.cycle
        return exchange is not None and exchange.more_body and not self._is_in_head

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection to the WebSocket protocol, which counts it from now on."""
        self._unset_keepalive_if_required()
        self._release_address()
        super().handle_websocket_upgrade()

    # ── between two requests ────────────────────────────────────────────────────────────────

    def finish(self, exchange: Exchange) -> None:
        """Start the next pipelined request, or wait for one."""
        exchange.response_complete = True
        if exchange.changed is not None:
            exchange.changed.set()
        self._running = None
        self.server_state.total_requests += 1
        if not exchange.keep_alive or (self._ignore_input and not self.pipeline):
            self._close()
        if self._is_closing or self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            following = self.pipeline.pop()
            following.is_half_closed = exchange.is_half_closed
            self._start(following)
            return
        self._idle_since = self.loop.time()

    def abort(self, exchange: Exchange) -> None:
        """Close the connection; answer 500 first if no response has started."""
        if exchange.response_started or exchange.disconnected:
            self.transport.close()
        else:
            self._reject(500, "internal server error", code="internal_error")

    # ── time limits ─────────────────────────────────────────────────────────────────────────

    def _schedule_check(self) -> None:
        """Check the deadlines again in a while: one timer serves the whole connection."""
        limits = self.limits
        self._check_seconds = min(
            CHECK_SECONDS,
            limits.head_seconds,
            limits.body_seconds,
            limits.stall_seconds,
            self.timeout_keep_alive,
        )
        self.timeout_keep_alive_task = self.loop.call_later(
            self._check_seconds, self.check_deadlines
        )

    def check_deadlines(self) -> None:
        """Close the connection if its client is idle, too slow to send, or does not read."""
        now = self.loop.time()
        elapsed, self._checked_at = now - self._checked_at, now
        if elapsed > self._check_seconds + LATE_SECONDS:
            # What the client sent meanwhile may not have been read yet.
            self._schedule_check()
        elif self._is_stalled(now):
            self.transport.abort()
        else:
            self._schedule_check()
            if not self.transport.is_closing():
                self._check_client(now, elapsed)

    def _check_client(self, now: float, elapsed: float) -> None:
        """Close the connection if its client is idle or too slow to send."""
        limits = self.limits
        if self._idle_since is not None:
            if now >= self._idle_since + self.timeout_keep_alive:
                self.transport.close()
        elif self._head_since is not None:
            if now >= self._head_since + limits.head_seconds:
                self._time_out_head()
        elif self._is_receiving_body():
            if self.cycle.waiting_for_100_continue:
                self._body_deadline += elapsed
            self._extend_body(now)
            if now >= self._body_deadline:
                self._reject(408, "the request body came too slowly", code="request_timeout")

    def _extend_body(self, now: float) -> None:
        """Move the deadline of a body by what has arrived, and by pauses of our own."""
        limits, received = self.limits, self._body_bytes
        self._body_deadline += self.flow.take_paused_seconds()
        self._body_bytes = 0
        latest = max(self._body_deadline, now + limits.body_ahead_seconds)
        self._body_deadline = min(
            self._body_deadline + received / limits.body_bytes_per_second, latest
        )

    def _time_out_head(self) -> None:
        if self._is_in_head:
            self._reject(408, "the request head came too slowly", code="request_timeout")
        elif self._running is None:
            self.transport.close()

    def _is_stalled(self, now: float) -> bool:
        """Return whether the client has accepted next to nothing for `stall_seconds`."""
        unsent = self.transport.get_write_buffer_size()
        has_taken = self.flow.was_resumed or unsent + STALL_BYTES <= self._unsent_bytes
        if not unsent:
            self._stalled_since = None
        elif self._stalled_since is None or has_taken:
            self._stalled_since, self._unsent_bytes = now, unsent
        self.flow.was_resumed = False
        return (
            self._stalled_since is not None
            and now >= self._stalled_since + self.limits.stall_seconds
        )

    # ── rejecting requests ──────────────────────────────────────────────────────────────────

    def _reject_invalid(self) -> None:
        """Reject a request that cannot be parsed; a head over the limit ends up here as well."""
        if self._is_head_too_large:
            self._reject_head()
        else:
            self._reject(400, "the request is not valid HTTP", code="invalid_http")

    def _reject_head(self) -> None:
        limit = self.limits.head_bytes
        message = f"request line and headers, or trailers, have at most {limit} bytes"
        self._reject(431, message, code="headers_too_large")

    def _reject(self, status: int, message: str, *, code: str) -> None:
        """Answer with an error and close the connection.

        Bytes after a complete request must not spoil its response: then the input is ignored
        and the connection is closed after the responses in progress.
        """
        running = self._running
        if running is not None and not running.more_body and status != 500:
            self._ignore_input = True
            if self.cycle is not running and self.cycle in self.pipeline and self.cycle.more_body:
                self.pipeline.remove(self.cycle)
            return
        self._is_closing = True
        for exchange in (running, self.cycle):
            if exchange is not None and not exchange.response_complete:
                exchange.disconnected = True
                exchange.notify()
        if running is None or not running.response_started:
            body, request_id = _encode(error_value(status, message, code=code)), _ids.new("req")
            head = (
                b"%bcontent-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n"
                b"connection: close\r\n\r\n" % (STATUS_LINE[status], len(body), request_id.encode())
            )
            log.info("request.refused", request_id=request_id, status=status, code=code)
            self.transport.write(head + body)
        self._close()

    def _close(self) -> None:
        """Close the connection; if the client may still be sending, discard its input for a while.

        Closing a socket with unread input resets the connection, and the client would lose the
        response that tells it what is wrong.
        """
        self._is_closing = True
        is_sending = self._is_in_head or self._is_receiving_body()
        if not is_sending or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write_eof()
        self._unset_keepalive_if_required()
        end = self.transport.abort
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_SECONDS, end)


_UPGRADE_HEADERS = frozenset({b"upgrade", b"connection", b"http2-settings"})
_LOWER_CASE: dict[bytes, bytes] = {}


def _is_handshake(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the WebSocket library can read the handshake; it fails on other bytes."""
    return all(value.isascii() for name, value in headers if name.startswith(b"sec-websocket-"))


def _lower(name: bytes) -> bytes:
    lowered = name.lower()
    if len(_LOWER_CASE) < MAX_CACHED_NAMES and len(name) <= MAX_CACHED_NAME_BYTES:
        _LOWER_CASE[name] = lowered
    return lowered


@lru_cache(maxsize=256)
def _read_url(url: bytes) -> tuple[str, bytes, str]:
    """Return the decoded path, the raw query and the raw path of a URL."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.query or b"", path


def protocol_class(
    application: RequestHandler,
    limits: ConnectionLimits,
    addresses: Counter[str] | None = None,
    websocket: WebSocketFactory | None = None,
) -> type[HttpProtocol]:
    """Return a protocol class that is bound to an application and its limits."""
    attributes: dict[str, Any] = {
        "application": application,
        "limits": limits,
        "addresses": Counter() if addresses is None else addresses,
        "websocket": websocket,
    }
    return type("HttpProtocol", (HttpProtocol,), attributes)
