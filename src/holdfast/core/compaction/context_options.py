"""What a request itself says about its context: to be truncated, compacted, or left alone."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput

CONTEXT_FIELDS = ("truncation", "context_management")


class ContextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one request wants to be kept within its window."""

    truncation: str | None = None
    """`auto`: leave the oldest out, this once; `disabled`: fail rather than leave anything out."""
    compacts: bool = False
    """Whether the client asked for compaction, and is to be told of it by an item."""
    compact_threshold: int | None = None


DEFAULT_OPTIONS = ContextOptions()


class _Entry(msgspec.Struct):
    type: str
    compact_threshold: int | None = None


_read_entries = msgspec.json.Decoder(list[_Entry] | None).decode


def read_context_options(fields: Mapping[str, msgspec.Raw]) -> ContextOptions:
    """Return what a request wishes, or say what is wrong with it."""
    if "truncation" not in fields and "context_management" not in fields:
        return DEFAULT_OPTIONS
    truncation = _truncation(fields.get("truncation"))
    raw = fields.get("context_management")
    if raw is None:
        return ContextOptions(truncation=truncation)
    try:
        entries = _read_entries(raw) or []
    except msgspec.ValidationError as exc:
        raise InvalidInput(f"context_management: {exc}", param="context_management") from exc
    found = ContextOptions(truncation=truncation)
    for entry in entries:
        if entry.type != "compaction":
            message = f"context_management: {entry.type!r} is unknown, there is 'compaction'"
            raise InvalidInput(message, param="context_management")
        least = entry.compact_threshold
        if least is not None and least < 1:
            message = "context_management: compact_threshold is a positive number of tokens"
            raise InvalidInput(message, param="context_management")
        found = ContextOptions(truncation=truncation, compacts=True, compact_threshold=least)
    return found


def _truncation(raw: msgspec.Raw | None) -> str | None:
    value: Any = msgspec.json.decode(raw) if raw is not None else None
    if value not in (None, "auto", "disabled"):
        raise InvalidInput("truncation is auto or disabled", param="truncation")
    return value if value is None else str(value)


_MOST_OUTPUT = ("max_output_tokens", "max_completion_tokens", "max_tokens")


def max_output_tokens(*fields: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the most tokens that a request wants to be answered with, if it says."""
    for words in fields:
        for name in _MOST_OUTPUT:
            raw = words.get(name)
            value: Any = msgspec.json.decode(raw) if raw is not None else None
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
