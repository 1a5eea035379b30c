"""What people see of a turn that runs: text, the tool that it waits for, edits within a budget."""

import msgspec

from holdfast.channels.live_reply import EditBudget, Progress
from holdfast.core.openai.stream_events import Delta, StreamEvent


def delta(text: str) -> StreamEvent:
    """Return an event with some more text."""
    value = Delta(type="response.output_text.delta", item_id="m", output_index=0, delta=text)
    return StreamEvent("response.output_text.delta", 1, None, delta=value)


def item(kind: str, **fields: object) -> StreamEvent:
    """Return an event about an item."""
    name = f"response.output_item.{kind}"
    return StreamEvent(name, 1, msgspec.json.encode({"type": name, "item": fields}))


def test_a_tool_is_named_after_twenty_seconds_until_it_ends() -> None:
    progress = Progress()
    call = {"id": "c", "type": "mcp_call", "name": "search"}
    progress.add([delta("Let me look."), item("added", **call)], 100.0)
    assert progress.describe(119.0) == "Let me look."
    assert progress.describe(120.0) == "Let me look.\n\n(running search)"
    progress.add([item("done", **call)], 121.0)
    assert progress.describe(150.0) == "Let me look."


def test_a_tool_without_a_name_is_known_by_its_kind_and_odd_items_are_skipped() -> None:
    progress = Progress()
    progress.add([item("added", id=7), item("added", id="m", type="message")], 0.0)
    progress.add([item("added", id="i", type="image_generation_call", name=None)], 0.0)
    assert progress.describe(30.0) == "(running image_generation)"


def test_live_edits_of_all_chats_share_one_budget_and_leave_some_for_answers() -> None:
    now = [0.0]
    budget = EditBudget(4.0, lambda: now[0])
    assert [budget.try_spend() for _ in range(4)] == [True, True, True, False]
    budget.spend()
    now[0] = 0.5
    assert [budget.try_spend() for _ in range(2)] == [True, False], "answers spend too"
    now[0] = 60.0
    budget.pause(5.0)
    assert not budget.try_spend(), "the platform asked for a pause"
    now[0] = 65.0
    assert budget.try_spend()
