"""Metadata as OpenAI's objects have it: a few short strings by name."""

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.http.request.body import Fields

MAX_PAIRS = 16
MAX_KEY = 64
MAX_VALUE = 512

_decode = msgspec.json.Decoder(dict[str, str] | None).decode


class InvalidMetadata(InvalidInput):
    """Metadata are at most 16 strings by name; names have 64 characters, values 512."""

    code = "invalid_metadata"


def take_metadata(fields: Fields) -> bytes | None:
    """Take `metadata` out of a body as it is stored, or `None` where there is none."""
    raw = fields.pop("metadata", None)
    if raw is None:
        return None
    try:
        pairs = _decode(raw) or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidMetadata(f"metadata: {exc}") from exc
    if len(pairs) > MAX_PAIRS:
        raise InvalidMetadata(f"metadata has at most {MAX_PAIRS} pairs, these are {len(pairs)}")
    for key, value in pairs.items():
        if len(key) > MAX_KEY:
            raise InvalidMetadata(f"a key of metadata has at most {MAX_KEY} characters")
        if len(value) > MAX_VALUE:
            raise InvalidMetadata(f"metadata[{key!r}] has more than {MAX_VALUE} characters")
    return msgspec.json.encode(pairs)
