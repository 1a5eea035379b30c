"""Messages of a chat join the turn that runs, if its answer reaches them."""

from typing import Any

from tests.in_process import Item, ScriptedModel, called, said
from tests.integration.chat_room import open_chat_room
from tests.tools.toolboxes import Gate, RecordingTools


def _model() -> ScriptedModel:
    def script(items: list[Item]) -> list[Item]:
        if any(item["type"] == "function_call_output" for item in items):
            return [said(f"seen {len(items)}")]
        return [called("desk__slow", "c1")]

    return ScriptedModel(script)


async def test_a_message_joins_the_running_turn_and_one_answer_is_sent() -> None:
    gate, model = Gate(), _model()
    tools: Any = RecordingTools(slow=gate)
    async with open_chat_room("slack", model, toolbox=lambda _: tools, tools=("mcp:desk",)) as room:
        room.slack.say("book the flight")
        await gate.entered.wait()
        room.slack.say("on Tuesday")
        await room.gateway.until_queued(1, "agent:main:slack:direct:U7")
        gate.opened.set()
        await room.until_text("seen 4")
        await room.until(lambda: room.slack.unacknowledged == 0)
        room.slack.say("thanks")
        await room.until_text("seen 6")
    assert model.shown[1] == ["book the flight", "desk__slow()", "=opened", "on Tuesday"]
    assert room.slack.texts() == ["seen 4", "seen 6"]


async def test_a_message_of_another_chat_is_a_turn_of_its_own() -> None:
    gate, model = Gate(), _model()
    tools: Any = RecordingTools(slow=gate)
    async with open_chat_room(
        "slack", model, toolbox=lambda _: tools, tools=("mcp:desk",), dm_scope="main"
    ) as room:
        room.slack.say("book the flight")
        await gate.entered.wait()
        room.slack.say("what is new?", user="U8")
        await room.gateway.until_queued(1, "agent:main:main")
        gate.opened.set()
        await room.until(lambda: len(room.slack.texts()) == 2)
        await room.until_text("seen 5")
    assert [one.channel for one in room.slack.posted] == ["D7", "D8"]
    assert model.shown[1] == ["book the flight", "desk__slow()", "=opened"]
