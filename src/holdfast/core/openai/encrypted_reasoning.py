"""Encrypted reasoning: stored for the model that created it, sent to clients that ask for it."""

from typing import Any

import msgspec

from holdfast.core.model.request import TurnRequest

ENCRYPTED_REASONING = "reasoning.encrypted_content"
_FIELD = "encrypted_content"
ENCRYPTED_MARK = b'"encrypted_content"'
"""A substring of every item with encrypted content."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def shows_encrypted(request: TurnRequest) -> bool:
    """Whether the client asked for encrypted reasoning."""
    raw = request.fields.get("include")
    return raw is not None and ENCRYPTED_REASONING.encode() in bytes(raw)


def without_encrypted(item: dict[str, Any]) -> dict[str, Any]:
    """Return an event's item without its encrypted content."""
    if item.get("type") != "reasoning" or _FIELD not in item:
        return item
    return {name: value for name, value in item.items() if name != _FIELD}


def body_without_encrypted(body: bytes) -> bytes:
    """Return an item's body without encrypted content; a body that has none is not parsed."""
    if ENCRYPTED_MARK not in body:
        return body
    fields = _decode(body)
    if bytes(fields.get("type", b"")) != b'"reasoning"' or _FIELD not in fields:
        return body
    del fields[_FIELD]
    return _encode(fields)
