"""What a model may be shown: every call with its output, every output once, nothing rewritten."""

import re
from typing import Any

import msgspec
import pytest

from holdfast.core.model.items import StoredItem, message, write_item
from holdfast.core.model.synthetic_outputs import INTERRUPTED
from holdfast.core.projection.placeholders import LEFT_OUT
from holdfast.core.projection.project import continue_after, project
from tests.unit.core.builders import stored


def a_call(call_id: str, kind: str = "function_call") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "name": "f", "arguments": "{}"}


def an_output(call_id: str, said: str = "4", kind: str = "function_call_output") -> dict[str, Any]:
    return {"type": kind, "call_id": call_id, "output": said}


def reasoning(name: str = "rs_1") -> dict[str, Any]:
    return {"type": "reasoning", "id": name, "summary": []}


def said(text: str, role: str = "assistant") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def log(*values: dict[str, Any], turn_number: int = 1, partial: int = 0) -> list[StoredItem]:
    """Return values as a log, the last `partial` of them torn."""
    torn_from = len(values) - partial
    return [
        stored(seq, write_item(value), turn_number=turn_number, is_partial=seq > torn_from)
        for seq, value in enumerate(values, 1)
    ]


def shown(items: list[StoredItem]) -> list[Any]:
    return [msgspec.json.decode(body) for body in project(items)]


def test_a_plain_history_is_shown_byte_for_byte() -> None:
    bodies = [b'{ "role":"user", "content":"hi" }', message("assistant", "hello").body]
    items = [
        msgspec.structs.replace(stored(seq, message("user", "")), body=body)
        for seq, body in enumerate(bodies, 1)
    ]
    assert project(items) == bodies


def test_an_unknown_item_passes_through() -> None:
    values = [said("hi", "user"), {"type": "hologram", "data": [1]}]
    assert shown(log(*values)) == values


def test_a_call_without_an_output_gets_a_synthetic_one() -> None:
    assert shown(log(said("x", "user"), a_call("c1"))) == [
        said("x", "user"), a_call("c1"), an_output("c1", INTERRUPTED),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind", ["function_call", "custom_tool_call", "local_shell_call", "shell_call",
             "apply_patch_call", "computer_call"],
)  # fmt: skip
def test_every_kind_of_call_is_mended_with_its_own_kind_of_output(kind: str) -> None:
    assert shown(log(a_call("c1", kind)))[1]["type"] == f"{kind}_output"


def test_a_late_output_follows_its_call_and_no_synthetic_one_is_added() -> None:
    values = [a_call("c1"), said("what now?", "user"), an_output("c1")]
    assert shown(log(*values)) == [a_call("c1"), an_output("c1"), said("what now?", "user")]


def test_an_output_without_a_call_is_not_shown() -> None:
    assert shown(log(said("x", "user"), an_output("c9"))) == [said("x", "user")]


def test_parallel_calls_each_get_their_own_output() -> None:
    values = [a_call("c1"), a_call("c2"), an_output("c2", "two"), an_output("c1", "one")]
    assert shown(log(*values)) == [
        a_call("c1"), a_call("c2"), an_output("c1", "one"), an_output("c2", "two"),
    ]  # fmt: skip


@pytest.mark.parametrize("between", [[], [reasoning()]])
def test_the_call_of_a_later_turn_leaves_what_was_shown_before_it_unchanged(
    between: list[dict[str, Any]],
) -> None:
    """The later turn has no input any more: it was erased before the turn was run again."""
    earlier = log(said("x", "user"), a_call("c1"))
    later = log(*between, a_call("c2"), turn_number=2)
    later = [msgspec.structs.replace(item, seq=item.seq + 2) for item in later]
    before = shown(earlier)
    assert before == [said("x", "user"), a_call("c1"), an_output("c1", INTERRUPTED)]
    assert shown(earlier + later) == [*before, *between, a_call("c2"), an_output("c2", INTERRUPTED)]


def test_an_output_belongs_to_the_call_of_the_nearest_turn() -> None:
    earlier, later = log(a_call("c1")), log(a_call("c1"), an_output("c1"), turn_number=2)
    later = [msgspec.structs.replace(item, seq=item.seq + 1) for item in later]
    found = shown(earlier + later)
    assert [value.get("output") for value in found] == [None, INTERRUPTED, None, "4"]


def test_calls_that_waited_for_each_other_stay_apart() -> None:
    values = [a_call("c1"), an_output("c1"), a_call("c2"), an_output("c2")]
    assert shown(log(*values)) == values


def test_a_call_id_that_is_used_twice_keeps_its_pairs_apart() -> None:
    values = [
        a_call("call_0"),
        an_output("call_0", "1"),
        a_call("call_0"),
        an_output("call_0", "2"),
    ]
    first, one, second, two = shown(log(*values))
    assert [first, one] == values[:2]
    assert second["call_id"] == two["call_id"] not in ("call_0", None)
    assert {**second, "call_id": "call_0"} == values[2]
    assert {**two, "call_id": "call_0"} == values[3]
    assert shown(log(*values, said("x", "user")))[:4] == [first, one, second, two]


def test_an_output_belongs_to_the_nearest_call_of_its_id_that_waits() -> None:
    values = [a_call("c"), said("never mind", "user"), a_call("c"), an_output("c", "2")]
    outputs = [item["output"] for item in shown(log(*values)) if "output" in item]
    assert outputs == [INTERRUPTED, "2"]
    at_once = [a_call("c"), a_call("c"), an_output("c", "1"), an_output("c", "2")]
    assert [item.get("output") for item in shown(log(*at_once))] == [None, None, "1", "2"]


def test_an_output_that_came_before_its_call_is_shown_behind_it() -> None:
    values = [an_output("c", "1"), a_call("c")]
    assert shown(log(*values)) == [a_call("c"), an_output("c", "1")]


@pytest.mark.parametrize("name", ["c" * 41, "c" * 116, "a|b", "a+b/c", "ü", "a b"])
def test_a_call_id_that_some_server_refuses_goes_by_another_name(name: str) -> None:
    call, output = shown(log(a_call(name), an_output(name)))
    assert call["call_id"] == output["call_id"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", call["call_id"])


def test_an_output_of_another_kind_is_shown_as_the_kind_its_call_wants() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
    _, output = shown(log(call, an_output("c", "1")))
    assert output == {"type": "custom_tool_call_output", "call_id": "c", "output": "1"}


def test_a_call_without_an_id_and_an_output_without_one_are_not_shown() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    assert shown(log(call, {"type": "function_call_output", "output": "1"}, said("x"))) == [
        said("x")
    ]


def test_calls_of_unknown_kinds_keep_their_outputs_and_need_none() -> None:
    values = [
        {"type": "program", "call_id": "p", "code": "1"},
        said("meanwhile"),
        {"type": "program", "call_id": "q", "code": "2"},
        {"type": "program_output", "call_id": "q", "result": "2"},
    ]
    assert shown(log(*values)) == values


def test_thoughts_between_calls_of_one_breath_stay_where_they_are() -> None:
    values = [a_call("a"), reasoning(), a_call("b"), an_output("a"), an_output("b")]
    assert shown(log(*values)) == values


def test_messages_and_parts_that_say_nothing_are_not_shown() -> None:
    empty = {"type": "input_text", "text": ""}
    values = [said(""), said("x", "user"), {**said(""), "content": []}]
    values += [{**said("", "user"), "content": [empty, {"type": "input_text", "text": "y"}]}]
    assert [item["content"] for item in shown(log(*values))] == [
        "x",
        [{"type": "input_text", "text": "y"}],
    ]


def test_a_quarantined_item_is_a_placeholder_and_its_words_stay() -> None:
    text, picture = {"type": "input_text", "text": "see"}, {"type": "input_image", "file_id": "f"}
    stand_in = {"type": "input_text", "text": LEFT_OUT}
    values = [
        {**said("", "user"), "content": [text, picture]},
        said("long", "user"),
        a_call("c"),
        an_output("c", "1"),
        {"type": "hologram", "data": 1},
    ]
    items = log(*values)
    left = [msgspec.json.decode(body) for body in project(items, {1, 2, 3, 4, 5})]
    assert left == [
        {**values[0], "content": [text, stand_in]},
        {**values[1], "content": [stand_in]},
        values[2],
        {**values[3], "output": LEFT_OUT},
    ]


def test_a_placeholder_keeps_nothing_that_could_be_refused_again() -> None:
    odd = {"type": "input_hologram", "data": 1}
    values = [
        {"type": "message", "role": "critic", "content": "x", "vendor": 1},
        {**said(""), "content": [odd, {"type": "output_text", "text": "y", "annotations": 7}]},
        {**a_call("c"), "name": "über tool", "arguments": "{", "vendor": 1},
        {**an_output("c"), "output": 7},
        {"type": "shell_call", "call_id": "s", "action": 7},
        {"type": "shell_call_output", "call_id": "s", "output": 7},
    ]
    left = [msgspec.json.decode(body) for body in project(log(*values), set(range(1, 7)))]
    spoken = [{"type": "output_text", "text": text} for text in (LEFT_OUT, "y")]
    assert left == [
        {**said("", "user"), "content": [{"type": "input_text", "text": LEFT_OUT}]},
        {**said(""), "content": spoken},
        {**a_call("c"), "name": "_ber_tool"},
        an_output("c", LEFT_OUT),
    ]


def test_what_stands_for_a_range_is_not_the_last_item_of_it() -> None:
    summary = stored(2, write_item(said("so far", "user")), turn_number=0)
    assert project([summary], {2}) == [summary.body]


def test_a_second_output_for_one_call_is_not_shown() -> None:
    values = [a_call("c1"), an_output("c1", "1"), an_output("c1", "2")]
    assert shown(log(*values)) == values[:2]


def test_reasoning_travels_with_the_item_it_led_to() -> None:
    values = [said("x", "user"), reasoning(), said("y")]
    assert shown(log(*values)) == values
    assert shown(log(said("x", "user"), reasoning())) == [said("x", "user")]


def test_reasoning_is_not_paired_with_another_turns_item() -> None:
    items = [
        *log(reasoning()),
        stored(2, write_item(said("next", "user")), turn_number=2),
    ]
    assert shown(items) == [said("next", "user")]


def test_the_partial_end_of_an_answer_is_shown_but_a_partial_call_or_reasoning_is_not() -> None:
    assert shown(log(said("x", "user"), said("I was s"), partial=1))[-1] == said("I was s")
    assert shown(log(said("x", "user"), a_call("c1"), partial=1)) == [said("x", "user")]
    torn = log(said("x", "user"), reasoning(), said("I was s"), partial=2)
    assert shown(torn) == [said("x", "user"), said("I was s")]


def test_an_empty_log_shows_nothing() -> None:
    assert project([]) == []


def in_turns(*turns: list[dict[str, Any]]) -> list[StoredItem]:
    """Return a log of several turns."""
    numbered = [(number, value) for number, turn in enumerate(turns, 1) for value in turn]
    return [
        stored(seq, write_item(value), turn_number=number)
        for seq, (number, value) in enumerate(numbered, 1)
    ]


def new_to(items: list[StoredItem], covers_seq: int) -> list[Any] | None:
    bodies = continue_after(items, covers_seq)
    return None if bodies is None else [msgspec.json.decode(body) for body in bodies]


def test_a_synthetic_output_that_a_model_has_answered_is_not_sent_again() -> None:
    """The output was hidden, and the model was shown a synthetic one."""
    values = [said("a", "user"), a_call("c1"), an_output("c1"), said("b")]
    items = [item for item in in_turns(values, [said("c", "user")]) if item.seq != 3]
    assert new_to(items, 4) is None
    assert new_to(in_turns(values[:2]), 2) == shown(items)[2:3]


@pytest.mark.parametrize("step", [[a_call("c2")], [a_call("c2"), an_output("c2"), a_call("c3")]])
def test_a_synthetic_output_that_calls_have_followed_is_not_sent_again(
    step: list[dict[str, Any]],
) -> None:
    """The output of a tool step was hidden, and the model was shown a synthetic one."""
    values = [said("a", "user"), a_call("c1"), an_output("c1"), *step]
    items = [item for item in log(*values) if item.seq != 3]
    assert new_to(items, len(values)) is None


def test_parallel_calls_that_never_ended_are_answered_together() -> None:
    items = in_turns([said("a", "user"), a_call("c1"), reasoning(), a_call("c2")])
    assert new_to(items, 4) == [an_output("c1", INTERRUPTED), an_output("c2", INTERRUPTED)]


def test_what_is_new_is_what_stands_behind_the_covered_part() -> None:
    items = in_turns([said("a", "user"), said("b")], [said("c", "user")])
    assert new_to(items, 2) == [said("c", "user")]
    assert new_to(items, 0) == shown(items)
    assert new_to(items, 3) == []


def test_outputs_of_covered_calls_are_new() -> None:
    calls = [said("a", "user"), a_call("c1"), a_call("c2")]
    items = in_turns([*calls, an_output("c2", "two"), an_output("c1", "one")])
    assert new_to(items, 3) == [an_output("c1", "one"), an_output("c2", "two")]


def test_a_covered_call_that_never_ended_is_answered_once() -> None:
    first, second = [said("a", "user"), a_call("c1")], [said("b", "user"), said("c")]
    made_up = an_output("c1", INTERRUPTED)
    assert new_to(in_turns(first, second[:1]), 2) == [made_up, said("b", "user")]
    assert new_to(in_turns(first, second, [said("d", "user")]), 4) == [said("d", "user")]


def test_a_provider_that_was_sent_a_synthetic_output_cannot_be_sent_a_late_one_at_its_call() -> (
    None
):
    first, second = [said("a", "user"), a_call("c1")], [said("b", "user")]
    assert new_to(in_turns(first, second, [an_output("c1")]), 3) is None


def test_a_provider_that_has_answered_a_synthetic_output_is_told_the_late_one() -> None:
    first, second = [said("a", "user"), a_call("c1")], [said("b", "user"), said("c")]
    assert new_to(in_turns(first, second, [an_output("c1")]), 4) == [told_late("c1", "4")]


def test_text_behind_the_calls_of_an_answer_stays_in_front_of_their_outputs() -> None:
    calls = [said("x", "user"), a_call("c1"), said("\n"), a_call("c2"), reasoning(), said("so")]
    outputs = [an_output("c1"), an_output("c2")]
    assert shown(log(*calls, *outputs)) == [*calls, *outputs]
    made_up = [an_output("c1", INTERRUPTED), an_output("c2", INTERRUPTED)]
    assert shown(log(*calls)) == [*calls, *made_up]
    items = in_turns([*calls], [said("next", "user")])
    assert shown(items) == [*calls, *made_up, said("next", "user")]


def test_an_answer_behind_a_hidden_output_is_not_part_of_the_answer_that_made_the_call() -> None:
    values = [a_call("c1"), an_output("c1"), said("done")]
    items = [item for item in log(*values) if item.seq != 2]
    assert shown(items) == [a_call("c1"), an_output("c1", INTERRUPTED), said("done")]


def test_a_late_output_is_told_as_a_text_once_a_model_has_answered_the_synthetic_one() -> None:
    before = in_turns([said("a", "user"), a_call("c1")], [said("b", "user"), said("c")])
    made_up = an_output("c1", INTERRUPTED)
    sent = [said("a", "user"), a_call("c1"), made_up, said("b", "user"), said("c")]
    assert shown(before) == sent
    late = [msgspec.structs.replace(i, seq=i.seq + 4, turn_number=3) for i in log(an_output("c1"))]
    assert shown(before + late) == [*sent, told_late("c1", "4")]


def test_the_output_of_one_parallel_call_that_comes_after_the_next_answer_is_a_text() -> None:
    values = [a_call("c1"), a_call("c2"), an_output("c1"), said("so far"), an_output("c2", "B")]
    assert shown(log(*values)) == [
        *values[:3], an_output("c2", INTERRUPTED), said("so far"), told_late("c2", "B"),
    ]  # fmt: skip


def test_pictures_of_a_late_output_are_told_with_its_text() -> None:
    picture = {"type": "input_image", "image_url": "https://a.example/p.png"}
    parts = [{"type": "input_text", "text": "see"}, picture]
    screenshot = {"type": "computer_screenshot", "image_url": "https://a.example/p.png"}
    calls = [a_call("c1"), a_call("c2", "computer_call")]
    outputs = [
        {**an_output("c1"), "output": parts},
        {**an_output("c2", kind="computer_call_output"), "output": screenshot},
    ]
    items = in_turns(calls, [said("b", "user"), said("c")], outputs)
    first, second = shown(items)[-2:]
    assert first["content"] == [*told_late("c1", "see")["content"], picture]
    assert second["content"][1:] == [picture]


def told_late(call_id: str, output: str) -> dict[str, Any]:
    text = f"[Output of the tool call {call_id} (f), which came late]\n{output}"
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


def test_an_output_that_came_before_its_call_is_sent_with_it() -> None:
    items = in_turns([an_output("c1")], [said("b", "user"), a_call("c1")])
    assert new_to(items, 1) == [said("b", "user"), a_call("c1"), an_output("c1")]


def test_a_message_with_an_unknown_role_is_not_shown() -> None:
    strange = [said("x", "wizard"), {"type": "message", "content": "y"}]
    spaced = {"type": "message", "role": "user", "content": 'says "role":"wizard"'}
    items = in_turns([said("a", "user"), *strange, said("b", "developer"), spaced])
    assert shown(items) == [said("a", "user"), said("b", "developer"), spaced]


@pytest.mark.parametrize("kind", [{}, [], {"type": "x"}, 5, None])
def test_a_part_whose_type_is_no_word_is_shown_as_its_text(kind: Any) -> None:
    part = {"type": kind, "text": "hello"}
    text = [{"type": "input_text", "text": "hello"}]
    question = {"type": "message", "role": "user", "content": [part]}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    returned = {"type": "function_call_output", "call_id": "c", "output": [part]}
    items = shown(log(question, called, returned))
    assert (items[0]["content"], items[2]["output"]) == (text, text)
