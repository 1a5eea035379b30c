"""JSON on the wire: one alias, one encoder, one decoder."""

from typing import Any

import msgspec

Json = dict[str, Any]

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class NotJson(ValueError):
    """The bytes are not one JSON object."""


def decode_object(raw: bytes) -> Json:
    """Return the JSON object in `raw`; empty input is the empty object."""
    if not raw:
        return {}
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise NotJson(str(exc)) from exc
    if not isinstance(value, dict):
        raise NotJson(f"expected an object, got {type(value).__name__}")
    return value
