"""Any log, cut anywhere, projects to a request in which every call has its output, and once."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model.items import StoredItem, write_item
from holdfast.core.model.synthetic_outputs import interrupted_output
from holdfast.core.projection.project import project

CALLS = ("function_call", "custom_tool_call", "computer_call")
LATE = b"which came late]"
call_ids = st.sampled_from(["a", "b", "c"])


def message(role: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.integers(0, 999).map(lambda n: {"type": "message", "role": role, "content": f"m{n}"})


items = st.one_of(
    message("user"),
    message("assistant"),
    st.tuples(st.sampled_from(CALLS), call_ids).map(
        lambda made: {"type": made[0], "call_id": made[1], "name": "f", "arguments": "{}"}
    ),
    st.tuples(st.sampled_from(CALLS), call_ids, st.integers(0, 999)).map(
        lambda made: {"type": f"{made[0]}_output", "call_id": made[1], "output": f"o{made[2]}"}
    ),
    st.just({"type": "reasoning", "summary": []}),
)


@st.composite
def logs(draw: st.DrawFn) -> list[StoredItem]:
    """Return a log of any items, some of them torn, in turns that follow each other."""
    found: list[StoredItem] = []
    turn = 1
    for seq, value in enumerate(draw(st.lists(items, max_size=14)), 1):
        turn += draw(st.booleans())
        item = write_item(value)
        is_partial = draw(st.integers(0, 5)) == 0
        found.append(
            StoredItem(
                "s",
                seq,
                turn,
                item.kind,
                None,
                item.call_id,
                item.fingerprint,
                is_partial,
                item.body,
            )
        )
    return found


def shown(log: list[StoredItem]) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for body in project(log)]


def is_call(item: dict[str, Any]) -> bool:
    return item["type"] in CALLS


def is_output(item: dict[str, Any]) -> bool:
    return str(item["type"]).endswith("_output")


def is_models(item: StoredItem) -> bool:
    return item.kind in (*CALLS, "reasoning") or b'"assistant"' in item.body


@given(logs(), st.integers(0, 14), st.integers(0, 14))
def test_every_call_is_followed_by_its_output_and_only_its_answer_stands_between(
    log: list[StoredItem], first: int, last: int
) -> None:
    request = shown(log[first:last])
    waiting: list[str] = []
    was_output = False
    for item in request:
        if is_call(item):
            assert not (waiting and was_output), "a call came before earlier ones were answered"
            waiting.append(item["call_id"])
        elif is_output(item):
            assert item["call_id"] in waiting
            waiting.remove(item["call_id"])
        else:
            is_of_answer = item["type"] == "reasoning" or item["role"] == "assistant"
            is_split = not is_of_answer or was_output
            assert not (waiting and is_split), "something stands between a call and its output"
        was_output = is_output(item)
    assert not waiting


@given(logs())
def test_outputs_are_shown_once_and_messages_in_their_order(log: list[StoredItem]) -> None:
    request = project(log)
    messages = [item.body for item in log if item.kind == "message"]
    told = [body for body in request if b'"message"' in body and LATE not in body]
    assert told == messages
    outputs = [item.body for item in log if item.kind.endswith("_output")]
    for body in set(request):
        if body in outputs:
            assert request.count(body) <= outputs.count(body)


@given(logs())
def test_an_output_is_never_lost_while_the_only_call_of_its_id_waits(
    log: list[StoredItem],
) -> None:
    request = shown(log)
    for name in ("a", "b", "c"):
        calls = [item for item in log if item.kind in CALLS and item.call_id == name]
        outputs = [
            msgspec.json.decode(item.body)["output"]
            for item in log
            if item.kind.endswith("_output") and item.call_id == name and not item.is_partial
        ]
        if len(calls) == 1 and not calls[0].is_partial and outputs:
            told = [i["output"] for i in request if is_output(i) and i["call_id"] == name]
            assert len(told) == 1
            made_up = msgspec.json.decode(interrupted_output(calls[0].kind, name))["output"]
            texts = [item["content"][0]["text"] for item in request if LATE.decode() in str(item)]
            is_late = any(text.endswith(f"]\n{output}") for text in texts for output in outputs)
            assert told[0] in outputs or (told[0] == made_up and is_late)


@given(logs())
def test_what_a_model_has_answered_is_the_beginning_of_every_later_request(
    log: list[StoredItem],
) -> None:
    log = [msgspec.structs.replace(item, is_partial=False) for item in log]
    request = project(log)
    for place in range(1, len(log)):
        if is_models(log[place]) and not is_models(log[place - 1]):
            answered = project(log[:place])
            assert request[: len(answered)] == answered


@given(logs())
def test_reasoning_is_shown_only_before_what_it_led_to(log: list[StoredItem]) -> None:
    request = shown(log)
    for place, item in enumerate(request):
        if item["type"] == "reasoning":
            assert place + 1 < len(request)
            assert not is_output(request[place + 1])
