"""The Responses API field by field: objects, parents, input items."""

import asyncio
from typing import Any

import httpx
import pytest

from holdfast.core.ids import DEFAULT_TENANT, SessionId
from holdfast.core.transaction.commands import Reset
from tests.in_process import (
    Item,
    RunningGateway,
    ScriptedModel,
    called,
    open_gateway,
    said,
    text_of,
)
from tests.streaming import TalkingModel

REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
    "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
    "safety_identifier", "prompt_cache_key",
}  # fmt: skip
TOOLS = [{"type": "function", "name": "look", "parameters": {}}]


async def ask(gateway: RunningGateway, said: Any, **more: Any) -> dict[str, Any]:
    answer = await gateway.respond(said, **{"key": None, **more})
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def code_of(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


NOT_FOUND = (400, "previous_response_not_found", "previous_response_id")


async def test_a_response_has_every_key_that_the_standard_requires() -> None:
    async with open_gateway() as gateway:
        value = await ask(gateway, "hi", instructions="be brief", metadata={"a": "b"}, user="u1")
        assert set(value) >= REQUIRED
        assert value["instructions"] == "be brief"
        assert value["metadata"] == {"a": "b"}
        assert value["store"] is True
        assert value["usage"]["total_tokens"] == 2
        assert value == (await gateway.client.get(f"/v1/responses/{value['id']}")).json()


@pytest.mark.parametrize(
    "metadata",
    [
        {str(number): "v" for number in range(17)},
        {"k" * 65: "v"},
        {"k": "v" * 513},
        {"k": 1},
        ["k"],
    ],
)
async def test_metadata_beyond_its_limits_is_rejected(metadata: Any) -> None:
    async with open_gateway() as gateway:
        answer = await gateway.respond("hi", metadata=metadata)
        assert answer.status_code == 400
        assert (await gateway.client.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize("field", ["include", "stream", "store", "previous_response_id"])
async def test_a_field_of_the_wrong_type_is_rejected(field: str) -> None:
    async with open_gateway() as gateway:
        wrong: dict[str, Any] = {field: 7}
        assert (await gateway.respond("hi", **wrong)).status_code == 400


async def test_a_parent_is_continued_in_place_and_forked_when_it_is_not_the_head() -> None:
    async with open_gateway() as gateway:
        first = await gateway.respond("a", key="k")
        name, session = first.json()["id"], first.headers["x-session-id"]
        second = await gateway.respond("b", key=None, previous_response_id=name)
        assert second.headers["x-session-id"] == session
        assert second.json()["previous_response_id"] == name
        branches = [
            await gateway.respond(text, key=None, previous_response_id=name) for text in ("c", "d")
        ]
        sessions = {branch.headers["x-session-id"] for branch in branches}
        assert len(sessions) == 2
        assert session not in sessions
        assert gateway.model.shown[-2:] == [["a", "re:a", "c"], ["a", "re:a", "d"]]
        assert await gateway.log() == ["a", "re:a", "b", "re:b"]
        again = await gateway.respond("e", key=None, previous_response_id=branches[0].json()["id"])
        assert again.headers["x-session-id"] == branches[0].headers["x-session-id"]
        assert gateway.model.shown[-1] == ["a", "re:a", "c", "re:c", "e"]


async def test_a_parent_in_a_retired_session_is_forked() -> None:
    async with open_gateway() as gateway:
        first = await gateway.respond("a", key="k")
        session = SessionId(first.headers["x-session-id"])
        new_id = gateway.engine.new_session_id()
        await gateway.engine.submit(Reset(tenant=DEFAULT_TENANT, session_id=session, new_id=new_id))
        child = await gateway.respond("b", key=None, previous_response_id=first.json()["id"])
        assert child.headers["x-session-id"] not in (session, new_id)
        assert gateway.model.shown[-1] == ["a", "re:a", "b"]


async def test_a_parent_in_progress_is_waited_for() -> None:
    model = TalkingModel()
    model.gate.clear()
    async with open_gateway(model) as gateway:
        parent = await ask(gateway, "a", background=True)
        child = asyncio.create_task(ask(gateway, "b", previous_response_id=parent["id"]))
        await model.entered.acquire()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not child.done()
        model.gate.set()
        await child
        assert model.shown[-1] == ["a", "one two three", "b"]


@pytest.mark.parametrize(
    "name", ["resp_unknown", "resp_unknown_1", "turn_x", "", "../x", "resp_\0"]
)
async def test_an_unknown_parent_is_an_error(name: str) -> None:
    async with open_gateway() as gateway:
        answer = await gateway.respond("b", key=None, previous_response_id=name)
        assert code_of(answer) == NOT_FOUND
        assert gateway.model.calls == []


async def test_a_parent_that_was_not_stored_or_was_cancelled_is_an_error() -> None:
    model = TalkingModel()
    async with open_gateway(model) as gateway:
        unstored = await ask(gateway, "a", key="k", store=False)
        answer = await gateway.respond("b", key=None, previous_response_id=unstored["id"])
        assert code_of(answer) == NOT_FOUND
        assert (await gateway.client.get(f"/v1/responses/{unstored['id']}")).status_code == 404
        model.gate.clear()
        begun = await ask(gateway, "a", background=True)
        await gateway.client.post(f"/v1/responses/{begun['id']}/cancel")
        answer = await gateway.respond("b", key=None, previous_response_id=begun["id"])
        assert code_of(answer) == NOT_FOUND


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_unstored_response_to_a_stored_one_leaves_nothing_behind(is_stream: bool) -> None:
    async with open_gateway() as gateway:
        first = await gateway.respond("a", key="k")
        answer = await gateway.respond(
            "b", key=None, store=False, previous_response_id=first.json()["id"], stream=is_stream
        )
        assert answer.status_code == 200
        assert gateway.model.shown[-1] == ["a", "re:a", "b"]
        assert "x-turn-id" not in answer.headers
        path = f"/v1/sessions/{first.headers['x-session-id']}"
        assert (await gateway.client.get(path)).json()["turn_count"] == 1
        assert (await gateway.client.get(f"{path}/items")).text.count('"b"') == 0
        assert len((await gateway.client.get("/v1/sessions")).json()["data"]) == 1


async def test_a_key_beside_a_parent_or_conversation_must_name_the_same_session() -> None:
    async with open_gateway() as gateway:
        first = await gateway.respond("a", key="k")
        name, session = first.json()["id"], first.headers["x-session-id"]
        conversation = "conv_" + session.removeprefix("ses_")
        other = await gateway.respond("a", key="other")
        for headers in ({"X-Session-Key": "k"}, {"X-Session-Id": session}):
            for place in ({"previous_response_id": name}, {"conversation": conversation}):
                answer = await gateway.respond("b", key=None, headers=headers, **place)
                assert answer.status_code == 200, answer.text
                assert answer.headers["x-session-id"] == session
                name = answer.json()["id"]
        for headers in (
            {"X-Session-Key": "other"},
            {"X-Session-Key": "unknown"},
            {"X-Session-Id": other.headers["x-session-id"]},
        ):
            for place in ({"previous_response_id": name}, {"conversation": conversation}):
                answer = await gateway.respond("b", key=None, headers=headers, **place)
                assert code_of(answer) == (400, "invalid_input", next(iter(place)))
        both = await gateway.respond(
            "b", key=None, previous_response_id=name, conversation=conversation
        )
        assert both.status_code == 400


def _tool_script(items: list[Item]) -> list[Item]:
    last = items[-1]
    if str(last.get("type")).endswith("_output"):
        return [said(f"it is {last['output']}")]
    return [called("look", "call_1")] if text_of(last) == "look" else [said("ok")]


def _output(text: str) -> list[Item]:
    return [{"type": "function_call_output", "call_id": "call_1", "output": text}]


@pytest.mark.parametrize("way", ["key", "previous_response_id", "conversation"])
async def test_outputs_of_client_tools_join_the_turn_that_called_them(way: str) -> None:
    async with open_gateway(ScriptedModel(_tool_script)) as gateway:
        first = await gateway.respond("look", key="k", tools=TOOLS)
        assert first.json()["status"] == "completed"
        assert first.json()["output"][0]["type"] == "function_call"
        place: dict[str, Any] = {"key": "k"}
        if way == "previous_response_id":
            place = {"key": None, way: first.json()["id"]}
        if way == "conversation":
            place = {"key": None, way: "conv_" + first.headers["x-session-id"][4:]}
        second = await gateway.respond(_output("sunny"), tools=TOOLS, **place)
        assert second.headers["x-turn-id"] == first.headers["x-turn-id"]
        assert second.json()["id"] == first.json()["id"] + "_1"
        assert second.json()["output"][0]["content"][0]["text"] == "it is sunny"
        kept = (await gateway.client.get(f"/v1/responses/{first.json()['id']}")).json()
        assert kept == first.json()
        assert await gateway.log() == ["look", "look()", "=sunny", "it is sunny"]


async def test_input_items_are_the_history_and_the_input_newest_first() -> None:
    async with open_gateway() as gateway:
        first = await ask(gateway, "a")
        second = await ask(gateway, "b", previous_response_id=first["id"])
        path = f"/v1/responses/{second['id']}/input_items"
        listed = (await gateway.client.get(path)).json()
        assert [text_of(item) for item in listed["data"]] == ["b", "re:a", "a"]
        assert listed["object"] == "list"
        assert listed["has_more"] is False
        assert all(item["id"] for item in listed["data"])
        up = (await gateway.client.get(path + "?order=asc&limit=2")).json()
        assert [text_of(item) for item in up["data"]] == ["a", "re:a"]
        assert up["has_more"] is True
        after = (await gateway.client.get(f"{path}?order=asc&after={up['last_id']}")).json()
        assert [text_of(item) for item in after["data"]] == ["b"]
        assert after["has_more"] is False
        old = (await gateway.client.get(f"/v1/responses/{first['id']}/input_items")).json()
        assert [text_of(item) for item in old["data"]] == ["a"]
        assert (await gateway.client.get("/v1/responses/resp_x/input_items")).status_code == 404


async def test_input_tokens_are_the_same_for_the_same_request_and_grow_with_it() -> None:
    async with open_gateway() as gateway:
        first = await ask(gateway, "a", key="k")

        async def count(**body: Any) -> int:
            headers = body.pop("headers", {})
            answer = await gateway.client.post(
                "/v1/responses/input_tokens", json={"model": "scripted", **body}, headers=headers
            )
            assert answer.status_code == 200, answer.text
            assert answer.json()["object"] == "response.input_tokens"
            return int(answer.json()["input_tokens"])

        plain = await count(input="hello")
        assert plain == await count(input="hello") > 0
        assert await count(input="hello", instructions="be brief") > plain
        assert await count(input="hello", tools=TOOLS) > plain
        behind = await count(input="hello", previous_response_id=first["id"])
        assert behind > plain
        assert behind == await count(input="hello", headers={"X-Session-Key": "k"})
        assert gateway.model.calls[1:] == []
        answer = await gateway.client.post(
            "/v1/responses/input_tokens",
            json={"model": "m", "input": "x", "previous_response_id": "resp_x"},
        )
        assert code_of(answer) == NOT_FOUND


async def test_encrypted_reasoning_is_stored_and_returned_only_on_request() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "SEAL"}
    async with open_gateway(ScriptedModel(lambda _: [thought, said("ok")])) as gateway:
        plain = await gateway.respond("a", key="k")
        assert "SEAL" not in plain.text
        assert plain.json()["output"][0]["type"] == "reasoning"
        stream = await gateway.respond("b", key="k", stream=True)
        assert "SEAL" not in stream.text
        wanted = ["reasoning.encrypted_content"]
        asked = await gateway.respond("c", key="k", include=wanted)
        assert asked.json()["output"][0]["encrypted_content"] == "SEAL"
        asked = await gateway.respond("d", key="k", include=wanted, stream=True)
        assert asked.text.count("SEAL") == 3
        path = f"/v1/responses/{plain.json()['id']}"
        assert "SEAL" not in (await gateway.client.get(path)).text
        assert "SEAL" in (await gateway.client.get(path + "?include[]=" + wanted[0])).text
        shown = [body for body in gateway.model.calls[-1].items if b"SEAL" in body]
        assert len(shown) == 3
