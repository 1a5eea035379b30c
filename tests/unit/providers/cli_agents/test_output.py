"""The output of an agent: items and events of one turn, bounded."""

import json
from collections.abc import Sequence

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.projection.project import project
from holdfast.ports.provider import AnyEvent
from holdfast.providers.cli_agents.output import MAX_TOOL_BYTES, AgentOutput
from holdfast.testing.ids import SequentialIds


class Sink:
    """Collects events and refuses more until it is drained."""

    def __init__(self) -> None:
        self.types: list[str] = []
        self.drains = 0

    def write(self, events: Sequence[AnyEvent]) -> bool:
        self.types += [event.type for event in events]
        return False

    async def drain(self) -> None:
        self.drains += 1


async def test_texts_reasoning_and_tools_become_items_in_their_order() -> None:
    sink = Sink()
    output = AgentOutput(SequentialIds().new, sink)
    output.add_reasoning("hm")
    output.add_text("I look ")
    output.add_text("around.")
    output.add_tool_call("Bash", {"command": "ls"}, "a.txt", failed=False)
    output.add_text("There is a.txt.")
    await output.drain()
    await output.drain()
    output.end_part()
    items = [json.loads(item) for item in output.items]
    assert [item["type"] for item in items] == [
        "reasoning", "message", "agent_tool_call", "message",
    ]  # fmt: skip
    assert items[1]["content"][0]["text"] == "I look around."
    assert items[2]["arguments"] == '{"command":"ls"}'
    assert sink.types.count("response.output_item.done") == 4
    assert sink.drains == 1


def test_what_a_tool_returned_is_bounded_and_shown_to_others_as_a_short_text() -> None:
    output = AgentOutput(SequentialIds().new, None)
    output.add_tool_call("Read", {"path": "ä" * 70_000}, "ö" * 70_000, failed=True)
    (item,) = output.items
    value = json.loads(item)
    assert len(value["arguments"].encode()) + len(value["output"].encode()) <= MAX_TOOL_BYTES
    assert value["status"] == "failed"
    stored = StoredItem("ses_1", 1, 1, "agent_tool_call", None, None, b"", False, item)
    (shown,) = project([stored])
    assert len(shown) < 2500
    decoded = msgspec.json.decode(shown)
    assert (decoded["type"], decoded["role"]) == ("message", "assistant")
    assert "I used my tool Read" in decoded["content"][0]["text"]
