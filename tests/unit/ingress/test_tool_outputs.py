"""Outputs of a client's tools that come by themselves: joined, late, repeated, or nobody's."""

from typing import Any

import pytest

from holdfast.engine.settings import LaneSettings
from tests.in_process import ScriptedModel, called, open_house, said

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
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "reasoning", "summary": []},
    ],
    ids=["configuration", "unknown", "approval", "reasoning"],
)
async def test_an_item_that_is_no_message_hides_nothing(item: Item) -> None:
    async with open_house() as house:
        await house.respond("my name is Ada")
        assert (await house.respond([item, _user("q")])).status_code == 200
        log = await house.log()
        assert log[:2] == ["my name is Ada", "re:my name is Ada"]
        assert log[-2:] == ["q", "re:q"]
        assert house.model.shown[-1][0] == "my name is Ada"


@pytest.mark.parametrize("is_chat", [False, True], ids=["responses", "chat"])
async def test_a_late_output_stands_at_its_call(is_chat: bool) -> None:
    async with open_house(ScriptedModel(_script), lanes=NO_WAIT) as house:
        await house.respond("one")
        await house.respond("another matter")
        if is_chat:
            await house.chat([{"role": "tool", "tool_call_id": "c1", "content": "here"}])
        else:
            await house.respond([_out("c1", "here")])
        assert house.model.shown[-1] == ["one", "look()", "=here", "another matter", "seen 4"]
        assert await house.log() == [
            "one", "look()", "another matter", "seen 4", "=here", "seen 5",
        ]  # fmt: skip


async def test_parallel_calls_answered_one_by_one_lose_nothing() -> None:
    async with open_house(ScriptedModel(_script)) as house:
        await house.respond("both")
        await house.respond([_out("c1", "A")])
        await house.respond([_out("c2", "B")])
        assert house.model.shown[-1][:5] == ["both", "look()", "look()", "=A", "=B"]
        assert (await house.log())[:4] == ["both", "look()", "look()", "=A"]
