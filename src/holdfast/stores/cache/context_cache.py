"""Contexts of recent sessions: a turn of a busy session reads nothing from the store.

A log only grows, and everything that changes how it is shown is a numbered record. So a cached
context stays valid until a new record comes: at a later head it is the same list with the new items
appended. A record that only hides a range cuts the range out of the cached context. After any other
record the context is read from the store again.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from holdfast.core.compaction.records import NOT_SHOWN
from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import HIDING, Record
from holdfast.core.model.session import Session
from holdfast.core.projection.prefix_cache import SharedPrefix
from holdfast.core.transaction.changes import (
    Change,
    ContentErased,
    ItemErased,
    LogAppended,
    SummariesErased,
)
from holdfast.stores.cache.transcript_cache import TranscriptCache

MAX_BYTES = 24 * 1024 * 1024
ITEM_BYTES = 320
"""About what an item costs beside its body."""
MAX_LARGE = 256
"""How many sessions are known to have a context that is too large."""
_NOT_AS_STORED = NOT_SHOWN | {"compaction"}
"""Items of these kinds are shown otherwise than they are stored."""
_seq = attrgetter("seq")


class _Entry:
    __slots__ = ("head_seq", "is_plain", "items", "quarantined", "record_no", "size")

    def __init__(
        self, record_no: int, head_seq: int, items: list[StoredItem], size: int, *, is_plain: bool
    ) -> None:
        self.record_no = record_no
        self.head_seq = head_seq
        self.items = items
        """Only ever appended to: callers hold prefixes of it."""
        self.is_plain = is_plain
        """Whether all items are shown as they are stored, and no compaction is in the records."""
        self.quarantined: frozenset[int] | None = None
        """The items that a provider could not process, once that was read."""
        self.size = size


class KnownContext(NamedTuple):
    """The part of a session's context that is cached, up to the item `head_seq`."""

    items: SharedPrefix[StoredItem]
    head_seq: int
    is_plain: bool


class ContextCache:
    """The contexts of the sessions that were used last, bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[SessionId, _Entry] = OrderedDict()
        self._bytes = 0
        self.large: OrderedDict[SessionId, None] = OrderedDict()
        """Sessions whose context is too large to be kept: it is read in a thread."""
        self.readings = TranscriptCache()
        """What clients read, who are shown the log as it is stored."""

    @property
    def held_bytes(self) -> int:
        """About how much memory they take."""
        return self._bytes

    def note(self, changes: Sequence[Change]) -> None:
        """Apply what was committed here: append new items, cut hidden ones, drop erased ones."""
        for change in changes:
            if isinstance(change, LogAppended):
                session, before = change.session, change.before
                if before is None:
                    self._begin(session)
                for entry in change.entries:
                    if entry.items:
                        self._extend(entry.items)
                if before is not None and before.record_no != session.record_no:
                    # A record may hide items that were appended with it.
                    self._apply(session, [one for entry in change.entries for one in entry.records])
            elif isinstance(change, ItemErased | ContentErased | SummariesErased):
                self.drop(change.session_id)
                self.readings.drop(change.session_id)

    def _apply(self, session: Session, records: Sequence[Record]) -> None:
        """Cut ranges out that records hide; forget a context that is changed in another way."""
        entry = self._entries.get(session.id)
        if entry is None:
            return
        items = entry.items
        for record in records:
            if not entry.is_plain or record.kind not in HIDING or record.no != entry.record_no + 1:
                self.drop(session.id)
                return
            first = bisect_left(items, record.from_seq, key=_seq)
            last = bisect_right(items, record.to_seq, key=_seq)
            freed = _size(items[first:last])
            entry.size -= freed
            self._bytes -= freed
            items = items[:first] + items[last:]
            entry.record_no = record.no
        entry.items = items

    def find(self, session: Session) -> KnownContext | None:
        """Return the known part of a session's context; None if nothing is known."""
        entry = self._entries.get(session.id)
        if entry is None or entry.record_no != session.record_no:
            return None
        if entry.head_seq > session.head_seq:
            return None
        self._entries.move_to_end(session.id)
        return KnownContext(SharedPrefix(entry.items), entry.head_seq, entry.is_plain)

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
        self, session: Session, items: SharedPrefix[StoredItem], *, is_plain: bool = False
    ) -> None:
        """Remember the context of a session at its head."""
        self.drop(session.id)
        # Who reads the context next shares its list, so that projections are found by identity.
        kept = items.shared if len(items.shared) == items.length else items[:]
        entry = _Entry(session.record_no, session.head_seq, kept, _size(kept), is_plain=is_plain)
        if entry.size * 2 > self._max_bytes:
            self._note_large(session.id)
            return
        self.large.pop(session.id, None)
        self._entries[session.id] = entry
        self._bytes += entry.size
        self._make_room()

    def drop(self, session_id: SessionId) -> None:
        """Forget a session."""
        entry = self._entries.pop(session_id, None)
        if entry is not None:
            self._bytes -= entry.size

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.large.clear()
        self._bytes = 0

    def _begin(self, session: Session) -> None:
        """Know a session that was created here: empty, or a fork of a known context."""
        if session.record_no:
            return
        if session.parent_id is None:
            self._entries[session.id] = _Entry(0, 0, [], 0, is_plain=True)
            return
        parent = self._entries.get(session.parent_id)
        if parent is None or not parent.is_plain or parent.record_no != session.parent_record:
            return
        if parent.head_seq < session.parent_seq:
            return
        inherited = parent.items[: bisect_right(parent.items, session.parent_seq, key=_seq)]
        # About their share: to measure every item would cost more than the rest of a fork.
        size = parent.size * len(inherited) // max(len(parent.items), 1)
        entry = _Entry(0, session.parent_seq, inherited, size, is_plain=True)
        entry.quarantined = parent.quarantined
        self._entries[session.id] = entry
        self._bytes += entry.size
        self._make_room()

    def _extend(self, items: Sequence[StoredItem]) -> None:
        session_id, last_seq = SessionId(items[0].session_id), items[-1].seq
        entry = self._entries.get(session_id)
        if entry is None or last_seq <= entry.head_seq:
            return
        grown, fits = 0, items[0].seq == entry.head_seq + 1
        for item in items:
            grown += ITEM_BYTES + len(item.body)
            fits = fits and item.kind not in _NOT_AS_STORED
        if not fits:
            self.drop(session_id)
            return
        entry.items += items
        entry.head_seq = last_seq
        entry.size += grown
        self._bytes += grown
        self._entries.move_to_end(session_id)
        if entry.size * 2 > self._max_bytes:
            self.drop(session_id)
            self._note_large(session_id)
        if self._bytes > self._max_bytes:
            self._make_room()

    def _note_large(self, session_id: SessionId) -> None:
        self.large[session_id] = None
        if len(self.large) > MAX_LARGE:
            self.large.popitem(last=False)

    def _make_room(self) -> None:
        while self._bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.size


def is_as_stored(items: Sequence[StoredItem]) -> bool:
    """Whether items are shown the way they are stored, as long as no record speaks of them."""
    return _NOT_AS_STORED.isdisjoint([item.kind for item in items])


def _fits(entry: _Entry, session: Session) -> bool:
    return entry.record_no == session.record_no and entry.head_seq <= session.head_seq


def _size(items: Sequence[StoredItem]) -> int:
    return sum([len(item.body) + ITEM_BYTES for item in items])
