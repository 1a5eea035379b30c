"""Contexts of recent turns in memory: a turn of a busy session reads no items.

A log only grows, and everything that changes how it is shown is a record with a number of its own.
So what was shown at a head, under as many records, is shown again at any later head under as many,
with the new items behind it. A cache that holds to this cannot show anything out of date; whatever
does not fit is read from the store.
"""

from collections import OrderedDict
from collections.abc import Sequence

from holdfast.core.compaction.records import NOT_SHOWN
from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.session import Session
from holdfast.core.projection.prefix_cache import SharedPrefix
from holdfast.core.transaction.changes import Change, ContentErased, ItemErased, LogAppended
from holdfast.stores.cache.transcript_cache import TranscriptCache

MAX_BYTES = 24 * 1024 * 1024
ITEM_BYTES = 512
"""About what an item costs beside its body."""
_NOTED = frozenset({LogAppended, ItemErased, ContentErased})
"""Most changes are none to what is shown, and are passed over by a look at their type."""
_NOT_AS_STORED = NOT_SHOWN | {"compaction"}
"""Items of these kinds are shown otherwise than they are stored."""


class _Entry:
    __slots__ = ("head_seq", "items", "record_no", "size")

    def __init__(self, record_no: int, head_seq: int, items: list[StoredItem]) -> None:
        self.record_no = record_no
        self.head_seq = head_seq
        self.items = items
        """Only ever added to: those who were given it see what they saw."""
        self.size = _size(items)


class ContextCache:
    """The transcripts of the sessions that spoke last, bounded in bytes."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[SessionId, _Entry] = OrderedDict()
        self._bytes = 0
        self.readings = TranscriptCache()
        """What clients read, who are shown the log as it is stored."""

    @property
    def held_bytes(self) -> int:
        """About how much memory they take."""
        return self._bytes

    def note(self, changes: Sequence[Change]) -> None:
        """Apply a commit of this process: new items extend a context, erased ones drop it."""
        for change in changes:
            if type(change) not in _NOTED:
                continue
            match change:
                case LogAppended():
                    if change.before is None:
                        self._begin(change.session)
                    for entry in change.entries:
                        if entry.items:
                            self._extend(entry.items)
                case ItemErased() | ContentErased():
                    self.drop(change.session_id)
                    self.readings.drop(change.session_id)

    def find(self, session: Session) -> tuple[SharedPrefix[StoredItem], int] | None:
        """Return what is known of a session's context, and up to which item, if anything is."""
        entry = self._entries.get(session.id)
        if entry is None or not _fits(entry, session):
            return None
        self._entries.move_to_end(session.id)
        return SharedPrefix(entry.items), entry.head_seq

    def keep(self, session: Session, items: SharedPrefix[StoredItem]) -> None:
        """Remember what a session's context was at its head; what a fork shows is not its own."""
        if session.parent_id is not None:
            return
        self.drop(session.id)
        entry = _Entry(session.record_no, session.head_seq, items[:])
        if entry.size * 2 <= self._max_bytes:
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
        self._bytes = 0

    def _begin(self, session: Session) -> None:
        """A session that was made here is known from its first item on."""
        if session.parent_id is None and not session.record_no:
            self._entries[session.id] = _Entry(0, 0, [])

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
        if self._bytes > self._max_bytes:
            self._make_room()

    def _make_room(self) -> None:
        while self._bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.size


def is_as_stored(items: Sequence[StoredItem]) -> bool:
    """Whether items are shown the way they are stored, as long as no record speaks of them."""
    return _NOT_AS_STORED.isdisjoint([item.kind for item in items])


def _fits(entry: _Entry, session: Session) -> bool:
    return (
        session.parent_id is None
        and entry.record_no == session.record_no
        and entry.head_seq <= session.head_seq
    )


def _size(items: Sequence[StoredItem]) -> int:
    return sum([len(item.body) + ITEM_BYTES for item in items])
