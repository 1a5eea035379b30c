"""Forward requests unchanged, with our credentials in place of the caller's."""

from contextlib import AsyncExitStack

from holdfast.core.healing.redaction import redact
from holdfast.ports.provider import ByteSink, RelayRequest
from holdfast.providers.errors import failure_of
from holdfast.providers.http.client import HttpAnswer
from holdfast.providers.http.upstream import Upstream

_REQUEST_HEADERS = frozenset({"content-type", "accept", "openai-beta"})
_RESPONSE_HEADERS = frozenset(
    {
        "content-type", "content-disposition", "retry-after", "retry-after-ms",
        "openai-processing-ms", "openai-version", "openai-model",
    }
)  # fmt: skip
_RESPONSE_HEADER_PREFIX = "x-ratelimit-"


class Relay:
    """An upstream's response on its way to the client; see `RelayResponse`."""

    def __init__(self, answer: HttpAnswer, exchange: AsyncExitStack, key: str | None) -> None:
        self._answer = answer
        self._key = key
        self._exchange = exchange

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._answer.status

    @property
    def headers(self) -> dict[str, str]:
        """The headers that concern the client."""
        found = ((name.lower(), value) for name, value in self._answer.headers.items())
        return {
            name: value
            for name, value in found
            if name in _RESPONSE_HEADERS or name.startswith(_RESPONSE_HEADER_PREFIX)
        }

    async def read(self) -> bytes:
        """Return the whole body; error bodies without our key."""
        body = await self._answer.read()
        if self._answer.status < 400:
            return body
        text = body.decode("utf-8", "surrogateescape")
        return redact(text, self._key).encode("utf-8", "surrogateescape")

    async def copy_to(self, sink: ByteSink) -> None:
        """Write the body to `sink` as it arrives; error bodies as a whole."""
        if self._answer.status < 400:
            await self._answer.copy_to(sink)
        elif not sink.write(await self.read()):
            await sink.drain()

    async def close(self) -> None:
        """Release the connection."""
        await self._exchange.aclose()


async def open_relay(upstream: Upstream, request: RelayRequest) -> Relay:
    """Forward a request; return the response whatever its status, unless it refuses our key."""
    headers = {k.lower(): v for k, v in request.headers.items() if k.lower() in _REQUEST_HEADERS}
    body = (request.body,) if request.body is not None else None
    forwarded = upstream.build_request(
        request.method, request.path, body, headers, may_repeat=request.may_repeat
    )
    async with AsyncExitStack() as stack:
        answer = await stack.enter_async_context(upstream.exchange(forwarded))
        if answer.status in (401, 403):
            failure = failure_of(answer.status, answer.headers, await answer.read())
            raise upstream.redact_failure(failure)
        return Relay(answer, stack.pop_all(), upstream.settings.key)
