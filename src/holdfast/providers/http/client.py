"""The line to an upstream: one exchange at a time, its limits, and pooled connections.

A connection that was kept open may turn out to be closed when it is used again. Then, and only
if not one byte of an answer has come, a request that changes nothing is sent once more on another.
Whether any other was taken is not known: that is a failure, and its sender's to judge.
"""

import asyncio
import ssl
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from types import TracebackType
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.ports.provider import Sink
from holdfast.ports.request_context import current_request
from holdfast.providers.errors import broken
from holdfast.providers.http.connection import Connection, Disconnected
from holdfast.providers.settings import TimeoutSettings

STALE_TRIES = 3
"""How many kept connections may turn out closed before a fresh one is made."""
KEPT_SECONDS = 60.0
"""How long a connection is kept for another request."""
SETTLE_SECONDS = 1.0
"""How long the end of a stream may take to come behind its last event."""
WARM_SECONDS = 1.0
"""How long a connection may have rested for a request that cannot be sent twice."""
MOST_OPENINGS = 256
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HAS_BODY = frozenset({"POST", "PUT", "PATCH"})
MAX_BODY_BYTES = 256 * 1024 * 1024
_PORTS = {"http": 80, "https": 443}
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, complete."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: Sequence[bytes] | None = None
    """In pieces: what is long is put together only on the line."""
    may_repeat: bool = False
    """Whether it may be sent twice though it is a POST: it changes nothing where it goes."""


class HttpAnswer(Protocol):
    """An answer whose head has come."""

    @property
    def status(self) -> int:
        """Its status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers; names in any case."""
        ...

    async def read(self) -> bytes:
        """Return the whole body."""
        ...

    async def pour(self, sink: Sink) -> None:
        """Have the body taken as it comes, unless there is enough; one that is cut off raises."""
        ...


class HttpClient(Protocol):
    """Somebody who can send a request. Every failure of the line is a `ProviderFailure`."""

    def exchange(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpAnswer]:
        """Send the request and give its answer; leaving the block lets go of the connection."""
        ...


class _Origin(NamedTuple):
    """Where a connection leads."""

    host: str
    port: int
    is_tls: bool


@lru_cache(maxsize=512)
def _place(url: str) -> tuple[_Origin, str, str]:
    """Return where a URL leads, what its Host header says, and the target of its first line."""
    # As it is written: what a path or a query says is not ours to write otherwise.
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or _PORTS["https" if is_tls else "http"]
    host = parts.hostname or ""
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return _Origin(host, port, is_tls), parts.netloc.rpartition("@")[2], target


class _Opening(NamedTuple):
    """What the requests to one place have in common: where they go, and how they begin."""

    headers: dict[str, str]
    origin: _Origin
    head: bytes


def _open(request: HttpRequest) -> _Opening:
    origin, host, target = _place(request.url)
    lines = [f"{request.method} {target} HTTP/1.1", f"host: {host}", "accept-encoding: identity"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise broken("a header for the upstream has a line end in it", "upstream_bad_request")
    head = (text + "\r\n").encode("utf-8", "surrogateescape")
    return _Opening(request.headers, origin, head)


class PooledClient:
    """The client of one upstream: its pool, its limits."""

    def __init__(
        self, timeouts: TimeoutSettings | None = None, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.timeouts = timeouts or TimeoutSettings()
        self._idle: dict[_Origin, list[Connection]] = {}
        self._all: set[Connection] = set()
        self._openings: dict[tuple[str, str], _Opening] = {}
        self._tls = tls

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            connection.abort()
        self._all.clear()
        self._idle.clear()
        # A transport that was aborted is gone in the loop's next round.
        await asyncio.sleep(0)

    def exchange(self, request: HttpRequest) -> "_Exchange":
        """Send the request; see `HttpClient`."""
        return _Exchange(self, request)

    def written(self, request: HttpRequest) -> tuple[_Origin, list[bytes]]:
        """Return where a request goes, and what is sent there."""
        # Most go where another went, with the same headers.
        key = (request.method, request.url)
        opening = self._openings.get(key)
        if opening is None or opening.headers != request.headers:
            if len(self._openings) >= MOST_OPENINGS:
                self._openings.clear()
            opening = self._openings[key] = _open(request)
        _, origin, head = opening
        context = current_request.get()
        if context is not None:
            # Not part of the cached head: these headers differ for every request.
            lines = (f"{name}: {value}\r\n" for name, value in context.upstream_headers().items())
            head += "".join(lines).encode()
        body = request.body
        if body is None and request.method not in _HAS_BODY:
            return origin, [head, b"\r\n"]
        size = sum(map(len, body)) if body else 0
        return origin, [b"%bcontent-length: %d\r\n\r\n" % (head, size), *(body or ())]

    def take_kept(self, origin: _Origin, is_harmless: bool) -> Connection | None:
        """Return a connection that was kept, if there is one that can be trusted with a request."""
        kept = self._idle.get(origin)
        if not kept:
            return None
        now = time.monotonic()
        oldest = now - KEPT_SECONDS
        while kept:
            if not is_harmless and kept[-1].idle_since < now - WARM_SECONDS:
                # The longer it rested, the likelier its server is about to close it.
                return None
            connection = kept.pop()
            if connection.is_open and connection.idle_since > oldest:
                return connection
            self.drop(connection)
        return None

    def keep(self, connection: Connection, origin: _Origin) -> None:
        """Keep a connection whose answer was read to its end; those kept too long go."""
        now = connection.idle_since = time.monotonic()
        if origin not in self._idle:
            self._idle[origin] = []
        kept = self._idle[origin]
        while kept and (not kept[0].is_open or kept[0].idle_since < now - KEPT_SECONDS):
            self.drop(kept.pop(0))
        kept.append(connection)

    def settle(self, connection: Connection, origin: _Origin) -> None:
        """Keep a connection once the rest of its answer has come; one that takes long goes."""

        def settled() -> None:
            if connection.is_reusable:
                self.keep(connection, origin)
            else:
                self.drop(connection)

        connection.finish(SETTLE_SECONDS, settled)

    def drop(self, connection: Connection) -> None:
        """Let go of a connection that cannot be used again."""
        self._all.discard(connection)
        connection.abort()

    async def connect(self, origin: _Origin) -> Connection:
        """Return a new connection."""
        loop = asyncio.get_running_loop()
        if origin.is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        try:
            async with asyncio.timeout(self.timeouts.connect_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop),
                    origin.host,
                    origin.port,
                    ssl=self._tls if origin.is_tls else None,
                )
        except TimeoutError as exc:
            raise broken(
                f"no connection to the upstream within {self.timeouts.connect_seconds:g} s",
                "upstream_connect_timeout",
                status=504,
            ) from exc
        except OSError as exc:
            why = exc.strerror or type(exc).__name__
            raise broken(
                f"the upstream at {origin.host}:{origin.port} cannot be reached: {why}",
                "upstream_unreachable",
            ) from exc
        self._all.add(connection)
        return connection


class _Exchange:
    """One request and its answer; leaving it keeps the connection, or closes it."""

    def __init__(self, client: PooledClient, request: HttpRequest) -> None:
        self._client = client
        self._request = request
        self._inflate: zlib._Decompress | None = None
        self._has_enough = False

    async def __aenter__(self) -> "_Exchange":
        client, request = self._client, self._request
        self._origin, pieces = client.written(request)
        is_harmless = request.may_repeat or request.method in _SAFE
        for left in range(STALE_TRIES, -1, -1):
            kept = client.take_kept(self._origin, is_harmless) if left else None
            connection = kept or await client.connect(self._origin)
            connection.send(request.method, pieces)
            try:
                while not connection.has_head:
                    await connection.news(client.timeouts.first_byte_seconds)
                if "content-encoding" in connection.raw_headers:
                    self._inflate = _inflater(connection.headers["content-encoding"])
            except Disconnected:
                client.drop(connection)
                if kept is None or not is_harmless or not connection.is_untouched:
                    raise broken(
                        "the upstream closed the connection without an answer",
                        "upstream_disconnected",
                    ) from None
            except TimeoutError as exc:
                client.drop(connection)
                raise broken(
                    f"no answer from the upstream within {client.timeouts.first_byte_seconds:g} s",
                    "upstream_first_byte_timeout",
                    status=504,
                ) from exc
            except BaseException:
                client.drop(connection)
                raise
            else:
                self._connection = connection
                self.status = connection.status
                return self
        raise AssertionError("the last try returns or raises")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A body that was not read to its end takes its connection with it, unless all that
        # matters of it was: then its end is about to come.
        if self._connection.is_reusable:
            self._client.keep(self._connection, self._origin)
        elif self._has_enough and kind is None:
            self._client.settle(self._connection, self._origin)
        else:
            self._client.drop(self._connection)

    @property
    def headers(self) -> Mapping[str, str]:
        return self._connection.headers

    async def read(self) -> bytes:
        if self._inflate is None and self._connection.is_complete:
            return self._connection.taken()
        pieces: list[bytes] = []
        size = 0
        while piece := await self._next():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise broken("the upstream's answer is too long", "upstream_broken_answer")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def pour(self, sink: Sink) -> None:
        try:
            inflating = _Inflating(sink, self._inflate) if self._inflate is not None else None
            is_ended = await self._connection.pour(inflating or sink, self._seconds)
        except TimeoutError as exc:
            raise self._silence() from exc
        except zlib.error as exc:
            raise broken("the upstream's answer cannot be read", "upstream_broken_answer") from exc
        self._has_enough = not is_ended
        if inflating is not None and is_ended and inflating.is_cut_off:
            raise broken("the upstream's answer was cut off", "upstream_truncated")

    @property
    def _seconds(self) -> float:
        return self._client.timeouts.chunk_seconds

    def _silence(self) -> ProviderFailure:
        return broken(
            f"the upstream said nothing for {self._seconds:g} s",
            "upstream_chunk_timeout",
            status=504,
        )

    async def _next(self) -> bytes:
        try:
            piece = await self._connection.piece(self._seconds)
            while self._inflate is not None and piece:
                if inflated := self._inflate.decompress(piece):
                    return inflated
                piece = await self._connection.piece(self._seconds)
        except TimeoutError as exc:
            raise self._silence() from exc
        except zlib.error as exc:
            raise broken("the upstream's answer cannot be read", "upstream_broken_answer") from exc
        if not piece and self._inflate is not None and not self._inflate.eof:
            raise broken("the upstream's answer was cut off", "upstream_truncated")
        return piece


def _inflater(encoding: str) -> "zlib._Decompress | None":
    """Return what undoes an encoding."""
    encoding = encoding.strip().lower()
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(_GZIP_OR_ZLIB)
    if encoding not in ("identity", ""):
        raise broken(f"the upstream's answer is in {encoding}", "upstream_broken_answer")
    return None


class _Inflating:
    """Takes a compressed body for somebody who reads the plain one."""

    def __init__(self, sink: Sink, inflate: "zlib._Decompress") -> None:
        self._sink = sink
        self._inflate = inflate
        self.room = sink.room

    @property
    def is_cut_off(self) -> bool:
        """Whether there should have been more of it."""
        return not self._inflate.eof

    def take(self, piece: bytes) -> bool:
        plain = self._inflate.decompress(piece)
        return self._sink.take(plain) if plain else True
