"""Cache the serialized input of sessions, so that only the new end of a history is serialized.

A cached input is looked up by the items that it was written from. It is cached only as far as no
later item can change it.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.projection.prefix_cache import Prefix, PrefixCache, SharedPrefix
from holdfast.providers.items.ids import call_id_of
from holdfast.providers.items.replay import Replay

MAX_BYTES = 16 * 1024 * 1024
ITEM_BYTES = 16
SHORT_PIECE = 4096
"""Shorter pieces are always joined with the next one."""


class _Serialized(msgspec.Struct, frozen=True):
    pieces: tuple[bytes, ...] = ()
    used_ids: frozenset[str] = frozenset()
    call_ids: frozenset[str] = frozenset()


_EMPTY = _Serialized()


class SerializedInputCache:
    """Serializes the input of requests to Responses servers."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._prefixes: PrefixCache[bytes, _Serialized] = PrefixCache(max_bytes)

    @property
    def held_bytes(self) -> int:
        """The approximate memory of the cache in bytes."""
        return self._prefixes.held_bytes

    def write(
        self, session_id: str | None, replay: Replay, history: Sequence[bytes]
    ) -> tuple[bytes, ...]:
        """Return a request's input items as JSON in pieces, without the enclosing brackets."""
        prefix = history if isinstance(history, SharedPrefix) else SharedPrefix(list(history))
        key = (session_id, replay)
        known = self._prefixes.find(key, prefix) if session_id is not None else None
        serialized, done, size = _EMPTY, 0, 0
        if known is not None:
            serialized, done, size = known.made, known.items.length, known.size
        used_ids = set(serialized.used_ids)
        written = replay.write(prefix.shared[done : prefix.length], prefix, used_ids)
        new = b",".join(written.items)
        pieces = append_piece(serialized.pieces, new) if new else serialized.pieces
        if session_id is not None and written.is_settled:
            call_ids = written.call_ids
            grown = _Serialized(
                pieces,
                frozenset(used_ids) if used_ids else serialized.used_ids,
                serialized.call_ids | call_ids if call_ids else serialized.call_ids,
            )
            size += len(new) + ITEM_BYTES * (prefix.length - done)
            self._prefixes.keep(key, Prefix(prefix, grown, size))
        return pieces

    def has_call(
        self, call_id: str, session_id: str | None, replay: Replay, history: Sequence[bytes]
    ) -> bool:
        """Return whether a history has a call of this id."""
        prefix = history if isinstance(history, SharedPrefix) else SharedPrefix(list(history))
        known = self._prefixes.find((session_id, replay), prefix) if session_id else None
        if known is not None and call_id in known.made.call_ids:
            return True
        done = known.items.length if known is not None else 0
        return any(call_id_of(body) == call_id for body in prefix.shared[done : prefix.length])


def append_piece(pieces: tuple[bytes, ...], new: bytes) -> tuple[bytes, ...]:
    """Append a JSON piece, keeping each piece at least twice as long as the next.

    So there are few pieces, and a short new item copies few bytes of a long history.
    """
    if not pieces:
        return (new,)
    size, kept = len(new) + 1, len(pieces)
    while kept and len(pieces[kept - 1]) < max(2 * size, SHORT_PIECE):
        kept -= 1
        size += len(pieces[kept])
    return (*pieces[:kept], b"".join((*pieces[kept:], b",", new)))
