"""Whether a provider's conversation holds what was put into it: every way in which it may not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.healing.conversation_integrity import compare, fingerprints
from holdfast.core.projection.normalize import valid_arguments

Json = dict[str, Any]
A, B, C, D = (bytes([n]) for n in range(4))


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ([A, B, C, D], None),
        ([A, C, D], "conversation_items_missing"),
        ([], "conversation_items_missing"),
        ([A, C, B, D], "conversation_items_reordered"),
        ([A, B, B, C, D], "conversation_items_added"),
        ([A, B, C, b"x"], "conversation_items_changed"),
    ],
)
def test_a_whole_conversation_is_compared(held: list[bytes], found: str | None) -> None:
    assert compare([A, B, C, D], held, is_whole=True) == found


@pytest.mark.parametrize(
    ("held", "found"),
    [
        ([C, D], None),
        ([B, D], "conversation_items_missing"),
        ([D, C], "conversation_items_reordered"),
        ([C, b"x"], "conversation_items_changed"),
        ([A, B, C, D], None),
        ([b"x", A, B, C, D], "conversation_items_added"),
    ],
)
def test_of_a_long_one_its_end_is(held: list[bytes], found: str | None) -> None:
    assert compare([A, B, C, D], held, is_whole=False) == found


@given(st.lists(st.binary(min_size=1, max_size=1), min_size=1, max_size=8), st.data())
def test_a_removed_or_replaced_item_is_detected(told: list[bytes], data: Any) -> None:
    place = data.draw(st.integers(0, len(told) - 1))
    assert compare(told, told[:place] + told[place + 1 :], is_whole=True) is not None
    other = data.draw(st.integers(0, len(told) - 1))
    exchanged = list(told)
    exchanged[place], exchanged[other] = exchanged[other], exchanged[place]
    assert (compare(told, exchanged, is_whole=True) is None) == (exchanged == told)


def test_what_a_server_adds_to_an_item_does_not_count() -> None:
    ours: list[Json] = [
        {"role": "user", "content": " hi "},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
    ]
    part = {"type": "input_text", "text": "hi", "annotations": []}
    theirs: list[Json] = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "user",
            "status": "completed",
            "content": [part],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {**ours[1], "call_id": "call_1", "id": "fc_1"},
        {**ours[2], "call_id": "call_1", "id": "fco_1"},
    ]
    assert fingerprints(ours) == fingerprints(theirs)
    assert fingerprints([{**ours[0], "role": "assistant"}]) != fingerprints(ours[:1])


def test_malformed_arguments_are_the_same_as_the_object_that_they_are_sent_in() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f"}
    theirs = {**call, "arguments": '{"a": 1'}
    ours = {**call, "arguments": valid_arguments(theirs["arguments"])}
    assert ours != theirs
    assert fingerprints([ours]) == fingerprints([theirs])
    assert fingerprints([ours]) != fingerprints([{**call, "arguments": "{}"}])
