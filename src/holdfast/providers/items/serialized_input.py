"""Histories as one server was told them, kept so that a longer one is only told to its end.

What was written is found again by the items it was written from. A message ends what is settled:
nothing behind it changes how anything before it is written.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.projection.prefix_cache import Prefix, Prefixes, Strand
from holdfast.providers.items.ids import call_ids
from holdfast.providers.items.replay import Replay

MAX_BYTES = 16 * 1024 * 1024
ITEM_BYTES = 16
SHORT_PIECE = 4096
"""A piece that is shorter is never left alone."""


class _Told(msgspec.Struct, frozen=True):
    pieces: tuple[bytes, ...] = ()
    taken: frozenset[str] = frozenset()
    call_ids: frozenset[str] = frozenset()


_NOTHING = _Told()


class SerializedInputCache:
    """The input of requests, as bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._told: Prefixes[bytes, _Told] = Prefixes(max_bytes)

    @property
    def held_bytes(self) -> int:
        """About how much memory they take."""
        return self._told.held_bytes

    def write(
        self, session_id: str | None, replay: Replay, history: Sequence[bytes]
    ) -> tuple[bytes, ...]:
        """Return the items of a request's input, as JSON in pieces, without brackets around it."""
        strand = history if isinstance(history, Strand) else Strand(list(history))
        key = (session_id, replay)
        known = self._told.find(key, strand) if session_id is not None else None
        told, done, size = _NOTHING, 0, 0
        if known is not None:
            told, done, size = known.made, known.items.length, known.size
        taken = set(told.taken)
        written = replay.write(strand.shared[done : strand.length], strand, taken)
        new = b",".join(written.items)
        pieces = _longer(told.pieces, new) if new else told.pieces
        if session_id is not None and written.is_settled:
            named = written.call_ids
            told = _Told(
                pieces,
                frozenset(taken) if taken else told.taken,
                told.call_ids | named if named else told.call_ids,
            )
            size += len(new) + ITEM_BYTES * (strand.length - done)
            self._told.keep(key, Prefix(strand, told, size))
        return pieces

    def call_ids(
        self, session_id: str | None, replay: Replay, history: Sequence[bytes]
    ) -> frozenset[str] | set[str]:
        """Return the ids of the calls in a history."""
        strand = history if isinstance(history, Strand) else Strand(list(history))
        known = self._told.find((session_id, replay), strand) if session_id else None
        if known is None:
            return call_ids(strand)
        return known.made.call_ids | call_ids(strand[known.items.length :])


def _longer(pieces: tuple[bytes, ...], new: bytes) -> tuple[bytes, ...]:
    """Return pieces with more behind them, each twice as long as the next at least.

    So there are few of them, and hardly any byte of a long history is copied for a short answer.
    """
    if not pieces:
        return (new,)
    size, kept = len(new) + 1, len(pieces)
    while kept and len(pieces[kept - 1]) < max(2 * size, SHORT_PIECE):
        kept -= 1
        size += len(pieces[kept])
    return (*pieces[:kept], b"".join((*pieces[kept:], b",", new)))
