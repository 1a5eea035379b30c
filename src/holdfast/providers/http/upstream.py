"""One upstream server: its address, our credentials there, and requests to it."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.healing.redaction import redact
from holdfast.ports.request_context import note_first_token
from holdfast.providers.errors import broken, failure_of
from holdfast.providers.failure_log import CallRecord, log_failure
from holdfast.providers.http.client import HttpAnswer, HttpRequest, PooledClient
from holdfast.providers.http.connection import StopReading
from holdfast.providers.http.sse import BOM, EventTooLong, SseEvent, SseSplitter, read_block
from holdfast.providers.items.seal_owner import SealOwner, account_of
from holdfast.providers.settings import UpstreamSettings

END_MARK = b"[DONE]"
"""The data of the event that ends a stream."""
_DONE_LINE = b"data: [DONE]\n\n"
WHOLE = "whole"
"""The event type for an answer that was not streamed although a stream was requested."""
MAX_STREAM_BYTES = 128 * 1024 * 1024
"""The limit for one streamed answer."""
MAX_SEAL_OWNERS = 1024


class Upstream:
    """An OpenAI-compatible server. No other object has its key."""

    def __init__(self, settings: UpstreamSettings, client: PooledClient) -> None:
        self.settings = settings
        self.name = settings.name
        self._client = client
        self.configured_base = settings.url.rstrip("/")
        self.base = self.configured_base
        """The base URL of every request; `url`, unless the server was found beside it."""
        self.on_not_found: Callable[[ProviderFailure], None] | None = None
        """Told of a call whose path or model the server does not have."""
        self._account = account_of(settings.url, settings.key)
        self.record = CallRecord()
        self._seal_owners: dict[str, SealOwner] = {}
        self._headers = {"user-agent": "holdfast", "content-type": "application/json"}
        if settings.key:
            self._headers["authorization"] = f"Bearer {settings.key}"
        self._stream_headers = {**self._headers, "accept": "text/event-stream"}

    def seal_owner(self, model: str) -> SealOwner:
        """Return the owner of the encrypted content that a model sends."""
        if model not in self._seal_owners:
            if len(self._seal_owners) >= MAX_SEAL_OWNERS:
                self._seal_owners.clear()
            self._seal_owners[model] = SealOwner(self.name, self._account, model)
        return self._seal_owners[model]

    def redact_failure(self, failure: ProviderFailure) -> ProviderFailure:
        """Remove our key from a failure's texts."""
        key = self.settings.key
        failure.message = redact(failure.message, key)
        failure.args = (failure.message,)
        failure.provider_code = redact(failure.provider_code or "", key) or None
        failure.provider_type = redact(failure.provider_type or "", key) or None
        failure.param = redact(failure.param or "", key) or None
        return failure

    def report_not_found(self, failure: ProviderFailure) -> None:
        """Tell of a failed call if the server may not have its path any more."""
        if self.on_not_found is not None and failure.status in (404, 405):
            self.on_not_found(failure)

    def build_request(
        self,
        method: str,
        path: str,
        body: Sequence[bytes] | None = None,
        headers: dict[str, str] | None = None,
        *,
        may_repeat: bool = False,
        base: str | None = None,
    ) -> HttpRequest:
        """Return a request to this server with our credentials."""
        return HttpRequest(
            method=method,
            url=f"{self.base if base is None else base}{path}",
            headers={**self._headers, **headers} if headers else self._headers,
            body=body,
            may_repeat=may_repeat,
        )

    def exchange(self, request: HttpRequest) -> AbstractAsyncContextManager[HttpAnswer]:
        """Send a request and return its response, whatever the status."""
        return self._client.exchange(request)

    def _log_failure(
        self, request: HttpRequest, path: str, started_at: float, failure: ProviderFailure
    ) -> None:
        self.record.note_failure(
            log_failure(
                self.name,
                failure,
                started_at,
                path=path,
                key=self.settings.key,
                body=request.body or (),
            )
        )

    async def fetch(
        self,
        path: str,
        body: Sequence[bytes] | None = None,
        *,
        method: str = "POST",
        names_state: bool = False,
        may_repeat: bool = False,
    ) -> bytes:
        """Return the body of a successful response; raise a failure for any other."""
        request = HttpRequest(
            method=method,
            url=f"{self.base}{path}",
            headers=self._headers,
            body=body,
            may_repeat=may_repeat,
        )
        started_at = time.monotonic()
        try:
            answer = await self._client.open(request)
            content = answer.take_whole()
            if content is None:
                content = await answer.read_rest()
            if not 200 <= answer.status < 300:
                failure = failure_of(
                    answer.status, answer.headers, content, names_state=names_state
                )
                raise self.redact_failure(failure)
            self.record.answered, self.record.failures = started_at, 0
            return content
        except ProviderFailure as failure:
            self._log_failure(request, path, started_at, failure)
            raise

    async def stream(
        self,
        path: str,
        body: Sequence[bytes],
        sink: "SseSink",
        *,
        names_state: bool = False,
        may_repeat: bool = False,
    ) -> None:
        """Write the events of a streamed response to `sink`, up to its end or its end mark."""
        request = HttpRequest(
            method="POST",
            url=f"{self.base}{path}",
            headers=self._stream_headers,
            body=body,
            may_repeat=may_repeat,
        )
        started_at = time.monotonic()
        try:
            answer, is_failed = await self._client.open(request), True
            try:
                headers = answer.headers
                if not 200 <= answer.status < 300:
                    content = await answer.read()
                    raise failure_of(answer.status, headers, content, names_state=names_state)
                if "text/event-stream" in headers.get("content-type", ""):
                    await answer.copy_to(EventReader(sink))
                else:
                    with suppress(StopReading):
                        sink.write([SseEvent(WHOLE, await answer.read())])
                is_failed = False
            finally:
                answer.leave(is_failed=is_failed)
            self.record.answered, self.record.failures = started_at, 0
        except ProviderFailure as failure:
            self._log_failure(request, path, started_at, failure)
            raise


class SseSink(Protocol):
    """Receives the events of a response as they arrive; see `ByteSink`."""

    def write(self, events: Sequence[SseEvent]) -> bool:
        """Write events that arrived together. False means that the caller must drain first."""
        ...

    async def drain(self) -> None:
        """Wait until more events may be written."""
        ...

    def end(self) -> None:
        """Called when the server's end mark has arrived."""
        ...


class EventReader(SseSplitter):
    """Splits a body into events for an `SseSink`."""

    def __init__(self, sink: SseSink) -> None:
        super().__init__()
        self._sink = sink
        self._total = 0
        self._has_events = False
        self.drain = sink.drain

    def write(self, piece: bytes) -> bool:
        self._total += len(piece)
        if self._total > MAX_STREAM_BYTES:
            raise broken(
                f"the upstream's answer exceeds {MAX_STREAM_BYTES} bytes",
                "upstream_answer_too_long",
            )
        whole = piece.removesuffix(_DONE_LINE)
        is_whole = whole.endswith(b"\n\n") and b"\r" not in whole and END_MARK not in whole
        if self._pending or self._is_after_cr or not is_whole or piece.startswith(BOM):
            return self._write_split(piece)
        # Most pieces are whole events: read them here, without a Python call for each.
        self._is_begun = True
        events: list[SseEvent] = []
        for block in whole[:-2].split(b"\n\n"):
            kind, start = "message", 0
            if block.startswith(b"event: "):
                start = block.find(b"\n") + 1
                kind = block[7 : start - 1].decode("utf-8", "replace") or "message"
            if block.startswith(b"data: ", start) and block.find(b"\n", start) < 0:
                events.append(SseEvent(kind, block[start + 6 :]))
            elif (event := read_block(block.split(b"\n"))) is not None:
                events.append(event)
        if events and not self._has_events:
            self._has_events = True
            note_first_token()
        may_continue = self._sink.write(events) if events else True
        if len(whole) < len(piece):
            self._sink.end()
            raise StopReading
        return may_continue

    def _write_split(self, piece: bytes) -> bool:
        try:
            events = self.split(piece)
        except EventTooLong as exc:
            raise broken(str(exc), "upstream_answer_too_long") from exc
        if events and not self._has_events:
            self._has_events = True
            note_first_token()
        for place, event in enumerate(events):
            if event.data == END_MARK:
                if place:
                    self._sink.write(events[:place])
                self._sink.end()
                raise StopReading
        return self._sink.write(events) if events else True


def read_json(data: bytes) -> dict[str, Any]:
    """Parse a JSON object of an upstream; raise if it is not one."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise broken("the upstream's answer is not valid JSON", "upstream_broken_answer") from exc
    if not isinstance(value, dict):
        raise broken("the upstream's answer is not a JSON object", "upstream_broken_answer")
    return value


async def list_models(upstream: Upstream) -> list[dict[str, Any]]:
    """Return the models that a server lists."""
    value = read_json(await upstream.fetch("/models", method="GET"))
    listed = value.get("data")
    models = listed if isinstance(listed, list) else []
    return [
        model for model in models if isinstance(model, dict) and isinstance(model.get("id"), str)
    ]
