"""Histories as one server was told them, kept so that a longer one is only told to its end.

What was written is found again by the items it was written from. A message ends what is settled:
nothing behind it changes how anything before it is written.
"""

from collections.abc import Hashable, Sequence

import msgspec

from holdfast.core.prefixes import Prefix, Prefixes
from holdfast.providers.names import call_ids
from holdfast.providers.replay import Replay, is_message

MAX_BYTES = 16 * 1024 * 1024
ITEM_BYTES = 16
_REFERENCE = b'"item_reference"'


class _Told(msgspec.Struct, frozen=True):
    joined: bytes = b""
    taken: frozenset[str] = frozenset()
    call_ids: frozenset[str] = frozenset()


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
        key = _key(session_id, replay)
        known = self._told.find(key, items) if session_id is not None else None
        told, done, size = (known.made, len(known.items), known.size) if known else (_Told(), 0, 0)
        new = items[done:]
        taken = set(told.taken)
        written = replay.write(new, items, taken)
        joined = b",".join([told.joined, *written.items] if told.joined else written.items)
        is_settled = bool(written.sources) and written.sources[-1] == len(new) - 1
        if session_id is not None and is_settled and _ends(new):
            told = _Told(joined, frozenset(taken), told.call_ids | call_ids(new))
            size = len(joined) + ITEM_BYTES * len(items)
            self._told.keep(key, Prefix(items, told, size))
        return joined

    def call_ids(
        self, session_id: str | None, replay: Replay, history: Sequence[bytes]
    ) -> frozenset[str] | set[str]:
        """Return the ids of the calls in a history."""
        items = list(history)
        known = self._told.find(_key(session_id, replay), items) if session_id else None
        if known is None:
            return call_ids(items)
        if len(known.items) == len(items):
            return known.made.call_ids
        return known.made.call_ids | call_ids(items[len(known.items) :])


def _key(session_id: str | None, replay: Replay) -> Hashable:
    return session_id, replay


def _ends(new: list[bytes]) -> bool:
    """Whether the last item settles all before it; a reference may find what comes later."""
    return is_message(new[-1]) and not any(_REFERENCE in body for body in new)
