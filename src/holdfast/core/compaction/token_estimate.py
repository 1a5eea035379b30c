"""Estimates the tokens of a request; the scale of a model is learned from what it reports."""

import re
from collections.abc import Iterable, Mapping

import msgspec

from holdfast.core.model.items import StoredItem

BYTES_PER_TOKEN = 4.0
TOKENS_PER_ITEM = 3
"""The tokens of a message in addition to its text."""
WRAPPING_BYTES = 64
"""The bytes of an item's JSON that are not text: type, role, field names."""
IMAGE_TOKENS = 1000
"""The estimate for an inline image or file, whatever its size."""
FEWEST_TOKENS = 64
"""Smaller calls do not change the scale."""
LEAST_BYTES_PER_TOKEN, _MOST_BYTES_PER_TOKEN = 1.5, 8.0
_WEIGHT_OF_NEW = 0.3
_COUNTED = ("instructions", "tools", "text", "tool_choice", "reasoning")
_INLINE = re.compile(rb"data:[\w.+/-]*;base64,[A-Za-z0-9+/=_-]*")


class Scale(msgspec.Struct, frozen=True, gc=False):
    """How many bytes of a model's requests make one token."""

    bytes_per_token: float = BYTES_PER_TOKEN

    def tokens(self, size: int) -> int:
        """Return the tokens of `size` bytes, rounded up."""
        return -int(-size // self.bytes_per_token)

    def item(self, body: bytes) -> int:
        """Return the tokens of one item."""
        size, images = _measure(body)
        size = max(size - WRAPPING_BYTES, 0)
        return TOKENS_PER_ITEM + self.tokens(size) + images * IMAGE_TOKENS

    def items(self, items: Iterable[StoredItem]) -> int:
        """Return the tokens of items."""
        return sum([self.item(item.body) for item in items])

    def learned(self, size: int, items: int, tokens: int) -> "Scale":
        """Return the scale after a call of `size` bytes was counted as `tokens`.

        One report moves it part of the way, and never beyond what is plausible for text.
        """
        if size <= 0 or not is_informative(items, tokens):
            return self
        text_tokens = tokens - items * TOKENS_PER_ITEM
        seen = min(max(size / text_tokens, LEAST_BYTES_PER_TOKEN), _MOST_BYTES_PER_TOKEN)
        if seen < self.bytes_per_token:
            # More tokens than estimated: adopt the scale at once, because an underestimate
            # overflows.
            return Scale(seen)
        return Scale(self.bytes_per_token + (seen - self.bytes_per_token) * _WEIGHT_OF_NEW)


DEFAULT_SCALE = Scale()


def is_informative(items: int, tokens: int) -> bool:
    """Whether the token count of a call says anything about the bytes per token of text."""
    return tokens - items * TOKENS_PER_ITEM >= FEWEST_TOKENS


def _measure(body: bytes) -> tuple[int, int]:
    """Return the bytes of text in a body, and its number of inline images."""
    if b";base64," not in body:
        return len(body), 0
    rest, count = _INLINE.subn(b"", body)
    return len(rest), count


def text_bytes(items: Iterable[bytes], fields: Mapping[str, msgspec.Raw]) -> int:
    """Return how many bytes of a request are text; inline images are not."""
    # Runs for every item of every call: one more function call per item would dominate the cost.
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
    """Return an estimate for the fields of a request."""
    return sum(scale.tokens(size) for size in _field_sizes(fields))


def _field_sizes(fields: Mapping[str, msgspec.Raw]) -> Iterable[int]:
    for name in _COUNTED:
        raw = fields.get(name)
        if raw is not None and bytes(raw) != b"null":
            yield len(bytes(raw))
