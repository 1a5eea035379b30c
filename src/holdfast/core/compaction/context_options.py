"""The context options of a request: truncate, compact, or leave the context alone."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput


class ContextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a request is to be kept within its model's window."""

    truncation: str | None = None
    """`auto`: leave out the oldest items, for this request; `disabled`: fail instead."""
    compacts: bool = False
    """Whether the client asked for compaction, and expects an item that represents it."""
    compact_threshold: int | None = None


DEFAULT_OPTIONS = ContextOptions()


class _Entry(msgspec.Struct):
    type: str
    compact_threshold: int | None = None


_read_entries = msgspec.json.Decoder(list[_Entry] | None).decode


def read_context_options(fields: Mapping[str, msgspec.Raw]) -> ContextOptions:
    """Return the context options of a request; raise for invalid ones."""
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
    options = ContextOptions(truncation=truncation)
    for entry in entries:
        if entry.type != "compaction":
            message = f"context_management: unknown type {entry.type!r}; use 'compaction'"
            raise InvalidInput(message, param="context_management")
        threshold = entry.compact_threshold
        if threshold is not None and threshold < 1:
            message = "context_management: compact_threshold must be a positive number of tokens"
            raise InvalidInput(message, param="context_management")
        options = ContextOptions(truncation=truncation, compacts=True, compact_threshold=threshold)
    return options


def _truncation(raw: msgspec.Raw | None) -> str | None:
    value: Any = msgspec.json.decode(raw) if raw is not None else None
    if value not in (None, "auto", "disabled"):
        raise InvalidInput("truncation must be auto or disabled", param="truncation")
    return value if value is None else str(value)


_OUTPUT_LIMITS = ("max_output_tokens", "max_completion_tokens", "max_tokens")


def max_output_tokens(*fields: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the output limit of a request, if it names one."""
    for each in fields:
        for name in _OUTPUT_LIMITS:
            raw = each.get(name)
            value: Any = msgspec.json.decode(raw) if raw is not None else None
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
