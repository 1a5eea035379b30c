"""Estimate tokens deterministically: four characters each."""

from typing import Any

PER_MESSAGE = 3
_NOT_SHOWN = frozenset(
    {"id", "type", "role", "status", "call_id", "encrypted_content", "signature", "annotations"}
)


def count_text(text: str) -> int:
    """Return the tokens of `text`."""
    return (len(text) + 3) // 4


def count_value(value: Any) -> int:
    """Return the tokens of the texts in a JSON value that a model reads."""
    if isinstance(value, str):
        return count_text(value)
    if isinstance(value, dict):
        return sum(count_value(inner) for key, inner in value.items() if key not in _NOT_SHOWN)
    if isinstance(value, list):
        return sum(count_value(inner) for inner in value)
    return 0


def count_items(items: list[Any]) -> int:
    """Return the tokens of a list of messages or items."""
    return sum(count_value(item) + PER_MESSAGE for item in items)
