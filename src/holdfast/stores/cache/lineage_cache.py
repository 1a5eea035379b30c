"""Cache of fork lineages: which ancestor stores which items. A lineage never changes."""

from bisect import bisect_right
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from holdfast.core.ids import SessionId
from holdfast.core.lru import SizedLru
from holdfast.core.model.records import Span

MAX_BYTES = 4 * 1024 * 1024
ANCESTOR_BYTES = 256
"""Approximate memory of one ancestor in a cached lineage."""
_NO_END = 2**62


class Part(NamedTuple):
    """An ancestor, and the items `first` to `last` that it stores for its forks."""

    session_id: SessionId
    first: int
    last: int


class Lineage:
    """A session and its ancestors, the nearest first, back to the item `since`."""

    __slots__ = ("_ends", "by_session", "entries", "parts", "since")

    def __init__(self, rows: Iterable[tuple[SessionId, int, int]], since: int) -> None:
        """Build it from rows of session id, session number and the item it was forked at."""
        self.since = since
        """The lineage is complete from this item on."""
        self.parts: list[Part] = []
        self.by_session: dict[int, Span] = {}
        """The range of items that each session stores, by the session's number."""
        self.entries: dict[int, Span] = {}
        """First and last entry of a session's whole part, by the session's number, once read."""
        last = _NO_END
        for session_id, no, parent_seq in rows:
            self.parts.append(Part(session_id, parent_seq + 1, last))
            self.by_session[no] = (parent_seq + 1, last)
            last = min(last, parent_seq)
        self._ends = [-part.last for part in self.parts]

    def between(self, first: int, last: int) -> list[Part]:
        """Return which session stores which part of a range, the newest part first.

        The number of other ancestors does not affect the cost.
        """
        parts: list[Part] = []
        for at in range(max(bisect_right(self._ends, -last) - 1, 0), len(self.parts)):
            part = self.parts[at]
            if part.last < first:
                break
            if part.first <= part.last and part.first <= last:
                parts.append(Part(part.session_id, max(first, part.first), min(last, part.last)))
        return parts


class LineageCache:
    """Recently read lineages by the session that they begin with, bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._cache: SizedLru[SessionId, Lineage] = SizedLru(max_bytes)
        # Short reads run on the event loop, others in a thread.
        self._lock = Lock()

    def find(self, session_id: SessionId, first: int) -> Lineage | None:
        """Return the cached lineage of a session if it reaches back to the item `first`."""
        with self._lock:
            cached = self._cache.get(session_id)
        return cached if cached is not None and cached.since <= first else None

    def keep(self, session_id: SessionId, lineage: Lineage) -> None:
        """Add a lineage, unless it takes more than a quarter of the cache."""
        size = ANCESTOR_BYTES * (1 + len(lineage.parts))
        if size * 4 <= self._max_bytes:
            with self._lock:
                self._cache.put(session_id, lineage, size)
