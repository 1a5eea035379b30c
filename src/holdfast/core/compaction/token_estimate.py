"""How many tokens a request has, about; the scale of a model is learned from what it reports."""

import re
from collections.abc import Iterable, Mapping

import msgspec

BYTES_PER_TOKEN = 4.0
TOKENS_PER_ITEM = 3
"""What a message costs beside its text."""
WRAPPING_BYTES = 64
"""What of an item's JSON is not text: its type, role and names of fields."""
IMAGE_TOKENS = 1000
"""What a picture or a file inside a request is taken for, whatever its bytes."""
FEWEST_TOKENS = 64
"""Calls that are smaller teach nothing."""
_LEAST, _MOST = 1.5, 8.0
_WEIGHT_OF_NEW = 0.3
_COUNTED = ("instructions", "tools", "text", "tool_choice", "reasoning")
_INLINE = re.compile(rb"data:[\w.+/-]*;base64,[A-Za-z0-9+/=_-]*")


class Scale(msgspec.Struct, frozen=True, gc=False):
    """How many bytes of a model's requests make a token."""

    bytes_per_token: float = BYTES_PER_TOKEN

    def tokens(self, size: int) -> int:
        """Return the tokens of so many bytes, rounded up."""
        return -int(-size // self.bytes_per_token)

    def item(self, body: bytes) -> int:
        """Return the tokens of one item."""
        size, images = _measure(body)
        size = max(size - WRAPPING_BYTES, 0)
        return TOKENS_PER_ITEM + self.tokens(size) + images * IMAGE_TOKENS

    def learned(self, size: int, items: int, tokens: int) -> "Scale":
        """Return the scale after a call of so many bytes and items was reported as so many tokens.

        One report moves it a part of the way, and nothing moves it beyond what texts can be.
        """
        if size <= 0 or not is_informative(items, tokens):
            return self
        told = tokens - items * TOKENS_PER_ITEM
        seen = min(max(size / told, _LEAST), _MOST)
        if seen < self.bytes_per_token:
            # More tokens than thought: believed at once, for too small an estimate overflows.
            return Scale(seen)
        return Scale(self.bytes_per_token + (seen - self.bytes_per_token) * _WEIGHT_OF_NEW)


DEFAULT_SCALE = Scale()


def is_informative(items: int, tokens: int) -> bool:
    """Whether a call of so many items and tokens says anything about texts."""
    return tokens - items * TOKENS_PER_ITEM >= FEWEST_TOKENS


def _measure(body: bytes) -> tuple[int, int]:
    """Return the bytes of text in a body, and how many pictures it carries."""
    if b";base64," not in body:
        return len(body), 0
    rest, count = _INLINE.subn(b"", body)
    return len(rest), count


def text_bytes(items: Iterable[bytes], fields: Mapping[str, msgspec.Raw]) -> int:
    """Return how many bytes of a request are text, to learn from; pictures are not."""
    # Once for every item of every call: a call of a function each would be most of its cost.
    sizes = [
        len(body) if b";base64," not in body else _measure(body)[0]
        for body in items
        if len(body) > WRAPPING_BYTES
    ]
    texts = [size - WRAPPING_BYTES for size in sizes if size > WRAPPING_BYTES]
    return sum(texts) + sum(_field_sizes(fields))


def estimate_tokens(
    items: Iterable[bytes], fields: Mapping[str, msgspec.Raw], scale: Scale = DEFAULT_SCALE
) -> int:
    """Return an estimate for a whole request: its items, instructions and tools."""
    return sum(scale.item(body) for body in items) + field_tokens(fields, scale)


def field_tokens(fields: Mapping[str, msgspec.Raw], scale: Scale = DEFAULT_SCALE) -> int:
    """Return an estimate for what a request says beside its items."""
    return sum(scale.tokens(size) for size in _field_sizes(fields))


def _field_sizes(fields: Mapping[str, msgspec.Raw]) -> Iterable[int]:
    for name in _COUNTED:
        raw = fields.get(name)
        if raw is not None and bytes(raw) != b"null":
            yield len(bytes(raw))
