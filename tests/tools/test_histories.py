"""Clients that send their whole history and never saw the gateway's calls."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from holdfast.core.ids import DEFAULT_TENANT, TurnId
from holdfast.core.model.request import TurnRequest, read_request
from holdfast.core.tools.requested import redact_tools
from tests.in_process import Item, ScriptedModel, called, open_gateway, said
from tests.tools.approvals import chat_text
from tests.tools.toolboxes import SERVER, Gate, RecordingTools


def _model() -> ScriptedModel:
    """Return a model that says something, calls a tool, and says something else."""

    def script(items: list[Item]) -> list[Item]:
        if items[-1].get("type") == "function_call_output":
            return [said("Found.")]
        if "look" in str(items[-1].get("content")):
            return [said("Looking."), called("desk__echo", f"c{len(items)}")]
        return [said("Fine.")]

    return ScriptedModel(script)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chat_client_repeats_what_it_was_shown(*, is_stream: bool) -> None:
    model = _model()
    messages: list[Item] = []
    expected: list[str] = []
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        for text in ("look here", "thanks", "look there", "bye"):
            messages.append({"role": "user", "content": text})
            reply = await gateway.chat(messages, tools=[SERVER], stream=is_stream)
            messages.append({"role": "assistant", "content": chat_text(reply)})
            expected.append(text)
            if "look" in text:
                expected += ["Looking.", "desk__echo()", "={}", "Found."]
            else:
                expected.append("Fine.")
        log = await gateway.log(view="log")
    assert messages[1]["content"] == ("Looking.\n\nFound." if is_stream else "Found.")
    # Nothing is stored twice, and the model sees its calls where they were.
    assert model.shown[-1] == expected[:-1]
    assert log.count("look here") == log.count("Looking.") - 1 == 1


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("behind", ["\n", "Moment."])
@pytest.mark.parametrize("before", [[], [said("Looking.")]], ids=["", "before"])
async def test_text_behind_a_call_stays_in_front_of_its_output_and_is_recognised(
    before: list[Item], behind: str, *, is_stream: bool
) -> None:
    def script(items: list[Item]) -> list[Item]:
        if items[-1].get("type") == "function_call_output":
            return [said("Found.")]
        if "look" in str(items[-1].get("content")):
            return [*before, called("desk__echo", f"c{len(items)}"), said(behind)]
        return [said("Fine.")]

    model = ScriptedModel(script)
    messages: list[Item] = []
    expected: list[str] = []
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        for text in ("look here", "thanks", "look there", "bye"):
            messages.append({"role": "user", "content": text})
            reply = await gateway.chat(messages, tools=[SERVER], stream=is_stream)
            messages.append({"role": "assistant", "content": chat_text(reply)})
            expected.append(text)
            if "look" in text:
                expected += [
                    *(["Looking."] if before else []),
                    "desk__echo()",
                    behind,
                    "={}",
                    "Found.",
                ]
            else:
                expected.append("Fine.")
        log = await gateway.log(view="log")
    assert messages[1]["content"].endswith("Found.")
    assert model.shown[-1] == expected[:-1]
    assert log.count("look here") == log.count("look there") == 1


async def test_an_edit_hides_the_calls_together_with_their_turn() -> None:
    model = _model()
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        messages: list[Item] = [{"role": "user", "content": "hello"}]
        first = chat_text(await gateway.chat(messages, tools=[SERVER]))
        messages += [{"role": "assistant", "content": first}]
        await gateway.chat([*messages, {"role": "user", "content": "look here"}], tools=[SERVER])
        await gateway.chat([*messages, {"role": "user", "content": "edited"}], tools=[SERVER])
    assert model.shown[-1] == ["hello", "Fine.", "edited"]


async def test_a_responses_client_repeats_the_items_of_its_answer() -> None:
    model = _model()
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        history: list[Item] = [{"role": "user", "content": "look here"}]
        answer = (await gateway.respond(history, tools=[SERVER])).json()
        assert [item["type"] for item in answer["output"]] == ["message", "mcp_call", "message"]
        history += [*answer["output"], {"role": "user", "content": "thanks"}]
        await gateway.respond(history, tools=[SERVER])
    assert model.shown[-1] == [
        "look here", "Looking.", "desk__echo()", "={}", "Found.", "thanks",
    ]  # fmt: skip


async def test_a_history_without_the_message_that_joined_its_turn_hides_nothing() -> None:
    def script(items: list[Item]) -> list[Item]:
        if items[-1].get("type") == "message" and "look" in str(items[-1]["content"]):
            return [called("desk__slow", "c1")]
        return [said(f"seen {len(items)}")]

    gate, model = Gate(), ScriptedModel(script)
    async with open_gateway(model, toolbox=lambda _: RecordingTools(slow=gate)) as gateway:
        messages: list[Item] = [{"role": "user", "content": "look here"}]
        first = asyncio.create_task(gateway.chat(messages, tools=[SERVER]))
        await gate.entered.wait()
        steer = gateway.respond("and mind this", headers={"X-On-Busy": "steer"}, tools=[SERVER])
        joined = asyncio.create_task(steer)
        await gateway.until_queued(1)
        gate.opened.set()
        messages += [{"role": "assistant", "content": chat_text(await first)}]
        await joined
        await gateway.chat([*messages, {"role": "user", "content": "thanks"}], tools=[SERVER])
        await gateway.chat([*messages, {"role": "user", "content": "edited"}], tools=[SERVER])
    turn = ["look here", "desk__slow()", "=opened", "and mind this", "seen 4"]
    assert model.shown[-2] == [*turn, "thanks"]
    assert model.shown[-1] == [*turn, "edited"]


async def test_tool_outputs_sent_without_the_message_that_joined_them_hide_nothing() -> None:
    def script(items: list[Item]) -> list[Item]:
        if any(item.get("type") == "function_call_output" for item in items):
            return [said(f"seen {len(items)}")]
        return [called("mine", "c1")]

    mine = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    model = ScriptedModel(script)
    async with open_gateway(model) as gateway:
        history: list[Item] = [{"role": "user", "content": "go"}]
        history += (await gateway.respond(history, tools=[mine])).json()["output"]
        steer = gateway.respond("and mind this", headers={"X-On-Busy": "steer"}, tools=[mine])
        joined = asyncio.create_task(steer)
        await gateway.until_queued(1)
        history.append({"type": "function_call_output", "call_id": "c1", "output": "done"})
        history += (await gateway.respond(history, tools=[mine])).json()["output"]
        await joined
        await gateway.respond([*history, {"role": "user", "content": "thanks"}], tools=[mine])
    assert model.shown[-1] == ["go", "mine()", "=done", "and mind this", "seen 4", "thanks"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_chat_client_gets_the_trace_on_request(*, is_stream: bool) -> None:
    async with open_gateway(_model(), toolbox=lambda _: RecordingTools()) as gateway:
        reply = await gateway.chat(
            [{"role": "user", "content": "look"}],
            tools=[SERVER],
            stream=is_stream,
            headers={"X-Tool-Trace": "true"},
        )
    if is_stream:
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        trace: list[dict[str, Any]] = json.loads(lines[-1])["tool_trace"]
    else:
        trace = reply.json()["tool_trace"]
    assert [(call["name"], call["output"]) for call in trace] == [("echo", "{}")]


@pytest.mark.parametrize(("value", "status"), [("false", 200), ("maybe", 400)])
async def test_the_trace_is_sent_only_on_request(value: str, status: int) -> None:
    async with open_gateway(_model(), toolbox=lambda _: RecordingTools()) as gateway:
        reply = await gateway.chat(
            [{"role": "user", "content": "look"}],
            tools=[SERVER],
            headers={"X-Tool-Trace": value},
        )
    assert reply.status_code == status
    assert "tool_trace" not in reply.json()


async def test_credentials_of_a_tool_are_never_stored() -> None:
    tool = {
        "type": "mcp", "server_label": "x", "server_url": "https://example.com/mcp",
        "authorization": "secret-1", "headers": {"X-Key": "secret-2"},
    }  # fmt: skip
    async with open_gateway() as gateway:
        reply = await gateway.respond("hi", tools=[tool])
        turn_id = TurnId(reply.headers["x-turn-id"])
        turn = await gateway.engine.read.turn(DEFAULT_TENANT, turn_id)
        assert turn is not None
        sent = bytes(gateway.model.calls[0].fields["tools"])
    assert b"secret-1" in sent  # the upstream needs it
    assert b"secret" not in turn.turn.request
    assert b"https://example.com/mcp" in turn.turn.request
    request = read_request(turn.turn.request)
    assert isinstance(request, TurnRequest)
    assert redact_tools(request) == request
    assert msgspec.json.decode(request.fields["tools"])[0]["server_label"] == "x"
