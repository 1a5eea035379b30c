"""Fingerprints see what a reader sees; keys are the bytes they were."""

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidSessionKey
from holdfast.core.ids import MAX_KEY_BYTES, read_key
from holdfast.core.model.items import read_item, write_item

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)
blanks = st.text(st.sampled_from(" \n\t"), max_size=3)
roles = st.sampled_from(["user", "assistant", "system", "developer"])
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)


def part(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": kind, "text": text}


@given(roles, words, blanks, blanks, words, st.booleans())
def test_ids_annotations_and_outer_blanks_do_not_change_who_said_what(
    role: str, text: str, before: str, after: str, name: str, is_list: bool
) -> None:
    one = write_item({"type": "message", "role": role, "content": text})
    content: Any = before + text + after
    if is_list:
        content = [{**part(role, content), "annotations": [{"type": "url", "url": name}]}]
    other = write_item({"id": name, "status": "completed", "role": role, "content": content})
    assert one.fingerprint == other.fingerprint


@given(roles, roles, words, words)
def test_other_roles_and_other_words_are_distinguished(
    role: str, other_role: str, text: str, other_text: str
) -> None:
    assume((role, text.strip()) != (other_role, other_text.strip()))
    one = write_item({"role": role, "content": text})
    other = write_item({"role": other_role, "content": other_text})
    assert one.fingerprint != other.fingerprint


@given(st.dictionaries(words, plain, max_size=4), words)
def test_arguments_are_compared_by_value_and_not_by_spelling(
    arguments: dict[str, Any], name: str
) -> None:
    spelled = json.dumps(arguments, indent=2)
    backwards = json.dumps(dict(reversed(arguments.items())), ensure_ascii=False)
    one = write_item({"type": "function_call", "call_id": "1", "name": name, "arguments": spelled})
    other = write_item(
        {"type": "function_call", "call_id": "2", "name": name, "arguments": backwards}
    )
    assert one.fingerprint == other.fingerprint


@given(st.dictionaries(words, plain, max_size=4), words)
def test_an_item_is_kept_to_the_byte_whatever_else_it_carries(
    more: dict[str, Any], kind: str
) -> None:
    assume(kind.strip() and not {"id", "call_id", "name", "role", "type"} & more.keys())
    body = json.dumps({"type": f"x_{kind}", **more}, ensure_ascii=False).encode()
    assert read_item(body).body == body


@given(st.text(max_size=40))
def test_a_key_is_taken_as_it_is_or_refused(raw: str) -> None:
    try:
        key = read_key(raw)
    except InvalidSessionKey:
        has_control = any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in raw)
        is_text = all(not 0xD800 <= ord(char) <= 0xDFFF for char in raw)
        assert not raw or has_control or not is_text
    else:
        assert key == raw
        assert key.encode() == raw.encode()


@given(st.integers(1, 4), st.integers(500, 520))
def test_a_key_has_as_many_bytes_as_may_be_and_no_more(width: int, size: int) -> None:
    char = {1: "a", 2: "é", 3: "€", 4: "🦀"}[width]
    raw = char * (size // width) + "a" * (size % width)
    assert len(raw.encode()) == size
    try:
        read_key(raw)
    except InvalidSessionKey:
        assert size > MAX_KEY_BYTES
    else:
        assert size <= MAX_KEY_BYTES
