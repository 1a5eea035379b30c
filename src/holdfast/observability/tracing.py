"""OpenTelemetry traces: one per turn, with a span for each of its steps.

Steps that are measured anyway arrive through the meter. Upstream attempts and commits are recorded
by wrappers around the upstreams and the store, which exist only while tracing is on. Attributes
follow the GenAI semantic conventions; messages are recorded only if configured.
"""

import asyncio
import time
from collections.abc import Awaitable
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

from holdfast._version import __version__
from holdfast.core.errors import HoldfastError, InvalidSetting, ProviderFailure
from holdfast.core.transaction.commands import Accept, Command, Finish, Queued, Repeated, Started
from holdfast.engine.logging import log
from holdfast.observability.metrics import PrometheusMeter
from holdfast.observability.span_content import finish_reason, input_messages, output_messages
from holdfast.ports.provider import (
    Answer,
    EventSink,
    ModelCall,
    Provider,
    RelayRequest,
    RelayResponse,
    Upstreams,
)
from holdfast.ports.request_context import RequestContext, current_request
from holdfast.ports.store import Store

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

OutcomeT = TypeVar("OutcomeT")
UpstreamsT = TypeVar("UpstreamsT", bound=Upstreams)
Attributes = dict[str, str | int | float | bool | list[str]]

MAX_STEPS = 64
"""The most spans of one turn; further ones are dropped."""
FLUSH_SECONDS = 2.0
"""How long the last spans may delay a stop."""
NOT_ERRORS = frozenset({"completed", "cancelled", "merged", "requires_action"})
"""Outcomes of a turn that are no errors."""
_NANOSECONDS = 1_000_000_000


class _TurnTrace:
    """The spans of one turn, or of one request that is not stored."""

    def __init__(self, tracer: "Tracer", request: RequestContext) -> None:
        from opentelemetry import trace

        self._tracer = tracer
        self._steps = 0
        self.has_turn = False
        """Whether the request was accepted as a turn, which may outlive the request."""
        self.error_code: str | None = None
        self.call_started_at = self.call_ended_at = 0
        """When the last model call started and ended, in nanoseconds of the wall clock."""
        self.span: Span = tracer.start_span(
            "turn",
            context=_parent(request.traceparent),
            kind=trace.SpanKind.SERVER,
            start_time=time.time_ns() - _duration(time.monotonic() - request.started_at),
        )
        self._inside = trace.set_span_in_context(self.span)

    def add(
        self,
        name: str,
        seconds: float,
        attributes: Attributes | None = None,
        *,
        ended_at: int | None = None,
    ) -> None:
        """Add a step that took `seconds` and ended now or at a given time."""
        ended_at = time.time_ns() if ended_at is None else ended_at
        span = self.start(name, attributes, started_at=ended_at - _duration(seconds))
        if span is not None:
            span.end(ended_at)

    def start(
        self,
        name: str,
        attributes: Attributes | None = None,
        *,
        started_at: int | None = None,
        is_remote: bool = False,
    ) -> "Span | None":
        """Start a step; return None if the turn already has too many."""
        from opentelemetry import trace

        if self._steps >= MAX_STEPS:
            return None
        self._steps += 1
        kind = trace.SpanKind.CLIENT if is_remote else trace.SpanKind.INTERNAL
        return self._tracer.start_span(
            name, context=self._inside, kind=kind, start_time=started_at, attributes=attributes
        )

    def end(self, request: RequestContext, outcome: str) -> None:
        """End the trace."""
        self.span.set_attributes(_request_attributes(request, outcome))
        if outcome not in NOT_ERRORS:
            _set_error(self.span, self.error_code or outcome)
        self.span.end()


class TracingMeter(PrometheusMeter):
    """A meter that also exports a trace of every turn."""

    def __init__(self, provider: "TracerProvider", *, has_content: bool = False) -> None:
        super().__init__()
        self.has_content = has_content
        self._provider = provider
        self._tracer = provider.get_tracer("holdfast", __version__)
        # Keyed weakly: a request that never becomes a turn leaves nothing in memory.
        self._traces: WeakKeyDictionary[RequestContext, _TurnTrace] = WeakKeyDictionary()

    def current(self) -> _TurnTrace | None:
        """Return the trace of the current request, or None outside of a request."""
        request = current_request.get()
        if request is None:
            return None
        trace = self._traces.get(request)
        if trace is None:
            trace = self._traces[request] = _TurnTrace(self._tracer, request)
        return trace

    def begun(self) -> _TurnTrace | None:
        """Return the trace of the current request if it has one."""
        request = current_request.get()
        return self._traces.get(request) if request is not None else None

    def lane_waited(self, seconds: float) -> None:
        """Record the wait for a lane."""
        super().lane_waited(seconds)
        self._add("queue", seconds)

    def upstream_answered(
        self, name: str, outcome: str, seconds: float, projection_seconds: float = 0.0
    ) -> None:
        """Record how long building the request took; the attempt already has its own span."""
        super().upstream_answered(name, outcome, seconds, projection_seconds)
        trace = self.current() if projection_seconds else None
        if trace is not None:
            # It ended exactly when the call started, so that spans stay in order.
            ended_at = trace.call_started_at or time.time_ns() - _duration(seconds)
            trace.add("projection", projection_seconds, ended_at=ended_at)

    def healed(self, failure_class: str, action: str, seconds: float) -> None:
        """Record how a failure was handled, including the pause."""
        super().healed(failure_class, action, seconds)
        attributes: Attributes = {
            "holdfast.failure_class": failure_class,
            "holdfast.heal.action": action,
        }
        trace = self.current()
        if trace is None:
            return
        if seconds and trace.call_ended_at:
            # It began when the failed call ended, before everything that was done about it.
            seconds = (time.time_ns() - trace.call_ended_at) / _NANOSECONDS
        trace.add("heal", seconds, attributes)

    def tool_called(self, tool: str, call_id: str, outcome: str, seconds: float) -> None:
        """Record a tool call."""
        super().tool_called(tool, call_id, outcome, seconds)
        attributes: Attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": call_id,
            "holdfast.outcome": outcome,
        }
        self._add(f"execute_tool {tool}", seconds, attributes)

    def compacted(self, mode: str, reason: str) -> None:
        """Record a compaction as an event of the turn."""
        super().compacted(mode, reason)
        trace = self.current()
        if trace is not None:
            trace.span.add_event("compaction", {"holdfast.mode": mode, "holdfast.reason": reason})

    def run_ended(self, outcome: str) -> None:
        """Export the trace of the turn."""
        super().run_ended(outcome)
        self._end(outcome)

    def turn_left(self, outcome: str, *, has_run: bool) -> None:
        """Export the trace of a turn that another command or another worker ends."""
        super().turn_left(outcome, has_run=has_run)
        self._end(outcome)

    def request_answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Export the trace of a request that became no turn: unstored, rejected or repeated."""
        super().request_answered(method, route, status, seconds)
        request = current_request.get()
        trace = self.begun()
        if request is not None and trace is not None and not trace.has_turn:
            del self._traces[request]
            trace.end(request, "completed" if status < 400 else "failed")

    def shutdown(self) -> None:
        """Export buffered spans, for a short time: the collector may be unreachable."""
        # A daemon thread: the SDK waits longer than a stop may take, and cannot be configured.
        flush = Thread(target=self._provider.shutdown, name="holdfast-flush", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)
        if flush.is_alive():
            log.warning("otel.not_flushed", seconds=FLUSH_SECONDS)

    def _end(self, outcome: str) -> None:
        request = current_request.get()
        if request is not None and request in self._traces:
            self._traces.pop(request).end(request, outcome)

    def _add(self, name: str, seconds: float, attributes: Attributes | None = None) -> None:
        trace = self.current()
        if trace is not None:
            trace.add(name, seconds, attributes)


# ── wrappers ────────────────────────────────────────────────────────────────────────────────


class _TracedStore:
    """A store that records each commit as a span of the turn that waits for it."""

    def __init__(self, store: Store, meter: TracingMeter) -> None:
        self._store = store
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Submit a command, and record how long its commit took."""
        # Other requests, such as a reset, are not turns and have no trace.
        is_turn = isinstance(command, Accept)
        trace = self._meter.current() if is_turn else self._meter.begun()
        if trace is None:
            return await self._store.submit(command)
        attributes: Attributes = {"holdfast.command": type(command).__name__}
        span = trace.start("commit", attributes)
        try:
            outcome = await self._store.submit(command)
        except HoldfastError as error:
            if span is not None:
                _set_error(span, error.code)
            raise
        finally:
            if span is not None:
                span.end()
        _note_turn(trace, command, outcome)
        return outcome


def _note_turn(trace: _TurnTrace, command: object, outcome: object) -> None:
    """Record a turn's ids from a commit, and why the turn failed."""
    if isinstance(command, Accept) and isinstance(outcome, Started | Queued | Repeated):
        trace.has_turn = not isinstance(outcome, Repeated)
        trace.span.set_attributes(
            {
                "gen_ai.conversation.id": outcome.session.id,
                "holdfast.turn.id": outcome.turn.id,
                "holdfast.turn.source": outcome.turn.source,
                "holdfast.session.generation": outcome.session.generation,
            }
        )
    elif isinstance(command, Finish):
        trace.error_code = command.error_code


class _TracedUpstreams:
    """Upstreams that record each model call as a span."""

    def __init__(self, upstreams: Upstreams, meter: TracingMeter) -> None:
        self._upstreams = upstreams
        self._meter = meter
        self._providers: dict[Provider, Provider] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._upstreams, name)

    def provider(self, model: str) -> Provider:
        """Return the provider that serves a model."""
        provider = self._upstreams.provider(model)
        traced = self._providers.get(provider)
        if traced is None:
            traced = cast("Provider", _TracedProvider(provider, self._meter))
            self._providers[provider] = traced
        return traced

    async def relay(self, request: RelayRequest) -> RelayResponse | None:
        """Forward a request; the span of its attempt ends with the response."""
        context = current_request.get()
        trace = self._meter.current()
        span = trace.start(_relay_name(request), is_remote=True) if trace else None
        if context is None or span is None:
            return await self._upstreams.relay(request)
        parent, context.traceparent = context.traceparent, _traceparent(span)
        relayed: RelayResponse | None = None
        error_type: str | None = "cancelled"
        try:
            relayed = await self._upstreams.relay(request)
            error_type = None
        except ProviderFailure as failure:
            error_type = failure.failure_class
            raise
        finally:
            context.traceparent = parent
            span.set_attributes(_relay_attributes(request, context))
            if error_type is not None:
                _set_error(span, error_type)
            if relayed is None:
                span.end()
        return cast("RelayResponse", _TracedRelay(relayed, span)) if relayed else None


class _TracedRelay:
    """A forwarded response that ends its span when it is closed."""

    def __init__(self, relayed: RelayResponse, span: "Span") -> None:
        self._relayed = relayed
        self._span = span

    def __getattr__(self, name: str) -> Any:
        return getattr(self._relayed, name)

    async def close(self) -> None:
        """Release the connection, and end the span."""
        await self._relayed.close()
        self._span.set_attribute("http.response.status_code", self._relayed.status)
        if self._relayed.outcome not in NOT_ERRORS:
            _set_error(self._span, self._relayed.outcome)
        self._span.end()


class _TracedProvider:
    """A provider that records each call as a span; the upstream gets it as `traceparent`."""

    def __init__(self, provider: Provider, meter: TracingMeter) -> None:
        self._provider = provider
        self._meter = meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        return await self._traced(call, self._provider.answer(call))

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Stream the answer."""
        return await self._traced(call, self._provider.stream(call, sink))

    async def _traced(self, call: ModelCall, answering: Awaitable[Answer]) -> Answer:
        request = current_request.get()
        trace = self._meter.current() if request is not None else None
        attributes = _call_attributes(self._provider.name, call)
        began_at = time.time_ns()
        name = f"chat {call.model}"
        span = trace.start(name, attributes, started_at=began_at, is_remote=True) if trace else None
        if request is None or trace is None or span is None:
            return await answering
        trace.call_started_at = began_at
        parent, request.traceparent = request.traceparent, _traceparent(span)
        started_at = time.monotonic()
        try:
            answer = await answering
            span.set_attributes(_answer_attributes(answer))
            if self._meter.has_content:
                span.set_attribute("gen_ai.input.messages", input_messages(call.items))
                span.set_attribute("gen_ai.output.messages", output_messages(answer))
            return answer
        except ProviderFailure as failure:
            span.set_attribute("holdfast.failure_class", failure.failure_class)
            if failure.provider_status is not None:
                span.set_attribute("http.response.status_code", failure.provider_status)
            _set_error(span, failure.provider_code or failure.failure_class)
            raise
        except asyncio.CancelledError:
            _set_error(span, "cancelled")
            raise
        finally:
            first = request.first_token_at
            if call.is_stream and first is not None and first >= started_at:
                span.set_attribute("gen_ai.response.time_to_first_chunk", first - started_at)
            trace.call_ended_at = time.time_ns()
            span.end(trace.call_ended_at)
            request.traceparent = parent


def trace_commits(store: Store, meter: PrometheusMeter) -> Store:
    """Return the store, wrapped if the meter exports traces."""
    # The wrapper delegates every other attribute, so it implements the whole protocol.
    if not isinstance(meter, TracingMeter):
        return store
    return cast("Store", _TracedStore(store, meter))


def trace_calls(upstreams: UpstreamsT, meter: PrometheusMeter) -> UpstreamsT:
    """Return the upstreams, wrapped if the meter exports traces."""
    if not isinstance(meter, TracingMeter):
        return upstreams
    return cast("UpstreamsT", _TracedUpstreams(upstreams, meter))


# ── attributes ──────────────────────────────────────────────────────────────────────────────


def _duration(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)


def _set_error(span: "Span", error_type: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, error_type)
    span.set_attribute("error.type", error_type)


def _request_attributes(request: RequestContext, outcome: str) -> Attributes:
    attributes: Attributes = {
        "holdfast.outcome": outcome,
        "holdfast.request_id": request.request_id,
    }
    if request.model is not None:
        attributes["gen_ai.request.model"] = request.model
    if request.upstream is not None:
        attributes["gen_ai.provider.name"] = request.upstream
    if request.tenant is not None:
        attributes["holdfast.tenant"] = request.tenant
    return attributes


def _call_attributes(upstream: str, call: ModelCall) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": upstream,
        "gen_ai.request.model": call.model,
        "gen_ai.request.stream": call.is_stream,
        "holdfast.state_used": call.state is not None,
    }
    if call.session_id is not None:
        attributes["gen_ai.conversation.id"] = call.session_id
    return attributes


def _operation(request: RelayRequest) -> str:
    """Return the operation of a forwarded request: `chat`, `embeddings`, `images`, and so on."""
    return request.path.strip("/").partition("?")[0].partition("/")[0]


def _relay_name(request: RelayRequest) -> str:
    operation = _operation(request)
    return f"{operation} {request.model}" if request.model else operation


def _relay_attributes(request: RelayRequest, context: RequestContext) -> Attributes:
    attributes: Attributes = {"gen_ai.operation.name": _operation(request)}
    if context.upstream is not None:
        attributes["gen_ai.provider.name"] = context.upstream
    if request.model is not None:
        attributes["gen_ai.request.model"] = request.model
    return attributes


def _answer_attributes(answer: Answer) -> Attributes:
    attributes: Attributes = {"gen_ai.response.finish_reasons": [finish_reason(answer)]}
    if answer.usage is not None:
        attributes["gen_ai.usage.input_tokens"] = answer.usage.input_tokens
        attributes["gen_ai.usage.output_tokens"] = answer.usage.output_tokens
        attributes["gen_ai.usage.cache_read.input_tokens"] = answer.usage.cached_tokens
    return attributes


def _traceparent(span: "Span") -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _parent(traceparent: str | None) -> "Context | None":
    """Return the client's span as parent."""
    if traceparent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def tracing_meter(endpoint: str, *, has_content: bool = False) -> TracingMeter:
    """Return a meter that exports traces to an OTLP/HTTP endpoint in the background."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as exc:
        raise InvalidSetting("otel.endpoint needs an extra: pip install 'holdfast[otel]'") from exc
    resource = Resource.create({"service.name": "holdfast", "service.version": __version__})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return TracingMeter(provider, has_content=has_content)
