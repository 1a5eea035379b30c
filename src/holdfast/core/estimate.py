"""How many tokens a request has, about: the same number for the same bytes, for every model."""

from collections.abc import Iterable

import msgspec

BYTES_PER_TOKEN = 4
TOKENS_PER_ITEM = 3
"""What a message costs beside its text."""
_COUNTED = ("instructions", "tools", "text", "tool_choice", "reasoning")


def estimate_tokens(items: Iterable[bytes], fields: dict[str, msgspec.Raw]) -> int:
    """Return an estimate for a whole request: its items, instructions and tools."""
    total = 0
    for body in items:
        total += TOKENS_PER_ITEM + _tokens(len(body))
    for name in _COUNTED:
        raw = fields.get(name)
        if raw is not None and bytes(raw) != b"null":
            total += _tokens(len(bytes(raw)))
    return total


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)
