"""The line to an upstream: one exchange at a time, its limits, and pooled connections.

A connection that was kept open may turn out to be closed when it is used again. Then, and only
if not one byte of an answer has come, the request is sent once more on another.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import msgspec
import yarl
from aiohttp.client_proto import ResponseHandler

from holdfast.providers.failures import broken
from holdfast.providers.settings import TimeoutSettings

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.connector import Connection

STALE_TRIES = 3
"""How many kept connections may turn out closed before the failure counts."""
MAX_BODY_BYTES = 256 * 1024 * 1024


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, complete."""

    method: str
    url: str
    headers: dict[str, str] = {}
    body: bytes | None = None


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

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes; a body that is cut off raises."""
        ...


class HttpClient(Protocol):
    """Somebody who can send a request. Every failure of the line is a `ProviderFailure`."""

    def exchange(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpAnswer]:
        """Send the request and give its answer; leaving the block lets go of the connection."""
        ...


class _Line:
    """The connection that an attempt got: whether it had been used before, what came over it."""

    def __init__(self) -> None:
        self.handler: _CountingHandler | None = None
        self.received_before = 0

    @property
    def is_untouched(self) -> bool:
        """Whether it was a kept one over which nothing has come since."""
        handler = self.handler
        return (
            handler is not None
            and self.received_before > 0
            and handler.received == self.received_before
        )


_line: ContextVar[_Line | None] = ContextVar("holdfast_line", default=None)


class _CountingHandler(ResponseHandler):
    """aiohttp's protocol, counting what it receives."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.received = 0

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)


class _CountingConnector(aiohttp.TCPConnector):
    """aiohttp's pool, telling each request which connection it was given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = lambda: _CountingHandler(asyncio.get_running_loop())  # type: ignore[assignment]  # a factory is all it is used as

    async def connect(
        self, req: "ClientRequest", traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> "Connection":
        connection = await super().connect(req, traces, timeout)
        line, handler = _line.get(), connection.protocol
        if line is not None and isinstance(handler, _CountingHandler):
            line.handler = handler
            line.received_before = handler.received
        return connection


class AiohttpClient:
    """The client of one upstream: its pool, its limits."""

    def __init__(self, timeouts: TimeoutSettings | None = None) -> None:
        self._timeouts = timeouts or TimeoutSettings()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_CountingConnector(limit=0, keepalive_timeout=60.0),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._timeouts.connect_seconds
                ),
                auto_decompress=True,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent",),
                read_bufsize=2**18,
            )
        return self._session

    @asynccontextmanager
    async def exchange(self, request: HttpRequest) -> AsyncIterator[HttpAnswer]:
        """Send the request; see `HttpClient`."""
        response = await self._send(request)
        try:
            yield _Answer(response, self._timeouts.chunk_seconds)
        finally:
            # A body that was not read to its end takes its connection with it.
            response.release()

    async def _send(self, request: HttpRequest) -> aiohttp.ClientResponse:
        for left in reversed(range(STALE_TRIES + 1)):
            line = _Line()
            token = _line.set(line)
            try:
                return await self._attempt(request)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as exc:
                if isinstance(exc, aiohttp.ClientConnectorError):
                    raise broken(_unreachable(exc), "upstream_unreachable") from exc
                if not left or not line.is_untouched:
                    raise broken(
                        "the upstream closed the connection without an answer",
                        "upstream_disconnected",
                    ) from exc
            except aiohttp.ConnectionTimeoutError as exc:
                raise broken(
                    f"no connection to the upstream within {self._timeouts.connect_seconds:g} s",
                    "upstream_connect_timeout",
                    status=504,
                ) from exc
            except TimeoutError as exc:
                raise broken(
                    f"no answer from the upstream within {self._timeouts.first_byte_seconds:g} s",
                    "upstream_first_byte_timeout",
                    status=504,
                ) from exc
            except aiohttp.ClientError as exc:
                raise broken(
                    f"the upstream's answer cannot be read: {type(exc).__name__}",
                    "upstream_broken_answer",
                ) from exc
            finally:
                _line.reset(token)
        raise AssertionError("the last try returns or raises")

    async def _attempt(self, request: HttpRequest) -> aiohttp.ClientResponse:
        async with asyncio.timeout(self._timeouts.first_byte_seconds):
            return await self._open().request(
                request.method,
                # As it is written: what a path or a query says is not ours to write otherwise.
                yarl.URL(request.url, encoded=True),
                data=request.body,
                headers={"accept-encoding": "identity", **request.headers},
                allow_redirects=False,
            )


def _unreachable(exc: aiohttp.ClientConnectorError) -> str:
    return f"the upstream at {exc.host}:{exc.port} cannot be reached: {exc.os_error.strerror}"


class _Answer:
    def __init__(self, response: aiohttp.ClientResponse, chunk_seconds: float) -> None:
        self._response = response
        self._chunk_seconds = chunk_seconds

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def read(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async for piece in self.chunks():
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise broken("the upstream's answer is too long", "upstream_broken_answer")
        return b"".join(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        content = self._response.content
        while True:
            try:
                async with asyncio.timeout(self._chunk_seconds):
                    piece = await content.readany()
            except TimeoutError as exc:
                raise broken(
                    f"the upstream said nothing for {self._chunk_seconds:g} s",
                    "upstream_chunk_timeout",
                    status=504,
                ) from exc
            except (aiohttp.ClientError, OSError) as exc:
                raise broken("the upstream's answer was cut off", "upstream_truncated") from exc
            if not piece:
                return
            yield piece
