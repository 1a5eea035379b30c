"""Histories as one server was told them, kept so that a longer one is only told to its end.

What was written is found again by the items it was written from. A message ends what is settled:
nothing behind it changes how anything before it is written.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.prefixes import Prefix, Prefixes
from holdfast.providers.names import call_ids
from holdfast.providers.replay import Replay

MAX_BYTES = 16 * 1024 * 1024
ITEM_BYTES = 16


class _Told(msgspec.Struct, frozen=True):
    joined: bytes = b""
    taken: frozenset[str] = frozenset()
    call_ids: frozenset[str] = frozenset()


_NOTHING = _Told()


class Retelling:
    """The input of requests, as bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._told: Prefixes[bytes, _Told] = Prefixes(max_bytes)

    @property
    def held_bytes(self) -> int:
        """About how much memory they take."""
        return self._told.held_bytes

    def write(self, session_id: str | None, replay: Replay, history: Sequence[bytes]) -> bytes:
        """Return the items of a request's input, as JSON, without the brackets around them."""
        items = list(history)
        key = (session_id, replay)
        known = self._told.find(key, items) if session_id is not None else None
        told, new = (known.made, items[len(known.items) :]) if known else (_NOTHING, items)
        taken = set(told.taken)
        written = replay.write(new, items, taken)
        joined = b",".join([told.joined, *written.items] if told.joined else written.items)
        if session_id is not None and written.is_settled:
            named = call_ids(new)
            told = _Told(
                joined,
                frozenset(taken) if taken else told.taken,
                told.call_ids | named if named else told.call_ids,
            )
            size = len(joined) + ITEM_BYTES * len(items)
            self._told.keep(key, Prefix(items, told, size))
        return joined

    def call_ids(
        self, session_id: str | None, replay: Replay, history: Sequence[bytes]
    ) -> frozenset[str] | set[str]:
        """Return the ids of the calls in a history."""
        items = list(history)
        known = self._told.find((session_id, replay), items) if session_id else None
        if known is None:
            return call_ids(items)
        if len(known.items) == len(items):
            return known.made.call_ids
        return known.made.call_ids | call_ids(items[len(known.items) :])
