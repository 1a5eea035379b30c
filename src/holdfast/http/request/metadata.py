"""Metadata of OpenAI objects: up to 16 short strings by name."""

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.http.request.body import Fields

MAX_PAIRS = 16
MAX_KEY = 64
MAX_VALUE = 512

_decode = msgspec.json.Decoder(dict[str, str] | None).decode


class InvalidMetadata(InvalidInput):
    """Metadata has at most 16 pairs; keys have up to 64 characters, values up to 512."""

    code = "invalid_metadata"


def pop_metadata(fields: Fields) -> bytes | None:
    """Remove `metadata` from the fields and return it as stored; `None` if it was not sent."""
    raw = fields.pop("metadata", None)
    if raw is None:
        return None
    try:
        pairs = _decode(raw) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidMetadata(f"metadata: {exc}") from exc
    if len(pairs) > MAX_PAIRS:
        raise InvalidMetadata(f"metadata has at most {MAX_PAIRS} pairs, not {len(pairs)}")
    for key, value in pairs.items():
        if len(key) > MAX_KEY:
            raise InvalidMetadata(f"a metadata key has at most {MAX_KEY} characters")
        if len(value) > MAX_VALUE:
            raise InvalidMetadata(f"metadata[{key!r}] has more than {MAX_VALUE} characters")
    return msgspec.json.encode(pairs)
