"""Items as clients send them: what we and every provider read of an item must have its type.

Anything else in an item is somebody else's business, and passes through as it came.
"""

from typing import Any

import msgspec

from holdfast.core.errors import InvalidItem
from holdfast.core.model.items import ROLES, NewItem, read_item


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


class _Output(msgspec.Struct):
    output: str | list[dict[str, Any]] | dict[str, Any] | None = None


_read_typed = msgspec.json.Decoder(_Typed).decode
_read_message = msgspec.json.Decoder(_Message).decode
_read_output = msgspec.json.Decoder(_Output).decode


def _check_role(role: str | None, where: str) -> None:
    """No server takes a message of anybody else, and a history that has one is stuck with it."""
    if role not in ROLES:
        allowed = ", ".join(repr(one) for one in ROLES)
        raise InvalidItem(f"{where}: the role of a message is {allowed}, not {role!r}", param=where)


def read_sent_item(body: bytes, where: str) -> NewItem:
    """Return an item as it came, or say what in it has a type that it cannot have."""
    item = read_item(body)
    try:
        typed = _read_typed(body)
        if item.kind == "message":
            _check_role(typed.role, where)
            _read_message(body)
        elif item.kind.endswith("_call_output"):
            _read_output(body)
    except msgspec.ValidationError as exc:
        raise InvalidItem(f"{where}: {exc}", param=where) from exc
    return item
