"""Items keep their bytes; only a little is read from them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidItem
from holdfast.core.model.items import (
    MAX_DEPTH,
    ROLES,
    NewItem,
    is_too_deep,
    item_value,
    message,
    read_item,
    write_item,
)
from tests.unit.core.builders import stored


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"message","role":"user","content":"hi"}',
        b' { "role" : "user" , "content" : [ ] } ',
        b'{"type":"hologram","name":{"deep":[1,2]},"vendor":{"x":18446744073709551616}}',
        b'{"type":"message","role":"user","content":"\\u00e9 \xc3\xa9"}',
        b'{"type":"function_call","call_id":"c","name":"f","arguments":"{\\"a\\": 1}"}',
        b'{"type":"a","type":"b"}',
    ],
)
def test_an_items_bytes_are_kept_as_they_came(body: bytes) -> None:
    assert read_item(body).body == body


def test_what_is_read_from_an_item_is_its_kind_and_its_ids() -> None:
    item = read_item(b'{"type":"function_call_output","id":"fco_1","call_id":"c1","output":"4"}')
    assert (item.kind, item.item_id, item.call_id) == ("function_call_output", "fco_1", "c1")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (message("user", "a\r\nb\rc"), message("user", "a\nb\nc")),
        (message("user", "cafe\u0301"), message("user", "caf\u00e9")),
        (
            write_item({"type": "function_call_output", "call_id": "c", "output": "1\r\n2"}),
            write_item({"type": "function_call_output", "call_id": "c", "output": "1\n2"}),
        ),
        (
            write_item({"type": "function_call", "name": "f", "arguments": '{"a": "1\\r\\n\\r2"}'}),
            write_item({"type": "function_call", "name": "f", "arguments": '{"a":"1\\n\\n2"}'}),
        ),
        (
            write_item({"type": "function_call", "name": "f", "arguments": '{"a": "e\\u0301"}'}),
            write_item({"type": "function_call", "name": "f", "arguments": '{"a":"\\u00e9"}'}),
        ),
    ],
    ids=["line ends", "composed characters", "outputs", "arguments", "composed arguments"],
)
def test_line_ends_and_unicode_forms_make_no_difference(one: NewItem, other: NewItem) -> None:
    assert one.fingerprint == other.fingerprint
    assert one.body != other.body


def test_a_backslash_and_an_r_are_no_line_end() -> None:
    calls = [
        write_item({"type": "function_call", "name": "f", "arguments": arguments})
        for arguments in ('{"a": "1\\\\r2"}', '{"a": "1\\\\n2"}')
    ]
    assert calls[0].fingerprint != calls[1].fingerprint


def test_an_item_without_a_type_is_a_message_if_it_has_a_role() -> None:
    assert read_item(b'{"role":"user","content":"hi"}').kind == "message"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b'"text"', b"7", b"{", b"{}", b'{"type":""}', b'{"type":7}',
        b'{"content":"no role"}', b'\xff\xfe{"type":"x"}', b'{"type":"x","id":{}}',
        b'{"type":"x","content":' + b"[" * 100_000 + b"}", b'{"type":"message","role":["u"]}',
    ],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
def test_bytes_that_are_no_item_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidItem):
        read_item(body)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "x", "vendor": object()}, {"type": "x", ("a",): 1}, {}, {"type": "x", "id": 5},
        {"type": "message", "role": "user", "content": "\ud800"}, {"\ud800": 1, "type": "x"},
    ],
    ids=[
        "no JSON value", "no JSON key", "nothing", "an id that is no text",
        "text that is no Unicode", "a name that is no Unicode",
    ],
)  # fmt: skip
def test_values_that_are_no_item_are_refused(value: dict[Any, Any]) -> None:
    with pytest.raises(InvalidItem):
        write_item(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {"type": "x"}
    value["self"] = value
    with pytest.raises(InvalidItem):
        write_item(value)


@pytest.mark.parametrize(("role", "part"), [("assistant", "output_text"), ("user", "input_text")])
def test_text_becomes_a_message_of_its_role(role: str, part: str) -> None:
    assert part.encode() in message(role, "hi").body


@given(st.sampled_from(ROLES), st.text())
def test_a_message_is_what_is_read_from_its_bytes(role: str, text: str) -> None:
    assert message(role, text) == read_item(message(role, text).body)


def test_a_message_that_no_json_can_hold_is_refused() -> None:
    with pytest.raises(InvalidItem):
        message("user", "\ud800")


def test_an_item_can_be_appended_again_as_it_was() -> None:
    item = message("user", "hi")
    assert stored(7, item).as_new() == item


def fingerprint(value: dict[str, Any]) -> bytes:
    return write_item(value).fingerprint


SAME = [
    (
        {"role": "user", "content": " hi \n"},
        {"type": "message", "id": "msg_1", "role": "user",
         "content": [{"type": "input_text", "text": "hi", "annotations": []}]},
    ),
    (
        {"type": "function_call", "id": "i", "call_id": "a", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": ' { "a" : 1 } '},
    ),
    (
        {"type": "function_call_output", "call_id": "a", "output": "4"},
        {"type": "function_call_output", "call_id": "b",
         "output": [{"type": "output_text", "text": "4"}]},
    ),
    (
        {"role": "user", "content": [{"type": "input_image", "image_url": "u", "annotations": []}]},
        {"role": "user", "content": [{"image_url": "u", "type": "input_image"}]},
    ),
    (
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "no"},
    ),
    (
        {"type": "custom_tool_call", "id": "i", "call_id": "a", "name": "f", "input": "x\n"},
        {"type": "custom_tool_call", "call_id": "b", "name": "f", "input": "x", "status": None},
    ),
    (
        {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "user": None}},
        {"type": "local_shell_call", "action": {"command": ["ls"], "type": "exec"}},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_items_that_say_the_same_have_one_fingerprint(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert fingerprint(one) == fingerprint(other)


DIFFERENT: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "hi"},
    {"role": "user", "content": "Hi"},
    {"role": "user", "content": ""},
    {"type": "function_call", "name": "f", "arguments": "{}"},
    {"type": "function_call", "name": "g", "arguments": "{}"},
    {"type": "function_call", "name": "f", "arguments": "not json"},
    {"type": "custom_tool_call", "name": "f", "arguments": "{}"},
    {"type": "custom_tool_call", "name": "f", "input": "{}"},
    {"type": "custom_tool_call", "name": "f", "input": "{ }"},
    {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "local_shell_call", "action": {"type": "exec", "command": ["ls", "-l"]}},
    {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "b"}},
    {"type": "compaction", "encrypted_content": "a"},
    {"type": "compaction", "encrypted_content": "b"},
    {"type": "function_call_output", "output": "hi"},
    {"type": "custom_tool_call_output", "output": "hi"},
    {"type": "function_call_output", "output": {"deep": 1}},
]


def test_items_that_say_different_things_have_different_fingerprints() -> None:
    assert len({fingerprint(value) for value in DIFFERENT}) == len(DIFFERENT)


@pytest.mark.parametrize("kind", ["reasoning", "web_search_call", "mcp_call"])
def test_what_a_provider_did_by_itself_has_no_fingerprint_so_that_clients_may_drop_it(
    kind: str,
) -> None:
    assert fingerprint({"type": kind, "summary": [], "action": {"query": "x"}}) == b""


@given(st.integers(MAX_DEPTH - 2, MAX_DEPTH + 2), st.sampled_from(["[]", "{}"]))
def test_the_levels_of_an_item_are_limited(depth: int, brackets: str) -> None:
    opening = "[" if brackets == "[]" else '{"]":'
    value = opening * (depth - 1) + brackets + brackets[1] * (depth - 1)
    aside = '["[", "\\\\", "\\"[[", {}, [[], {"}": []}]]'  # neither strings nor neighbours count
    assert is_too_deep(f"[{value}, {aside}]".encode()) == (depth + 1 > MAX_DEPTH)
    body = f'{{"type":"x","y":{value},"z":{aside}}}'.encode()
    if depth + 1 <= MAX_DEPTH:
        assert read_item(body).body == body
    else:
        with pytest.raises(InvalidItem, match="levels"):
            read_item(body)


def test_a_number_of_any_length_can_be_read() -> None:
    value = item_value(b'{"a":%s,"b":-%s,"c":12,"d":1e999}' % (b"1" * 5000, b"1" * 5000))
    assert value == {"a": float("inf"), "b": float("-inf"), "c": 12, "d": float("inf")}
