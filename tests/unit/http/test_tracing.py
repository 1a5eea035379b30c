"""OpenTelemetry traces: one per turn, without content."""

import subprocess
import sys

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from holdfast.core.model.session import Usage
from holdfast.http.tracing import MAX_STEPS, TracingMeter
from holdfast.ports.request_context import RequestContext, current_request

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Collects the exported spans."""
    return InMemorySpanExporter()


@pytest.fixture
def meter(exporter: InMemorySpanExporter) -> TracingMeter:
    """A meter that exports at once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return TracingMeter(provider)


def spans_of(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_turn_is_one_trace_with_queue_and_upstream_spans(
    meter: TracingMeter, exporter: InMemorySpanExporter
) -> None:
    context = RequestContext("req_1", PARENT, tenant="acme", model="gpt-5", upstream="openai")
    context.usage = Usage(100, 40, 7, 0)
    context.first_token_at = context.started_at + 0.25
    current_request.set(context)
    meter.turn_accepted("user", "queued")
    meter.lane_waited(1.5)
    meter.upstream_answered("openai", "transient", 0.5)
    meter.healed("transient")
    meter.upstream_answered("openai", "completed", 2.0)
    meter.run_ended("completed")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["queue", "upstream", "upstream", "chat gpt-5"]
    turn = spans[-1]
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    for span in spans[:-1]:
        assert span.parent is not None
        assert turn.context is not None
        assert span.parent.span_id == turn.context.span_id
    assert dict(turn.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.provider.name": "openai",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 7,
        "holdfast.outcome": "completed",
        "holdfast.request_id": "req_1",
        "holdfast.tenant": "acme",
        "holdfast.first_token_seconds": 0.25,
    }
    assert [event.name for event in turn.events] == ["heal"]
    queue = spans[0]
    assert queue.end_time is not None
    assert queue.start_time is not None
    assert queue.end_time - queue.start_time == 1_500_000_000
    assert turn.status.status_code is StatusCode.UNSET


def test_a_failed_turn_is_an_error(meter: TracingMeter, exporter: InMemorySpanExporter) -> None:
    current_request.set(RequestContext("req_1", model="m"))
    meter.run_ended("failed")
    assert spans_of(exporter)["chat m"].status.status_code is StatusCode.ERROR


def test_spans_of_one_turn_are_bounded(meter: TracingMeter, exporter: InMemorySpanExporter) -> None:
    current_request.set(RequestContext("req_1", model="m"))
    for _ in range(MAX_STEPS + 10):
        meter.upstream_answered("u", "transient", 0.1)
    meter.run_ended("failed")
    assert len(exporter.get_finished_spans()) == MAX_STEPS + 1


def test_work_without_a_request_is_not_traced(
    meter: TracingMeter, exporter: InMemorySpanExporter
) -> None:
    current_request.set(None)
    meter.upstream_answered("u", "completed", 0.1)
    meter.run_ended("completed")
    assert exporter.get_finished_spans() == ()


def test_a_gateway_without_an_endpoint_does_not_import_opentelemetry() -> None:
    script = (
        "import asyncio, sys\n"
        "from holdfast.app import open_application\n"
        "from holdfast.settings import Settings, StoreSettings\n"
        "async def main():\n"
        "    async with open_application(Settings(store=StoreSettings(url='memory:'))):\n"
        "        pass\n"
        "asyncio.run(main())\n"
        "print(any(name.startswith('opentelemetry') for name in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False\n"
