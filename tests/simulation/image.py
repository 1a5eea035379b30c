"""The durable state, read back as plain rows, with simple queries."""

import hashlib
import zlib
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import (
    ContentErased,
    Decision,
    Event,
    IdempotencyRow,
    ItemErased,
    SummariesErased,
)
from tests.simulation.disk import Disk, Written
from tests.store_tables import Tables
from tests.written_rows import ItemsAdded, RecordAdded, rows_of

HIDING = {"rewind", "rollback", "retry", "hide", "pop", "move"}


@dataclass(frozen=True, slots=True)
class Gone:
    """Items and summaries that had been erased at some time, by session and number."""

    items: frozenset[tuple[str, int]] = frozenset()
    summaries: frozenset[tuple[str, int]] = frozenset()


@dataclass(frozen=True)
class Image:
    """Every row of the store."""

    sessions: dict[str, Session]
    turns: dict[str, Turn]
    runs: dict[str, Run]
    items: dict[str, list[StoredItem]]
    records: dict[str, list[Record]]
    events: dict[str, list[Event]]
    idempotency: list[IdempotencyRow]
    provider_state: list[tuple[Any, ...]]
    workers: list[str]
    touched: list[tuple[str, str, int]]
    """Rewritten history, except what a request erased."""
    erased: set[tuple[str, int]]
    """Items that a request erased, by session and number. `items` has them as they were."""
    gone: list[tuple[int, Gone]]
    """What had been erased after each erasure, by its place in the journal; first, nothing."""
    dump: list[tuple[str, bytes]]
    """Every value of every table, with its place, if anything was erased."""
    indexed: list[tuple[str, int]]
    """The items that the search index has, by session and number."""
    schedules: list[ScheduleRow]
    schedule_runs: list[ScheduleRunRow]
    now: float

    def log(self, session: Session, upto: int | None = None) -> list[StoredItem]:
        """Return a session's whole log, its parents' part first."""
        upto = session.head_seq if upto is None else upto
        own = [item for item in self.items.get(session.id, []) if item.seq <= upto]
        parent = self.sessions.get(session.parent_id or "")
        if parent is None:
            return own
        return [*self.log(parent, min(upto, session.parent_seq)), *own]

    def hidden(self, session: Session, upto_record: int | None = None) -> set[int]:
        """Return the sequence numbers that records hide, by the simplest computation."""
        last = session.record_no if upto_record is None else upto_record
        found: set[int] = set()
        for record in self.records.get(session.id, []):
            if record.no <= last and record.kind in HIDING:
                found.update(range(record.from_seq, record.to_seq + 1))
        parent = self.sessions.get(session.parent_id or "")
        if parent is not None:
            inherited = self.hidden(parent, session.parent_record)
            found.update(seq for seq in inherited if seq <= session.parent_seq)
        return found

    def visible(self, session: Session) -> list[StoredItem]:
        """Return the items that a model may see."""
        hidden = self.hidden(session)
        return [item for item in self.log(session) if item.seq not in hidden]

    def turns_of(self, session: Session) -> list[Turn]:
        """Return a session's turns by number."""
        found = [turn for turn in self.turns.values() if turn.session_id == session.id]
        return sorted(found, key=lambda turn: turn.number)

    def runs_of(self, session_id: str) -> list[Run]:
        """Return a session's runs by epoch."""
        found = [run for run in self.runs.values() if run.session_id == session_id]
        return sorted(found, key=lambda run: run.epoch)

    def digest(self) -> str:
        """Return a short hash of the durable state."""
        parts = [
            self.sessions, self.turns, self.runs, self.items, self.records, self.events,
            self.idempotency, self.workers,
        ]  # fmt: skip
        encoded = msgspec.json.encode(parts, order="deterministic")
        return hashlib.blake2b(encoded, digest_size=12).hexdigest()


def read_image(disk: Disk) -> Image:
    """Return every row, as it would be found after a crash now."""
    tables = disk.tables()
    erased = Erased(disk.journal)
    erased.restore(tables)
    idempotency = disk.rows(
        f"select {', '.join(IdempotencyRow.__struct_fields__)} from idempotency "
        "order by tenant, key"
    )
    return Image(
        sessions=tables.sessions,
        turns=dict(sorted(tables.turns.items())),
        runs=dict(sorted(tables.runs.items())),
        items=tables.items,
        records=tables.records,
        events=tables.events,
        idempotency=[IdempotencyRow(*row) for row in idempotency],
        provider_state=disk.rows("select session_id, slot, value, covers_seq from provider_state"),
        workers=[row[0] for row in disk.rows("select id from workers order by id")],
        touched=[
            row
            for row in disk.rows("select what, session_id, at from sim_touched")
            if not erased.explains(*row)
        ],
        erased=erased.items,
        gone=erased.gone,
        dump=_dump(disk) if erased.items or erased.has_deletions else [],
        indexed=disk.rows(
            "select s.id, l.seq - i.back from search_items i left join log l on l.pos = i.pos "
            "left join sessions s on s.no = l.session where i.back >= 0"  # no rows of keys
        ),
        schedules=[
            ScheduleRow(**dict(zip(ScheduleRow.__struct_fields__, row, strict=True)))
            for row in disk.rows(_select(ScheduleRow, "schedules"))
        ],
        schedule_runs=[
            ScheduleRunRow(**dict(zip(ScheduleRunRow.__struct_fields__, row, strict=True)))
            for row in disk.rows(_select(ScheduleRunRow, "schedule_runs"))
        ],
        now=disk.clock.now(),
    )


def _select(row_type: type[msgspec.Struct], table: str) -> str:
    return f"select {', '.join(row_type.__struct_fields__)} from {table} order by 1, 2"


def _dump(disk: Disk) -> list[tuple[str, bytes]]:
    """Return every text and blob of the store, with its table and column."""
    names = disk.rows(
        "select name from sqlite_master where type = 'table' and name not like 'search_text%'"
    )
    return [
        (f"{table}.{column}", value.encode() if isinstance(value, str) else inflated(value))
        for (table,) in sorted(names)
        for column in [row[1] for row in disk.rows(f"pragma table_info({table})")]
        for (value,) in disk.rows(f"select {column} from {table}")
        if isinstance(value, str | bytes)
    ]


def inflated(value: bytes) -> bytes:
    """Return a blob as it is, or unpacked if it is compressed."""
    try:
        return zlib.decompress(value)
    except zlib.error:
        return value


class Erased:
    """What requests have erased, according to the journal."""

    def __init__(self, journal: list[Written]) -> None:
        self.items: set[tuple[str, int]] = set()
        self.has_deletions = False
        self.gone = [(-1, Gone())]
        self._summaries: set[tuple[str, int]] = set()
        self._added: list[ItemsAdded] = []
        self._records: dict[tuple[str, int], Record] = {}
        self._turns: set[tuple[str, int]] = set()
        for place, written in enumerate(journal):
            if isinstance(written.result, Decision):
                self._add(written.result)
            if len(self.items) > len(self.gone[-1][1].items):
                known = Gone(frozenset(self.items), frozenset(self._summaries))
                self.gone.append((place, known))
        for item in (item for row in self._added for item in row.items):
            if (item.session_id, item.seq) in self.items:
                self._turns.add((item.session_id, item.turn_number))

    def _add(self, decision: Decision[Any]) -> None:
        for change in rows_of(decision.changes):
            match change:
                case ItemErased():
                    self.items.add((change.session_id, change.seq))
                case SummariesErased():
                    self._summaries |= {
                        name for name, record in self._records.items()
                        if name[0] == change.session_id and record.kind == "compaction"
                        and record.from_seq <= change.to_seq and record.to_seq >= change.from_seq
                    }  # fmt: skip
                case ContentErased():
                    self.has_deletions = True
                case ItemsAdded():
                    self._added.append(change)
                case RecordAdded():
                    self._records[change.record.session_id, change.record.no] = change.record
                case _:
                    pass

    def restore(self, tables: Tables) -> None:
        """Put erased items and summaries back, as models saw them before."""
        if not self.items:
            return
        written = {(item.session_id, item.seq): item for row in self._added for item in row.items}
        for items in tables.items.values():
            for place, item in enumerate(items):
                name = (item.session_id, item.seq)
                items[place] = written[name] if name in self.items else item
        for records in tables.records.values():
            for place, record in enumerate(records):
                records[place] = self._records.get((record.session_id, record.no), record)

    def explains(self, what: str, session_id: str, at: int) -> bool:
        """Whether a change of the history is that of an erasure, and of nothing but content."""
        match what:
            case "item blanked":
                return (session_id, at) in self.items
            case "summary blanked":
                return (session_id, at) in self._summaries
            case "input blanked":
                return (session_id, at) in self._turns
            case _:
                return False
