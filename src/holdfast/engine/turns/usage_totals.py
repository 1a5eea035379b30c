"""Adds up the usage of a turn's model calls."""

from typing import Any

import msgspec

from holdfast.core.model.session import Usage


def sum_usage(known: Usage | None, more: Usage | None) -> Usage | None:
    """Return the sum of two usages, either of which may be unknown."""
    if known is None or more is None:
        return known or more
    return Usage(
        known.input_tokens + more.input_tokens,
        known.cached_tokens + more.cached_tokens,
        known.output_tokens + more.output_tokens,
        known.reasoning_tokens + more.reasoning_tokens,
    )


def subtract_usage(known: Usage, last: Usage) -> Usage:
    """Return the usage before the last call."""
    return Usage(
        known.input_tokens - last.input_tokens,
        known.cached_tokens - last.cached_tokens,
        known.output_tokens - last.output_tokens,
        known.reasoning_tokens - last.reasoning_tokens,
    )


def sum_details(known: bytes | None, more: bytes | None) -> bytes | None:
    """Return the sum of two usage objects of a provider, as JSON."""
    if known is None or more is None:
        return known or more
    return msgspec.json.encode(_added(msgspec.json.decode(known), msgspec.json.decode(more)))


def _added(known: Any, more: Any) -> Any:
    """Return two usage objects added up, field by field."""
    if isinstance(known, dict) and isinstance(more, dict):
        return {name: _added(known.get(name), more.get(name)) for name in {**known, **more}}
    is_number = isinstance(known, int | float) and isinstance(more, int | float)
    return known + more if is_number else more if more is not None else known
