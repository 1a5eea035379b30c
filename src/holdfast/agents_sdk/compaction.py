"""Compaction for sessions: something shorter takes the place of what was said, and hides it."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.agents_sdk.wire import Item
from holdfast.core.model.items import OUTPUT_SUFFIX

Shorten = Callable[[list[Item]], Awaitable[list[Item]]]
"""Given the whole visible history, returns the items to go on with."""


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """When a history is to be shortened, and by whom."""

    shorten: Shorten
    after_items: int = 100
    """Shorten once so many items are visible; `force` does not ask."""

    def is_due(self, items: list[Item], *, is_forced: bool) -> bool:
        """Whether to shorten now; calls without their outputs are waited for."""
        return bool(items) and not _has_open_calls(items) and (
            is_forced or len(items) >= self.after_items
        )  # fmt: skip


def openai_compaction(client: Any, model: str, *, after_items: int = 100) -> Compaction:
    """Return a compaction by an OpenAI client's `responses.compact`, at a provider or a gateway."""

    async def shorten(items: list[Item]) -> list[Item]:
        done = await client.responses.compact(model=model, input=items)
        return [item.model_dump(exclude_unset=True, warnings=False) for item in done.output]

    return Compaction(shorten=shorten, after_items=after_items)


def _has_open_calls(items: list[Item]) -> bool:
    waiting: dict[str, int] = {}
    for item in items:
        call_id = item.get("call_id")
        if isinstance(call_id, str):
            is_output = str(item.get("type", "")).endswith(OUTPUT_SUFFIX)
            waiting[call_id] = waiting.get(call_id, 0) + (-1 if is_output else 1)
    return any(count > 0 for count in waiting.values())
