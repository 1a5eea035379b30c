"""Traces, metrics and the log of real turns, and the documentation page that shows them."""

import asyncio
import io
import logging
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.app import open_application
from holdfast.engine.logging import LOG_AREAS, JsonFormatter
from holdfast.engine.logging import ROOT as LOGGER
from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.providers.settings import UpstreamSettings
from holdfast.settings import OtelSettings, Settings, StoreSettings
from holdfast.testing.simulator.process import ProviderSimulator
from tests.http_server import HttpServer, serving
from tests.socket_client import SocketClient

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "watch-a-gateway.md"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
SECRET = "a very private sentence"
TRACING = "holdfast.observability.tracing"
CONTENT = "holdfast.observability.span_content"


class Gateway(NamedTuple):
    client: httpx.AsyncClient
    exporter: InMemorySpanExporter
    server: HttpServer

    async def respond(self, text: str = SECRET, **more: object) -> httpx.Response:
        return await self.client.post(
            "/v1/responses",
            json={"model": "gpt-4.1", "input": text, **more},
            headers={"X-Session-Key": "k", "X-Request-Id": "client-7", "traceparent": PARENT},
        )

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def provider() -> Iterator[ProviderSimulator]:
    """A simulated provider."""
    with ProviderSimulator() as simulator:
        yield simulator


@asynccontextmanager
async def traced_gateway(
    provider: ProviderSimulator,
    *,
    has_content: bool = False,
    context: ContextSettings | None = None,
    **upstream: Any,
) -> AsyncIterator[Gateway]:
    settings = Settings(
        store=StoreSettings(url="memory:"),
        otel=OtelSettings(content=has_content),
        heals=HealSettings(transient_retries=1, first_pause_seconds=0.05),
        context=context or ContextSettings(),
        upstreams=(
            UpstreamSettings(name="openai", url=provider.base_url, key="sk-test", **upstream),
        ),
    )
    exporter = InMemorySpanExporter()
    traces = TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(exporter))
    async with (
        open_application(settings, tracer_provider=traces) as application,
        serving(application) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        yield Gateway(client, exporter, server)


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_a_healed_turn_is_one_trace_of_all_its_steps(provider: ProviderSimulator) -> None:
    provider.add_fault("error", status=503, message="The server is overloaded", times=1)
    async with traced_gateway(provider) as gateway:
        reply = await gateway.respond()
        assert reply.status_code == 200
        spans = gateway.spans()
    assert [span.name for span in spans] == [
        "commit", "chat gpt-4.1", "projection", "commit", "heal", "chat gpt-4.1", "projection",
        "commit", "turn",
    ]  # fmt: skip
    commits = [span for span in spans if span.name == "commit"]
    assert [attributes(span)["holdfast.command"] for span in commits] == [
        "Accept", "RecordHeal", "Finish",
    ]  # fmt: skip
    *steps, turn = spans
    assert turn.context is not None
    assert {span.parent.span_id for span in steps if span.parent} == {turn.context.span_id}
    assert {f"{span.context.trace_id:032x}" for span in spans if span.context} == {TRACE}
    assert attributes(turn)["gen_ai.conversation.id"] == reply.headers["x-session-id"]
    assert attributes(turn)["holdfast.turn.id"] == reply.headers["x-turn-id"]
    assert attributes(turn)["holdfast.outcome"] == "completed"
    failed, answered = (span for span in spans if span.name == "chat gpt-4.1")
    assert attributes(failed)["http.response.status_code"] == 503
    usage = reply.json()["usage"]
    assert attributes(answered)["gen_ai.usage.input_tokens"] == usage["input_tokens"]
    assert attributes(answered)["gen_ai.usage.output_tokens"] == usage["output_tokens"]
    assert attributes(answered)["gen_ai.response.finish_reasons"] == ("stop",)
    assert SECRET not in "".join(span.to_json() for span in spans)


async def test_the_upstream_gets_the_span_of_its_attempt_as_parent(
    provider: ProviderSimulator,
) -> None:
    async with traced_gateway(provider) as gateway:
        await gateway.respond()
        [attempt] = [span for span in gateway.spans() if span.name.startswith("chat")]
    [request] = provider.requests()
    assert attempt.context is not None
    assert request.headers["traceparent"] == f"00-{TRACE}-{attempt.context.span_id:016x}-01"


async def test_each_turn_of_a_websocket_has_times_of_its_own(provider: ProviderSimulator) -> None:
    async with traced_gateway(provider) as gateway:
        client = SocketClient(gateway.server, headers={"X-Session-Key": "k"})
        for text in ("one", "two"):
            client.create(text, model="gpt-4.1")
            assert (await client.response())[-1]["type"] == "response.completed"
        await client.leave()
        first, second = (span for span in gateway.spans() if span.name == "turn")
    assert first.end_time is not None
    assert second.start_time is not None
    assert second.start_time >= first.end_time


async def test_a_stream_has_the_time_to_its_first_chunk(provider: ProviderSimulator) -> None:
    async with traced_gateway(provider) as gateway:
        reply = await gateway.respond(stream=True)
        assert "response.completed" in reply.text
        [attempt] = [span for span in gateway.spans() if span.name.startswith("chat")]
    seconds = attributes(attempt)["gen_ai.response.time_to_first_chunk"]
    assert isinstance(seconds, float)
    assert seconds > 0


async def test_content_is_recorded_if_configured(provider: ProviderSimulator) -> None:
    async with traced_gateway(provider, has_content=True) as gateway:
        await gateway.respond()
        [attempt] = [span for span in gateway.spans() if span.name.startswith("chat")]
    assert SECRET in str(attributes(attempt)["gen_ai.input.messages"])
    assert '"assistant"' in str(attributes(attempt)["gen_ai.output.messages"])


async def test_a_request_that_is_not_stored_is_traced_too(provider: ProviderSimulator) -> None:
    async with traced_gateway(provider) as gateway:
        body = {"model": "gpt-4.1", "input": "hi", "store": False}
        reply = await gateway.client.post("/v1/responses", json=body)
        assert reply.status_code == 200
        spans = gateway.spans()
    assert [span.name for span in spans] == ["chat gpt-4.1", "turn"]


async def test_a_tool_that_the_gateway_runs_is_a_span_of_the_turn(
    provider: ProviderSimulator,
) -> None:
    provider.add_answer(tool_calls=[{"name": "session_status", "arguments": "{}"}], times=1)
    async with traced_gateway(provider) as gateway:
        tools = [{"type": "holdfast", "name": "session_status"}]
        reply = await gateway.respond(tools=tools)
        assert reply.status_code == 200
        spans = gateway.spans()
    assert [span.name for span in spans].count("turn") == 1
    [call] = [span for span in spans if span.name.startswith("execute_tool")]
    assert attributes(call)["gen_ai.tool.name"] == "session_status"
    assert attributes(call)["holdfast.outcome"] == "completed"
    turn = spans[-1]
    assert call.parent is not None
    assert turn.context is not None
    assert call.parent.span_id == turn.context.span_id
    assert [span.name for span in spans].count("chat gpt-4.1") == 2


async def test_requests_that_run_no_turn_leave_no_trace(provider: ProviderSimulator) -> None:
    async with traced_gateway(provider) as gateway:
        made = await gateway.client.post("/v1/conversations", json={})
        assert made.status_code == 200
        assert gateway.spans() == []


async def test_a_turn_that_waits_has_a_span_for_its_queue(provider: ProviderSimulator) -> None:
    async with traced_gateway(provider) as gateway:
        with provider.hold(times=1) as barrier:
            first = asyncio.create_task(gateway.respond("one"))
            await barrier.wait_held_async()
            second = asyncio.create_task(gateway.respond("two"))
            while "holdfast_turns_queued 1.0" not in (await gateway.client.get("/metrics")).text:
                pass
            await barrier.release_async()
            assert [(await first).status_code, (await second).status_code] == [200, 200]
        [queue] = [span for span in gateway.spans() if span.name == "queue"]
    assert queue.parent is not None


async def test_without_an_endpoint_no_call_of_a_turn_is_made_for_traces() -> None:
    calls: list[str] = []

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_globals.get("__name__", ""))

    settings = Settings(store=StoreSettings(url="memory:"))
    async with (
        open_application(settings) as application,
        serving(application) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        body = {"model": "holdfast-demo", "input": "hello"}
        sys.setprofile(count)
        try:
            reply = await client.post("/v1/responses", json=body)
        finally:
            sys.setprofile(None)
    assert reply.status_code == 200
    assert sum(name.startswith("holdfast.") for name in calls) > 200
    made = {name for name in calls if name.startswith(("opentelemetry", TRACING, CONTENT))}
    assert made == set()


# ── the page ────────────────────────────────────────────────────────────────────────────────

_VARIABLE = (
    (re.compile(r"ses_[0-9a-f]+"), "ses_…"),
    (re.compile(r"turn_[0-9a-f]+"), "turn_…"),
    (re.compile(r"\d+\.\d+ ms"), "… ms"),
    (re.compile(r'"(ms|at)":[\d.]+'), r'"\1":…'),
    (re.compile(r"\{\"bytes_out\":\d+"), '"bytes_out":…'),
)


def normal(text: str) -> str:
    """Return a text without what differs from run to run."""
    for pattern, stand_in in _VARIABLE:
        text = pattern.sub(stand_in, text)
    return text


def tree(spans: list[ReadableSpan]) -> str:
    """Return a trace as text: the turn, then its steps in the order of their starts."""
    *steps, turn = spans
    steps.sort(key=lambda span: (span.start_time or 0, -(span.end_time or 0)))
    return "\n".join([line(turn), *(f"  {line(step)}" for step in steps)])


def line(span: ReadableSpan) -> str:
    milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1_000_000
    words = [span.name, f"{milliseconds:.1f} ms"]
    if not span.status.is_ok and not span.status.is_unset:
        words.append("ERROR")
    words += [f"{name}={value}" for name, value in sorted(attributes(span).items())]
    return " ".join(words)


def test_the_page_lists_every_area() -> None:
    table = PAGE.read_text().partition("| area |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(LOG_AREAS)


async def test_a_request_that_the_provider_finds_wrong_is_not_counted_as_failed(
    provider: ProviderSimulator,
) -> None:
    provider.add_fault("error", status=400, message="The prompt is invalid")
    async with traced_gateway(provider) as gateway:
        reply = await gateway.respond()
        assert reply.status_code == 400
        lines = (await gateway.client.get("/metrics")).text.splitlines()
    (ended,) = [line for line in lines if line.startswith("holdfast_turns_total{")]
    assert 'outcome="rejected"' in ended


async def test_the_page_shows_what_a_failing_turn_leaves(provider: ProviderSimulator) -> None:
    provider.add_fault("error", status=503, message="The server is overloaded")
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    try:
        async with traced_gateway(provider) as gateway:
            reply = await gateway.respond()
            assert reply.status_code == 503
            scrape = (await gateway.client.get("/metrics")).text
            trace = tree(gateway.spans())
    finally:
        logger.removeHandler(handler)
    page = normal(PAGE.read_text())
    for event in logged.getvalue().splitlines():
        assert normal(event) in page
    shown = re.findall(r"^holdfast_.*$", page, re.MULTILINE)
    assert shown
    for sample in shown:
        assert sample in scrape.splitlines()
    assert normal(trace) in page, trace


async def test_a_turn_that_stops_for_tools_is_counted_once(provider: ProviderSimulator) -> None:
    calls = [{"name": "look", "arguments": {}}]
    provider.add_answer(tool_calls=calls, when={"text": "look"}, times=1)
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    async with traced_gateway(provider) as gateway:
        stopped = (await gateway.respond("look", tools=[tool])).json()
        (call,) = [item for item in stopped["output"] if item["type"] == "function_call"]
        text = (await gateway.client.get("/metrics")).text
        assert "holdfast_turns_total{" not in text
        assert 'holdfast_runs_ended_total{outcome="requires_action"} 1.0' in text
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "here"}
        reply = await gateway.client.post(
            "/v1/responses",
            json={"model": "gpt-4.1", "input": [output], "tools": [tool]},
            headers={"X-Session-Key": "k"},
        )
        assert reply.status_code == 200, reply.text
        lines = (await gateway.client.get("/metrics")).text.splitlines()
        outcomes = [
            attributes(span)["holdfast.outcome"] for span in gateway.spans() if span.name == "turn"
        ]
    (ended,) = [line for line in lines if line.startswith("holdfast_turns_total{")]
    assert 'outcome="completed"' in ended
    assert ended.endswith(" 1.0")
    assert 'holdfast_runs_ended_total{outcome="completed"} 1.0' in lines
    assert [line for line in lines if line.startswith("holdfast_turns_accepted_total{")] == [
        'holdfast_turns_accepted_total{admission="started",source="user"} 1.0',
        'holdfast_turns_accepted_total{admission="continued",source="user"} 1.0',
    ]
    assert outcomes == ["requires_action", "completed"]


async def test_tokens_of_every_model_call_of_a_turn_are_counted(
    provider: ProviderSimulator,
) -> None:
    provider.add_answer(tool_calls=[{"name": "session_status", "arguments": "{}"}], times=1)
    async with traced_gateway(provider) as gateway:
        reply = await gateway.respond(tools=[{"type": "holdfast", "name": "session_status"}])
        usage = reply.json()["usage"]
        lines = (await gateway.client.get("/metrics")).text.splitlines()
        calls = [span for span in gateway.spans() if span.name.startswith("chat")]
    assert len(calls) == 2
    counted = {
        kind: [float(line.split()[-1]) for line in lines if f'tokens_total{{kind="{kind}"' in line]
        for kind in ("input", "output")
    }
    assert counted == {"input": [usage["input_tokens"]], "output": [usage["output_tokens"]]}


def _tokens(lines: list[str]) -> dict[tuple[str, str], float]:
    """Return the counted tokens by model and kind."""
    found = (
        re.match(r'holdfast_tokens_total{kind="(\w+)",model="([^"]+)"', line) for line in lines
    )
    return {
        (match[2], match[1]): float(match.string.split()[-1])
        for match in found
        if match is not None and match[1] != "cached"
    }


@pytest.mark.parametrize("way", ["threshold", "asked"])
async def test_tokens_of_compactions_are_counted_with_the_model_that_wrote_them(
    provider: ProviderSimulator, way: str
) -> None:
    context = ContextSettings(mode="model", model="gpt-4.1-mini")
    async with traced_gateway(provider, context=context) as gateway:
        for _ in range(3):
            await gateway.respond("word " * 400)
        before = _tokens((await gateway.client.get("/metrics")).text.splitlines())
        provider.clear_record()
        if way == "asked":
            listed = await gateway.client.get("/v1/sessions", params={"key": "k"})
            [session] = listed.json()["data"]
            done = await gateway.client.post(f"/v1/sessions/{session['id']}/compact")
        else:
            manage = [{"type": "compaction", "compact_threshold": 1000}]
            done = await gateway.respond("go on", context_management=manage)
        assert done.status_code == 200, done.text
        lines = (await gateway.client.get("/metrics")).text.splitlines()
    models = [call.body["model"] for call in provider.requests()]
    assert models == ["gpt-4.1-mini", *(["gpt-4.1"] if way == "threshold" else [])]
    after = _tokens(lines)
    for kind in ("input", "output"):
        assert after["gpt-4.1-mini", kind] > 0
        is_more = after["gpt-4.1", kind] > before["gpt-4.1", kind]
        assert is_more == (way == "threshold")
    turns = [line for line in lines if line.startswith("holdfast_turns_total{")]
    ended = {"gpt-4.1": 4.0} if way == "threshold" else {"gpt-4.1": 3.0, "gpt-4.1-mini": 1.0}
    assert {line.split('"')[1]: float(line.split()[-1]) for line in turns} == ended


@pytest.mark.parametrize("way", ["reset", "interrupt", "cancel"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_turn_that_is_ended_while_it_runs_is_counted_and_traced(
    provider: ProviderSimulator, way: str, is_stream: bool
) -> None:
    async with traced_gateway(provider) as gateway:
        with provider.hold(times=1) as barrier:
            running = asyncio.create_task(gateway.respond("one", stream=is_stream))
            await barrier.wait_held_async()
            listed = await gateway.client.get("/v1/sessions", params={"key": "k"})
            [session] = listed.json()["data"]
            if way == "reset":
                done = await gateway.client.post(f"/v1/sessions/{session['id']}/reset", json={})
            elif way == "cancel":
                path = f"/v1/turns/{session['active_turn_id']}/cancel"
                done = await gateway.client.post(path, json={})
            else:
                done = await gateway.client.post(
                    "/v1/responses",
                    json={"model": "gpt-4.1", "input": "two"},
                    headers={"X-Session-Key": "k", "X-On-Busy": "interrupt"},
                )
            assert done.status_code == 200, done.text
            reply = await running
            await barrier.release_async()
        lines = (await gateway.client.get("/metrics")).text.splitlines()
        turns = [span for span in gateway.spans() if span.name == "turn"]
    assert reply.status_code == (200 if is_stream else 409)
    assert "holdfast_turns_in_flight 0.0" in lines
    assert 'holdfast_runs_ended_total{outcome="cancelled"} 1.0' in lines
    [counted] = [line for line in lines if "turns_total{" in line and 'outcome="cancelled"' in line]
    assert counted.endswith(" 1.0")
    outcomes = [attributes(span)["holdfast.outcome"] for span in turns]
    assert outcomes.count("cancelled") == 1


async def test_a_turn_that_is_cancelled_in_its_queue_has_a_whole_trace(
    provider: ProviderSimulator,
) -> None:
    async with traced_gateway(provider) as gateway:
        with provider.hold(times=1) as barrier:
            first = asyncio.create_task(gateway.respond("one"))
            await barrier.wait_held_async()
            second = asyncio.create_task(gateway.respond("two"))
            while "holdfast_turns_queued 1.0" not in (await gateway.client.get("/metrics")).text:
                pass
            listed = await gateway.client.get("/v1/sessions", params={"key": "k"})
            [session] = listed.json()["data"]
            turns = await gateway.client.get(f"/v1/sessions/{session['id']}/turns?order=desc")
            queued = turns.json()["data"][0]["id"]
            await gateway.client.post(f"/v1/turns/{queued}/cancel", json={})
            assert (await second).status_code == 409
            lines = (await gateway.client.get("/metrics")).text.splitlines()
            await barrier.release_async()
            assert (await first).status_code == 200
        spans = [span for span in gateway.spans() if span.name == "turn"]
    assert "holdfast_turns_queued 0.0" in lines
    assert [attributes(span)["holdfast.outcome"] for span in spans] == ["cancelled", "completed"]
