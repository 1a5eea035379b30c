"""Lines of forks: which ancestor keeps which items of a session. They never change once read."""

from bisect import bisect_right
from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from holdfast.core.ids import SessionId
from holdfast.core.lru import SizedLru
from holdfast.core.model.records import Span

MAX_BYTES = 4 * 1024 * 1024
ANCESTOR_BYTES = 256
"""About what one ancestor in a cached line costs."""
_NO_END = 2**62


class Part(NamedTuple):
    """An ancestor, and the items `first` to `last` that its line has from it."""

    session_id: SessionId
    first: int
    last: int


class Lineage:
    """A session and those whose history it continues, the nearest first, as far back as an item."""

    __slots__ = ("_ends", "by_session", "entries", "parts", "since")

    def __init__(self, rows: Iterable[tuple[SessionId, int, int]], since: int) -> None:
        """Take the sessions as rows of their id, their number and where they were forked."""
        self.since = since
        """The first item that the line is complete for."""
        self.parts: list[Part] = []
        self.by_session: dict[int, Span] = {}
        """The part of each session, by its number."""
        self.entries: dict[int, Span] = {}
        """The first and last entry of a session's whole part, by its number, once it was read."""
        last = _NO_END
        for session_id, no, parent_seq in rows:
            self.parts.append(Part(session_id, parent_seq + 1, last))
            self.by_session[no] = (parent_seq + 1, last)
            last = min(last, parent_seq)
        self._ends = [-part.last for part in self.parts]

    def between(self, first: int, last: int) -> list[Part]:
        """Return which session stores which part of a range, the newest part first.

        The other ancestors are not looked at, however many there are.
        """
        found: list[Part] = []
        for at in range(max(bisect_right(self._ends, -last) - 1, 0), len(self.parts)):
            part = self.parts[at]
            if part.last < first:
                break
            if part.first <= part.last and part.first <= last:
                found.append(Part(part.session_id, max(first, part.first), min(last, part.last)))
        return found


class LineageCache:
    """The lines that were read last, by the session that they begin with; bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._cache: SizedLru[SessionId, Lineage] = SizedLru(max_bytes)
        # Short reads are made on the event loop, others in a thread.
        self._lock = Lock()

    def find(self, session_id: SessionId, first: int) -> Lineage | None:
        """Return the line of a session if it is known as far back as the item `first`."""
        with self._lock:
            known = self._cache.get(session_id)
        return known if known is not None and known.since <= first else None

    def keep(self, session_id: SessionId, lineage: Lineage) -> None:
        """Keep a line, unless it would take more than a quarter of the cache."""
        size = ANCESTOR_BYTES * (1 + len(lineage.parts))
        if size * 4 <= self._max_bytes:
            with self._lock:
                self._cache.put(session_id, lineage, size)
