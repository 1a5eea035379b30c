"""Names of things. Ids are minted outside and carried here; keys are opaque and judged here."""

from typing import NewType

from holdfast.core.errors import InvalidSessionKey

Tenant = NewType("Tenant", str)
Key = NewType("Key", str)
SessionId = NewType("SessionId", str)
TurnId = NewType("TurnId", str)
RunId = NewType("RunId", str)
WorkerId = NewType("WorkerId", str)

DEFAULT_TENANT = Tenant("default")
MAX_KEY_BYTES = 512


def read_key(raw: str) -> Key:
    """Return `raw` as a key, unchanged to the byte, or say why it cannot be one.

    Nothing is folded or trimmed: two keys that differ in any byte are two conversations.
    """
    try:
        size = len(raw.encode())
    except UnicodeEncodeError as exc:
        raise InvalidSessionKey("a session key must be valid Unicode text") from exc
    if not 1 <= size <= MAX_KEY_BYTES:
        raise InvalidSessionKey(f"a session key has 1 to {MAX_KEY_BYTES} bytes, this one {size}")
    if any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in raw):
        raise InvalidSessionKey("a session key has no control characters")
    return Key(raw)
