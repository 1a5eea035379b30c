"""Copy a store of the first schema into a new one: `holdfast upgrade OLD NEW`.

Each session becomes a log: its items, its turns with their runs, its events and its records, each
with its old number. Turns that a killed gateway left open stay open without an owner, so that the
next gateway settles them as after any crash.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.idempotency import claim_of
from holdfast.core.errors import StoreError
from holdfast.core.model.items import StoredItem
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    Entry,
    Event,
    LateWriteNoted,
    LogAppended,
    PartialSaved,
    QueueSaved,
)
from holdfast.core.transaction.session_draft import MAX_ENTRY_BYTES, MAX_ENTRY_ITEMS
from holdfast.stores.open import MEMORY, check_known, sqlite_path
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.change_writer import writes
from holdfast.stores.sql.entries import session_no
from holdfast.stores.sql.plan import Ask
from holdfast.stores.upgrade.databases import NewStore, Row, Source
from holdfast.stores.upgrade.old_tables import JOURNALS, SIDE_TABLES, OldStore, SideTable
from holdfast.stores.upgrade.sqlite_files import SqliteSource, SqliteTarget

MAX_ENTRIES = 64
MAX_BYTES = 1024 * 1024
"""An append with more entries or bytes is split."""
Progress = Callable[[int], None]
"""Called after each session with the number of all sessions."""


class Copied(msgspec.Struct):
    """Counts of what was copied."""

    sessions: int = 0
    turns: int = 0
    runs: int = 0
    items: int = 0
    records: int = 0
    events: int = 0
    api_keys: int = 0


async def upgrade(old_url: str, new_url: str, progress: Progress) -> Copied:
    """Copy the whole old store into a new one, which is created completely or not at all."""
    source = _source(old_url)
    try:
        target = _target(new_url)
        old = OldStore(source)
        await old.check()
        try:
            await target.begin()
            copied = await _Copy(old, target).run(progress)
            await target.finish()
        except BaseException:
            await target.abandon()
            raise
    finally:
        await source.close()
    return copied


def _source(url: str) -> Source:
    if url.startswith("sqlite:"):
        return SqliteSource(sqlite_path(url))
    _check_upgradable(url)
    from holdfast.stores.upgrade.postgres_databases import PostgresSource

    return PostgresSource(url)


def _target(url: str) -> NewStore:
    if url.startswith("sqlite:"):
        return SqliteTarget(sqlite_path(url))
    _check_upgradable(url)
    from holdfast.stores.upgrade.postgres_databases import PostgresNewStore

    return PostgresNewStore(url)


def _check_upgradable(url: str) -> None:
    check_known(url)
    if url == MEMORY:
        raise StoreError("a store in memory ends with its process: name a file or a database")


class _Copy:
    """The state of one upgrade."""

    def __init__(self, old: OldStore, target: NewStore) -> None:
        self._old = old
        self._target = target
        self._copied = Copied()

    async def run(self, progress: Progress) -> Copied:
        total = await self._old.count_sessions()
        for table in SIDE_TABLES:
            await self._copy_table(table)
        async for session in self._old.sessions():
            await self._copy_session(session)
            self._copied.sessions += 1
            progress(total)
        return self._copied

    async def _copy_table(self, table: SideTable) -> None:
        async for rows in self._old.side_rows(table):
            await self._target.write([(table.insert, _parameters(table, row)) for row in rows])
            if table.name == "api_keys":
                self._copied.api_keys += len(rows)

    async def _copy_session(self, session: Session) -> None:
        log = SessionLog(session)
        beside: list[Ask] = []
        async for entry in self._entries(session):
            for append in log.add(entry):
                await self._target.write([*writes([append]), *beside])
                beside.clear()
            if entry.is_new_turn and entry.turn is not None:
                beside += _rows_beside(session, entry.turn, entry.runs)
        for append in log.finish():
            await self._target.write(writes([append]))
        # A partial stream is stored only for a run that has its lane, which is written by now.
        await self._target.write(beside)

    async def _entries(self, session: Session) -> AsyncIterator[Entry]:
        """Return the entries of a session: its items, turns, events and records."""
        async for entry in self._item_entries(session):
            yield entry
        async for entry in self._turn_entries(session):
            yield entry
        async for entry in self._event_entries(session):
            yield entry
        async for record in self._old.records(session.id):
            self._copied.records += 1
            yield Entry(records=[record])

    async def _item_entries(self, session: Session) -> AsyncIterator[Entry]:
        """Return the items, grouped by turn; erased content is omitted."""
        items: list[StoredItem] = []
        size, seq = 0, session.parent_seq
        async for item in self._old.items(session.id):
            seq += 1
            if item.seq != seq:
                raise _gap(session, "item", seq)
            is_full = len(items) >= MAX_ENTRY_ITEMS or size >= MAX_ENTRY_BYTES
            if items and (is_full or items[-1].turn_number != item.turn_number):
                yield Entry(items=items)
                items, size = [], 0
            items.append(item)
            size += len(item.body)
            self._copied.items += 1
        if items:
            yield Entry(items=items)
        if seq != session.head_seq and session.deleted_at is None:
            raise _gap(session, "item", seq + 1)

    async def _turn_entries(self, session: Session) -> AsyncIterator[Entry]:
        """Return the turns in their final state, with all their runs."""
        number = 0
        async for turn in self._old.turns(session.id):
            number += 1
            if turn.number != number:
                raise _gap(session, "turn", number)
            runs = await self._old.runs(turn.id)
            self._copied.turns += 1
            self._copied.runs += len(runs)
            yield Entry(turn=turn, is_new_turn=True, runs=runs)
        if number != session.turn_count:
            raise _gap(session, "turn", number + 1)

    async def _event_entries(self, session: Session) -> AsyncIterator[Entry]:
        """Return the events; those in one entry share its time, and its turn if it has one."""
        entry = Entry()
        async for event in self._old.events(session.id):
            self._copied.events += 1
            if entry.events and not _belongs(event, entry.events):
                yield entry
                entry = Entry(turn=entry.turn, runs=entry.runs)
            if event.turn_id != entry.turn_id:
                entry = await self._about(session, event)
            entry.events.append(event)
        if entry.events:
            yield entry

    async def _about(self, session: Session, event: Event) -> Entry:
        """Return an entry for an event; entries of a running turn include its run."""
        if event.turn_id is None:
            return Entry()
        turn = await self._old.turn(event.turn_id)
        if turn is None or turn.session_id != session.id:
            raise StoreError(
                f"event {event.no} of session {session.id} is about turn {event.turn_id}, "
                "which is not there: the old store is damaged"
            )
        runs: list[Run] = []
        if turn.id == session.active_turn_id:
            runs = [run for run in await self._old.runs(turn.id) if run.id == session.active_run_id]
        return Entry(turn=turn, runs=runs)


def _belongs(event: Event, others: Sequence[Event]) -> bool:
    """Whether an event can share an entry with others."""
    last = others[-1]
    return (
        (event.turn_id, event.at, event.no) == (last.turn_id, last.at, last.no + 1)
        and len(others) < MAX_ENTRY_ITEMS
    )  # fmt: skip


def _rows_beside(session: Session, turn: Turn, runs: Sequence[Run]) -> list[Ask]:
    """Return the rows of a turn and its runs that are stored outside the log."""
    changes: list[Change] = []
    if turn.is_open and turn.id != session.active_turn_id:
        changes.append(QueueSaved(turn))
    for run in runs:
        if run.partial is not None and run.id == session.active_run_id:
            changes.append(PartialSaved(session.id, run.id, run.partial))
        if run.late is not None:
            changes.append(LateWriteNoted(run.id, turn.id, session.id, run.late))
    asks = writes(changes)
    if turn.delivered_at is not None:
        asks.append((sql.MARK_DELIVERED, (turn.id, turn.step, turn.delivered_at)))
    if turn.retry_claim:
        # The old schema stored the highest count: every count up to it is claimed.
        claims = claim_of(turn.retry_claim + 1) - 1
        asks.append((sql.CLAIM_RETRY, (turn.id, turn.step, claims)))
    return asks


def _parameters(table: SideTable, row: Row) -> tuple[object, ...]:
    """Return a row as parameters of its insert; journals also get the session's number."""
    if table is JOURNALS:
        session_id = row[table.columns.index("session_id")]
        return (*row, session_no(session_id))
    return tuple(row)


def _gap(session: Session, kind: str, number: int) -> StoreError:
    return StoreError(
        f"session {session.id} lacks {kind} {number}: the old store is damaged; restore the "
        "latest backup and copy that"
    )


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
