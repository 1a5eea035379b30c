"""The HTTP/1.1 server protocol: bounded request heads, errors as JSON, one timer per connection.

Uvicorn's protocol accepts heads of any size, rejects invalid requests in plain text and sets a
timer for every response. This subclass changes all three. It passes requests to the application
as `Exchange` values; only WebSocket connections use ASGI.
"""

from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.http.server.errors import error_value
from holdfast.http.server.exchange import Exchange
from holdfast.http.server.types import Request

_encode = msgspec.json.Encoder().encode
MAX_CACHED_NAMES, MAX_CACHED_NAME_BYTES = 512, 64
"""Bounds of the cache of lower-case header names."""


class Application(Protocol):
    """The application that answers requests."""

    async def serve(self, request: Request) -> None:
        """Answer one request."""
        ...


class HeadTooLarge(Exception):
    """The request head is larger than `max_head_bytes`."""


class HttpProtocol(HttpToolsProtocol):
    """One client connection."""

    application: Application
    max_head_bytes: int
    exchange_class: type[Exchange] = Exchange

    cycle: Any
    parser: Any
    scope: Any
    pipeline: Any

    _head_bytes = 0
    """Bytes received since the current head began, without the piece that it began in."""
    _piece_bytes = 0
    """Size of the piece that is being parsed."""
    _max_possible_head = 0
    """Upper bound of the current head's size: the pieces that it came in."""
    _is_in_head = False
    _is_head_too_large = False
    _is_rejected = False
    _is_upgrading = False
    """Whether the connection is about to become a WebSocket."""
    _reparse_without_upgrade = False
    """Whether the request asks for an upgrade that is declined: it is parsed again without it."""
    _ignore_input = False
    """Whether further bytes are not HTTP requests (after CONNECT)."""
    _idle_since: float | None = None

    # ── called by the event loop ────────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        """Parse the bytes; count them towards the head while the head is incomplete."""
        if self._ignore_input:
            return
        self._idle_since = None
        was_in_head = self._is_in_head
        self._piece_bytes = len(data)
        if was_in_head:
            self._max_possible_head += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")
            return
        except httptools.HttpParserUpgrade as upgrade:
            if self._is_upgrading:
                self.handle_websocket_upgrade()
            elif self._reparse_without_upgrade:
                self._reparse(data[upgrade.args[0] :])
                return
        if not (was_in_head and self._is_in_head) or self._is_rejected:
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.max_head_bytes:
            self._reject_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the current exchange that its client is gone."""
        self.connections.discard(self)
        exchange: Exchange | None = self.cycle
        if exchange is not None:  # no request has arrived yet
            if not exchange.response_complete:
                exchange.disconnected = True
            exchange.notify()
            # Break the reference cycle: an exchange refers to its connection.
            self.cycle = None
            self.pipeline.clear()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self._unset_keepalive_if_required()
        self.parser = None

    # ── called by the parser ────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """Start a new request head."""
        self._is_in_head = True
        self._head_bytes = 0
        self._max_possible_head = self._piece_bytes
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header under its lower-case name."""
        # Clients repeat the same few names: convert each spelling once.
        name = _LOWER_CASE[name] if name in _LOWER_CASE else _lower(name)
        self.headers += ((name, value),)

    def on_headers_complete(self) -> None:
        """Start the request, or queue it behind the one in progress (pipelining)."""
        self._is_in_head = False
        if self._max_possible_head > self.max_head_bytes:
            self._measure_head()
        parser = self.parser
        path, query = _read_url(self.url)
        method = parser.get_method().decode("ascii")
        if parser.should_upgrade() and self._is_upgrade(method):
            return
        exchange = self.exchange_class(method, path, query, self.headers)
        exchange.connection, exchange.transport, exchange.flow = self, self.transport, self.flow
        if (
            not parser.should_keep_alive()
            or parser.get_http_version() == "1.0"
            or self._ignore_input
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
        self._is_upgrading = method == "GET" and not has_body and self._should_upgrade()
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
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _measure_head(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_head_bytes:
            self._is_head_too_large = True
            raise HeadTooLarge

    def _start(self, exchange: Exchange) -> None:
        task = self.loop.create_task(self.application.serve(exchange))
        self.tasks.add(task)
        task.add_done_callback(exchange.on_task_done)

    def on_body(self, body: bytes) -> None:
        """Pass body bytes on, unless the response is already complete."""
        exchange = self.cycle
        if not (self._is_upgrading or self._reparse_without_upgrade or exchange.response_complete):
            exchange.feed_body(body)

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        exchange = self.cycle
        if not (self._is_upgrading or self._reparse_without_upgrade or exchange.response_complete):
            exchange.end_body()

    # ── between two requests ────────────────────────────────────────────────────────────────

    def finish(self, exchange: Exchange) -> None:
        """Start the next pipelined request, or wait for one with one idle timer per connection."""
        exchange.response_complete = True
        exchange.notify()
        self.server_state.total_requests += 1
        if not exchange.keep_alive:
            self.transport.close()
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start(self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._schedule_idle_check(self.timeout_keep_alive)

    def abort(self, exchange: Exchange) -> None:
        """Close the connection; answer 500 first if no response has started."""
        if exchange.response_started or exchange.disconnected:
            self.transport.close()
        else:
            self._reject(500, "internal server error", code="internal_error")

    def _schedule_idle_check(self, seconds: float) -> None:
        check = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, check)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was idle for `timeout_keep_alive` seconds."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None or self.transport.is_closing():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._schedule_idle_check(left)
        else:
            self.transport.close()

    # ── rejecting requests ──────────────────────────────────────────────────────────────────

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - replaced by a JSON error
        """Reject a request that cannot be parsed; a head over the limit ends up here as well."""
        if self._is_head_too_large:
            self._reject_head()
        else:
            self._reject(400, "the request is not valid HTTP", code="invalid_http")

    def _reject_head(self) -> None:
        message = f"request line and headers have at most {self.max_head_bytes} bytes"
        self._reject(431, message, code="headers_too_large")

    def _reject(self, status: int, message: str, *, code: str) -> None:
        self._is_rejected = True
        body = _encode(error_value(status, message, code=code))
        head = (
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n" % (STATUS_LINE[status], len(body))
        )
        self.transport.write(head + body)
        self.transport.close()


_UPGRADE_HEADERS = frozenset({b"upgrade", b"connection", b"http2-settings"})
_LOWER_CASE: dict[bytes, bytes] = {}


def _lower(name: bytes) -> bytes:
    lowered = name.lower()
    if len(_LOWER_CASE) < MAX_CACHED_NAMES and len(name) <= MAX_CACHED_NAME_BYTES:
        _LOWER_CASE[name] = lowered
    return lowered


@lru_cache(maxsize=256)
def _read_url(url: bytes) -> tuple[str, bytes]:
    """Return the decoded path and the raw query of a URL."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.query or b""


def protocol_class(application: Application, max_head_bytes: int) -> type[HttpProtocol]:
    """Return a protocol class that is bound to an application and a head limit."""
    attributes: dict[str, Any] = {"application": application, "max_head_bytes": max_head_bytes}
    return type("HttpProtocol", (HttpProtocol,), attributes)
