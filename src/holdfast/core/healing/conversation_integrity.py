"""Whether a provider's conversation still holds what was put into it.

A conversation at a provider is a cache of our log. It may lose items, gain some from elsewhere, or
show them in another order, all without an error; so it is compared, item by item, with what we
would tell it. Thoughts, ids and names are the provider's own affair and do not count.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from holdfast.core.model.items import OUTPUT_SUFFIX

Divergence = Literal[
    "conversation_items_missing",
    "conversation_items_added",
    "conversation_items_reordered",
    "conversation_items_changed",
]
Mark = bytes
"""What makes an item the same on both sides."""
_CALL_SUFFIX = "_call"


def marks_of(items: Iterable[dict[str, Any]]) -> list[Mark]:
    """Return the marks of the items that count, in their order."""
    found = (_said(item) for item in items)
    return [
        hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for said in found
        if said is not None
    ]


def compare(expected: Sequence[Mark], held: Sequence[Mark], *, is_whole: bool) -> Divergence | None:
    """Return how what is held differs from what was told; None when it does not.

    Where only the newest part is known (`is_whole` is false), only that part is compared.
    """
    told = expected if is_whole else expected[-len(held) :] if held else []
    if list(told) == list(held):
        return None
    if Counter(told) == Counter(held):
        return "conversation_items_reordered"
    if _is_within(held, expected) and (is_whole or len(held) < len(expected)):
        return "conversation_items_missing"
    if _is_within(told, held):
        return "conversation_items_added"
    return "conversation_items_changed"


def _is_within(part: Sequence[Mark], whole: Sequence[Mark]) -> bool:
    """Whether the items of one are all in the other, in the same order."""
    left = iter(whole)
    return all(mark in left for mark in part)


def _said(item: dict[str, Any]) -> str | None:
    """Return what counts of an item; None for one that does not count at all."""
    kind = str(item.get("type") or "message")
    if kind == "message":
        text = _text(item.get("content"))
        return f"message\0{item.get('role')}\0{text}" if text else None
    if kind.endswith(OUTPUT_SUFFIX) and item.get("call_id"):
        return f"output\0{_text(item.get('output'))}"
    if kind.endswith(_CALL_SUFFIX) and item.get("call_id"):
        return f"call\0{kind}\0{item.get('name')}\0{_text(item.get('arguments'))}"
    return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") or part.get("refusal") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str)).strip()
