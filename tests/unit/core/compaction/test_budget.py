"""What is left out so that a request fits: whole units, oldest first, and never what must stay."""

import sys
from types import FrameType
from typing import Any

from holdfast.core.compaction.budget import Plan, TokenBudget, plan_compaction, whole_cuts
from holdfast.core.compaction.token_estimate import Scale
from holdfast.core.model.items import StoredItem, write_item

SCALE = Scale()


def log(*rows: tuple[int, dict[str, Any]]) -> list[StoredItem]:
    found = []
    for seq, (turn, value) in enumerate(rows, 1):
        item = write_item(value)
        found.append(
            StoredItem("s", seq, turn, item.kind, None, item.call_id, b"", False, item.body)
        )
    return found


def said(role: str, size: int) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": "x" * size}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"}


def output(name: str, size: int) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "y" * size}


def room(tokens: int, **more: Any) -> TokenBudget:
    more.setdefault("turn_number", 9)
    return TokenBudget(tokens=tokens, scale=SCALE, **more)


def planned(items: list[StoredItem], wanted: TokenBudget) -> Plan:
    found = plan_compaction(items, wanted)
    assert found is not None
    return found


def test_a_cut_never_falls_between_a_call_and_its_output_or_behind_reasoning() -> None:
    items = log(
        (1, said("user", 1)),
        (1, {"type": "reasoning", "summary": []}),
        (1, call("a")),
        (1, call("b")),
        (1, output("a", 1)),
        (1, output("b", 1)),
        (1, said("assistant", 1)),
        (2, call("late")),
        (3, said("user", 1)),
        (3, output("late", 1)),
    )
    assert list(whole_cuts(items)) == [1, 6, 7, 10]


def test_the_oldest_turns_go_first_and_the_first_request_stays() -> None:
    items = log(
        *((turn, said(role, 400)) for turn in range(1, 10) for role in ("user", "assistant"))
    )
    found = planned(items, room(900, summary_tokens=100))
    assert found.keeps == (1,)
    assert items[found.to_seq].turn_number != items[found.to_seq - 1].turn_number
    assert found.tokens_after <= 900 < found.tokens_before
    shown = [item for item in items if item.seq > found.to_seq]
    assert shown[-1].turn_number == 9
    assert {item.seq for item in found.replaced} == set(range(2, found.to_seq + 1))


def test_system_messages_and_configuration_stay_wherever_they_stand() -> None:
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    items = log(
        (1, said("user", 400)),
        (2, said("developer", 100)),
        (3, update),
        (4, said("user", 4000)),
        (4, said("assistant", 4000)),
        (9, said("user", 40)),
    )
    found = planned(items, room(700, summary_tokens=50))
    assert (found.keeps, found.to_seq) == ((1, 2, 3), 5)


def test_a_first_request_too_long_to_stay_is_named_for_quoting() -> None:
    items = log((1, said("user", 4000)), (1, said("assistant", 40)), (9, said("user", 40)))
    found = planned(items, room(300, summary_tokens=50))
    assert found.keeps == ()
    assert found.first is items[0]


def test_with_elision_old_outputs_are_cut_short_before_any_turn_goes() -> None:
    items = log(
        (1, said("user", 40)),
        (1, call("a")),
        (1, output("a", 4000)),
        (2, said("user", 40)),
        (2, call("b")),
        (2, output("b", 4000)),
        (9, said("user", 40)),
    )
    found = planned(items, room(1300, elides_first=True))
    assert (found.to_seq, found.cuts) == (0, ((3, 0),))
    assert found.tokens_after <= 1300
    tighter = planned(items, room(200, elides_first=True))
    assert (tighter.to_seq, tighter.cuts) == (0, ((3, 0), (6, 0)))


def test_units_of_the_running_turn_go_only_when_it_is_too_long_alone() -> None:
    steps = [
        (9, item) for n in range(6) for item in (call(str(n)), output(str(n), 800))
    ]  # fmt: skip
    items = log((9, said("user", 40)), *steps)
    found = planned(items, room(800, summary_tokens=50))
    assert found.keeps == (1,)
    assert items[found.to_seq].kind == "function_call"
    assert found.tokens_after <= 800


def test_an_output_longer_than_the_room_is_cut_to_fit_it() -> None:
    items = log((9, said("user", 40)), (9, call("a")), (9, output("a", 80_000)))
    found = planned(items, room(1000))
    [(seq, kept)] = found.cuts
    assert seq == 3
    assert 2000 < kept < 4000
    assert found.tokens_after <= 1000


def test_what_cannot_be_less_is_left_as_it_is() -> None:
    assert plan_compaction(log((9, said("user", 40_000))), room(100, summary_tokens=10)) is None
    assert plan_compaction([], room(100)) is None


def test_a_summary_alone_is_not_summed_up_again() -> None:
    items = log((0, said("user", 400)), (9, said("user", 4000)))
    assert plan_compaction(items, room(500, summary_tokens=50)) is None


def test_a_requested_compaction_replaces_all_that_it_may() -> None:
    items = log((1, said("user", 400)), (1, said("assistant", 4000)), (2, said("user", 4000)))
    found = planned(items, room(2000, is_whole=True, summary_tokens=100))
    assert (found.keeps, found.to_seq) == ((1,), 3)


def _lines_of_a_plan(turns: int) -> int:
    """Return how many lines run to plan a compaction of so many turns."""
    items = log(
        *((n, said(role, 40)) for n in range(1, turns + 1) for role in ("user", "assistant"))
    )
    budget = room(100, turn_number=turns)
    lines = 0

    def count(_frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        assert planned(items, budget).to_seq
    finally:
        sys.settrace(before)
    return lines


def test_the_work_of_a_plan_grows_with_the_history_and_not_with_its_square() -> None:
    assert _lines_of_a_plan(400) < 6 * _lines_of_a_plan(100)
