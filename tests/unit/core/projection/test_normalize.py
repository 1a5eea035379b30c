"""Messages that are recognised as valid at once are those that need no change."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.projection.normalize import is_valid_message, normalize_item, read_valid_text

parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "text", "refusal", "input_image", 1])},
    optional={
        "text": st.sampled_from(["", "hi", None, 3]),
        "refusal": st.sampled_from(["", "no", None]),
        "annotations": st.just([]),
    },
)
messages: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("message"),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool", "", None]),
        "content": st.one_of(
            st.lists(parts, max_size=2), st.sampled_from(["", "hi", None, [None], [[]], {}])
        ),
        "id": st.just("msg_1"),
    },
)
VALID = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "hi", "annotations": []}]},
]


@given(value=messages)
@example(value=VALID[0])
@example(value=VALID[1])
def test_a_text_that_is_valid_at_first_sight_needs_no_change(value: dict[str, Any]) -> None:
    body = msgspec.json.encode(value)
    try:
        read_valid_text(body)
    except msgspec.DecodeError:
        assert value not in VALID
    else:
        assert is_valid_message(body)
        assert normalize_item("message", body) is body


MALFORMED = [
    '{"path": "a.txt", "text": "he',  # cut by a token limit
    "{'city': 'Paris'}", "city=Paris", "[1, 2]", '"Paris"', "null", "7", '{"a": NaN}',
    '{"a": 1e999}', '{"a": 1}{"b": 2}', '{"a": ' * 2000,
]  # fmt: skip


@pytest.mark.parametrize("written", MALFORMED, ids=range(len(MALFORMED)))
def test_arguments_that_are_no_json_object_are_sent_as_text_in_one(written: str) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": written}
    sent = normalize_item("function_call", msgspec.json.encode(call))
    assert sent is not None
    arguments = msgspec.json.decode(msgspec.json.decode(sent)["arguments"])
    assert arguments == {"malformed_arguments": written}


@pytest.mark.parametrize("written", ["", " \n", None])
def test_missing_arguments_are_sent_as_an_empty_object(written: str | None) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": written}
    sent = normalize_item("function_call", msgspec.json.encode(call))
    assert sent is not None
    assert msgspec.json.decode(sent)["arguments"] == "{}"


@pytest.mark.parametrize("written", ["{}", ' {"a": [1, {"b": null}]}\n', '{"a": 1, "a": 2}'])
def test_arguments_that_are_a_json_object_keep_their_bytes(written: str) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": written}
    body = msgspec.json.encode(call)
    assert normalize_item("function_call", body) is body
