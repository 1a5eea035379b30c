"""Outputs of client tools: joined, late, repeated, or without a call."""

import asyncio
from typing import Any

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.model.synthetic_outputs import INTERRUPTED
from holdfast.engine.settings import LaneSettings
from tests.in_process import ScriptedModel, called, open_gateway, said

Item = dict[str, Any]


def _script(items: list[Item]) -> list[Item]:
    """Call two tools on "both", one on "one"; say what was seen otherwise."""
    last = items[-1]
    text = last["content"][0]["text"] if last.get("type") == "message" else ""
    if text == "both":
        return [called("look", "c1", '{"n":1}'), called("look", "c2", '{"n":2}')]
    if text == "one":
        return [called("look", "c1")]
    return [said(f"seen {len(items)}")]


def _refuse(_: list[Item]) -> list[Item]:
    raise ProviderFailure("no", failure_class="terminal", status=400)


def _out(call_id: str, output: str) -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _user(text: str) -> Item:
    return {"role": "user", "content": text}


NO_WAIT = LaneSettings(tool_wait_seconds=0.0)


@pytest.mark.parametrize(
    "item",
    [
        {"type": "configuration_update", "configuration": {"temperature": 1}},
        {"type": "acme:note", "text": "n"},
        {"type": "reasoning", "summary": []},
    ],
    ids=["configuration", "unknown", "reasoning"],
)
async def test_an_item_that_is_not_a_message_hides_nothing(item: Item) -> None:
    async with open_gateway() as gateway:
        await gateway.respond("my name is Ada")
        assert (await gateway.respond([item, _user("q")])).status_code == 200
        log = await gateway.log()
        assert log[:2] == ["my name is Ada", "re:my name is Ada"]
        assert log[-2:] == ["q", "re:q"]
        assert gateway.model.shown[-1][0] == "my name is Ada"


async def test_an_answer_to_an_unknown_approval_is_refused_and_changes_nothing() -> None:
    answer = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    async with open_gateway() as gateway:
        await gateway.respond("my name is Ada")
        assert (await gateway.respond([answer, _user("q")])).status_code == 404
        assert await gateway.log() == ["my name is Ada", "re:my name is Ada"]


async def test_a_fork_of_a_session_that_waits_for_a_tool_has_the_call() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        origin = (await gateway.respond("one")).headers["x-session-id"]
        child = (await gateway.client.post(f"/v1/sessions/{origin}/fork")).json()
        assert child["item_count"] == 2
        for session in (child["id"], origin):
            body = {"model": "scripted", "input": [_out("c1", f"for {session}")]}
            headers = {"X-Session-Id": session}
            reply = await gateway.client.post("/v1/responses", json=body, headers=headers)
            assert reply.status_code == 200
            assert gateway.model.shown[-1] == ["one", "look()", f"=for {session}"]


def _late(call_id: str, output: str) -> str:
    return f"[Output of the tool call {call_id} (look), which came late]\n{output}"


@pytest.mark.parametrize("is_chat", [False, True], ids=["responses", "chat"])
async def test_a_late_output_is_told_behind_what_the_model_was_sent(is_chat: bool) -> None:
    async with open_gateway(ScriptedModel(_script), lanes=NO_WAIT) as gateway:
        await gateway.respond("one")
        await gateway.respond("another matter")
        sent = gateway.model.shown[-1]
        if is_chat:
            await gateway.chat([{"role": "tool", "tool_call_id": "c1", "content": "here"}])
        else:
            await gateway.respond([_out("c1", "here")])
        assert sent == ["one", "look()", f"={INTERRUPTED}", "another matter"]
        assert gateway.model.shown[-1] == [*sent, "seen 4", _late("c1", "here")]
        assert await gateway.log() == [
            "one", "look()", "another matter", "seen 4", "=here", "seen 6",
        ]  # fmt: skip


async def test_a_late_output_is_shown_at_its_call_while_no_model_has_answered() -> None:
    async with open_gateway(ScriptedModel(_script), lanes=NO_WAIT) as gateway:
        await gateway.respond("one")
        script, gateway.model.script = gateway.model.script, _refuse
        await gateway.respond("another matter")
        gateway.model.script = script
        await gateway.respond([_out("c1", "here")])
        assert gateway.model.shown[-1] == ["one", "look()", "=here", "another matter"]


async def test_parallel_calls_answered_one_by_one_lose_nothing() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("both")
        await gateway.respond([_out("c1", "A")])
        await gateway.respond([_out("c2", "B")])
        sent = ["both", "look()", "look()", "=A", f"={INTERRUPTED}"]
        assert gateway.model.shown[-1] == [*sent, "seen 5", _late("c2", "B")]
        assert (await gateway.log())[:6] == ["both", "look()", "look()", "=A", "seen 5", "=B"]


@pytest.mark.parametrize("way", ["responses", "chat"])
async def test_some_of_several_outputs_continue_the_turn_and_the_rest_may_follow(way: str) -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("both")
        lacking = []
        for call_id, output in (("c1", "A"), ("c2", "B")):
            if way == "chat":
                message = {"role": "tool", "tool_call_id": call_id, "content": output}
                reply = await gateway.chat([message])
            else:
                reply = await gateway.respond([_out(call_id, output)])
            assert reply.status_code == 200, reply.text
            lacking.append(reply.headers.get("x-open-calls"))
        first, second = gateway.model.shown[1:]
    assert lacking == ["c2", None]
    # The client goes on without the second output: its call has a synthetic one, which stays.
    assert first == ["both", "look()", "look()", "=A", f"={INTERRUPTED}"]
    assert second == [*first, "seen 5", _late("c2", "B")]


@pytest.mark.parametrize("lanes", [NO_WAIT, None], ids=["ended", "waiting"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_some_of_the_outputs_after_a_response_are_rejected_and_the_others_named(
    lanes: LaneSettings | None, *, is_stream: bool
) -> None:
    async with open_gateway(ScriptedModel(_script), lanes=lanes) as gateway:
        parent = (await gateway.respond("both", key=None)).json()["id"]
        more: Item = {"key": None, "previous_response_id": parent, "stream": is_stream}
        some = await gateway.respond([_out("c1", "A")], **more)
        assert some.status_code == 400
        assert some.json()["error"]["param"] == "input"
        assert some.json()["error"]["message"] == "No tool output found for function call c2."
        assert len(gateway.model.shown) == 1
        whole = await gateway.respond([_out("c1", "A"), _out("c2", "B")], **more)
        assert whole.status_code == 200
        assert gateway.model.shown[-1] == ["both", "look()", "look()", "=A", "=B"]


async def test_a_request_that_waits_for_tool_outputs_names_their_calls() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("both")
        waiting = asyncio.create_task(gateway.respond("another matter"))
        await gateway.until_queued(1)
        done = await gateway.respond([_out("c1", "A"), _out("c2", "B")])
        assert "x-open-calls" not in done.headers
        assert (await waiting).headers["x-open-calls"] == "c1, c2"
        assert "x-open-calls" not in (await gateway.respond("more")).headers


def _forced(way: str) -> Item:
    """Return what a client sends to get structured output, as instructor does."""
    function = {"name": "look", "parameters": {"type": "object"}}
    if way == "chat":
        choice: Item = {"type": "function", "function": {"name": "look"}}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}
    return {
        "tools": [{"type": "function", **function}],
        "tool_choice": {"type": "function", "name": "look"},
    }


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("way", ["chat", "responses"])
async def test_a_request_that_names_a_function_waits_for_no_output(
    way: str, *, is_stream: bool
) -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        if way == "chat":
            question = {"role": "user", "content": "one"}
            first = await gateway.chat([question], stream=is_stream, **_forced(way))
        else:
            first = await gateway.respond("one", stream=is_stream, **_forced(way))
        turn = (await gateway.client.get(f"/v1/turns/{first.headers['x-turn-id']}")).json()
        assert turn["status"] == "completed"
        after = await gateway.respond("next")
        assert "x-open-calls" not in after.headers
        sent = ["one", "look()", f"={INTERRUPTED}", "next"]
        assert gateway.model.shown[-1] == sent
        late = await gateway.respond([_out("c1", "here")])
        assert late.status_code == 200
        assert gateway.model.shown[-1] == [*sent, "seen 4", _late("c1", "here")]


async def test_an_output_that_a_named_function_gets_at_once_is_shown_at_its_call() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("one", **_forced("responses"))
        await gateway.respond([_out("c1", "here")])
        assert gateway.model.shown[-1] == ["one", "look()", "=here"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "other"}])
async def test_any_other_choice_of_tools_waits_for_the_output(choice: Any) -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        forced = {**_forced("responses"), "tool_choice": choice}
        first = await gateway.respond("one", **forced)
        turn = (await gateway.client.get(f"/v1/turns/{first.headers['x-turn-id']}")).json()
        assert turn["status"] == "requires_action"


@pytest.mark.parametrize("lanes", [NO_WAIT, None], ids=["ended", "waiting"])
async def test_an_output_without_a_call_is_rejected(lanes: LaneSettings | None) -> None:
    async with open_gateway(ScriptedModel(_script), lanes=lanes) as gateway:
        await gateway.respond("one")
        strange = await gateway.respond([_out("nobody", "x")])
        assert strange.status_code == 400
        assert strange.json()["error"]["param"] == "input"
        assert "nobody" in strange.json()["error"]["message"]
        assert await gateway.log() == ["one", "look()"]
        assert (await gateway.respond([_out("c9", "x")], key="never seen")).status_code == 400


async def test_a_different_output_for_an_answered_call_is_rejected() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("one")
        await gateway.respond([_out("c1", "A")])
        other = await gateway.respond([_out("c1", "B")])
        assert other.status_code == 400
        assert await gateway.log() == ["one", "look()", "=A", "seen 3"]


async def test_a_repeated_output_gets_the_answer_of_its_turn() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("one")
        first = await gateway.respond([_out("c1", "A")])
        await gateway.respond("more")
        again = await gateway.respond([_out("c1", "A")])
        assert again.json()["id"] == first.json()["id"]
        assert again.json()["output"] == first.json()["output"]
        assert (await gateway.log()).count("=A") == 1


@pytest.mark.parametrize("lanes", [None, NO_WAIT], ids=["joining", "late"])
async def test_the_same_output_three_times_at_once_is_stored_once(
    lanes: LaneSettings | None,
) -> None:
    async with open_gateway(ScriptedModel(_script), lanes=lanes) as gateway:
        await gateway.respond("one")
        replies = await asyncio.gather(*(gateway.respond([_out("c1", "A")]) for _ in range(3)))
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.json()["id"] for reply in replies}) == 1
        assert await gateway.log(view="log") == ["one", "look()", "=A", "seen 3"]


async def test_a_queued_late_output_is_recognised_as_well() -> None:
    async with open_gateway(ScriptedModel(_script), lanes=NO_WAIT) as gateway:
        await gateway.respond("one")
        await gateway.model.entered.acquire()
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.respond("meanwhile"))
        await gateway.model.entered.acquire()
        first = asyncio.create_task(gateway.respond([_out("c1", "A")]))
        await gateway.until_queued(1)
        second = asyncio.create_task(gateway.respond([_out("c1", "A")], stream=True))
        third = asyncio.create_task(gateway.respond("last"))
        await gateway.until_queued(2)
        gateway.model.gate.set()
        replies = await asyncio.gather(running, first, second, third)
        assert {reply.status_code for reply in replies} == {200}
        assert (await gateway.log(view="log")).count("=A") == 1


async def test_a_known_output_may_be_sent_together_with_a_new_one() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("both")
        await gateway.respond([_out("c1", "A")])
        await gateway.respond([_out("c1", "A"), _out("c2", "B")])
        assert (await gateway.log(view="log")).count("=A") == 1
        assert gateway.model.shown[-1][-1] == _late("c2", "B")


async def test_an_output_whose_turn_failed_is_tried_again_and_not_stored_again() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("one")
        gateway.model.script = _refuse
        assert (await gateway.respond([_out("c1", "A")])).status_code == 400
        gateway.model.script = _script
        assert (await gateway.respond([_out("c1", "A")])).status_code == 200
        assert await gateway.log() == ["one", "look()", "=A", "seen 3"]


async def test_an_unstored_output_is_shown_at_its_stored_call() -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        first = (await gateway.respond("one", key=None)).json()
        await gateway.respond(
            [_out("c1", "found")], key=None, store=False, previous_response_id=first["id"]
        )
        shown = gateway.model.calls[-1].items
        assert [b"found" in body for body in shown] == [False, False, True]
        items = (await gateway.client.get(f"/v1/responses/{first['id']}/input_items")).text
        assert "found" not in items


CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}


@pytest.mark.parametrize("has_parent", [False, True], ids=["key", "parent"])
@pytest.mark.parametrize("repeated", [[_user("one")], [_user("one"), CALL]])
async def test_a_question_that_is_sent_again_with_an_output_is_stored_once(
    repeated: list[Item], *, has_parent: bool
) -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("hello")
        first = await gateway.respond("one")
        more: Item = {"key": None, "previous_response_id": first.json()["id"]}
        sent = [*repeated, _out("c1", "here")]
        done = await gateway.respond(sent, **(more if has_parent else {}))
        assert done.headers["x-turn-id"] == first.headers["x-turn-id"]
        shown = ["hello", "seen 1", "one", "look()", "=here"]
        assert gateway.model.shown[-1] == shown
        assert await gateway.log() == [*shown, "seen 5"]


@pytest.mark.parametrize("has_parent", [False, True], ids=["key", "parent"])
@pytest.mark.parametrize(
    "sent",
    [
        [_out("c1", "here"), _user("one")],
        [_user("another"), _out("c1", "here")],
        [_user("hello"), _user("one"), _out("c1", "here")],
    ],
    ids=["behind", "other", "more"],
)
async def test_another_message_with_an_output_is_kept(
    sent: list[Item], *, has_parent: bool
) -> None:
    async with open_gateway(ScriptedModel(_script)) as gateway:
        await gateway.respond("hello")
        first = await gateway.respond("one")
        more: Item = {"key": None, "previous_response_id": first.json()["id"]}
        await gateway.respond(sent, **(more if has_parent else {}))
        messages = [item["content"] for item in sent if "content" in item]
        log = await gateway.log()
        assert [text for text in log[4:] if text in messages] == messages


async def test_a_question_is_repeated_with_the_output_of_each_step() -> None:
    def script(items: list[Item]) -> list[Item]:
        calls = sum(item.get("type") == "function_call" for item in items)
        return [called("look", f"c{calls + 1}")] if calls < 2 else [said("done")]

    async with open_gateway(ScriptedModel(script)) as gateway:
        await gateway.respond("one")
        for call_id in ("c1", "c2"):
            await gateway.respond([_user("one"), _out(call_id, call_id)])
        assert await gateway.log() == ["one", "look()", "=c1", "look()", "=c2", "done"]
