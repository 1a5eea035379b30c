"""Decode the body of a turn into fields and items; runs in the server or in its worker process."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.model.items import (
    MAX_DEPTH,
    STRINGS,
    NewItem,
    is_too_deep,
    item_value,
    message,
    write_item,
)
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.chat import read_message
from holdfast.http.request.body import Fields, check_readable, parse_fields, pop_list
from holdfast.http.request.item_validation import check_parts, parse_item
from holdfast.http.server.errors import TooManyItems

BodyKind = Literal["responses", "chat", "items"]
ITEM_FIELDS: dict[BodyKind, str] = {"responses": "input", "chat": "messages", "items": "items"}
"""The field with the items, by kind of body."""
MAX_VALUES = 500_000
"""The most JSON values in a body; more could take hundreds of bytes of memory per byte sent."""
PLAIN_BYTES = 64 * 1024
"""The largest body that is tried as a plain request: longer ones may be expensive to decode."""
_STRUCTURE = (b"{", b"[", b",")


class DecodedEntry(NamedTuple):
    """One decoded entry of the input field; it does not depend on the other entries."""

    instructions: str | None
    items: tuple[NewItem, ...]


class DecodedBody(msgspec.Struct):
    """A decoded body: raw JSON by field, without the items, and the items."""

    fields: dict[str, bytes]
    items: list[NewItem]
    instructions: str | None = None
    has_items: bool = True
    """Whether the field with the items was sent and is not empty."""


def decode_body(kind: BodyKind, body: bytes, max_items: int) -> DecodedBody:
    """Decode a whole body; reject it before its items are decoded if there are too many."""
    check_values(body)
    fields = parse_fields(body)
    text = pop_text(kind, fields)
    entries = pop_entries(kind, fields, max_items)
    check_readable(fields)
    raw_fields = {name: bytes(raw) for name, raw in fields.items()}
    if text is not None:
        return DecodedBody(raw_fields, list(text.items), text.instructions)
    decoded = [decode_entry(kind, bytes(entry), index) for index, entry in enumerate(entries)]
    instructions, items = join_entries(kind, decoded)
    return DecodedBody(raw_fields, items, instructions, bool(entries))


def check_values(body: bytes) -> None:
    """Reject a body with more than `MAX_VALUES` JSON values, without decoding it."""
    if sum(body.count(mark) for mark in _STRUCTURE) <= MAX_VALUES:
        return
    structure = STRINGS.sub(b"", body)
    if sum(structure.count(mark) for mark in _STRUCTURE) > MAX_VALUES:
        raise TooManyItems(f"a request body has at most {MAX_VALUES} JSON values")


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user"]
    content: str


class _PlainChat(msgspec.Struct, forbid_unknown_fields=True):
    """A Chat request with one user text and no options."""

    model: str
    messages: tuple[_Question]
    stream: bool = False


class _Text(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A Chat message that is only text, with the empty fields that clients copy from answers."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str
    refusal: None = None
    annotations: tuple[()] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: None = None


_read_one_text = msgspec.json.Decoder(tuple[_Text]).decode
_read_text = msgspec.json.Decoder(_Text).decode
_read_string = msgspec.json.Decoder(str).decode
_read_plain_chat = msgspec.json.Decoder(_PlainChat).decode


def read_plain_chat(body: bytes) -> tuple[TurnRequest, list[NewItem]] | None:
    """Return a Chat request that is one user text without options; None for any other.

    Other and invalid requests are decoded field by field, which gives the same result for this one.
    """
    if len(body) > PLAIN_BYTES:
        return None
    try:
        plain = _read_plain_chat(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not plain.model:
        return None
    request = TurnRequest(api="chat", model=plain.model, is_stored=False, is_stream=plain.stream)
    return request, [message("user", plain.messages[0].content)]


def pop_text(kind: BodyKind, fields: Fields) -> DecodedEntry | None:
    """Remove the input of a turn that is one text; return None for any other input.

    Most requests are like this; the general way gives the same result.
    """
    name = ITEM_FIELDS[kind]
    if name not in fields or kind == "items":
        return None
    try:
        if kind == "responses":
            entry = DecodedEntry(None, (message("user", _read_string(fields[name])),))
        else:
            instructions, items = _text_entry(_read_one_text(fields[name])[0])
            entry = DecodedEntry(instructions or None, items)
    except (msgspec.DecodeError, RecursionError):
        return None
    del fields[name]
    return entry


def decode_entry(kind: BodyKind, raw: bytes, index: int) -> DecodedEntry:
    """Decode one entry of the items; only errors depend on its index."""
    if kind != "chat":
        return DecodedEntry(None, (parse_item(raw, f"{ITEM_FIELDS[kind]}[{index}]"),))
    try:
        return _text_entry(_read_text(raw))
    except (msgspec.DecodeError, RecursionError):
        pass  # the general way gives the same result for texts
    found = read_message(decode_message(raw, index), index)
    if isinstance(found, str):
        return DecodedEntry(found, ())
    return DecodedEntry(None, tuple(map(write_item, found)))


def _text_entry(text: _Text) -> DecodedEntry:
    if text.role == "user":
        return DecodedEntry(None, (message("user", text.content),))
    if text.role == "assistant":
        part = {"type": "output_text", "text": text.content, "annotations": []}
        value = {"type": "message", "role": "assistant", "content": [part]}
        body = msgspec.json.encode(value)
        return DecodedEntry(None, (message("assistant", text.content, body),))
    return DecodedEntry(text.content, ())


def join_entries(
    kind: BodyKind, decoded: Sequence[DecodedEntry]
) -> tuple[str | None, list[NewItem]]:
    """Return the instructions and the items of decoded entries."""
    instructions = [text for text, _ in decoded if text is not None]
    items = [item for _, found in decoded for item in found]
    if kind == "chat":
        custom = {item.call_id for item in items if item.kind == "custom_tool_call"}
        if custom:
            items = [
                _custom_output(item) if _is_output_of(custom, item) else item for item in items
            ]
    return "\n\n".join(instructions) or None, items


def _is_output_of(call_ids: set[str | None], item: NewItem) -> bool:
    return item.kind == "function_call_output" and item.call_id in call_ids


def _custom_output(item: NewItem) -> NewItem:
    """Return the output of a custom call as an item of its own type: Chat has one for all."""
    return write_item({**item_value(item.body), "type": "custom_tool_call_output"})


def pop_entries(kind: BodyKind, fields: Fields, max_items: int) -> Sequence[msgspec.Raw]:
    """Remove the list of items from the fields and return its raw entries."""
    name = ITEM_FIELDS[kind]
    entries = pop_list(fields, name) or ()
    if len(entries) > max_items:
        problem = f"{name}: at most {max_items} items per request, not {len(entries)}"
        raise InvalidInput(problem) if kind == "items" else TooManyItems(problem)
    return entries


def decode_message(raw: bytes, index: int) -> object:
    """Decode one chat message."""
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidInput(f"messages[{index}]: {exc}") from exc
    if is_too_deep(raw):
        raise InvalidInput(f"messages[{index}]: nested in more than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        check_parts(value.get("content"), f"messages[{index}]")
    return value
