"""Compare a provider's conversation with what was put into it.

A conversation at a provider is a cache of our log. It may lose items, gain items from elsewhere, or
reorder them, all without an error. So it is compared item by item with what we would send. The
provider's reasoning, ids and names do not count.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from holdfast.core.model.items import OUTPUT_SUFFIX
from holdfast.core.projection.normalize import valid_arguments

Divergence = Literal[
    "conversation_items_missing",
    "conversation_items_added",
    "conversation_items_reordered",
    "conversation_items_changed",
]
Fingerprint = bytes
"""What two items must have in common to be equal."""
_CALL_SUFFIX = "_call"


def fingerprints(items: Iterable[dict[str, Any]]) -> list[Fingerprint]:
    """Return the fingerprints of the items that are compared, in order."""
    texts = (_comparable_text(item) for item in items)
    return [
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        for text in texts
        if text is not None
    ]


def compare(
    expected: Sequence[Fingerprint], actual: Sequence[Fingerprint], *, is_whole: bool
) -> Divergence | None:
    """Return how a conversation differs from what is expected, or None if it does not.

    If `is_whole` is false, only the newest part of it is known and compared.
    """
    compared = expected if is_whole else expected[-len(actual) :] if actual else []
    if list(compared) == list(actual):
        return None
    if Counter(compared) == Counter(actual):
        return "conversation_items_reordered"
    if _is_subsequence(actual, expected) and (is_whole or len(actual) < len(expected)):
        return "conversation_items_missing"
    if _is_subsequence(compared, actual):
        return "conversation_items_added"
    return "conversation_items_changed"


def _is_subsequence(part: Sequence[Fingerprint], whole: Sequence[Fingerprint]) -> bool:
    left = iter(whole)
    return all(fingerprint in left for fingerprint in part)


def _comparable_text(item: dict[str, Any]) -> str | None:
    """Return the comparable part of an item, or None for an item that is not compared."""
    kind = str(item.get("type") or "message")
    if kind == "message":
        text = _text(item.get("content"))
        return f"message\0{item.get('role')}\0{text}" if text else None
    if kind.endswith(OUTPUT_SUFFIX) and item.get("call_id"):
        return f"output\0{_text(item.get('output'))}"
    if kind.endswith(_CALL_SUFFIX) and item.get("call_id"):
        # A conversation keeps malformed arguments as the model wrote them.
        arguments = item.get("arguments")
        written = valid_arguments(arguments) if isinstance(arguments, str) else ""
        return f"call\0{kind}\0{item.get('name')}\0{written.strip()}"
    return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content.strip()
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") or part.get("refusal") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str)).strip()
