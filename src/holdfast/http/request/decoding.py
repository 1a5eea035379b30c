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
    message,
    write_item,
)
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.chat import split_messages
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
    plain = pop_texts(kind, fields, max_items)
    entries = pop_entries(kind, fields, max_items)
    check_readable(fields)
    raw_fields = {name: bytes(raw) for name, raw in fields.items()}
    if plain is not None:
        return DecodedBody(raw_fields, plain.items, plain.instructions)
    if kind != "chat":
        name = ITEM_FIELDS[kind]
        items = [parse_item(bytes(entry), f"{name}[{n}]") for n, entry in enumerate(entries)]
        return DecodedBody(raw_fields, items, has_items=bool(items))
    messages = [decode_message(entry, index) for index, entry in enumerate(entries)]
    instructions, values = split_messages(messages)
    items = [write_item(value) for value in values]
    return DecodedBody(raw_fields, items, instructions, bool(messages))


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
    role: Literal["user", "assistant", "system", "developer"]
    content: str


class PlainInput(NamedTuple):
    """Input that is only text: its instructions and its items."""

    instructions: str | None
    items: list[NewItem]


_read_question = msgspec.json.Decoder(tuple[_Text]).decode
_read_texts = msgspec.json.Decoder(list[_Text]).decode
_read_text = msgspec.json.Decoder(str).decode
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


def pop_texts(kind: BodyKind, fields: Fields, max_items: int) -> PlainInput | None:
    """Remove the input of a turn that is only text; return None for any other input.

    Most requests are like this. Each text is decoded once, directly into its item; the general way
    gives the same result, and is taken for long histories.
    """
    name = ITEM_FIELDS[kind]
    if name not in fields or kind == "items":
        return None
    try:
        if kind == "responses":
            found = PlainInput(None, [message("user", _read_text(fields[name]))])
        else:
            is_long = memoryview(fields[name]).nbytes > PLAIN_BYTES
            texts = _read_question(fields[name]) if is_long else _read_texts(fields[name])
            if not 0 < len(texts) <= max_items:
                return None
            found = _plain_input(texts)
    except (msgspec.DecodeError, RecursionError):
        return None
    del fields[name]
    return found


def _plain_input(texts: Sequence[_Text]) -> PlainInput:
    instructions: list[str] = []
    items: list[NewItem] = []
    for text in texts:
        if text.role == "user":
            items.append(message("user", text.content))
        elif text.role == "assistant":
            part = {"type": "output_text", "text": text.content, "annotations": []}
            value = {"type": "message", "role": "assistant", "content": [part]}
            items.append(message("assistant", text.content, msgspec.json.encode(value)))
        else:
            instructions.append(text.content)
    return PlainInput("\n\n".join(instructions) or None, items)


def pop_entries(kind: BodyKind, fields: Fields, max_items: int) -> Sequence[msgspec.Raw]:
    """Remove the list of items from the fields and return its raw entries."""
    name = ITEM_FIELDS[kind]
    entries = pop_list(fields, name) or ()
    if len(entries) > max_items:
        problem = f"{name}: at most {max_items} items per request, not {len(entries)}"
        raise InvalidInput(problem) if kind == "items" else TooManyItems(problem)
    return entries


def decode_message(entry: msgspec.Raw, index: int) -> object:
    """Decode one chat message."""
    try:
        value: object = msgspec.json.decode(entry)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise InvalidInput(f"messages[{index}]: {exc}") from exc
    if is_too_deep(bytes(entry)):
        raise InvalidInput(f"messages[{index}]: nested in more than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        check_parts(value.get("content"), f"messages[{index}]")
    return value
