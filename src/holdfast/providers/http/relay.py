"""Forward requests unchanged, with our credentials in place of the caller's."""

import time
from contextlib import AsyncExitStack

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.redaction import redact
from holdfast.ports.provider import ByteSink, RelayRequest
from holdfast.ports.request_context import note_first_token
from holdfast.providers.errors import broken, failure_of
from holdfast.providers.failure_log import log_failure
from holdfast.providers.http.client import HttpAnswer
from holdfast.providers.http.sse import MAX_EVENT_BYTES
from holdfast.providers.http.upstream import MAX_STREAM_BYTES, Upstream

_REQUEST_HEADERS = frozenset({"content-type", "accept", "openai-beta"})
_RESPONSE_HEADERS = frozenset(
    {
        "content-type", "content-disposition", "retry-after", "retry-after-ms",
        "openai-processing-ms", "openai-version", "openai-model",
    }
)  # fmt: skip
_RESPONSE_HEADER_PREFIX = "x-ratelimit-"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_END = 4


class Relay:
    """An upstream's response that is forwarded to the client; see `RelayResponse`."""

    outcome = "left"

    def __init__(self, answer: HttpAnswer, exchange: AsyncExitStack, call: "_Call") -> None:
        self._answer = answer
        self._exchange = exchange
        self._call = call

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._answer.status

    @property
    def headers(self) -> dict[str, str]:
        """The headers to forward to the client."""
        headers = ((name.lower(), value) for name, value in self._answer.headers.items())
        return {
            name: value
            for name, value in headers
            if name in _RESPONSE_HEADERS or name.startswith(_RESPONSE_HEADER_PREFIX)
        }

    async def read(self) -> bytes:
        """Return the whole body; our key is removed from error bodies."""
        try:
            body = await self._answer.read()
        except ProviderFailure as failure:
            self._fail(failure)
            raise
        if self._answer.status < 400:
            self.outcome = "completed"
            return body
        self._fail(failure_of(self._answer.status, self._answer.headers, body))
        text = body.decode("utf-8", "surrogateescape")
        return redact(text, self._call.key).encode("utf-8", "surrogateescape")

    async def copy_to(self, sink: ByteSink) -> None:
        """Write the body to `sink` as it arrives; an error body as a whole."""
        if self._answer.status >= 400:
            if not sink.write(await self.read()):
                await sink.drain()
            return
        try:
            await self._answer.copy_to(_BoundedSink(sink))
        except ProviderFailure as failure:
            self._fail(failure)
            raise
        self.outcome = "completed"

    async def close(self) -> None:
        """Release the connection."""
        await self._exchange.aclose()

    def _fail(self, failure: ProviderFailure) -> None:
        self.outcome = failure.failure_class
        self._call.log(failure)


class _Call:
    """One forwarded request, for logging its failures."""

    def __init__(self, upstream: Upstream, request: RelayRequest) -> None:
        self.key = upstream.settings.key
        self._upstream = upstream.name
        self._request = request
        self._started_at = time.monotonic()

    def log(self, failure: ProviderFailure) -> None:
        body = self._request.body
        log_failure(
            self._upstream,
            failure,
            self._started_at,
            path=self._request.path.partition("?")[0],
            key=self.key,
            body=(body,) if body is not None else (),
        )


class _BoundedSink:
    """Passes an event stream on, within the limits of an answer and of one event."""

    def __init__(self, sink: ByteSink) -> None:
        self._sink = sink
        self._total = 0
        self._event_bytes = 0
        self._tail = b""
        self.drain = sink.drain

    def write(self, piece: bytes) -> bool:
        if not self._total:
            note_first_token()
        self._total += len(piece)
        if self._total > MAX_STREAM_BYTES:
            raise broken(
                f"the upstream's answer exceeds {MAX_STREAM_BYTES} bytes",
                "upstream_answer_too_long",
            )
        self._count_event(piece)
        if self._event_bytes > MAX_EVENT_BYTES:
            raise broken(
                f"an event of the upstream's answer exceeds {MAX_EVENT_BYTES} bytes",
                "upstream_answer_too_long",
            )
        return self._sink.write(piece)

    def _count_event(self, piece: bytes) -> None:
        """Count the bytes since the last event; its end may be split between two pieces."""
        if piece.endswith(b"\n\n"):
            self._event_bytes, self._tail = 0, b""
            return
        seen = self._tail + piece
        ended_at = max(seen.rfind(end) + len(end) if end in seen else 0 for end in _EVENT_ENDS)
        self._event_bytes = len(seen) - ended_at if ended_at else self._event_bytes + len(piece)
        self._tail = seen[-_LONGEST_END + 1 :]


async def open_relay(upstream: Upstream, request: RelayRequest) -> Relay:
    """Forward a request; return the response, whatever its status, unless it refuses our key."""
    headers = {k.lower(): v for k, v in request.headers.items() if k.lower() in _REQUEST_HEADERS}
    body = (request.body,) if request.body is not None else None
    forwarded = upstream.build_request(
        request.method, request.path, body, headers, may_repeat=request.may_repeat
    )
    call = _Call(upstream, request)
    try:
        async with AsyncExitStack() as stack:
            answer = await stack.enter_async_context(upstream.exchange(forwarded))
            if answer.status in (401, 403):
                failure = failure_of(answer.status, answer.headers, await answer.read())
                raise upstream.redact_failure(failure)
            return Relay(answer, stack.pop_all(), call)
    except ProviderFailure as failure:
        call.log(failure)
        raise
