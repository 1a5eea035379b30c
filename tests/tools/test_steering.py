"""Messages that join a running turn at its next model call."""

import asyncio
from typing import Any

import httpx
import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.settings import ContextSettings
from tests.in_process import (
    Item,
    RunningGateway,
    ScriptedModel,
    called,
    open_gateway,
    said,
    text_of,
)
from tests.tools.toolboxes import SERVER, Gate, RecordingTools


def _model() -> ScriptedModel:
    def script(items: list[Item]) -> list[Item]:
        if any(item["type"] == "function_call_output" for item in items):
            return [said(f"seen {len(items)}")]
        return [called("desk__slow", "c1")]

    return ScriptedModel(script)


async def _steer(gateway: RunningGateway, text: str, **more: Any) -> httpx.Response:
    return await gateway.respond(text, headers={"X-On-Busy": "steer"}, tools=[SERVER], **more)


async def test_messages_join_the_running_turn_after_its_tools_in_order() -> None:
    gate = Gate()
    model = _model()
    async with open_gateway(model, toolbox=lambda _: RecordingTools(slow=gate)) as gateway:
        first = asyncio.create_task(gateway.respond("go", tools=[SERVER]))
        await gate.entered.wait()
        waiting = asyncio.create_task(gateway.respond("later"))
        await gateway.until_queued(1)
        one = asyncio.create_task(_steer(gateway, "also this"))
        await gateway.until_queued(2)
        two = asyncio.create_task(_steer(gateway, "and that"))
        await gateway.until_queued(3)
        gate.opened.set()
        answers = [(await task).json() for task in (first, one, two)]
        turns = [(await task).headers["x-turn-id"] for task in (first, one)]
        joined = (await gateway.client.get(f"/v1/turns/{turns[1]}")).json()
        await waiting
    assert model.shown[1] == ["go", "desk__slow()", "=opened", "also this", "and that"]
    assert len(model.calls) == 3
    texts = [answer["output"][-1]["content"][0]["text"] for answer in answers]
    assert texts == ["seen 5"] * 3
    assert len({answer["id"] for answer in answers}) == 3
    assert (joined["status"], joined["merged_into"]) == ("completed", turns[0])
    # What joined is input: no answer shows it.
    assert [item["type"] for item in answers[0]["output"]] == ["mcp_call", "message"]
    assert model.shown[2][-1] == "later"


async def test_the_stored_answer_is_the_one_that_was_given() -> None:
    gate = Gate()
    async with open_gateway(_model(), toolbox=lambda _: RecordingTools(slow=gate)) as gateway:
        first = asyncio.create_task(gateway.respond("go", tools=[SERVER]))
        await gate.entered.wait()
        steer = asyncio.create_task(_steer(gateway, "also this"))
        await gateway.until_queued(1)
        gate.opened.set()
        answer = (await first).json()
        await steer
        stored = (await gateway.client.get(f"/v1/responses/{answer['id']}")).json()
    assert stored["output"] == answer["output"]


async def test_without_a_further_call_it_is_the_next_turn() -> None:
    model = ScriptedModel()
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        model.gate.clear()
        first = asyncio.create_task(gateway.respond("one"))
        await model.entered.acquire()
        waiting = asyncio.create_task(gateway.respond("two"))
        await gateway.until_queued(1)
        steers = []
        for count, text in enumerate(("first", "second"), 2):
            steers.append(asyncio.create_task(_steer(gateway, text)))
            await gateway.until_queued(count)
        model.gate.set()
        await asyncio.gather(first, waiting, *steers)
    assert [shown[-1] for shown in model.shown] == ["one", "first", "second", "two"]


async def test_a_joined_message_is_rolled_back_with_its_turn_and_its_caller_gets_the_error() -> (
    None
):
    gate, model = Gate(), _model()
    once = {"X-On-Busy": "steer", "Idempotency-Key": "once"}
    async with open_gateway(model, toolbox=lambda _: RecordingTools(slow=gate)) as gateway:
        first = asyncio.create_task(gateway.respond("go", tools=[SERVER]))
        await gate.entered.wait()
        steer = asyncio.create_task(gateway.respond("also this", headers=once))
        await gateway.until_queued(1)
        model.gate.clear()
        gate.opened.set()
        for _ in range(2):
            await model.entered.acquire()
        cut_in = gateway.respond("instead", headers={"X-On-Busy": "rollback"})
        last = asyncio.create_task(cut_in)
        await model.entered.acquire()
        model.gate.set()
        assert (await last).status_code == 200
        told = [await first, await steer, await gateway.respond("also this", headers=once)]
        assert model.shown[1:] == [["go", "desk__slow()", "=opened", "also this"], ["instead"]]
        assert "also this" in await gateway.log(view="log")
    for reply in told:
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "turn_cancelled")
        assert reply.headers["x-should-retry"] == "false"


async def test_a_stream_of_a_message_that_joined_ends_with_the_common_answer() -> None:
    gate = Gate()
    async with open_gateway(_model(), toolbox=lambda _: RecordingTools(slow=gate)) as gateway:
        first = asyncio.create_task(gateway.respond("go", tools=[SERVER]))
        await gate.entered.wait()
        steer = asyncio.create_task(_steer(gateway, "also this", stream=True))
        await gateway.until_queued(1)
        gate.opened.set()
        await first
        text = (await steer).text
    assert "response.completed" in text
    assert "seen 4" in text


@pytest.mark.parametrize("has_gateway_tools", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_turn_that_waits_for_its_client_takes_messages_together_with_the_outputs(
    *, has_gateway_tools: bool, is_stream: bool
) -> None:
    def script(items: list[Item]) -> list[Item]:
        if any(item["type"] == "function_call_output" for item in items):
            return [said(f"seen {len(items)}")]
        ours = [called("desk__echo", "c1")] if has_gateway_tools else []
        return [*ours, called("mine", "c2")]

    mine = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    tools: list[Item] = [mine, SERVER] if has_gateway_tools else [mine]
    model = ScriptedModel(script)
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        await gateway.respond("go", tools=tools)
        waiting = asyncio.create_task(gateway.respond("later"))
        await gateway.until_queued(1)
        steers = []
        for count, text in enumerate(("also this", "and that"), 2):
            more: dict[str, Any] = {
                "tools": tools,
                "headers": {"X-On-Busy": "steer"},
                "stream": is_stream,
            }
            steers.append(asyncio.create_task(gateway.respond(text, **more)))
            await gateway.until_queued(count)
        output = {"type": "function_call_output", "call_id": "c2", "output": "mine"}
        answer = await gateway.respond([output], tools=tools, stream=is_stream)
        replies = await asyncio.gather(*steers)
        await waiting
    asked = model.shown[1]
    assert asked[-3:] == ["=mine", "also this", "and that"]
    for reply in (answer, *replies):
        assert f"seen {len(asked)}" in reply.text
    assert [shown[-1] for shown in model.shown[2:]] == ["later"]


async def test_a_turn_without_a_model_call_does_not_join_and_runs_next(any_store_url: str) -> None:
    gate, model = Gate(), _model()
    tools = RecordingTools(slow=gate)
    headers = {"X-On-Busy": "steer"}
    async with open_gateway(
        model,
        store_url=any_store_url,
        toolbox=lambda _: tools,
        context=ContextSettings(mode="elide"),
    ) as gateway:
        first = asyncio.create_task(gateway.respond("go", tools=[SERVER]))
        await gate.entered.wait()
        view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
        assert view is not None
        path = f"/v1/sessions/{view.session.id}"
        note = {"type": "message", "role": "user", "content": "a note"}
        posts = [(f"{path}/items", {"items": [note]}), (f"{path}/compact", {})]
        sent = []
        for count, (url, body) in enumerate(posts, 1):
            post = gateway.client.post(url, json=body, headers=headers)
            sent.append(asyncio.create_task(post))
            await gateway.until_queued(count)
        steer = asyncio.create_task(_steer(gateway, "also this"))
        await gateway.until_queued(3)
        gate.opened.set()
        replies = await asyncio.gather(first, *sent, steer)
        log = await gateway.log()
    assert [reply.status_code for reply in replies] == [200] * 4
    assert model.shown[1] == ["go", "desk__slow()", "=opened"]
    assert log.count("a note") == 1
    summary, last = model.shown[2][-2:]
    assert summary.endswith("user: a note")
    assert last == "also this"


async def test_messages_behind_one_that_edits_the_history_wait_for_it() -> None:
    gate = Gate()
    model = ScriptedModel(
        lambda items: [called("desk__slow", "c1") if text_of(items[-1]) == "go" else said("done")]
    )
    async with open_gateway(model, toolbox=lambda _: RecordingTools(slow=gate)) as gateway:
        await gateway.respond("one")
        first = asyncio.create_task(gateway.respond("go", tools=[SERVER]))
        await gate.entered.wait()
        whole = {"X-On-Busy": "steer", "X-Session-History": "whole"}
        edit = asyncio.create_task(gateway.respond("one, edited", headers=whole))
        await gateway.until_queued(1)
        steer = asyncio.create_task(_steer(gateway, "also this"))
        await gateway.until_queued(2)
        gate.opened.set()
        await asyncio.gather(first, edit, steer)
    assert [shown[-1] for shown in model.shown[-2:]] == ["one, edited", "also this"]
