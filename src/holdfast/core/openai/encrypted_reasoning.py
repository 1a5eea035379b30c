"""Encrypted reasoning: kept for the model that made it, shown to clients that asked for it."""

from typing import Any

import msgspec

from holdfast.core.model.request import TurnRequest

ENCRYPTED_REASONING = "reasoning.encrypted_content"
_FIELD = "encrypted_content"
ENCRYPTED_MARK = b'"encrypted_content"'
"""An item without it has no seal."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def shows_encrypted(request: TurnRequest) -> bool:
    """Whether the client asked to be given encrypted reasoning."""
    raw = request.fields.get("include")
    return raw is not None and ENCRYPTED_REASONING.encode() in bytes(raw)


def without_encrypted(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of an event without what is sealed."""
    if item.get("type") != "reasoning" or _FIELD not in item:
        return item
    return {name: value for name, value in item.items() if name != _FIELD}


def body_without_encrypted(body: bytes) -> bytes:
    """Return an item without what is sealed; one that has no seal is not even read."""
    if ENCRYPTED_MARK not in body:
        return body
    fields = _decode(body)
    if bytes(fields.get("type", b"")) != b'"reasoning"' or _FIELD not in fields:
        return body
    del fields[_FIELD]
    return _encode(fields)
