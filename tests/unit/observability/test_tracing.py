"""OpenTelemetry traces: one per turn, bounded, without content unless it is asked for."""

import subprocess
import sys

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from holdfast.observability.span_content import (
    MAX_CONTENT_BYTES,
    finish_reason,
    input_messages,
    output_messages,
)
from holdfast.observability.tracing import MAX_STEPS, TracingMeter
from holdfast.ports.provider import Answer
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


def duration_of(span: ReadableSpan) -> int:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.end_time - span.start_time


def test_a_turn_is_one_trace_with_a_span_for_each_step(
    meter: TracingMeter, exporter: InMemorySpanExporter
) -> None:
    current_request.set(
        RequestContext("req_1", PARENT, tenant="acme", model="gpt-5", upstream="openai")
    )
    meter.turn_accepted("user", "queued")
    meter.lane_waited(1.5)
    meter.upstream_answered("openai", "transient", 0.5, 0.25)
    meter.healed("transient", "retried", 2.0)
    meter.tool_called("search", "call_1", "completed", 0.75)
    meter.compacted("summary", "threshold")
    meter.run_ended("completed")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [
        "queue", "projection", "heal", "execute_tool search", "turn",
    ]  # fmt: skip
    *steps, turn = spans
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    for span in steps:
        assert span.parent is not None
        assert turn.context is not None
        assert span.parent.span_id == turn.context.span_id
    assert [duration_of(span) for span in steps] == [
        1_500_000_000, 250_000_000, 2_000_000_000, 750_000_000,
    ]  # fmt: skip
    assert dict(turn.attributes or {}) == {
        "gen_ai.request.model": "gpt-5",
        "gen_ai.provider.name": "openai",
        "holdfast.outcome": "completed",
        "holdfast.request_id": "req_1",
        "holdfast.tenant": "acme",
    }
    assert dict(steps[2].attributes or {}) == {
        "holdfast.failure_class": "transient",
        "holdfast.heal.action": "retried",
    }
    assert dict(steps[3].attributes or {}) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.id": "call_1",
        "holdfast.outcome": "completed",
    }
    assert [event.name for event in turn.events] == ["compaction"]
    assert turn.status.status_code is StatusCode.UNSET


def test_the_request_was_built_before_the_upstream_was_called(
    meter: TracingMeter, exporter: InMemorySpanExporter
) -> None:
    current_request.set(RequestContext("req_1"))
    meter.upstream_answered("openai", "completed", 10.0, 0.25)
    meter.run_ended("completed")
    projection, turn = exporter.get_finished_spans()
    assert projection.end_time is not None
    assert turn.end_time is not None
    assert turn.end_time - projection.end_time >= 10_000_000_000


def test_a_failed_turn_is_an_error(meter: TracingMeter, exporter: InMemorySpanExporter) -> None:
    current_request.set(RequestContext("req_1", model="m"))
    meter.lane_waited(0.1)
    meter.run_ended("failed")
    assert spans_of(exporter)["turn"].status.status_code is StatusCode.ERROR


def test_spans_of_one_turn_are_bounded(meter: TracingMeter, exporter: InMemorySpanExporter) -> None:
    current_request.set(RequestContext("req_1", model="m"))
    for _ in range(MAX_STEPS + 10):
        meter.healed("transient", "retried", 0.1)
    meter.run_ended("failed")
    assert len(exporter.get_finished_spans()) == MAX_STEPS + 1


def test_work_without_a_request_is_not_traced(
    meter: TracingMeter, exporter: InMemorySpanExporter
) -> None:
    current_request.set(None)
    meter.lane_waited(0.1)
    meter.run_ended("completed")
    assert exporter.get_finished_spans() == ()


def test_a_request_that_is_no_turn_is_not_traced(
    meter: TracingMeter, exporter: InMemorySpanExporter
) -> None:
    current_request.set(RequestContext("req_1"))
    meter.request_answered("GET", "/v1/sessions", 200, 0.1)
    assert exporter.get_finished_spans() == ()


def message(role: str, text: str, kind: str = "input_text") -> bytes:
    part = {"type": kind, "text": text}
    return msgspec.json.encode({"type": "message", "role": role, "content": [part]})


CALL = msgspec.json.encode(
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'}
)
RESULT = msgspec.json.encode({"type": "function_call_output", "call_id": "c1", "output": "3"})


def test_content_has_the_form_of_the_conventions() -> None:
    assert msgspec.json.decode(input_messages([message("user", "hi"), CALL, RESULT])) == [
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "add", "arguments": '{"a":1}'}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "3"}]},
    ]
    answer = Answer(items=[message("assistant", "3", "output_text")])
    assert msgspec.json.decode(output_messages(answer)) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "3"}],
            "finish_reason": "stop",
        }
    ]


def test_content_is_bounded_and_keeps_the_newest_messages() -> None:
    items = [message("user", "x" * 1000) for _ in range(100)] + [message("user", "newest")]
    content = input_messages(items)
    assert len(content) < 2 * MAX_CONTENT_BYTES
    assert msgspec.json.decode(content)[-1]["parts"][0]["content"] == "newest"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(items=[message("assistant", "hi", "output_text")]), "stop"),
        (Answer(items=[CALL]), "tool_call"),
        (Answer(items=[], status="incomplete", incomplete_reason="max_output_tokens"), "length"),
        (Answer(items=[], status="incomplete"), "unknown"),
    ],
)
def test_finish_reasons_use_the_words_of_the_conventions(answer: Answer, reason: str) -> None:
    assert finish_reason(answer) == reason


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
