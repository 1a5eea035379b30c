"""Answers to approval requests while other calls of the same turn run."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key, TurnId
from holdfast.core.model.item_ids import with_place
from holdfast.engine.turns import approvals, tool_loop
from tests.in_process import Item, RunningGateway, ScriptedModel, called, open_gateway, said
from tests.tools.approvals import chat_text, pending_approvals
from tests.tools.toolboxes import SERVER, Gate, RecordingTools, echo


def _model(*names: str) -> ScriptedModel:
    """Return a model that makes these calls on "go"."""

    def script(items: list[Item]) -> list[Item]:
        last = items[-1]
        if last["type"] == "message" and "go" in str(last.get("content")):
            return [
                called(f"desk__{name}", f"c{n}", f'{{"n":{n}}}') for n, name in enumerate(names)
            ]
        return [said("done")]

    return ScriptedModel(script)


def _tools(gate: Gate) -> RecordingTools:
    """Return a slow tool and a fast one; both need an approval."""
    tools = RecordingTools(slow=gate, echo=echo)
    tools.approved = {"slow", "echo"}
    return tools


async def _post(gateway: RunningGateway, approval_id: str, **body: object) -> httpx.Response:
    body = {"approve": True, **body}
    return await gateway.client.post(f"/v1/approvals/{approval_id}", json=body)


async def _until_completed(gateway: RunningGateway, turn_id: str) -> None:
    async with asyncio.timeout(60):
        await gateway.engine.wait_until_ended(DEFAULT_TENANT, TurnId(turn_id))
    turn = (await gateway.client.get(f"/v1/turns/{turn_id}")).json()
    assert turn["status"] == "completed", turn


async def _stay_unanswered(
    gateway: RunningGateway, *answers: "asyncio.Task[httpx.Response]"
) -> None:
    """Let the gateway serve other requests; the answers must wait as long as the call runs."""
    for _ in range(10):
        await gateway.client.get("/healthz")
    assert not any(answer.done() for answer in answers), [a.result().text for a in answers]


async def _asked(gateway: RunningGateway) -> list[str]:
    reply = await gateway.respond("go", tools=[SERVER])
    assert reply.status_code == 200, reply.text
    return [item["id"] for item in reply.json()["output"]]


async def test_an_answer_waits_while_another_approved_call_runs(any_store_url: str) -> None:
    gate = Gate()
    tools, model = _tools(gate), _model("slow", "echo", "echo")
    async with open_gateway(model, store_url=any_store_url, toolbox=lambda _: tools) as gateway:
        first, second, third = await _asked(gateway)
        turn_id = (await _post(gateway, first)).json()["turn_id"]
        async with asyncio.timeout(60):
            await gate.entered.wait()
        answers = [
            asyncio.create_task(_post(gateway, second)),
            asyncio.create_task(_post(gateway, third, approve=False, reason="no need")),
        ]
        await _stay_unanswered(gateway, *answers)
        gate.opened.set()
        for answer in answers:
            reply = await answer
            assert reply.status_code == 200, reply.text
            assert reply.json()["turn_id"] == turn_id
        await _until_completed(gateway, turn_id)
        assert (await _post(gateway, second)).status_code == 404
    assert [name for name, _ in tools.calls] == ["slow", "echo"]
    assert model.shown[-1][-3:-1] == ["=opened", '={"n":1}']
    assert "no need" in model.shown[-1][-1]


async def test_an_answer_waits_for_a_call_that_starts_while_its_request_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    tools = _tools(gate)
    async with open_gateway(_model("slow", "echo"), toolbox=lambda _: tools) as gateway:
        first, second = await _asked(gateway)
        read_session = gateway.engine.read.session

        async def outdated(*args: Any, **more: Any) -> Any:
            view = await read_session(*args, **more)
            monkeypatch.undo()
            assert (await _post(gateway, first)).status_code == 200
            async with asyncio.timeout(60):
                await gate.entered.wait()
            return view

        monkeypatch.setattr(gateway.engine.read, "session", outdated)
        answer = asyncio.create_task(_post(gateway, second))
        async with asyncio.timeout(60):
            await gate.entered.wait()
        await _stay_unanswered(gateway, answer)
        gate.opened.set()
        reply = await answer
        assert reply.status_code == 200, reply.text
        await _until_completed(gateway, reply.json()["turn_id"])
    assert [name for name, _ in tools.calls] == ["slow", "echo"]


async def test_a_request_of_version_0_1_0_can_be_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its ids may end with the place of their item: the store then has no index entry for them.
    monkeypatch.setattr(
        tool_loop, "approval_request_id", lambda random_id: with_place(random_id, 2)
    )
    tools = RecordingTools(echo=echo)
    tools.approved = {"echo"}
    async with open_gateway(_model("echo"), toolbox=lambda _: tools) as gateway:
        (name,) = await _asked(gateway)
        reply = await _post(gateway, name)
        assert reply.status_code == 200, reply.text
        await _until_completed(gateway, reply.json()["turn_id"])
        assert (await _post(gateway, name)).status_code == 404
    assert [called for called, _ in tools.calls] == ["echo"]


async def test_an_answer_to_another_replica_waits_too(store_url: str) -> None:
    gate = Gate()
    tools = _tools(gate)
    here = open_gateway(_model("slow", "echo"), store_url=store_url, toolbox=lambda _: tools)
    there = open_gateway(_model(), store_url=store_url, toolbox=lambda _: tools)
    async with here as gateway, there as other:
        first, second = await _asked(gateway)
        turn_id = (await _post(gateway, first)).json()["turn_id"]
        async with asyncio.timeout(60):
            await gate.entered.wait()
        answer = asyncio.create_task(_post(other, second))
        await _stay_unanswered(other, answer)
        gate.opened.set()
        reply = await answer
        assert reply.status_code == 200, reply.text
        await _until_completed(other, turn_id)
    assert [name for name, _ in tools.calls] == ["slow", "echo"]


async def test_an_approval_response_waits_while_another_call_runs() -> None:
    gate = Gate()
    tools = _tools(gate)
    async with open_gateway(_model("slow", "echo"), toolbox=lambda _: tools) as gateway:
        first, second = await _asked(gateway)
        sent = [
            {"type": "mcp_approval_response", "approval_request_id": name, "approve": True}
            for name in (first, second)
        ]
        running = asyncio.create_task(gateway.respond([sent[0]], tools=[SERVER]))
        async with asyncio.timeout(60):
            await gate.entered.wait()
        answer = asyncio.create_task(gateway.respond([sent[1]], tools=[SERVER]))
        await _stay_unanswered(gateway, answer)
        gate.opened.set()
        shown = [item["type"] for item in (await running).json()["output"]]
        last = [item["type"] for item in (await answer).json()["output"]]
    assert shown == ["mcp_call", "mcp_approval_request"]
    assert last == ["mcp_call", "message"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_in_words_waits_while_another_call_runs(*, is_stream: bool) -> None:
    gate = Gate()
    tools = _tools(gate)
    async with open_gateway(_model("slow", "echo"), toolbox=lambda _: tools) as gateway:
        messages: list[Item] = [{"role": "user", "content": "go"}]
        told = chat_text(await gateway.chat(messages, tools=[SERVER]))
        codes = re.findall("yes ([A-Z0-9]{4})", told)
        messages.append({"role": "assistant", "content": told})
        sent = [[*messages, {"role": "user", "content": f"yes {code}"}] for code in codes]
        running = asyncio.create_task(gateway.chat(sent[0], tools=[SERVER], stream=is_stream))
        async with asyncio.timeout(60):
            await gate.entered.wait()
        answer = asyncio.create_task(gateway.chat(sent[1], tools=[SERVER], stream=is_stream))
        await gateway.until_queued(1)
        gate.opened.set()
        assert codes[1] in chat_text(await running)
        assert chat_text(await answer) == "done"
    assert [name for name, _ in tools.calls] == ["slow", "echo"]


async def test_a_request_that_was_streamed_can_be_answered_while_a_free_call_runs() -> None:
    gate = Gate()
    tools = _tools(gate)
    tools.approved = {"echo"}
    async with open_gateway(_model("slow", "echo"), toolbox=lambda _: tools) as gateway:
        running = asyncio.create_task(gateway.respond("go", tools=[SERVER], stream=True))
        async with asyncio.timeout(60):
            await gate.entered.wait()
        found = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
        assert found is not None
        items = await gateway.engine.read.context(found.session)
        asked = next(item.item_id for item in items if str(item.item_id).startswith("mcpr_"))
        answer = asyncio.create_task(_post(gateway, str(asked)))
        await _stay_unanswered(gateway, answer)
        gate.opened.set()
        await running
        reply = await answer
        assert reply.status_code == 200, reply.text
        await _until_completed(gateway, reply.json()["turn_id"])
    assert [name for name, _ in tools.calls] == ["slow", "echo"]


async def test_an_approval_is_found_among_more_sessions_than_a_list_shows(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "PAGE", 1)
    monkeypatch.setattr(approvals, "MAX_SESSIONS", 2)
    tools = RecordingTools()
    tools.approved = {"echo"}
    async with open_gateway(
        _model("echo"), store_url=store_url, toolbox=lambda _: tools
    ) as gateway:
        asked = [
            (await gateway.respond("go", key=f"k{n}", tools=[SERVER])).json()["output"][0]["id"]
            for n in range(5)
        ]
        assert len(await pending_approvals(gateway)) == 2
        for name in asked:
            reply = await _post(gateway, name)
            assert reply.status_code == 200, reply.text
            await _until_completed(gateway, reply.json()["turn_id"])
    assert len(tools.calls) == 5
