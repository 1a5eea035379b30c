"""The HTTP client for upstreams: pooled connections, limits, and one exchange at a time.

A pooled connection may turn out to be closed when it is used again. If no part of a response has
arrived, a request without side effects is sent again on another connection. Any other request may
have been processed: it fails, and the caller decides.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.ports.provider import ByteSink
from holdfast.ports.request_context import current_request
from holdfast.providers.errors import broken
from holdfast.providers.http.answer_budget import ANSWERS, HeldAnswer
from holdfast.providers.http.connection import Disconnected, UpstreamConnection
from holdfast.providers.http.proxy import Proxy, open_tunnel
from holdfast.providers.settings import TimeoutSettings

MAX_STALE_CONNECTIONS = 3
"""How many pooled connections may turn out to be closed before a new one is opened."""
POOLED_SECONDS = 60.0
"""How long an idle connection stays in the pool."""
DISCARD_SECONDS = 1.0
"""How long the end of a stream may take to arrive after its last event."""
FRESH_SECONDS = 1.0
"""How long a connection may have been idle to be used for a request that cannot be repeated."""
MAX_CACHED_HEADS = 256
MAX_BODY_BYTES = 64 * 1024 * 1024
"""The limit of a body that is read as a whole, after decompression."""
INFLATE_STEP_BYTES = 64 * 1024
"""How many bytes a compressed body is inflated to at a time."""
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HAS_BODY = frozenset({"POST", "PUT", "PATCH"})
_PORTS = {"http": 80, "https": 443}
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One complete request."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: Sequence[bytes] | None = None
    """The body in pieces, which are joined only when they are written to the socket."""
    may_repeat: bool = False
    """Whether the request may be sent twice although it is a POST, because it has no side
    effects."""


class HttpAnswer(Protocol):
    """A response whose head has arrived."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names in lower case."""
        ...

    async def read(self) -> bytes:
        """Return the whole body."""
        ...

    async def copy_to(self, sink: ByteSink) -> None:
        """Write the body to `sink` as it arrives; raise if it is cut off."""
        ...


class ServerAddress(NamedTuple):
    """The server of a connection."""

    host: str
    port: int
    is_tls: bool


@lru_cache(maxsize=512)
def _parse_url(url: str) -> tuple[ServerAddress, str, str]:
    """Return a URL's origin, Host header and request target; path and query stay as written."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or _PORTS["https" if is_tls else "http"]
    host = parts.hostname or ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ServerAddress(host, port, is_tls), parts.netloc.rpartition("@")[2], target


class _CachedHead(NamedTuple):
    """The serialized head that requests to one URL with the same headers share."""

    headers: dict[str, str]
    origin: ServerAddress
    head: bytes


def _serialize_head(request: HttpRequest, proxy: Proxy | None) -> _CachedHead:
    origin, host, target = _parse_url(request.url)
    if proxy is not None and not origin.is_tls:
        target = f"http://{host}{target}"
    lines = [f"{request.method} {target} HTTP/1.1", f"host: {host}", "accept-encoding: identity"]
    if proxy is not None and not origin.is_tls and proxy.authorization is not None:
        lines.append(f"proxy-authorization: {proxy.authorization}")
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise broken("a header for the upstream contains a line break", "upstream_bad_request")
    head = (text + "\r\n").encode("utf-8", "surrogateescape")
    return _CachedHead(request.headers, origin, head)


class PooledClient:
    """The client of one upstream, with its connection pool and its limits."""

    def __init__(
        self,
        timeouts: TimeoutSettings | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        self.timeouts = timeouts or TimeoutSettings()
        self._idle: dict[ServerAddress, list[UpstreamConnection]] = {}
        self._all: set[UpstreamConnection] = set()
        self._expiry: asyncio.TimerHandle | None = None
        """Closes idle connections; set while there are any."""
        self._heads: dict[tuple[str, str], _CachedHead] = {}
        self._tls = tls
        self._proxy = proxy

    async def close(self) -> None:
        """Close every connection."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for connection in self._all:
            connection.abort()
        self._all.clear()
        self._idle.clear()
        # An aborted transport is closed in the next iteration of the loop.
        await asyncio.sleep(0)

    @asynccontextmanager
    async def exchange(self, request: HttpRequest) -> AsyncIterator["HttpExchange"]:
        """Send the request and yield its response; leaving the block frees the connection.

        Every failure of the connection is a `ProviderFailure`.
        """
        answer = await self.open(request)
        is_failed = True
        try:
            yield answer
            is_failed = False
        finally:
            answer.leave(is_failed=is_failed)

    async def open(self, request: HttpRequest) -> "HttpExchange":
        """Send the request and return its response as soon as its head has arrived.

        Afterwards either `take_whole` returns the body, or the caller must call `leave`.
        """
        origin, pieces = self.serialize(request)
        is_repeatable = request.may_repeat or request.method in _SAFE
        for attempts_left in range(MAX_STALE_CONNECTIONS, -1, -1):
            pooled = self.take_idle(origin, is_repeatable) if attempts_left else None
            connection = pooled or await self.connect(origin)
            connection.send(request.method, pieces)
            try:
                while not connection.has_head:
                    await connection.wait_for_data(self.timeouts.first_byte_seconds)
                inflater = None
                if connection.may_be_encoded:
                    inflater = _inflater(connection.headers.get("content-encoding", ""))
                return HttpExchange(self, connection, origin, connection.status, inflater)
            except Disconnected:
                self.drop(connection)
                if pooled is None or not is_repeatable or not connection.is_untouched:
                    raise broken(
                        "the upstream closed the connection without an answer",
                        "upstream_disconnected",
                    ) from None
            except TimeoutError as exc:
                self.drop(connection)
                raise broken(
                    f"no answer from the upstream within {self.timeouts.first_byte_seconds:g} s",
                    "upstream_first_byte_timeout",
                    status=504,
                ) from exc
            except BaseException:
                self.drop(connection)
                raise
        raise AssertionError("the last attempt returns or raises")

    def serialize(self, request: HttpRequest) -> tuple[ServerAddress, list[bytes]]:
        """Return the server of a request and the bytes to send."""
        key = (request.method, request.url)
        cached = self._heads.get(key)
        if cached is None or cached.headers != request.headers:
            if len(self._heads) >= MAX_CACHED_HEADS:
                self._heads.clear()
            cached = self._heads[key] = _serialize_head(request, self._proxy)
        _, origin, head = cached
        context = current_request.get()
        if context is not None:
            # Not part of the cached head, because these headers differ for every request.
            head += b"x-request-id: %b\r\n" % context.request_id.encode()
            if context.traceparent is not None:
                head += b"traceparent: %b\r\n" % context.traceparent.encode()
        body = request.body
        if body is None and request.method not in _HAS_BODY:
            return origin, [head, b"\r\n"]
        size = sum(map(len, body)) if body else 0
        return origin, [b"%bcontent-length: %d\r\n\r\n" % (head, size), *(body or ())]

    def take_idle(self, origin: ServerAddress, is_repeatable: bool) -> UpstreamConnection | None:
        """Return a pooled connection that is recent enough for a request, or None."""
        idle = self._idle.get(origin)
        if not idle:
            return None
        now = time.monotonic()
        oldest = now - POOLED_SECONDS
        while idle:
            if not is_repeatable and idle[-1].idle_since < now - FRESH_SECONDS:
                # The longer it was idle, the more likely the server is about to close it.
                return None
            connection = idle.pop()
            if connection.is_open and connection.idle_since > oldest:
                return connection
            self.drop(connection)
        return None

    def pool(self, connection: UpstreamConnection, origin: ServerAddress) -> None:
        """Pool a connection whose response was read to its end."""
        connection.idle_since = time.monotonic()
        if origin not in self._idle:
            self._idle[origin] = []
        self._idle[origin].append(connection)
        if self._expiry is None:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_later(POOLED_SECONDS, self._drop_expired)

    def _drop_expired(self) -> None:
        """Close the connections that were idle for too long, also if no more requests come."""
        self._expiry = None
        now = time.monotonic()
        for origin, idle in list(self._idle.items()):
            while idle and (not idle[0].is_open or idle[0].idle_since <= now - POOLED_SECONDS):
                self.drop(idle.pop(0))
            if not idle:
                del self._idle[origin]
        if self._idle:
            oldest = min(idle[0].idle_since for idle in self._idle.values())
            seconds = oldest + POOLED_SECONDS - now
            self._expiry = asyncio.get_running_loop().call_later(seconds, self._drop_expired)

    def pool_after_rest(self, connection: UpstreamConnection, origin: ServerAddress) -> None:
        """Pool a connection once the short rest of its response has arrived."""

        def finish() -> None:
            if connection.is_reusable:
                self.pool(connection, origin)
            else:
                self.drop(connection)

        connection.discard_rest(DISCARD_SECONDS, finish)

    def drop(self, connection: UpstreamConnection) -> None:
        """Close a connection that cannot be used again."""
        self._all.discard(connection)
        connection.abort()

    async def connect(self, origin: ServerAddress) -> UpstreamConnection:
        """Return a new connection."""
        try:
            async with asyncio.timeout(self.timeouts.connect_seconds):
                connection = await self._open(origin)
        except TimeoutError as exc:
            raise broken(
                f"no connection to the upstream within {self.timeouts.connect_seconds:g} s",
                "upstream_connect_timeout",
                status=504,
            ) from exc
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
            through = f" through {self._proxy.host}:{self._proxy.port}" if self._proxy else ""
            raise broken(
                f"the upstream at {origin.host}:{origin.port} cannot be reached{through}: {reason}",
                "upstream_unreachable",
            ) from exc
        self._all.add(connection)
        return connection

    async def _open(self, origin: ServerAddress) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        proxy = self._proxy
        uses_tls = origin.is_tls or (proxy is not None and proxy.is_tls)
        if uses_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        if proxy is not None and origin.is_tls:
            assert self._tls is not None
            return await open_tunnel(loop, proxy, origin.host, origin.port, self._tls)
        _, connection = await loop.create_connection(
            lambda: UpstreamConnection(loop),
            proxy.host if proxy is not None else origin.host,
            proxy.port if proxy is not None else origin.port,
            ssl=self._tls if uses_tls else None,
        )
        return connection


class HttpExchange(msgspec.Struct, eq=False):
    """A response whose head has arrived; leaving it pools or closes the connection."""

    _client: PooledClient
    _connection: UpstreamConnection
    _origin: ServerAddress
    status: int
    _inflater: "_Inflater | None"
    _is_stopped: bool = False

    def take_whole(self) -> bytes | None:
        """Return the body and free the connection; None if more of the body has to be read.

        Most responses arrive as a whole, together with their head.
        """
        connection = self._connection
        if self._inflater is not None or not connection.is_complete:
            return None
        body = connection.read_buffered()
        if connection.is_open and connection.may_reuse:
            self._client.pool(connection, self._origin)
        else:
            self._client.drop(connection)
        return body

    def leave(self, *, is_failed: bool) -> None:
        """Free the connection, whether the body was read to its end or not."""
        # If the body was not read to its end, the connection is closed, unless the reader had
        # everything it needs: then the end is about to arrive.
        if self._connection.is_reusable:
            self._client.pool(self._connection, self._origin)
        elif self._is_stopped and not is_failed:
            self._client.pool_after_rest(self._connection, self._origin)
        else:
            self._client.drop(self._connection)

    @property
    def headers(self) -> Mapping[str, str]:
        return self._connection.headers

    async def read_rest(self) -> bytes:
        """Return a body that `take_whole` could not return yet, and free the connection."""
        is_failed = True
        try:
            body = await self.read()
            is_failed = False
        finally:
            self.leave(is_failed=is_failed)
        return body

    async def read(self) -> bytes:
        if self._inflater is None and self._connection.is_complete:
            return self._connection.read_buffered()
        held = HeldAnswer(ANSWERS)
        try:
            return await self._read_whole(held)
        finally:
            held.close()

    async def _read_whole(self, held: HeldAnswer) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := await self._read_piece():
            for plain in self._inflater.inflate(piece) if self._inflater else (piece,):
                pieces.append(plain)
                size += len(plain)
                if size > MAX_BODY_BYTES:
                    raise _too_long(MAX_BODY_BYTES)
                held.grow(size)
        if self._inflater is not None:
            pieces.append(self._inflater.end())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def copy_to(self, sink: ByteSink) -> None:
        inflating = _InflatingSink(sink, self._inflater) if self._inflater is not None else None
        try:
            seconds = self._client.timeouts.chunk_seconds
            is_ended = await self._connection.copy_to(inflating or sink, seconds)
        except TimeoutError as exc:
            raise self._silence() from exc
        self._is_stopped = not is_ended
        if inflating is not None and is_ended:
            await inflating.end()

    @property
    def _seconds(self) -> float:
        return self._client.timeouts.chunk_seconds

    def _silence(self) -> ProviderFailure:
        return broken(
            f"the upstream sent nothing for {self._seconds:g} s",
            "upstream_chunk_timeout",
            status=504,
        )

    async def _read_piece(self) -> bytes:
        try:
            return await self._connection.read_piece(self._seconds)
        except TimeoutError as exc:
            raise self._silence() from exc


def _too_long(limit: int) -> ProviderFailure:
    return broken(f"the upstream's answer exceeds {limit} bytes", "upstream_answer_too_long")


def _inflater(encoding: str) -> "_Inflater | None":
    """Return the decompressor for a content encoding, or None for plain bodies."""
    encoding = encoding.strip().lower()
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Inflater()
    if encoding not in ("identity", ""):
        raise broken(
            f"the upstream's answer has the unsupported encoding {encoding!r}",
            "upstream_broken_answer",
        )
    return None


class _Inflater:
    """Decompresses a body in bounded steps, so that a small input cannot fill the memory."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)

    def inflate(self, piece: bytes) -> Iterator[bytes]:
        """Yield the decompressed bytes of a piece, step by step."""
        while piece and not self._zlib.eof:
            try:
                plain = self._zlib.decompress(piece, INFLATE_STEP_BYTES)
            except zlib.error as exc:
                raise broken(
                    "the upstream's answer cannot be decompressed", "upstream_broken_answer"
                ) from exc
            piece = self._zlib.unconsumed_tail
            if plain:
                yield plain

    def end(self) -> bytes:
        """Return the last decompressed bytes; raise if the compressed body was cut off."""
        rest = self._zlib.flush()
        if not self._zlib.eof:
            raise broken("the upstream's answer was cut off", "upstream_truncated")
        return rest


class _InflatingSink:
    """Decompresses a body for another sink, and pauses while that one is full."""

    def __init__(self, sink: ByteSink, inflater: _Inflater) -> None:
        self._sink = sink
        self._inflater = inflater
        self._steps: Iterator[bytes] = iter(())

    def write(self, piece: bytes) -> bool:
        self._steps = self._inflater.inflate(piece)
        return self._write_steps()

    def _write_steps(self) -> bool:
        return all(map(self._sink.write, self._steps))

    async def drain(self) -> None:
        """Write the rest of the last piece as soon as the sink has room."""
        await self._sink.drain()
        while not self._write_steps():
            await self._sink.drain()

    async def end(self) -> None:
        """Write the last decompressed bytes; raise if the compressed body was cut off."""
        rest = self._inflater.end()
        if rest and not self._sink.write(rest):
            await self._sink.drain()
