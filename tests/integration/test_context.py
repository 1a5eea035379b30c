"""Requests over the context window: shortened before they are sent or after a rejection."""

import json
from typing import Any

import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_heals import heals, told
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

Json = dict[str, Any]
WINDOW = 2_000
QUICK = HealSettings(first_pause_seconds=0.001)
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
ELIDE = ContextSettings(mode="elide")


def small(overflow: str = "before", **more: Any) -> ProviderSimulator:
    """Return a simulator with a small window."""
    return ProviderSimulator({"context_tokens": WINDOW, "overflow": overflow, **more})


async def fill(gateway: UpstreamGateway, turns: int, words: int = 150, **more: Any) -> None:
    """Say so much in so many turns."""
    for number in range(turns):
        await gateway.respond(f"turn {number}: " + "word " * words, **more)


async def call_tool(gateway: UpstreamGateway, output: str, **more: Any) -> Json:
    """Have a tool called, and give its output."""
    first = await gateway.respond("call look {}", tools=TOOLS, **more)
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    value = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
    return await gateway.respond([value], tools=TOOLS, **more)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("overflow", ["before", "stream"])
@pytest.mark.parametrize("mode", ["model", "elide"])
async def test_f70_a_request_that_is_refused_as_too_long_is_compacted_and_sent_again(
    is_stream: bool, overflow: str, mode: Any
) -> None:
    with small(overflow) as simulator:
        context = ContextSettings(mode=mode)
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=context
        ) as gateway:
            await fill(gateway, 12, stream=is_stream)
            done = await heals(gateway)
            assert done
            assert set(done) == {("overflow", "shrunk")}
            assert await told(gateway, "session.compacted") >= len(done)
            refused = [r for r in simulator.requests() if r.fault in ("R10", "R11")]
            # What was refused teaches where the window ends: later ones are short before they go.
            assert len(refused) < 5
            view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
            assert view is not None
            assert (view.session.turn_count, view.session.item_count) == (12, 36)


async def test_f70_a_window_that_is_set_too_large_costs_one_refusal_and_no_more() -> None:
    with small() as simulator:
        behind = upstream(simulator, context_tokens=100 * WINDOW)
        async with open_upstream_gateway(behind, heals=QUICK, context=ELIDE) as gateway:
            await fill(gateway, 20)
            refused = [r for r in simulator.requests() if r.fault == "R10"]
            assert len(refused) == 1
            assert await heals(gateway) == [("overflow", "shrunk")]
            assert await told(gateway, "session.compacted") >= 2


@pytest.mark.parametrize("mode", ["model", "elide"])
async def test_f70_a_tool_output_larger_than_the_window_is_shown_short_and_answered(
    mode: Any,
) -> None:
    with small() as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        context = ContextSettings(mode=mode)
        async with open_upstream_gateway(behind, heals=QUICK, context=context) as gateway:
            said = await call_tool(gateway, "beginning " + "x" * 50_000)
            assert "beginning" in text_of(said)
            assert [r.fault for r in simulator.requests()] == [None, None]
            items = (await gateway.client.get("/v1/sessions")).json()["data"]
            listed = await gateway.client.get(f"/v1/sessions/{items[0]['id']}/items")
            assert "x" * 50_000 in listed.text
            assert text_of(await gateway.respond("next"))


async def test_f70_what_fits_nowhere_fails_in_the_providers_words_and_the_next_is_taken() -> None:
    with small() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            await gateway.respond("one")
            answer = await gateway.post("/v1/responses", input="x" * 20_000)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "context_length_exceeded"
            assert "exceeds the context window" in answer.json()["error"]["message"]
            assert len(simulator.requests(operation="create")) <= 5
            # A stream says it by the same code, and so does the record of it.
            told = await gateway.respond("x" * 20_000, stream=True)
            assert told["error"]["code"] == "context_length_exceeded"
            kept = (await gateway.client.get(f"/v1/responses/{told['id']}")).json()
            assert (kept["status"], kept["error"]) == ("failed", told["error"])
            said = await gateway.respond("two", headers={"X-On-Busy": "reject"})
            assert "two" in text_of(said)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("mode", ["model", "elide"])
async def test_f70_a_server_that_speaks_chat_alone_is_asked_again_with_less(
    mode: Any, is_stream: bool
) -> None:
    with small(profile="chat-only") as simulator:
        behind = upstream(simulator, api="chat")
        context = ContextSettings(mode=mode)
        async with open_upstream_gateway(behind, heals=QUICK, context=context) as gateway:
            await fill(gateway, 4, words=50, stream=is_stream)
            simulator.add_fault("C07", times=1)
            simulator.clear_record()
            said = await gateway.respond("and now", stream=is_stream)
            assert "and now" in text_of(said)
            asked = [r for r in simulator.requests() if "and now" in str(r.body["messages"][-1])]
            assert [r.fault for r in asked] == ["C07", None]
            assert await heals(gateway) == [("overflow", "shrunk")]


@pytest.mark.parametrize("truncation", ["disabled", None])
async def test_f70_what_cannot_be_made_shorter_is_asked_of_a_model_with_more_room(
    truncation: str | None,
) -> None:
    more = {"truncation": truncation} if truncation else {}
    with ProviderSimulator({"context": {"gpt-4.1": WINDOW}}) as simulator:
        behind = upstream(simulator, models=("gpt-4.1", "gpt-4o"), fallback=("gpt-4o",))
        async with open_upstream_gateway(behind, heals=QUICK, context=ELIDE) as gateway:
            said = await gateway.respond("x" * 20_000, model="gpt-4.1", **more)
            assert said["model"] == "gpt-4o"
            assert (await heals(gateway))[-1] == ("overflow", "fell_back")
            assert simulator.requests()[-1].model == "gpt-4o"


async def test_f71_an_overflow_in_a_tool_loop_keeps_the_session_and_its_task() -> None:
    with small() as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        async with open_upstream_gateway(behind, heals=QUICK, context=ELIDE) as gateway:
            first = await gateway.respond("the task: call look {}", tools=TOOLS)
            session_id = (await gateway.client.get("/v1/sessions")).json()["data"][0]["id"]
            for step in range(12):
                [call] = [item for item in first["output"] if item["type"] == "function_call"]
                output = f"result {step} " + "y" * 1_500 + " call look {}"
                value = {
                    "type": "function_call_output", "call_id": call["call_id"], "output": output,
                }  # fmt: skip
                if step < 11:
                    simulator.add_answer(tool_calls=[{"name": "look"}], times=1)
                first = await gateway.respond([value], tools=TOOLS)
            sent = simulator.requests(operation="create")
            assert [request.fault for request in sent] == [None] * 13
            assert all("the task" in str(request.body["input"]) for request in sent)
            [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
            assert (session["id"], session["turn_count"]) == (session_id, 1)
            assert await told(gateway, "session.compacted") >= 1


async def test_a_summary_that_fails_or_says_nothing_is_made_up_of_what_is_known() -> None:
    scenario: Json = {
        "fault": [{"kind": "error", "status": 500, "when": {"model": "sum"}}],
    }
    with small(**scenario) as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        context = ContextSettings(mode="model", model="sum")
        async with open_upstream_gateway(behind, heals=QUICK, context=context) as gateway:
            await fill(gateway, 12)
            asked = [r for r in simulator.requests() if r.model == "sum"]
            assert asked
            assert all(r.status == 500 for r in asked)
            assert await told(gateway, "session.compacted") >= 1
            # That it failed can be seen: on the run, in the events.
            assert await heals(gateway) == [("transient", "summed_up_by_rule")] * len(asked)
            assert await told(gateway, "turn.healed") == len(asked)
            last = simulator.requests()[-1].body["input"]
            assert "messages and 0 tool calls are left out here" in str(last)
            assert "turn 0: word" in str(last)


@pytest.mark.parametrize(
    "scenario",
    [
        {"answer": [{"when": {"model": "sum"}, "refusal": "I cannot help with that."}]},
        {"fault": [{"kind": "incomplete", "words": 3, "when": {"model": "sum"}}]},
    ],
    ids=["refused", "cut off"],
)
async def test_a_summary_that_is_refused_or_cut_off_is_none(scenario: Json) -> None:
    with small(**scenario) as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        context = ContextSettings(mode="model", model="sum")
        async with open_upstream_gateway(behind, heals=QUICK, context=context) as gateway:
            await fill(gateway, 12)
            asked = [r for r in simulator.requests() if r.model == "sum"]
            assert asked
            assert await heals(gateway) == [("terminal", "summed_up_by_rule")] * len(asked)
            last = simulator.requests()[-1].body["input"]
            assert "messages and 0 tool calls are left out here" in str(last)
            assert "cannot help" not in str(last)


async def test_summaries_are_written_by_the_model_and_prompt_that_are_set() -> None:
    answer = {"when": {"model": "sum"}, "text": "They spoke of words."}
    with small(answer=[answer]) as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        context = ContextSettings(mode="model", model="sum", prompt="Be brief.")
        async with open_upstream_gateway(behind, heals=QUICK, context=context) as gateway:
            await fill(gateway, 12)
            asked = [r for r in simulator.requests() if r.model == "sum"]
            assert {r.body["instructions"] for r in asked} == {"Be brief."}
            assert "user: turn 1: word" in str(asked[0].body["input"])
            last = simulator.requests(operation="create")[-1].body["input"]
            assert "They spoke of words." in str(last)
            assert "turn 0: word" in last[0]["content"][0]["text"]
            view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
            assert view is not None
            # What the summaries cost is counted too.
            turns = await gateway.engine.read.turns(view.session.id, limit=100)
            runs = [run for t in turns for run in await gateway.engine.read.runs(t.turn.id)]
            assert view.session.input_tokens > sum(run.input_tokens or 0 for run in runs)


async def test_a_summary_as_long_as_what_it_sums_up_is_clipped() -> None:
    answer = {"when": {"model": "sum"}, "words": 5_000}
    with small(answer=[answer]) as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        context = ContextSettings(mode="model", model="sum")
        async with open_upstream_gateway(behind, heals=QUICK, context=context) as gateway:
            await fill(gateway, 12)
            assert {r.fault for r in simulator.requests()} == {None}


async def test_truncation_disabled_fails_rather_than_leaves_anything_out() -> None:
    with small() as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        async with open_upstream_gateway(behind, heals=QUICK) as gateway:
            await fill(gateway, 4, truncation="disabled")
            failed = await gateway.post(
                "/v1/responses", input="word " * 800, truncation="disabled"
            )  # fmt: skip
            assert (failed.status_code, failed.json()["error"]["code"]) == (
                400,
                "context_length_exceeded",
            )
            assert await told(gateway, "session.compacted") == 0
            assert await heals(gateway) == []
            assert text_of(await gateway.respond("and now"))
            assert await told(gateway, "session.compacted") >= 1


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_truncation_auto_leaves_the_oldest_out_this_once(api: str) -> None:
    with small() as simulator:
        behind = upstream(simulator, api=api, context_tokens=WINDOW)
        async with open_upstream_gateway(behind, heals=QUICK) as gateway:
            await fill(gateway, 12, truncation="auto")
            assert {r.fault for r in simulator.requests()} == {None}
            assert await told(gateway, "session.compacted") == 0
            told_last = simulator.requests()[-1].body
            shown = str(told_last.get("input", told_last.get("messages")))
            assert "turn 11:" in shown
            assert "turn 0:" in shown
            assert "turn 2:" not in shown


async def test_without_compaction_a_request_goes_as_it_is() -> None:
    with small() as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        off = ContextSettings(mode="off")
        async with open_upstream_gateway(behind, heals=QUICK, context=off) as gateway:
            await fill(gateway, 4)
            failed = await gateway.post("/v1/responses", input="word " * 800)
            assert failed.json()["error"]["code"] == "context_length_exceeded"
            assert await told(gateway, "session.compacted") == 0


async def test_f72_what_is_thought_to_be_full_is_what_the_provider_counted() -> None:
    with ProviderSimulator({"context_tokens": 8_000}) as simulator:
        behind = upstream(simulator, context_tokens=8_000)
        async with open_upstream_gateway(behind, heals=QUICK) as gateway:
            # Two bytes to a letter: half as many tokens as its bytes would make one think.
            for _ in range(20):
                await gateway.respond("é" * 400)
                if await told(gateway, "session.compacted"):
                    break
            view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
            assert view is not None
            events = await gateway.engine.read.events(view.session.id, after=0, limit=1000)
            [body] = [json.loads(e.body) for e in events if e.kind == "session.compacted"]
            assert {"compaction_id", "reason", "mode", "to_seq", "shortened"} <= body.keys()
            turns = await gateway.engine.read.turns(view.session.id, limit=100)
            [*_, before, _] = [
                run for t in turns for run in await gateway.engine.read.runs(t.turn.id)
            ]
            counted = (before.input_tokens or 0) + (before.output_tokens or 0) + 100
            assert 0.75 * counted < body["tokens_before"] < 1.35 * counted


async def test_f73_instructions_and_system_items_outlive_every_compaction() -> None:
    with small() as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        async with open_upstream_gateway(behind, heals=QUICK, context=ELIDE) as gateway:
            rule = {"type": "message", "role": "developer", "content": "Answer in Latin."}
            await gateway.respond([rule, {"role": "user", "content": "salve"}])
            await fill(gateway, 12, instructions="Be terse.")
            assert await told(gateway, "session.compacted") >= 2
            last = simulator.requests()[-1].body
            assert last["instructions"] == "Be terse."
            assert last["input"][0]["content"] == "Answer in Latin."
            assert last["input"][1]["content"] == "salve"


async def test_the_first_request_is_quoted_where_it_is_too_long_to_be_kept() -> None:
    with small() as simulator:
        behind = upstream(simulator, context_tokens=WINDOW)
        async with open_upstream_gateway(behind, heals=QUICK, context=ELIDE) as gateway:
            await gateway.respond("The task is to count sheep. " + "baa " * 900)
            await fill(gateway, 12)
            assert await told(gateway, "session.compacted") >= 3
            shown = str(simulator.requests()[-1].body["input"])
            assert "The task is to count sheep." in shown
            assert shown.count("The conversation began with this request") == 1
