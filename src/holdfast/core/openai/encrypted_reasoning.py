"""Encrypted reasoning: kept for the model that made it, shown to clients that asked for it."""

from typing import Any

import msgspec

from holdfast.core.model.request import TurnRequest

SEALED_REASONING = "reasoning.encrypted_content"
_FIELD = "encrypted_content"
SEAL_MARK = b'"encrypted_content"'
"""An item without it has no seal."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def shows_sealed(request: TurnRequest) -> bool:
    """Whether the client asked to be given encrypted reasoning."""
    raw = request.fields.get("include")
    return raw is not None and SEALED_REASONING.encode() in bytes(raw)


def open_item(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of an event without what is sealed."""
    if item.get("type") != "reasoning" or _FIELD not in item:
        return item
    return {name: value for name, value in item.items() if name != _FIELD}


def open_body(body: bytes) -> bytes:
    """Return an item without what is sealed; one that has no seal is not even read."""
    if SEAL_MARK not in body:
        return body
    fields = _decode(body)
    if bytes(fields.get("type", b"")) != b'"reasoning"' or _FIELD not in fields:
        return body
    del fields[_FIELD]
    return _encode(fields)
