"""Plain HTTP calls to chat platforms and webhooks, with the HTTP client for upstreams."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import cast

from holdfast.core.errors import ProviderFailure
from holdfast.ports.http_client import HttpResult, HttpUnavailable
from holdfast.providers.http.client import HttpAnswer, HttpRequest, PooledClient
from holdfast.providers.http.connection import StopReading
from holdfast.providers.http.guarded_client import ADDRESS_REFUSED, GuardedClient
from holdfast.providers.http.proxy import Proxy
from holdfast.providers.settings import TimeoutSettings

MAX_WAIT_SECONDS = 600.0
"""The upper limit of the client's timeouts; each call has its own."""
_NEVER_SENT = frozenset({"upstream_unreachable", "upstream_connect_timeout", ADDRESS_REFUSED})
MAX_LINE_BYTES = 16 * 1024 * 1024


class PlainHttpCaller:
    """Calls over pooled connections; every failure is an `HttpUnavailable` without secrets."""

    def __init__(
        self,
        proxy: Callable[[str], Proxy | None] = lambda _: None,
        *,
        guard: GuardedClient | None = None,
    ) -> None:
        self._proxy = proxy
        self._guard = guard
        """Used for connections without a proxy."""
        self._clients: dict[bool, PooledClient] = {}

    def _client(self, url: str) -> PooledClient:
        proxy = self._proxy(url)
        if proxy is None and self._guard is not None:
            return self._guard
        client = self._clients.get(proxy is not None)
        if client is None:
            timeouts = TimeoutSettings(
                first_byte_seconds=MAX_WAIT_SECONDS, chunk_seconds=MAX_WAIT_SECONDS
            )
            client = self._clients[proxy is not None] = PooledClient(timeouts, proxy=proxy)
        return client

    async def call(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        seconds: float = 20.0,
        may_repeat: bool = False,
        max_bytes: int | None = None,
    ) -> HttpResult:
        """Send a request and return its response, whole or up to `max_bytes`."""
        request = HttpRequest(
            method=method,
            url=url,
            headers=dict(headers or {}),
            body=[body] if body is not None else None,
            may_repeat=may_repeat,
        )
        try:
            async with asyncio.timeout(seconds), self._client(url).exchange(request) as answer:
                content = await _read(answer, max_bytes)
                return HttpResult(answer.status, dict(answer.headers), content)
        except ProviderFailure as exc:
            is_sent = exc.provider_code not in _NEVER_SENT and exc.code not in _NEVER_SENT
            raise HttpUnavailable(exc.message, is_sent=is_sent) from exc
        except TimeoutError as exc:
            raise HttpUnavailable(f"no answer within {seconds:g} s") from exc

    async def lines(
        self, url: str, *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a streamed response."""
        request = HttpRequest(
            method="GET", url=url, headers={"accept": "text/event-stream", **(headers or {})}
        )
        sink = _LineSink()
        try:
            async with self._client(url).exchange(request) as answer:
                if answer.status != 200:
                    raise HttpUnavailable(f"the server answered {answer.status}")
                copying = asyncio.ensure_future(answer.copy_to(sink))
                try:
                    while True:
                        async with asyncio.timeout(seconds):
                            line = await sink.next(copying)
                        if line is None:
                            return
                        yield line
                finally:
                    copying.cancel()
                    await asyncio.gather(copying, return_exceptions=True)
        except TimeoutError as exc:
            raise HttpUnavailable(f"nothing was sent for {seconds:g} s") from exc
        except ProviderFailure as exc:
            raise HttpUnavailable(exc.message) from exc

    def proxy_url(self, url: str) -> str | None:
        """Return the forward proxy for a URL."""
        proxy = self._proxy(url)
        return proxy.url if proxy is not None else None

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()
        if self._guard is not None:
            await self._guard.close()


async def _read(answer: HttpAnswer, max_bytes: int | None) -> bytes:
    if max_bytes is None:
        return await answer.read()
    sink = _BoundedSink(max_bytes)
    await answer.copy_to(sink)
    return bytes(sink.content[:max_bytes])


class _BoundedSink:
    """Collects the beginning of a body and then stops reading."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.content = bytearray()

    def write(self, piece: bytes) -> bool:
        self.content += piece
        if len(self.content) >= self._max_bytes:
            raise StopReading
        return True

    async def drain(self) -> None:
        """Do nothing: this sink is never full."""


class _LineSink:
    """Splits a body into lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []
        self._news = asyncio.Event()

    def write(self, piece: bytes) -> bool:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise HttpUnavailable(f"a line exceeds {MAX_LINE_BYTES} bytes")
        self._lines += [line.rstrip(b"\r") for line in lines]
        self._news.set()
        return True

    async def drain(self) -> None:
        """Do nothing: lines are read faster than a chat sends them."""

    async def next(self, copying: "asyncio.Future[None]") -> bytes | None:
        """Return the next line, or None at the end."""
        while not self._lines:
            self._news.clear()
            news: asyncio.Future[object] = asyncio.ensure_future(self._news.wait())
            both: set[asyncio.Future[object]] = {news, cast("asyncio.Future[object]", copying)}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            if copying.done() and not self._lines:
                copying.result()
                return None
        return self._lines.pop(0)
