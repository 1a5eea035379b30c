"""JSON of chat platforms, which may be deeply nested or contain text that is not valid Unicode.

One such message must not block all others: invalid parts become U+FFFD.
"""

import json
import re
from typing import Any, TypeVar

import msgspec

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""One escape; the group matches half of a surrogate pair without its other half."""

T = TypeVar("T")


def decode_json(raw: bytes, kind: type[T]) -> T:
    """Return a value; raise `msgspec.DecodeError` if repairing its text does not help."""
    try:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(_repair(raw), type=kind)
    except RecursionError as exc:
        raise msgspec.DecodeError("the JSON is nested too deeply") from exc


def encode_json(value: Any) -> bytes:
    """Encode a value so that `decode_json` can read it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def _repair(raw: bytes) -> bytes:
    text = raw.decode("utf-8", "replace").encode()
    return _ESCAPE.sub(lambda match: rb"\ufffd" if match[1] else match[0], text)
