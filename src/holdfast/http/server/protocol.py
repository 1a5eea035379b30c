"""The wire below HTTP: heads that are bounded, and refusals of what is no HTTP in the one shape.

Uvicorn reads a head of any length, refuses in plain text, and sets a timer for every answer; this
is its protocol with all three mended. The application is given each request as it is, and not in
the words of ASGI, which only WebSocket connections speak here.
"""

from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from holdfast.http.server.errors import problem_value
from holdfast.http.server.exchange import Exchange
from holdfast.http.server.types import Request

_encode = msgspec.json.Encoder().encode
MOST_NAMES, MOST_NAME_BYTES = 512, 64
"""How many names of headers are remembered, and how long each is at most."""


class Application(Protocol):
    """Who answers requests."""

    async def serve(self, request: Request) -> None:
        """Answer one."""
        ...


class HeadTooLong(Exception):
    """More came than a head may have."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection; a request's path and headers have a length that they do not go beyond."""

    application: Application
    max_head_bytes: int

    cycle: Any
    parser: Any
    scope: Any
    pipeline: Any

    _came_bytes = 0
    """What came since the head that is being read began, without the piece it began in."""
    _piece_bytes = 0
    """How long the piece is that is being read."""
    _most_bytes = 0
    """What the head that is being read has at most: the pieces it came in."""
    _is_in_head = False
    _is_head_too_long = False
    _is_refused = False
    _is_upgrading = False
    """Whether the connection is about to speak something else than HTTP."""
    _is_declining = False
    """Whether it was asked to, and will not: the request is read anew, without that wish."""
    _is_deaf = False
    """Whether what comes now is no request, whatever it looks like."""
    _idle_since: float | None = None

    # ── what the event loop calls ───────────────────────────────────────────────────────────

    def data_received(self, data: bytes) -> None:
        """Read on; what came of a head that has not ended yet counts, whatever it will be."""
        if self._is_deaf:
            return
        self._idle_since = None
        was_in_head = self._is_in_head
        self._piece_bytes = len(data)
        if was_in_head:
            self._most_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")
            return
        except httptools.HttpParserUpgrade as wish:
            if self._is_upgrading:
                self.handle_websocket_upgrade()
            elif self._is_declining:
                self._read_without_upgrade(data[wish.args[0] :])
                return
        if not (was_in_head and self._is_in_head) or self._is_refused:
            return
        self._came_bytes += len(data)
        if self._came_bytes > self.max_head_bytes:
            self._refuse_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or we have."""
        self.connections.discard(self)
        exchange: Exchange | None = self.cycle
        if exchange is not None:  # there is none before the first request
            if not exchange.response_complete:
                exchange.disconnected = True
            if exchange.news is not None:
                exchange.news.set()
            # Nothing is left in a circle: an exchange knows its connection.
            self.cycle = None
            self.pipeline.clear()
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        self._unset_keepalive_if_required()
        self.parser = None

    # ── what the parser calls ───────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        """Begin with a new request's head."""
        self._is_in_head = True
        self._came_bytes = 0
        self._most_bytes = self._piece_bytes
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a whole header."""
        # Clients send the same few with every request: their names are lowered once.
        name = _LOWERED[name] if name in _LOWERED else _lowered(name)
        self.headers += ((name, value),)

    def on_headers_complete(self) -> None:
        """Go on to what the request asks for."""
        self._is_in_head = False
        if self._most_bytes > self.max_head_bytes:
            self._measure_head()
        parser = self.parser
        path, query = _read_url(self.url)
        method = parser.get_method().decode("ascii")
        if parser.should_upgrade() and self._is_diverted(method):
            return
        exchange = Exchange(method, path, query, self.headers)
        exchange.connection, exchange.transport, exchange.flow = self, self.transport, self.flow
        if not parser.should_keep_alive() or parser.get_http_version() == "1.0" or self._is_deaf:
            exchange.keep_alive = False
        if exchange.by_name.get(b"expect", b"").lower() == b"100-continue":
            exchange.waiting_for_100_continue = True
        before: Exchange | None = self.cycle
        self.cycle = exchange
        if before is None or before.response_complete:
            self._start(exchange)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft(exchange)

    def _is_diverted(self, method: str) -> bool:
        """Whether this is no request yet: the parser takes a wish to upgrade for the end of one.

        Its body would be read as requests of their own, with what a proxy lets nobody send.
        """
        if method == "CONNECT":
            self._is_deaf = True
            return False
        names = {name for name, _ in self.headers}
        has_body = b"transfer-encoding" in names or b"content-length" in names
        self._is_upgrading = method == "GET" and not has_body and self._should_upgrade()
        self._is_declining = not self._is_upgrading
        self.scope = {"method": method, "headers": self.headers}
        return True

    def _read_without_upgrade(self, rest: bytes) -> None:
        """Read the same head again as one that wishes for nothing else, and what is behind it."""
        asked = self.parser
        wishes = b",".join(value for name, value in self.headers if name == b"connection")
        lines = [
            b"%b %b HTTP/%b" % (asked.get_method(), self.url, asked.get_http_version().encode()),
            *(b"%b: %b" % field for field in self.headers if field[0] not in _OF_UPGRADES),
        ]
        if b"close" in {wish.strip().lower() for wish in wishes.split(b",")}:
            lines.append(b"connection: close")
        self._is_declining = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as for the first
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _measure_head(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.max_head_bytes:
            self._is_head_too_long = True
            raise HeadTooLong

    def _start(self, exchange: Exchange) -> None:
        task = self.loop.create_task(self.application.serve(exchange))
        self.tasks.add(task)
        task.add_done_callback(exchange.ended)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; nobody wants what comes behind the answer."""
        exchange = self.cycle
        if not (self._is_upgrading or self._is_declining or exchange.response_complete):
            exchange.take(body)

    def on_message_complete(self) -> None:
        """The request is all there."""
        exchange = self.cycle
        if not (self._is_upgrading or self._is_declining or exchange.response_complete):
            exchange.end_body()

    # ── between two requests ────────────────────────────────────────────────────────────────

    def finish(self, exchange: Exchange) -> None:
        """Go on with the next request, or wait for one: one timer serves a whole connection."""
        exchange.response_complete = True
        if exchange.news is not None:
            exchange.news.set()
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
            self._look_again_in(self.timeout_keep_alive)

    def break_off(self, exchange: Exchange) -> None:
        """Close the connection; who has seen nothing of an answer is told that there is none."""
        if exchange.response_started or exchange.disconnected:
            self.transport.close()
        else:
            self._refuse(500, "something broke on our side", code="internal_error")

    def _look_again_in(self, seconds: float) -> None:
        look = self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, look)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that nobody has used for long."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None or self.transport.is_closing():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._look_again_in(left)
        else:
            self.transport.close()

    # ── refusals ────────────────────────────────────────────────────────────────────────────

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the shape says it better
        """Refuse what cannot be read; the parser says so of a head that was too long as well."""
        if self._is_head_too_long:
            self._refuse_head()
        else:
            self._refuse(400, "the request is not valid HTTP", code="invalid_http")

    def _refuse_head(self) -> None:
        limit = f"the headers of a request have at most {self.max_head_bytes} bytes"
        self._refuse(431, limit, code="headers_too_large")

    def _refuse(self, status: int, message: str, *, code: str) -> None:
        self._is_refused = True
        body = _encode(problem_value(status, message, code=code))
        head = (
            b"%bcontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n" % (STATUS_LINE[status], len(body))
        )
        self.transport.write(head + body)
        self.transport.close()


_OF_UPGRADES = frozenset({b"upgrade", b"connection", b"http2-settings"})
_LOWERED: dict[bytes, bytes] = {}


def _lowered(name: bytes) -> bytes:
    lowered = name.lower()
    if len(_LOWERED) < MOST_NAMES and len(name) <= MOST_NAME_BYTES:
        _LOWERED[name] = lowered
    return lowered


@lru_cache(maxsize=256)
def _read_url(url: bytes) -> tuple[str, bytes]:
    """Return the path of a URL, and the query."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.query or b""


def bounded_protocol(application: Application, max_head_bytes: int) -> type[BoundedProtocol]:
    """Return the protocol that brings an application requests, with heads of so many bytes."""
    made: dict[str, Any] = {"application": application, "max_head_bytes": max_head_bytes}
    return type("BoundedProtocol", (BoundedProtocol,), made)
