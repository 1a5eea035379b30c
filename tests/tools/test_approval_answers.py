"""Answers to some of several approval requests, and answers that come twice or too late."""

import asyncio
import re
from typing import Any

import pytest

from holdfast.engine.settings import ToolSettings
from tests.in_process import Item, RunningGateway, ScriptedModel, called, open_gateway, said
from tests.tools.approvals import chat_text, guarded_tools, pending_approvals
from tests.tools.toolboxes import SERVER


def _model() -> ScriptedModel:
    """Return a model that makes two calls on "go", and one on "again"."""

    def script(items: list[Item]) -> list[Item]:
        last = items[-1]
        text = str(last.get("content"))
        if last["type"] == "message" and "go" in text:
            return [called("desk__echo", "c1", '{"n":1}'), called("desk__echo", "c2", '{"n":2}')]
        if last["type"] == "message" and "again" in text:
            return [called("desk__echo", "c3", '{"n":3}')]
        return [said("done")]

    return ScriptedModel(script)


def _answer(approval_id: str, *, approve: bool = True) -> Item:
    return {
        "type": "mcp_approval_response", "approval_request_id": approval_id, "approve": approve,
    }  # fmt: skip


def _requests(output: list[Item]) -> list[str]:
    return [item["id"] for item in output if item["type"] == "mcp_approval_request"]


async def _approve(gateway: RunningGateway, *names: str, **more: Any) -> list[Item]:
    reply = await gateway.respond([_answer(name) for name in names], tools=[SERVER], **more)
    assert reply.status_code == 200, reply.text
    output: list[Item] = reply.json()["output"]
    return output


async def test_a_call_whose_output_was_deleted_is_not_run_again_with_the_next_answer() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        asked = _requests((await gateway.respond("go", tools=[SERVER])).json()["output"])
        call, _ = await _approve(gateway, asked[0])
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]["id"]
        items = f"/v1/conversations/{session.replace('ses_', 'conv_')}/items"
        assert (await gateway.client.delete(f"{items}/{call['id']}")).is_success
        await _approve(gateway, asked[1])
    assert tools.calls == [("echo", {"n": 1}), ("echo", {"n": 2})]


async def test_a_request_that_was_left_open_is_shown_again() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        asked = _requests((await gateway.respond("go", tools=[SERVER])).json()["output"])
        reply = await gateway.respond([_answer(asked[0])], tools=[SERVER])
        answer = reply.json()
        assert [item["type"] for item in answer["output"]] == ["mcp_call", "mcp_approval_request"]
        assert _requests(answer["output"]) == asked[1:]
        stored = (await gateway.client.get(f"/v1/responses/{answer['id']}")).json()
        assert stored["output"] == answer["output"]
        done = await _approve(gateway, asked[1])
        assert [item["type"] for item in done] == ["mcp_call", "message"]
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]["id"]
        listed = (await gateway.client.get(f"/v1/sessions/{session}/items?limit=50")).json()
    assert [number for _, number in tools.calls] == [{"n": 1}, {"n": 2}]
    # Lists have each request once.
    assert sorted(_requests(listed["data"])) == sorted(asked)


async def test_a_stream_shows_a_request_again_behind_the_call_that_ran() -> None:
    async with open_gateway(_model(), toolbox=lambda _: guarded_tools()) as gateway:
        asked = _requests((await gateway.respond("go", tools=[SERVER])).json()["output"])
        reply = await gateway.respond([_answer(asked[0])], tools=[SERVER], stream=True)
    done = re.findall(r"event: response.output_item.done\ndata: (.*)", reply.text)
    assert [re.findall('"output_index":([0-9]+)', each) for each in done] == [["0"], ["1"]]
    assert asked[1] in done[1]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chat_client_is_reminded_of_open_approvals(*, is_stream: bool) -> None:
    tools, model = guarded_tools(), _model()
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        messages: list[Item] = [{"role": "user", "content": "go"}]
        for expected in (2, 1, 0):
            told = chat_text(await gateway.chat(messages, tools=[SERVER], stream=is_stream))
            codes = re.findall("yes ([A-Z0-9]{4})", told)
            assert len(codes) == expected
            text = f"yes {codes[-1]}" if codes else "thanks"
            messages += [{"role": "assistant", "content": told}, {"role": "user", "content": text}]
        await gateway.chat(messages, tools=[SERVER], stream=is_stream)
    assert len(tools.calls) == 2
    assert model.shown[-1] == [
        "go", "desk__echo()", "desk__echo()", '={"n":1}', '={"n":2}', "done", "thanks",
    ]  # fmt: skip


@pytest.mark.parametrize("by_parent", [False, True])
async def test_an_answer_that_comes_twice_changes_nothing(*, by_parent: bool) -> None:
    tools, model = guarded_tools(), _model()
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        first = (await gateway.respond("again", tools=[SERVER])).json()
        (name,) = _requests(first["output"])
        await _approve(gateway, name)
        log = await gateway.log()
        more: dict[str, Any] = {"tools": [SERVER]}
        if by_parent:
            more |= {"key": None, "previous_response_id": first["id"]}
        for approve in (True, False):
            reply = await gateway.respond([_answer(name, approve=approve)], **more)
            assert reply.status_code == 404, reply.text
            assert reply.json()["error"]["code"] == "approval_not_found"
        assert await gateway.log() == log
    assert len(tools.calls) == 1
    assert len(model.calls) == 2


async def test_an_old_answer_does_not_deny_what_waits_now() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        (old,) = _requests((await gateway.respond("again", tools=[SERVER])).json()["output"])
        await _approve(gateway, old)
        (new,) = _requests((await gateway.respond("again", tools=[SERVER])).json()["output"])
        assert (await gateway.respond([_answer(old)], tools=[SERVER])).status_code == 404
        assert [each["id"] for each in await pending_approvals(gateway)] == [new]


async def test_an_answer_that_comes_too_late_calls_no_model() -> None:
    tools, model = guarded_tools(), _model()
    settings = ToolSettings(approval_seconds=0.05)
    async with open_gateway(model, toolbox=lambda _: tools, tools=settings) as gateway:
        (name,) = _requests((await gateway.respond("again", tools=[SERVER])).json()["output"])
        async with asyncio.timeout(60):
            waiting = await pending_approvals(gateway)
            while waiting:
                waiting = await pending_approvals(gateway)
        assert (await gateway.respond([_answer(name)], tools=[SERVER])).status_code == 404
    assert (len(tools.calls), len(model.calls)) == (0, 1)


async def test_an_answer_to_a_request_of_an_earlier_generation_is_not_stored() -> None:
    async with open_gateway(_model(), toolbox=lambda _: guarded_tools()) as gateway:
        (name,) = _requests((await gateway.respond("again", tools=[SERVER])).json()["output"])
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]["id"]
        await gateway.client.post(f"/v1/sessions/{session}/reset", json={})
        assert (await gateway.respond([_answer(name)], tools=[SERVER])).status_code == 404
        assert await gateway.log() == []


async def test_an_answer_to_an_upstreams_own_request_is_passed_on() -> None:
    model = ScriptedModel()
    asked = {"type": "mcp_approval_request", "id": "mcpr_up", "server_label": "x", "name": "y",
             "arguments": "{}"}  # fmt: skip
    async with open_gateway(model, toolbox=lambda _: guarded_tools()) as gateway:
        sent = [{"role": "user", "content": "hi"}, asked, _answer("mcpr_up")]
        assert (await gateway.respond(sent)).status_code == 200
    assert b"mcp_approval_response" in model.calls[-1].items[-1]


async def test_an_answer_may_name_the_conversation() -> None:
    tools = guarded_tools()
    async with open_gateway(_model(), toolbox=lambda _: tools) as gateway:
        conversation = (await gateway.client.post("/v1/conversations", json={})).json()["id"]
        more: dict[str, Any] = {"key": None, "conversation": conversation}
        asked = _requests((await gateway.respond("again", tools=[SERVER], **more)).json()["output"])
        done = await _approve(gateway, *asked, **more)
        assert [item["type"] for item in done] == ["mcp_call", "message"]
    assert len(tools.calls) == 1


async def test_steps_are_counted_over_all_runs_of_a_turn() -> None:
    tools = guarded_tools()
    model = ScriptedModel(
        lambda items: [called("desk__echo", f"c{len(items)}", f'{{"n":{len(items)}}}')]
    )
    settings = ToolSettings(max_tool_steps=2)
    async with open_gateway(model, toolbox=lambda _: tools, tools=settings) as gateway:
        output = (await gateway.respond("go", tools=[SERVER])).json()["output"]
        for _ in range(5):
            asked = _requests(output)
            if not asked:
                break
            output = await _approve(gateway, *asked)
    assert len(tools.calls) == 2
    # The last call has no tools.
    assert len(model.calls) == 3
    assert "tools" not in model.calls[-1].fields
