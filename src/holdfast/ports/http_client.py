"""The port for plain HTTP calls to services that are not models: chat platforms and webhooks."""

from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import msgspec

from holdfast.core.errors import HoldfastError


class HttpUnavailable(HoldfastError):
    """The server could not be reached, or its answer was cut off or too long."""

    code = "http_unavailable"
    retryable = True

    def __init__(self, message: str, *, is_sent: bool = True) -> None:
        super().__init__(message)
        self.is_sent = is_sent
        """Whether the server may have seen the request."""


class HttpResult(msgspec.Struct, frozen=True):
    """A complete response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpCaller(Protocol):
    """Sends requests over pooled connections."""

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
        """Send a request and return its whole response, at most 64 MiB; raise `HttpUnavailable`.

        With `max_bytes`, a longer response is cut there and the rest is not read.
        """
        ...

    def lines(
        self, url: str, *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a streamed response to a GET; raise after `seconds` of silence."""
        ...

    def proxy_url(self, url: str) -> str | None:
        """Return the forward proxy for a URL, for callers that open their own connections."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
