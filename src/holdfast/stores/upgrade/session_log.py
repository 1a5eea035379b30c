"""Build the log of one session from its rows in the first schema.

Takes values and returns appends of bounded size, in log order.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.core.model.session import Session
from holdfast.core.transaction.changes import Entry, LogAppended

MAX_ENTRIES = 64
MAX_BYTES = 1024 * 1024
"""An append with more entries or bytes is split."""


class SessionLog:
    """Collects the entries of one session's log, numbered from 1.

    The counts of items, turns and events follow the entries. If rows were erased or pruned, a count
    jumps; it may do so only between two appends.
    """

    def __init__(self, session: Session) -> None:
        self._final = session
        self._before: Session | None = None
        self._version = 0
        self._seq = session.parent_seq
        self._turns = 0
        self._events = 0
        self._entries: list[Entry] = []
        self._bytes = 0

    def add(self, entry: Entry) -> Iterator[LogAppended]:
        """Add an entry; yield the append that has to be written before it, if any."""
        size = _size(entry)
        first = entry.events[0].no if entry.events else self._events + 1
        is_full = len(self._entries) >= MAX_ENTRIES or self._bytes + size > MAX_BYTES
        if is_full or first != self._events + 1:
            yield from self._take()
        self._events = first - 1 + len(entry.events)
        self._seq += len(entry.items)
        self._turns += entry.is_new_turn
        self._version += 1
        self._bytes += size
        self._entries.append(entry)

    def finish(self) -> Iterator[LogAppended]:
        """Yield the remaining append; its last entry leaves the session in its old state."""
        final = self._final
        # The epoch of the next run is the number of its entry, which must not have been used.
        while self._version < final.epoch:
            yield from self.add(Entry())
        if not self._version or self._counts() != (
            final.head_seq, final.turn_count, final.event_no
        ):  # fmt: skip
            yield from self._take()
            self._seq, self._turns = final.head_seq, final.turn_count
            self._events = final.event_no
            self._entries.append(Entry())
            self._version += 1
        yield from self._take()

    def _counts(self) -> tuple[int, int, int]:
        return self._seq, self._turns, self._events

    def _take(self) -> Iterator[LogAppended]:
        if not self._entries:
            return
        session = replace(
            self._final,
            version=self._version,
            head_seq=self._seq,
            turn_count=self._turns,
            event_no=self._events,
        )
        yield LogAppended(session, self._before, tuple(self._entries), session.created_at)
        self._before, self._entries, self._bytes = session, [], 0


def _size(entry: Entry) -> int:
    """Return the approximate size of an entry in bytes."""
    size = sum(len(item.body) for item in entry.items)
    size += sum(len(record.body or b"") for record in entry.records)
    size += sum(len(run.result or b"") for run in entry.runs)
    if entry.turn is not None and entry.is_new_turn:
        size += len(entry.turn.request)
    return size
