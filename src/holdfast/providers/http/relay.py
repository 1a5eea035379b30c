"""Requests passed on as they came, and their answers passed back: all but who is asking."""

from contextlib import AsyncExitStack

from holdfast.core.healing.redaction import redact
from holdfast.ports.provider import ByteSink, RelayRequest
from holdfast.providers.errors import failure_of
from holdfast.providers.http.client import HttpAnswer
from holdfast.providers.http.upstream import Upstream

_SENT_ON = frozenset({"content-type", "accept", "openai-beta"})
_SENT_BACK = frozenset(
    {
        "content-type", "content-disposition", "retry-after", "retry-after-ms",
        "openai-processing-ms", "openai-version", "openai-model",
    }
)  # fmt: skip
_SENT_BACK_PREFIX = "x-ratelimit-"


class Relay:
    """One answer on its way back."""

    def __init__(self, answer: HttpAnswer, line: AsyncExitStack, key: str | None) -> None:
        self._answer = answer
        self._key = key
        self._line = line

    @property
    def status(self) -> int:
        """Its status."""
        return self._answer.status

    @property
    def headers(self) -> dict[str, str]:
        """Its headers, as far as they concern the client."""
        found = ((name.lower(), value) for name, value in self._answer.headers.items())
        return {
            name: value
            for name, value in found
            if name in _SENT_BACK or name.startswith(_SENT_BACK_PREFIX)
        }

    async def read(self) -> bytes:
        """Return the whole body; what is said against a request, without any key."""
        body = await self._answer.read()
        if self._answer.status < 400:
            return body
        said = body.decode("utf-8", "surrogateescape")
        return redact(said, self._key).encode("utf-8", "surrogateescape")

    async def copy_to(self, sink: ByteSink) -> None:
        """Have the body taken as it comes; what is said against a request at once."""
        if self._answer.status < 400:
            await self._answer.copy_to(sink)
        elif not sink.write(await self.read()):
            await sink.drain()

    async def close(self) -> None:
        """Let go of the connection."""
        await self._line.aclose()


async def open_relay(upstream: Upstream, request: RelayRequest) -> Relay:
    """Pass a request on; the answer is given whatever it says, unless it refuses our own key."""
    headers = {k.lower(): v for k, v in request.headers.items() if k.lower() in _SENT_ON}
    body = (request.body,) if request.body is not None else None
    sent = upstream.request(
        request.method, request.path, body, headers, may_repeat=request.may_repeat
    )
    async with AsyncExitStack() as stack:
        answer = await stack.enter_async_context(upstream.exchange(sent))
        if answer.status in (401, 403):
            raise upstream.redact_failure(
                failure_of(answer.status, answer.headers, await answer.read())
            )
        return Relay(answer, stack.pop_all(), upstream.settings.key)
