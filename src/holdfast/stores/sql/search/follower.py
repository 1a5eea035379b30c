"""Follow the log: read entries that are not indexed yet, split them into terms, write the index."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core.ids import WorkerId
from holdfast.core.search.analysis import terms
from holdfast.core.search.item_text import item_text
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import (
    ActiveSession,
    IndexedItem,
    IndexLog,
    RemovedItems,
)
from holdfast.stores.sql.entries import read_body, read_items
from holdfast.stores.sql.plan import Ask, Plan, Row, every, one
from holdfast.stores.sql.search import statements as sql
from holdfast.stores.sql.search.terms import (
    BLOCK_BITS,
    KEY_BACK,
    LONG,
    key_terms,
    role_term,
    scope_terms,
)
from holdfast.stores.sql.statements import COUNTS

READ_ROWS = 64
"""Entries that are read and split into terms at once, on the event loop if they are short."""
MAX_INLINE_BYTES = 32 * 1024
"""The most bytes of items that are split on the event loop, which takes about 1 ms."""
MAX_READ_BYTES = 512 * 1024
"""The bytes of items after which a batch is full. Turns wait while a batch is written."""
MAX_PLACES, MAX_REPETITIONS = 16_000, 250
"""The most term positions that PostgreSQL stores for an item, and for one of its terms."""
_ERASED = b"is_erased"
_FIRST_ENTRY = 1
"""The number of the entry that began a session."""


class BacklogSlice(NamedTuple):
    """Some of the next entries, and the position that they come after."""

    rows: list[Row]
    after: tuple[int, int]

    def size(self) -> int:
        """Return the bytes of the items."""
        return sum(len(row[5]) for row in self.rows if row[5] is not None)


def read_slice(after: tuple[int, int] | None, limit: int) -> Plan[BacklogSlice]:
    """Return entries after a position, by default after the indexed ones."""
    if after is None:
        cursor = yield from one(sql.CURSOR)
        after = (cursor[0], cursor[1]) if cursor else (0, 0)
    return BacklogSlice((yield from every(sql.BACKLOG, *after, limit)), after)


def count_backlog() -> Plan[int]:
    """Return how many positions of the log are not indexed yet."""
    row = yield from one(sql.CURSOR)
    newest = yield from one(sql.NEWEST)
    return max((newest[0] if newest else 0) - (row[1] if row else 0), 0)


class BacklogBatch:
    """Entries that are indexed in one transaction, split into terms."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._after = (0, 0)
        self.upto: tuple[int, int] | None = None
        """The position of the last entry."""
        self._has_more = True
        self._items: list[IndexedItem] = []
        self._removed: list[RemovedItems] = []
        self._active: dict[int, ActiveSession] = {}
        self._deleted: set[int] = set()

    def wanted(self) -> int:
        """Return how many entries to read next; 0 if the batch is full or no more are waiting."""
        is_open = self._has_more and self._size < MAX_READ_BYTES
        return min(READ_ROWS, self._limit) if is_open else 0

    def add(self, part: BacklogSlice) -> None:
        """Add entries, as many as were wanted or all that were waiting."""
        self._has_more = len(part.rows) == self.wanted()
        if not part.rows:
            return
        if self.upto is None:
            self._after = part.after
        self._limit -= len(part.rows)
        self._size += part.size()
        self.upto = (part.rows[-1][0], part.rows[-1][1])
        active = self._active
        for _, pos, session, n, at, packed, body, tenant, key, deleted_at in part.rows:
            if deleted_at is not None:
                # Erasing deletes indexed items; this removes those being indexed meanwhile.
                self._deleted.add(session)
                continue
            session_activity = active.get(session)
            if session_activity is None or session_activity.at < at:
                active[session] = ActiveSession(session, tenant, at)
            if n == _FIRST_ENTRY and key is not None:
                self._items.append(IndexedItem(pos, KEY_BACK, key_terms(tenant, key), at))
            if packed is not None:
                self._items += _indexed_items(pos, at, packed, scope_terms(tenant, key, session))
            if body is not None and _ERASED in body:
                self._removed += _erased_ranges(session, n, bytes(body))

    def command(self, worker: WorkerId) -> IndexLog | None:
        """Return the command that indexes the entries, or None if there are none."""
        if self.upto is None:
            return None
        return IndexLog(
            worker=worker,
            after=self._after,
            upto=self.upto,
            items=tuple(self._items),
            active=tuple(self._active[session] for session in sorted(self._active)),
            removed=tuple(self._removed),
            deleted=tuple(sorted(self._deleted)),
            has_more=self._has_more,
        )


def _indexed_items(pos: int, at: float, packed: bytes, scope: str) -> list[IndexedItem]:
    listed = read_items(packed).listed
    items: list[IndexedItem] = []
    back = len(listed)
    for state in listed:
        back -= 1
        found = item_text(state.body)
        if found is not None:
            words = terms(found.text)
            text = f"{scope} {role_term(found.role)} {' '.join(words)}"
            if len(words) > MAX_REPETITIONS and _is_long(words):
                text = f"{text} {LONG}"
            items.append(IndexedItem(pos, back, text, at))
    return items


def _is_long(words: Sequence[str]) -> bool:
    """Whether an item has more term positions than PostgreSQL stores, in all or for one term."""
    return len(words) > MAX_PLACES or max(Counter(words).values()) > MAX_REPETITIONS


def _erased_ranges(session: int, n: int, body: bytes) -> Iterable[RemovedItems]:
    for kind, _, event in read_body(body).events:
        if kind == "items.hidden" and event is not None:
            record = msgspec.json.decode(event)
            if record.get("is_erased"):
                yield RemovedItems(session, n, record["from_seq"], record["to_seq"])


def index_log(command: IndexLog) -> Plan[tuple[Decision[bool], list[Ask]]]:
    """Return the statements that index entries, unless another follower has indexed them."""
    cursor = yield from one(sql.CURSOR)
    row = (yield from one(sql.LOCKED_CURSOR)) if cursor else (0, 0, 0)
    position = (row[0], row[1]) if row else None
    if row is None or position != command.after:
        return Decision(position == command.upto), []
    asks: list[Ask] = []
    # Numbered here instead of by the database: blocks have no gaps, and no number is reused.
    last_id: int = row[2]
    if command.items:
        asks.append((sql.ADD_ITEMS, (msgspec.json.encode(command.items).decode(), last_id)))
        asks += _block_times(command.items, last_id + 1)
    if command.active:
        asks.append((sql.SAVE_ACTIVITY, (msgspec.json.encode(command.active).decode(),)))
    # Last: the batch may have items that were read before they were erased.
    for erased in command.removed:
        first = yield from _first_entry(erased.session, erased.n, erased.from_seq)
        last = yield from _first_entry(erased.session, erased.n, erased.to_seq)
        numbers = (first, last, erased.from_seq, erased.to_seq)
        asks.append((sql.REMOVE_ITEMS, (erased.session, *numbers)))
    for session in command.deleted:
        asks += [(sql.REMOVE_SESSION, (session,)), (sql.REMOVE_ACTIVITY, (session,))]
    asks.append((sql.SAVE_CURSOR, (*command.upto, last_id + len(command.items))))
    return Decision(True), asks


def _first_entry(session: int, high: int, seq: int) -> Plan[int]:
    """Return the number of the first entry, up to `high`, after which a session has `seq` items."""
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        counts = yield from one(COUNTS, session, middle)
        if counts is not None and counts[0] >= seq:
            high = middle
        else:
            low = middle
    return high


def _block_times(items: Sequence[IndexedItem], first_id: int) -> list[Ask]:
    """Return the statements that extend the time ranges of blocks to include their new items."""
    asks: list[Ask] = []
    index = 0
    while index < len(items):
        block = (first_id + index) >> BLOCK_BITS
        end = ((block + 1) << BLOCK_BITS) - first_id
        times = [item.at for item in items[index:end]]
        asks.append((sql.SAVE_BLOCK, (block, min(times), max(times))))
        index = end
    return asks
