"""Turns in which the gateway runs tools."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from holdfast.core.ids import DEFAULT_TENANT, SessionId
from holdfast.core.model.gateway_items import COMPLETION
from holdfast.core.model.synthetic_outputs import NOT_APPROVED, OUTCOME_UNKNOWN
from holdfast.core.transaction.commands import Hide
from holdfast.engine.settings import ToolSettings
from holdfast.ports.store import ItemQuery
from tests.in_process import (
    Item,
    RunningGateway,
    ScriptedModel,
    called,
    open_gateway,
    said,
    text_of,
)
from tests.tools.toolboxes import SERVER, Gate, RecordingTools, echo

CLIENTS = {"type": "function", "name": "theirs"}


def _calls_then_says(*calls: Item, text: str = "done") -> ScriptedModel:
    """Return a model that makes calls once, and answers as soon as it has their outputs."""

    def script(items: list[Item]) -> list[Item]:
        return [said(text)] if items[-1].get("type", "").endswith("_output") else list(calls)

    return ScriptedModel(script)


def _functions(model: ScriptedModel, call: int) -> list[str]:
    raw = model.calls[call].fields.get("tools") or model.calls[call].chat_fields.get("tools")
    return [
        tool.get("name") or tool["function"]["name"] for tool in msgspec.json.decode(raw or b"[]")
    ]


@pytest.mark.parametrize("written", ['{"a": 1', "[1]", '{"a":' * 5000], ids=["cut", "list", "deep"])
async def test_a_call_with_malformed_arguments_is_not_run_and_the_turn_goes_on(
    written: str,
) -> None:
    tools = RecordingTools()
    model = _calls_then_says(called("desk__echo", "c1", written))
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    assert tools.calls == []
    call, message = answer["output"]
    assert (call["arguments"], message["content"][0]["text"]) == (written, "done")
    assert call["error"].startswith("The arguments are not a JSON object")
    # The model is shown what it wrote, in an object.
    _, sent, _ = map(msgspec.json.decode, model.calls[-1].items)
    assert msgspec.json.decode(sent["arguments"]) == {"malformed_arguments": written}


async def test_the_model_is_called_again_with_the_output_of_the_tool() -> None:
    tools = RecordingTools()
    model = _calls_then_says(called("desk__echo", "c1", '{"a":1}'))
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    assert tools.calls == [("echo", {"a": 1})]
    assert model.shown == [["hi"], ["hi", "desk__echo()", '={"a":1}']]
    assert _functions(model, 0) == ["desk__echo"]
    call, message = answer["output"]
    assert call["type"] == "mcp_call"
    assert (call["server_label"], call["name"]) == ("desk", "echo")
    assert (call["arguments"], call["output"], call["error"]) == ('{"a":1}', '{"a":1}', None)
    assert message["content"][0]["text"] == "done"
    assert answer["status"] == "completed"


async def test_a_stored_answer_is_read_as_it_was_given() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
        again = (await gateway.client.get(f"/v1/responses/{answer['id']}")).json()
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        listed = (await gateway.client.get(f"/v1/sessions/{session['id']}/items")).json()
    assert again["output"] == answer["output"]
    assert again["usage"] == answer["usage"]
    assert [item["type"] for item in listed["data"]] == ["message", "mcp_call", "message"]
    assert listed["data"][1] == answer["output"][0]


async def test_pages_of_items_show_each_call_once() -> None:
    calls = [called("desk__echo", f"c{n}") for n in range(5)]
    model = _calls_then_says(*calls)
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        await gateway.respond("hi", tools=[SERVER])
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        found: list[str] = []
        after = ""
        while True:
            page = (
                await gateway.client.get(f"/v1/sessions/{session['id']}/items?limit=2{after}")
            ).json()
            found += [item["type"] for item in page["data"]]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
    assert found == ["message", *["mcp_call"] * 5, "message"]


async def test_the_usage_of_all_calls_of_a_turn_is_counted_once() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
    # One input item and one output item first, then three and one.
    assert (answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]) == (4, 2)
    assert session["usage"]["input_tokens"] == 4
    assert session["usage"]["output_tokens"] == 2


async def test_parallel_calls_run_side_by_side_and_keep_their_order() -> None:
    slow = Gate()
    began = asyncio.Event()

    async def fast(_: dict[str, object]) -> str:
        began.set()
        await slow.entered.wait()
        slow.opened.set()
        return "fast"

    tools = RecordingTools(slow=slow, fast=fast)
    model = _calls_then_says(called("desk__slow", "c1"), called("desk__fast", "c2"))
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    assert [item.get("output") for item in answer["output"][:2]] == ["opened", "fast"]
    assert model.shown[1] == ["hi", "desk__slow()", "desk__fast()", "=opened", "=fast"]


async def _hide_output(gateway: RunningGateway, session_id: str, *, erase: bool) -> None:
    """Hide the output of a call and not the call, as replicas of version 0.1 do."""
    view = await gateway.engine.read.session(DEFAULT_TENANT, session_id=SessionId(session_id))
    assert view is not None
    items = await gateway.engine.read.items(view.session, ItemQuery())
    (seq,) = [item.seq for item in items if item.kind == COMPLETION]
    hide = Hide(tenant=DEFAULT_TENANT, session_id=view.session.id, from_seq=seq, to_seq=seq)
    await gateway.engine.submit(msgspec.structs.replace(hide, erase=erase))


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("erase", ["true", "false"])
async def test_a_call_whose_output_is_deleted_during_its_turn_is_not_run_again(
    erase: str, is_alone: bool
) -> None:
    slow = Gate()
    tools = RecordingTools(echo=echo, slow=slow)
    slowly = [[called("desk__slow", "c2")], [called("desk__slow", "c3")]]
    steps = [[called("desk__echo", "c1")], *slowly, [said("done")]]
    model = ScriptedModel(lambda _: steps.pop(0))
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        asked = asyncio.create_task(gateway.respond("hi", tools=[SERVER]))
        await slow.entered.wait()
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        items = f"/v1/conversations/{session['id'].replace('ses_', 'conv_')}/items"
        listed = (await gateway.client.get(items)).json()["data"]
        (call,) = [item["id"] for item in listed if item["type"] == "mcp_call"]
        if is_alone:
            await _hide_output(gateway, session["id"], erase=erase == "true")
        else:
            assert (await gateway.client.delete(f"{items}/{call}?erase={erase}")).is_success
        slow.opened.set()
        assert (await asked).json()["status"] == "completed"
    assert [name for name, _ in tools.calls] == ["echo", "slow", "slow"]


@pytest.mark.parametrize("erase", ["true", "false"])
async def test_a_deleted_call_is_gone_with_its_arguments(erase: str) -> None:
    secret = '{"a":"secret"}'
    calls = [called("desk__echo", "c1", secret), called("desk__echo", "c2", '{"a":"public"}')]
    model = _calls_then_says(*calls)
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        await gateway.respond("hi", tools=[SERVER])
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        items = f"/v1/conversations/{session['id'].replace('ses_', 'conv_')}/items"
        listed = (await gateway.client.get(items)).json()["data"]
        call = next(item["id"] for item in listed if item.get("arguments") == secret)
        assert (await gateway.client.delete(f"{items}/{call}?erase={erase}")).is_success
        log = await gateway.client.get(f"/v1/sessions/{session['id']}/items?view=log&limit=100")
        model.script = lambda _: [said("bye")]
        await gateway.respond("and now?")
    assert model.shown[-1] == ["hi", "desk__echo()", '={"a":"public"}', "done", "and now?"]
    assert b"secret" not in b"".join(model.calls[-1].items)
    assert (b"secret" in log.content) is (erase == "false")


async def test_a_chat_client_gets_the_final_answer() -> None:
    model = ScriptedModel(
        lambda items: (
            [said("It is done.")]
            if items[-1]["type"].endswith("_output")
            else [said("Let me look."), called("desk__echo", "c1")]
        )
    )
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        answer = (await gateway.chat([{"role": "user", "content": "hi"}], tools=[SERVER])).json()
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "It is done."
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert _functions(model, 0) == ["desk__echo"]


async def _events(gateway: Any, **more: Any) -> list[dict[str, Any]]:
    body = {"model": "scripted", "input": "hi", "stream": True, **more}
    text = (
        await gateway.client.post("/v1/responses", json=body, headers={"X-Session-Key": "k"})
    ).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_a_stream_shows_a_call_as_openai_does() -> None:
    model = ScriptedModel(
        lambda items: (
            [said("It is done.")]
            if items[-1]["type"].endswith("_output")
            else [said("Let me look."), called("desk__echo", "c1", '{"a":1}')]
        )
    )
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        events = await _events(gateway, tools=[SERVER])
    kinds = [event["type"] for event in events]
    at = kinds.index("response.mcp_call.in_progress")
    assert kinds[at - 1] == "response.output_item.added"
    begun = events[at - 1]["item"]
    assert (begun["type"], begun["status"], begun["output"]) == ("mcp_call", "in_progress", None)
    ended = kinds.index("response.mcp_call.completed")
    assert kinds[ended + 1] == "response.output_item.done"
    assert events[ended + 1]["item"]["output"] == '{"a":1}'
    assert not any("function_call" in kind for kind in kinds)
    last = events[-1]["response"]
    done = {event["output_index"]: event["item"] for event in events
            if event["type"] == "response.output_item.done"}  # fmt: skip
    assert [done[index]["type"] for index in range(3)] == ["message", "mcp_call", "message"]
    assert [item["type"] for item in last["output"]] == ["message", "mcp_call", "message"]
    assert last["output"][1] == done[1]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_a_stored_stream_can_be_read_again() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        events = await _events(gateway, tools=[SERVER])
        name = events[0]["response"]["id"]
        text = (await gateway.client.get(f"/v1/responses/{name}?stream=true")).text
        again = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert [event["type"] for event in again] == [event["type"] for event in events]
    assert again[-1] == events[-1]


async def test_client_tools_are_left_to_the_client_after_ours_have_run() -> None:
    function = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    tools = RecordingTools()

    def script(items: list[Item]) -> list[Item]:
        if items[-1]["type"] == "function_call_output":
            return [said("both")]
        return [called("mine", "c1"), called("desk__echo", "c2", '{"b":2}')]

    model = ScriptedModel(script)
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("hi", tools=[function, SERVER])).json()
        assert [item["type"] for item in answer["output"]] == ["function_call", "mcp_call"]
        assert len(model.calls) == 1
        turn = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        assert turn["status"] == "running"
        output = {"type": "function_call_output", "call_id": "c1", "output": "from the client"}
        last = (await gateway.respond([output], tools=[function, SERVER])).json()
    assert last["output"][0]["content"][0]["text"] == "both"
    assert tools.calls == [("echo", {"b": 2})]
    assert model.shown[1] == ["hi", "mine()", "desk__echo()", "=from the client", '={"b":2}']


async def test_after_the_last_step_the_model_is_called_once_more_without_tools() -> None:
    model = ScriptedModel(
        lambda items: (
            [said("enough")] if len(items) > 7 else [called("desk__echo", f"c{len(items)}")]
        )
    )
    tools = RecordingTools()
    settings = ToolSettings(max_tool_steps=3)
    async with open_gateway(model, toolbox=lambda _: tools, tools=settings) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    assert len(tools.calls) == 3
    assert "tools" not in model.calls[-1].fields
    assert [item["type"] for item in answer["output"]][:3] == ["mcp_call"] * 3


async def test_a_model_that_calls_without_tools_learns_of_the_limit_and_is_not_called_again() -> (
    None
):
    model = ScriptedModel(lambda items: [called("desk__echo", f"c{len(items)}")])
    tools = RecordingTools()
    settings = ToolSettings(max_tool_steps=2)
    async with open_gateway(model, toolbox=lambda _: tools, tools=settings) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    assert len(tools.calls) == 2
    assert answer["status"] == "completed"
    assert answer["output"][-1]["error"].startswith("The call was not run")


async def test_a_long_output_is_truncated_with_a_note() -> None:
    async def large(_: dict[str, object]) -> str:
        return "ä" * 1000

    tools = RecordingTools(large=large)
    model = _calls_then_says(called("desk__large", "c1"))
    settings = ToolSettings(output_bytes=101)
    async with open_gateway(model, toolbox=lambda _: tools, tools=settings) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    output = answer["output"][0]["output"]
    assert output == "ä" * 50 + "\n[cut here: the first 101 of 2000 bytes are shown]"


async def test_a_tool_that_takes_too_long_is_cancelled_and_the_model_learns_it() -> None:
    gate = Gate()
    tools = RecordingTools(slow=gate)
    model = _calls_then_says(called("desk__slow", "c1"))
    settings = ToolSettings(tool_seconds=0.05)
    async with open_gateway(model, toolbox=lambda _: tools, tools=settings) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    assert answer["output"][0]["status"] == "failed"
    assert "0.05 s" in answer["output"][0]["error"]
    assert "may have taken effect" in answer["output"][0]["error"]
    assert answer["output"][1]["content"][0]["text"] == "done"


async def test_a_tool_that_raises_fails_its_call_and_not_the_turn() -> None:
    async def broken(_: dict[str, object]) -> str:
        raise RuntimeError("secret of the tool")

    tools = RecordingTools(broken=broken)
    model = _calls_then_says(called("desk__broken", "c1"))
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    error = answer["output"][0]["error"]
    assert error.startswith("The tool failed: RuntimeError. ")
    assert "may have taken effect" in error
    assert "secret" not in error
    assert answer["status"] == "completed"


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "7"])
async def test_arguments_that_are_no_object_are_an_error_of_the_call(arguments: str) -> None:
    tools = RecordingTools()
    model = _calls_then_says(called("desk__echo", "c1", arguments))
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    assert not tools.calls
    assert "arguments" in answer["output"][0]["error"]


async def test_a_forced_choice_holds_for_the_first_step() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    choice = {"type": "mcp", "server_label": "desk", "name": "echo"}
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        await gateway.respond("hi", tools=[SERVER], tool_choice=choice)
    choices = [msgspec.json.decode(call.fields["tool_choice"]) for call in model.calls]
    assert choices == [{"type": "function", "name": "desk__echo"}, "auto"]


def _choices(model: ScriptedModel) -> list[Any]:
    calls = [call.fields or call.chat_fields for call in model.calls]
    return [msgspec.json.decode(fields["tool_choice"]) for fields in calls]


async def test_allowed_tools_are_shown_as_functions_and_stay_the_only_ones() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    listed = [{"type": "mcp", "server_label": "desk", "name": "echo"}, {**CLIENTS, "x": 1}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": listed}
    toolbox = RecordingTools(echo=echo, write=echo)
    async with open_gateway(model, toolbox=lambda _: toolbox) as gateway:
        await gateway.respond("hi", tools=[SERVER, CLIENTS], tool_choice=choice)
    tools = [{"type": "function", "name": "desk__echo"}, {**CLIENTS, "x": 1}]
    assert _choices(model) == [
        {"type": "allowed_tools", "mode": "required", "tools": tools},
        {"type": "allowed_tools", "mode": "auto", "tools": tools},
    ]


async def test_the_choice_of_a_server_forces_none_of_the_clients_tools() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    choice = {"type": "mcp", "server_label": "desk"}
    toolbox = RecordingTools(echo=echo, write=echo)
    async with open_gateway(model, toolbox=lambda _: toolbox) as gateway:
        await gateway.respond("hi", tools=[SERVER], tool_choice=choice)
        await gateway.respond("hi", tools=[SERVER, CLIENTS], tool_choice=choice)
    tools = [{"type": "function", "name": f"desk__{name}"} for name in ("echo", "write")]
    limited = {"type": "allowed_tools", "mode": "required", "tools": tools}
    assert _choices(model) == ["required", "auto", limited, "auto"]


async def test_a_chat_client_may_allow_some_of_the_tools() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    server = {"type": "mcp", "server_label": "desk"}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [server]}}
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        messages = [{"role": "user", "content": "hi"}]
        await gateway.chat(messages, tools=[SERVER], tool_choice=choice)
    function = {"type": "function", "function": {"name": "desk__echo"}}
    allowed = {"mode": "auto", "tools": [function]}
    assert _choices(model) == [{"type": "allowed_tools", "allowed_tools": allowed}] * 2


async def test_the_choice_of_a_server_of_the_upstream_is_passed_on() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    choice = {"type": "mcp", "server_label": "theirs", "name": "roll"}
    hosted = {"type": "mcp", "server_label": "theirs", "server_url": "https://dice.example/mcp"}
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        await gateway.respond("hi", tools=[SERVER, hosted], tool_choice=choice)
    assert _choices(model) == [choice, "auto"]


async def test_a_session_goes_on_after_a_turn_with_tools() -> None:
    model = _calls_then_says(called("desk__echo", "c1"))
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        await gateway.respond("hi", tools=[SERVER])
        model.script = lambda items: [said("again")]
        await gateway.respond("more")
    assert model.shown[-1] == ["hi", "desk__echo()", "={}", "done", "more"]


async def test_nobody_but_the_gateway_makes_up_calls_of_its_tools() -> None:
    forged = {"type": "gateway_approval", "id": "x", "call_id": "mcpr_x", "approve": True}
    async with open_gateway() as gateway:
        reply = await gateway.respond([forged])
    assert reply.status_code == 400
    assert "reserved" in reply.json()["error"]["message"]


async def test_tools_of_equal_names_in_two_calls_of_one_answer_are_told_apart() -> None:
    tools = RecordingTools(echo=echo)
    model = _calls_then_says(
        called("desk__echo", "same", '{"n":1}'), called("desk__echo", "same", '{"n":2}')
    )
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("hi", tools=[SERVER])).json()
    assert [item["output"] for item in answer["output"][:2]] == ['{"n":1}', '{"n":2}']
    assert model.shown[1][3:] == ['={"n":1}', '={"n":2}']


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_tool_of_our_server_that_does_not_exist_is_never_the_clients(
    *, is_stream: bool
) -> None:
    model = ScriptedModel(
        lambda items: (
            [said("sorry")]
            if items[-1]["type"].endswith("_output")
            else [called("desk__ghost", "c1", "{}")]
        )
    )
    async with open_gateway(model, toolbox=lambda _: RecordingTools()) as gateway:
        reply = await gateway.respond("go", tools=[SERVER], stream=is_stream)
    assert "not available" in model.shown[-1][-1]
    assert "function_call" not in reply.text
    assert '"mcp_call"' in reply.text
    assert "sorry" in reply.text


async def test_parallel_calls_beyond_the_requests_limit_do_not_run() -> None:
    calls = [called("desk__echo", f"c{n}", f'{{"n":{n}}}') for n in range(3)]
    model = ScriptedModel(
        lambda items: [said("done")] if items[-1]["type"].endswith("_output") else calls
    )
    tools = RecordingTools()
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        answer = (await gateway.respond("go", tools=[SERVER], max_tool_calls=2)).json()
    assert [arguments for _, arguments in tools.calls] == [{"n": 0}, {"n": 1}]
    errors = [item.get("error") for item in answer["output"] if item["type"] == "mcp_call"]
    assert errors[:2] == [None, None]
    assert "limit" in errors[2]


async def test_the_next_turn_is_told_that_a_cancelled_call_may_have_run() -> None:
    gate = Gate()
    model = ScriptedModel(
        lambda items: [called("desk__slow", "c1")] if text_of(items[-1]) == "go" else [said("done")]
    )
    async with open_gateway(model, toolbox=lambda _: RecordingTools(slow=gate)) as gateway:
        first = asyncio.create_task(gateway.respond("go", tools=[SERVER]))
        await gate.entered.wait()
        await gateway.respond("stop", tools=[SERVER], headers={"X-On-Busy": "interrupt"})
        await first
    assert model.shown[-1] == ["go", "desk__slow()", f"={OUTCOME_UNKNOWN}", "stop"]


async def test_the_next_turn_is_told_that_a_call_without_approval_never_ran() -> None:
    tools = RecordingTools()
    tools.approved = {"echo"}
    model = ScriptedModel(
        lambda items: [called("desk__echo", "c1")] if text_of(items[-1]) == "go" else [said("done")]
    )
    async with open_gateway(model, toolbox=lambda _: tools) as gateway:
        await gateway.respond("go", tools=[SERVER])
        await gateway.respond("never mind", tools=[SERVER])
    assert model.shown[-1] == ["go", "desk__echo()", f"={NOT_APPROVED}", "never mind"]


async def test_steps_that_a_compaction_has_replaced_count_against_the_limits() -> None:
    async def large(_: dict[str, object]) -> str:
        return "word " * 400

    function = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    tools = RecordingTools(large=large)

    def script(items: list[Item]) -> list[Item]:
        if text_of(items[0]) != "go":
            return [said("a summary")]
        name = "mine" if len(tools.calls) == 3 and items[-1]["call_id"] != "mine" else "desk__large"
        return [called(name, name if name == "mine" else f"c{len(tools.calls)}")]

    model = ScriptedModel(script)
    settings = ToolSettings(max_tool_steps=4)
    async with open_gateway(model, toolbox=lambda _: tools, tools=settings, window=1500) as gateway:
        await gateway.respond("go", tools=[function, SERVER])
        assert len(tools.calls) == 3
        output = {"type": "function_call_output", "call_id": "mine", "output": "from the client"}
        await gateway.respond([output], tools=[function, SERVER])
    assert model.shown[-1][1].startswith("Summary")
    assert len(tools.calls) == 4
