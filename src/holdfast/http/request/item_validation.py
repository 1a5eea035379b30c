"""Validation of sent items: fields that the gateway and every provider read must have their type.

All other fields pass through untouched.
"""

from typing import Any

import msgspec

from holdfast.core.errors import InvalidItem
from holdfast.core.model.gateway_items import GATEWAY_KINDS
from holdfast.core.model.items import ROLES, NewItem, read_item

MAX_PARTS = 10_000
"""The most parts of one item. Translating one for an upstream takes about 5 µs, in one step."""


class _Part(msgspec.Struct):
    type: str | None = None
    text: str = ""
    refusal: str | None = None


class _Typed(msgspec.Struct):
    role: str | None = None
    status: str | None = None
    encrypted_content: str | None = None
    name: str | None = None


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None


class _OutputPart(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class _Output(msgspec.Struct):
    output: str | list[_OutputPart] | dict[str, Any] | None = None


_read_all = msgspec.json.Decoder().decode
_read_typed = msgspec.json.Decoder(_Typed).decode
_read_message = msgspec.json.Decoder(_Message).decode
_read_output = msgspec.json.Decoder(_Output).decode


def _check_role(role: str | None, where: str) -> None:
    """Reject unknown roles: every provider would refuse the session's history from then on."""
    if role not in ROLES:
        allowed = ", ".join(repr(known) for known in ROLES)
        raise InvalidItem(
            f"{where}: the role of a message must be {allowed}, not {role!r}", param=where
        )


def parse_item(body: bytes, where: str) -> NewItem:
    """Return an item unchanged; reject fields with a wrong type."""
    try:
        item = read_item(body)
    except InvalidItem as exc:
        raise InvalidItem(f"{where}: {exc}", param=where) from exc
    try:
        _read_all(body)  # a number out of range in an unknown field could not be decoded later
        typed = _read_typed(body)
        if item.kind == "message":
            _check_role(typed.role, where)
            check_parts(_read_message(body).content, where)
        elif item.kind in GATEWAY_KINDS:
            # The log has such items for calls that the gateway made; clients must not forge them.
            raise InvalidItem(f"{where}: the type {item.kind!r} is reserved", param=where)
        elif item.kind.endswith("_call_output"):
            check_parts(_read_output(body).output, where)
    except msgspec.ValidationError as exc:
        raise InvalidItem(f"{where}: {exc}", param=where) from exc
    return item


def check_parts(content: object, where: str) -> None:
    """Reject an item with too many parts."""
    if isinstance(content, list) and len(content) > MAX_PARTS:
        raise InvalidItem(
            f"{where}: an item has at most {MAX_PARTS} parts, not {len(content)}", param=where
        )
