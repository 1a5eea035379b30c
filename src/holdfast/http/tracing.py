"""OpenTelemetry traces: one per turn, built from what the meter is told anyway.

Spans are created when a turn ends, with the times that were measured, so that a gateway without
tracing runs none of this. Attributes follow the GenAI semantic conventions and never hold content.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from holdfast._version import __version__
from holdfast.core.errors import InvalidSetting
from holdfast.http.metrics import PrometheusMeter
from holdfast.ports.request_context import RequestContext, current_request

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

MAX_STEPS = 64
"""Spans of one turn; further ones are dropped."""
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Step:
    """A finished part of a turn; one without duration becomes an event."""

    name: str
    ended_at: int
    seconds: float
    attributes: dict[str, str]


class TracingMeter(PrometheusMeter):
    """A meter that also exports a trace of every turn that a request submitted."""

    def __init__(self, provider: "TracerProvider") -> None:
        super().__init__()
        self._provider = provider
        self._tracer = provider.get_tracer("holdfast", __version__)
        self._steps: WeakKeyDictionary[RequestContext, list[_Step]] = WeakKeyDictionary()

    def lane_waited(self, seconds: float) -> None:
        """Record the wait for a lane as a span."""
        super().lane_waited(seconds)
        self._add("queue", seconds)

    def upstream_answered(self, name: str, outcome: str, seconds: float) -> None:
        """Record an upstream attempt as a span."""
        super().upstream_answered(name, outcome, seconds)
        self._add("upstream", seconds, {"gen_ai.provider.name": name, "holdfast.outcome": outcome})

    def healed(self, failure_class: str) -> None:
        """Record a heal as an event of the turn."""
        super().healed(failure_class)
        self._add("heal", 0.0, {"holdfast.failure_class": failure_class})

    def compacted(self, mode: str, reason: str) -> None:
        """Record a compaction as an event of the turn."""
        super().compacted(mode, reason)
        self._add("compaction", 0.0, {"holdfast.mode": mode, "holdfast.reason": reason})

    def run_ended(self, outcome: str) -> None:
        """Export the trace of the turn."""
        super().run_ended(outcome)
        context = current_request.get()
        if context is not None:
            self._export(context, outcome, self._steps.pop(context, []))

    def shutdown(self) -> None:
        """Export what is still buffered."""
        self._provider.shutdown()

    def _add(self, name: str, seconds: float, attributes: dict[str, str] | None = None) -> None:
        context = current_request.get()
        if context is None:
            return
        steps = self._steps.setdefault(context, [])
        if len(steps) < MAX_STEPS:
            steps.append(_Step(name, time.time_ns(), seconds, attributes or {}))

    def _export(self, context: RequestContext, outcome: str, steps: Sequence[_Step]) -> None:
        from opentelemetry import trace

        now = time.time_ns()
        started = now - _duration(time.monotonic() - context.started_at)
        turn = self._tracer.start_span(
            f"chat {context.model or 'unknown'}",
            context=_parent(context.traceparent),
            kind=trace.SpanKind.SERVER,
            start_time=started,
            attributes=_attributes(context, outcome),
        )
        inside = trace.set_span_in_context(turn)
        for step in steps:
            if step.seconds:
                span = self._tracer.start_span(
                    step.name,
                    context=inside,
                    start_time=step.ended_at - _duration(step.seconds),
                    attributes=step.attributes,
                )
                span.end(step.ended_at)
            else:
                turn.add_event(step.name, step.attributes, timestamp=step.ended_at)
        if outcome not in ("completed", "cancelled"):
            turn.set_status(trace.StatusCode.ERROR, outcome)
        turn.end(now)


def _duration(seconds: float) -> int:
    return int(seconds * _NANOSECONDS)


def _attributes(context: RequestContext, outcome: str) -> dict[str, str | int | float]:
    attributes: dict[str, str | int | float] = {
        "gen_ai.operation.name": "chat",
        "holdfast.outcome": outcome,
        "holdfast.request_id": context.request_id,
    }
    if context.model is not None:
        attributes["gen_ai.request.model"] = context.model
    if context.upstream is not None:
        attributes["gen_ai.provider.name"] = context.upstream
    if context.tenant is not None:
        attributes["holdfast.tenant"] = context.tenant
    if context.usage is not None:
        attributes["gen_ai.usage.input_tokens"] = context.usage.input_tokens
        attributes["gen_ai.usage.output_tokens"] = context.usage.output_tokens
    if context.first_token_at is not None:
        seconds = context.first_token_at - context.started_at
        attributes["holdfast.first_token_seconds"] = round(seconds, 6)
    return attributes


def _parent(traceparent: str | None) -> "Context | None":
    """Return the client's span as parent."""
    if traceparent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def tracing_meter(endpoint: str) -> TracingMeter:
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
    return TracingMeter(provider)
