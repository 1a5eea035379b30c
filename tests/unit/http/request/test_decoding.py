"""Plain Chat requests and messages: decoded in one step, with the result of the general way."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model.items import NewItem, write_item
from holdfast.core.model.request import write_request
from holdfast.core.openai.chat import split_messages
from holdfast.http.api.chat import parse_turn_request
from holdfast.http.request import decoding
from holdfast.http.request.body import Fields, parse_fields
from holdfast.http.request.decoding import (
    decode_entry,
    decode_message,
    join_entries,
    pop_entries,
    pop_text,
    read_plain_chat,
)


def _asked(content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


PLAIN = [
    _asked(),
    _asked(" hällo 😀 \r\n\t "),
    _asked(""),
    _asked("a\0b"),
    _asked(stream=True),
    _asked(stream=False),
    b'{"model": "first", "model": "m\\u00e9", "messages": [{"role": "user", "content": "x"}]}',
    b' {"messages": [{"content": "\\ud83d\\ude00", "role": "user"}], "model": "m"} ',
]
OTHER = [
    _asked(temperature=0),
    _asked(stream=None),
    _asked(store=False),
    _asked([{"type": "text", "text": "hi"}]),
    _asked(None),
    {"model": "m", "messages": [{"role": "user", "content": "a", "name": "b"}]},
    {"model": "m", "messages": [{"role": "assistant", "content": "a"}]},
    {"model": "m", "messages": [{"role": "user", "content": "a"}] * 2},
    {"model": "m", "messages": []},
    {"model": "", "messages": [{"role": "user", "content": "a"}]},
    {"model": None, "messages": [{"role": "user", "content": "a"}]},
    {"messages": [{"role": "user", "content": "a"}]},
    b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}]',
    b"[" * 5000,
    b"",
]


def _body(value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.json.encode(value)


def _in_general(fields: Fields) -> tuple[str | None, list[NewItem]]:
    """Remove the messages of a request and return what the general way makes of them."""
    entries = pop_entries("chat", fields, 9)
    messages = [decode_message(bytes(entry), n) for n, entry in enumerate(entries)]
    instructions, values = split_messages(messages)
    return instructions, [write_item(each) for each in values]


def _by_entry(fields: Fields) -> tuple[str | None, list[NewItem]]:
    """Remove the messages of a request and return what they are decoded to one by one."""
    entries = pop_entries("chat", fields, 9)
    decoded = [decode_entry("chat", bytes(entry), n) for n, entry in enumerate(entries)]
    return join_entries("chat", decoded)


@pytest.mark.parametrize("value", PLAIN, ids=str)
def test_a_plain_request_is_what_the_general_way_makes_of_it(value: Any) -> None:
    plain = read_plain_chat(_body(value))
    assert plain is not None
    fields = parse_fields(_body(value))
    instructions, items = _in_general(fields)
    request = parse_turn_request(fields, instructions)
    assert (plain[0], write_request(plain[0])) == (request, write_request(request))
    assert plain[1] == items


TEXTS = st.sampled_from(["", " ", "a", "a\r\nb", "é", "e\u0301", "😀", "\0", '"\\']) | st.text()
ROLES = st.sampled_from(["user", "assistant", "system", "developer"])


EMPTY_FIELDS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "refusal": st.none(),
        "annotations": st.sampled_from([None, []]),
        "audio": st.none(),
        "function_call": st.none(),
        "tool_calls": st.none(),
    },
)
"""The fields of an answer without content, which clients send back."""


@given(st.lists(st.tuples(ROLES, TEXTS, EMPTY_FIELDS), min_size=1, max_size=9))
def test_messages_of_texts_are_what_the_general_way_makes_of_them(said: Any) -> None:
    messages = [{"role": role, "content": text, **empty} for role, text, empty in said]
    body = _body({"messages": messages})
    assert _by_entry(parse_fields(body)) == _in_general(parse_fields(body))
    text = pop_text("chat", parse_fields(body))
    assert (text is not None) == (len(messages) == 1)
    if text is not None:
        assert (text[0], list(text[1])) == _in_general(parse_fields(body))


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CUSTOM = {"id": "d", "type": "custom", "custom": {"name": "g", "input": "x"}}


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a", "name": "b"}],
        [{"role": "assistant", "content": "a", "refusal": "no"}],
        [{"role": "assistant", "content": "", "refusal": ""}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}],
        [{"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "tool", "content": "b", "tool_call_id": "c"}],
        [{"role": "assistant", "content": "x", "tool_calls": [CALL, CUSTOM]},
         {"role": "tool", "content": "b", "tool_call_id": "c"},
         {"role": "tool", "content": "e", "tool_call_id": "d"},
         {"role": "system", "content": "short"}],
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_other_messages_are_what_they_are_together(messages: Any) -> None:
    body = _body({"messages": messages})
    assert _by_entry(parse_fields(body)) == _in_general(parse_fields(body))


def test_one_long_text_is_what_the_general_way_makes_of_it() -> None:
    body = _body(_asked("x" * decoding.PLAIN_BYTES))
    text = pop_text("chat", parse_fields(body))
    assert text is not None
    assert (text[0], list(text[1])) == _in_general(parse_fields(body))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "a",
        ["a"],
        [{"role": "user", "content": "a"}] * 2,
        [{"role": "tool", "content": "b", "tool_call_id": "c"}],
        [{"role": "user", "content": "a", "name": "b"}],
        [{"role": "assistant", "content": "a", "refusal": "no"}],
    ],
    ids=lambda value: str(value)[:60],
)
def test_any_other_messages_are_left_to_the_general_way(messages: Any) -> None:
    fields = parse_fields(_body({"messages": messages}))
    assert pop_text("chat", fields) is None
    assert "messages" in fields


@pytest.mark.parametrize("value", OTHER, ids=lambda value: str(value)[:80])
def test_any_other_request_is_left_to_the_general_way(value: Any) -> None:
    assert read_plain_chat(_body(value)) is None


def test_a_long_request_is_left_to_the_general_way() -> None:
    assert read_plain_chat(_body(_asked("x" * decoding.PLAIN_BYTES))) is None
