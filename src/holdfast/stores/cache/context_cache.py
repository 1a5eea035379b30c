"""Contexts of recent sessions: a turn of a busy session reads nothing from the store.

A log only grows, and everything that changes how it is shown is a numbered record. So a cached
context stays valid until a new record comes: at a later head it is the same list with the new items
appended. A record that only hides a range cuts the range out of the cached context. After any other
record the context is read from the store again. A record of another process may have erased what is
cached here, so earlier views of a log that has later records are always read from the store.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from holdfast.core.compaction.records import NOT_SHOWN
from holdfast.core.ids import SessionId
from holdfast.core.lru import SizedLru
from holdfast.core.model.items import ERASED_ITEM, StoredItem
from holdfast.core.model.records import HIDING
from holdfast.core.model.session import Session
from holdfast.core.projection.growing_list import GrowingList, SharedPrefix
from holdfast.core.transaction.changes import (
    Change,
    ContentErased,
    ItemErased,
    LogAppended,
    SummariesErased,
)

MAX_BYTES = 128 * 1024 * 1024
"""Enough for 8,000 sessions of 25 short messages."""
MAX_CONTEXT_BYTES = 16 * 1024 * 1024
"""A larger context is not cached: to read or to project it would block the event loop."""
ITEM_BYTES = 320
"""About what an item costs beside its text."""
MAX_LARGE = 256
"""How many sessions with a context that is too large are remembered."""
_NOT_AS_STORED = NOT_SHOWN | {"compaction"}
"""Items of these kinds are shown otherwise than they are stored."""
_seq = attrgetter("seq")


class CachedContext(msgspec.Struct):
    """The cached part of a session's context, up to the item `head_seq`."""

    record_no: int
    head_seq: int
    items: GrowingList[StoredItem]
    """Callers hold prefixes of it. It holds its size, and what the engine and the providers make
    of it."""
    is_plain: bool = True
    """Whether all items are shown as they are stored, and no compaction is in the records."""
    quarantined: frozenset[int] | None = None
    """The items that a provider could not process, once that was read."""


class ContextCache:
    """The contexts of the sessions that were used last, bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.limit(max_bytes)
        self._entries: OrderedDict[SessionId, CachedContext] = OrderedDict()
        self.held_bytes = 0
        """About how much memory they take."""
        self.large: OrderedDict[SessionId, None] = OrderedDict()
        """Sessions whose context is too large to be cached: it is read in a thread."""
        self.readings = TranscriptCache()
        """What clients read, who are shown the log as it is stored."""

    def limit(self, max_bytes: int) -> None:
        """Bound the memory that they take; 0 keeps no context."""
        self._max_bytes = max_bytes
        self._max_context_bytes = min(max_bytes // 2, MAX_CONTEXT_BYTES)

    def note(self, changes: Sequence[Change]) -> None:
        """Apply what was committed here: append new items, cut hidden ones, drop erased ones."""
        for change in changes:
            if not isinstance(change, LogAppended):
                self._note_erasure(change)
                continue
            session = change.session
            if change.before is None and not change.is_parent_ahead:
                self._begin(session)
            cached = self._entries.get(session.id)
            if cached is None or session.record_no < cached.record_no:
                # Changes of one commit may come in any order: a later one may hide these items.
                continue
            size = 0
            for entry in change.entries:
                for item in entry.items:
                    # Whatever does not continue what is known is read when it is needed.
                    if item.seq == cached.head_seq + 1 and item.kind not in _NOT_AS_STORED:
                        cached.items.append(item)
                        cached.head_seq = item.seq
                        size += ITEM_BYTES + 2 * len(item.body)
            cached.items.size += size
            self.held_bytes += size
            self._entries.move_to_end(session.id)
            if cached.record_no != session.record_no:
                # A record may hide items that were appended with it.
                self._apply(cached, change)
            if self.held_bytes > self._max_bytes or cached.items.size > self._max_context_bytes:
                self._make_room(session.id)

    def extend(self, session: Session, items: Sequence[StoredItem]) -> None:
        """Append items that another process has written, if they are all that is missing."""
        cached = self.find(session)
        if cached is None or session.hidden_count or cached.head_seq < session.parent_seq:
            return
        new = [item for item in items if item.seq > cached.head_seq]
        if len(new) != session.head_seq - cached.head_seq or not is_as_stored(new):
            return
        size = size_of(new)
        cached.items.extend(new)
        cached.head_seq = session.head_seq
        cached.items.size += size
        self.held_bytes += size
        self._make_room(session.id)

    def _note_erasure(self, change: Change) -> None:
        if isinstance(change, ItemErased | ContentErased | SummariesErased):
            self.drop(change.session_id)
            self.readings.drop(change.session_id)

    def _apply(self, entry: CachedContext, change: LogAppended) -> None:
        """Cut ranges out that records hide; forget a context that is changed in another way."""
        items = entry.items
        for record in [one for appended in change.entries for one in appended.records]:
            if not entry.is_plain or record.kind not in HIDING or record.no != entry.record_no + 1:
                self.drop(change.session.id)
                return
            first = bisect_left(items, record.from_seq, key=_seq)
            last = bisect_right(items, record.to_seq, key=_seq)
            freed = size_of(items[first:last])
            self.held_bytes -= freed
            entry.items = items.without(first, last)
            entry.items.size = items.size - freed
            items = entry.items
            entry.record_no = record.no

    def find(self, session: Session) -> CachedContext | None:
        """Return the known part of a session's context; None if nothing is known."""
        entry = self._entries.get(session.id)
        if entry is None or entry.record_no != session.record_no:
            return None
        if entry.head_seq > session.head_seq or session.has_later_records:
            return None
        self._entries.move_to_end(session.id)
        return entry

    def knows(self, session_id: SessionId) -> bool:
        """Whether this process has seen the session in the store."""
        return session_id in self._entries or session_id in self.large

    def whole_log(self, session: Session) -> Sequence[StoredItem] | None:
        """Return the whole log of a session as it is stored, or None if that is not cached.

        Whatever is hidden, refused or replaced in a log has a record; a log without records is its
        own context. Any thread may call this: it changes nothing, and returns a copy.
        """
        if session.record_no or session.parent_id is not None:
            return None
        cached = self._entries.get(session.id)
        if cached is None:
            return None
        # Taken before they are checked: a record that comes in between counts for later items.
        items = cached.items[: session.head_seq]
        is_whole = len(items) == session.head_seq
        return items if is_whole and not cached.record_no and cached.is_plain else None

    def quarantined(self, session: Session) -> frozenset[int] | None:
        """Return the items of a known context that are quarantined; None if that is not known."""
        entry = self._entries.get(session.id)
        return entry.quarantined if entry is not None and _fits(entry, session) else None

    def keep_quarantined(self, session: Session, seqs: frozenset[int]) -> None:
        """Remember which items of a known context are quarantined."""
        entry = self._entries.get(session.id)
        if entry is not None and _fits(entry, session):
            entry.quarantined = seqs

    def keep(
        self,
        session: Session,
        items: SharedPrefix[StoredItem],
        *,
        is_plain: bool = False,
        size: int | None = None,
    ) -> None:
        """Remember the context of a session at its head; `size` is its size, if that is known."""
        if session.has_later_records:
            return
        self.drop(session.id)
        # Who reads the context next shares its list, and with it what is made of the context.
        kept = items.shared if len(items.shared) == items.length else GrowingList(items)
        kept.size = size_of(kept) if size is None else size
        entry = CachedContext(session.record_no, session.head_seq, kept, is_plain)
        self._entries[session.id] = entry
        self.large.pop(session.id, None)
        self.held_bytes += kept.size
        self._make_room(session.id)

    def drop(self, session_id: SessionId) -> None:
        """Forget a session."""
        entry = self._entries.pop(session_id, None)
        if entry is not None:
            self.held_bytes -= entry.items.size

    def clear(self) -> dict[SessionId, int]:
        """Forget everything; return the last item of each context, the oldest context first."""
        known = {name: entry.head_seq for name, entry in self._entries.items()}
        self._entries.clear()
        self.large.clear()
        self.readings.clear()
        self.held_bytes = 0
        return known

    def _begin(self, session: Session) -> None:
        """Cache a session that was created here: empty, or a fork of a cached context."""
        if session.record_no:
            return
        if session.parent_id is None:
            self._entries[session.id] = CachedContext(0, 0, GrowingList())
            return
        parent = self._entries.get(session.parent_id)
        if parent is None or not parent.is_plain or parent.record_no != session.parent_record:
            return
        if parent.head_seq < session.parent_seq:
            return
        end = bisect_right(parent.items, session.parent_seq, key=_seq)
        inherited = parent.items.upto(end)
        # About their share: to measure every item would cost more than the rest of a fork.
        inherited.size = parent.items.size * len(inherited) // max(len(parent.items), 1)
        entry = CachedContext(0, session.parent_seq, inherited)
        entry.quarantined = parent.quarantined
        self._entries[session.id] = entry
        self.held_bytes += inherited.size
        self._make_room(session.id)

    def _make_room(self, newest: SessionId) -> None:
        """Forget the oldest contexts, and the newest one if it is too large."""
        if newest in self._entries and self._entries[newest].items.size > self._max_context_bytes:
            self.drop(newest)
            self.large[newest] = None
            if len(self.large) > MAX_LARGE:
                self.large.popitem(last=False)
        while self.held_bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.held_bytes -= oldest.items.size


def is_as_stored(items: Sequence[StoredItem]) -> bool:
    """Whether items are shown the way they are stored, as long as no record applies to them."""
    is_erased = ERASED_ITEM in [item.body for item in items]
    return not is_erased and _NOT_AS_STORED.isdisjoint([item.kind for item in items])


def _fits(entry: CachedContext, session: Session) -> bool:
    is_same = entry.record_no == session.record_no and entry.head_seq <= session.head_seq
    return is_same and not session.has_later_records


def size_of(items: Sequence[StoredItem]) -> int:
    """Return about the bytes that items take here and, as text, in a request to an upstream."""
    return sum([2 * len(item.body) + ITEM_BYTES for item in items])


# ── transcripts as clients read them ──────────────────────────────────────────────────────────

MAX_TRANSCRIPT_BYTES = 16 * 1024 * 1024
NOTHING = b"[]"


class CachedTranscript(NamedTuple):
    """The visible items of a session at a head, as a JSON list."""

    record_no: int
    head_seq: int
    listed: bytes


class TranscriptCache:
    """Whole transcripts as bytes, bounded, so that a later read only fetches the new items.

    An entry stays valid by the rule of contexts: as long as the session has no new record, its
    transcript at a later head is the cached one with the new items appended.
    """

    def __init__(self, max_bytes: int = MAX_TRANSCRIPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._readings: SizedLru[SessionId, CachedTranscript] = SizedLru(max_bytes)

    @property
    def held_bytes(self) -> int:
        """The size of all transcripts in bytes."""
        return self._readings.held

    def find(self, session: Session) -> CachedTranscript | None:
        """Return the cached transcript if it is still valid; may be called from any thread."""
        reading = self._readings.peek(session.id)
        if reading is None or reading.record_no != session.record_no:
            return None
        return reading if reading.head_seq <= session.head_seq else None

    def keep(self, session: Session, listed: bytes) -> None:
        """Add a transcript, except a fork's: its inherited items may be erased elsewhere."""
        if session.parent_id is not None:
            return
        known = self._readings.get(session.id)
        if known is not None and known[:2] >= (session.record_no, session.head_seq):
            # The cached one is as new or newer: a later read finished first.
            return
        self.drop(session.id)
        if len(listed) * 2 <= self._max_bytes:
            reading = CachedTranscript(session.record_no, session.head_seq, listed)
            self._readings.put(session.id, reading, len(listed))

    def clear(self) -> None:
        """Forget everything."""
        self._readings = SizedLru(self._max_bytes)

    def drop(self, session_id: SessionId) -> None:
        """Remove a session's transcript."""
        self._readings.pop(session_id)


def listed(bodies: Sequence[bytes], before: bytes = NOTHING) -> bytes:
    """Return items as a JSON list, appended to the list `before`; everything is copied once."""
    if not bodies:
        return before
    pieces: list[bytes | memoryview] = [*bodies]
    pieces[-1] = bodies[-1] + b"]"
    if before == NOTHING:
        pieces[0] = b"[" + pieces[0]
    else:
        pieces.insert(0, memoryview(before)[:-1])
    return b",".join(pieces)
