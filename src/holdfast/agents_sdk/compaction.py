"""Compaction for sessions: shorter items replace the history, which stays in the log, hidden."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.agents_sdk.item_codec import Item
from holdfast.core.model.items import OUTPUT_SUFFIX

Shorten = Callable[[list[Item]], Awaitable[list[Item]]]
"""Maps the whole visible history to the items that replace it."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """When to shorten a history, and how."""

    shorten: Shorten
    after_items: int = 100
    """Shorten once this many items are visible; `force` ignores it."""

    def is_due(self, items: list[Item], *, is_forced: bool) -> bool:
        """Return whether to shorten now; never while a call has no output."""
        return bool(items) and not _has_open_calls(items) and (
            is_forced or len(items) >= self.after_items
        )  # fmt: skip


def openai_compaction(client: Any, model: str, *, after_items: int = 100) -> Compaction:
    """Return a compaction that calls `responses.compact` of an OpenAI client."""

    async def shorten(items: list[Item]) -> list[Item]:
        compacted = await client.responses.compact(model=model, input=items)
        return [item.model_dump(exclude_unset=True, warnings=False) for item in compacted.output]

    return Compaction(shorten=shorten, after_items=after_items)


def _has_open_calls(items: list[Item]) -> bool:
    open_calls: dict[str, int] = {}
    for item in items:
        call_id = item.get("call_id")
        if isinstance(call_id, str):
            is_output = str(item.get("type", "")).endswith(OUTPUT_SUFFIX)
            open_calls[call_id] = open_calls.get(call_id, 0) + (-1 if is_output else 1)
    return any(count > 0 for count in open_calls.values())
