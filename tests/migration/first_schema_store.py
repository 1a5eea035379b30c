"""Create stores of the first schema, which had a table for each kind of row, and describe them.

`golden/v0001.sqlite` was written by the version with this schema, at its first step. What it lacks
(compactions, undone and elided ranges, keys, journals, tenants…) is added by SQL here.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.lane import pack_items
from holdfast.core.history.history_hash import HistoryHashRow, ItemPlaceRow
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.items import StoredItem, read_item
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session, begin_session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import (
    ApiKeyRow,
    CompletionRow,
    Event,
    IdempotencyRow,
    JournalRow,
)
from holdfast.stores.postgres.dialect import TYPES
from holdfast.stores.sqlite.driver import DIALECT

FOLDER = Path(__file__).parent
GOLDEN = FOLDER / "golden/v0001.sqlite"
NOW = 1_700_000_000.0
STEPS = sorted((FOLDER / "first_schema").glob("*.sql"))
NEWER = frozenset({"merged_into", "losses", "has_failed", "started_by", "has_later_records"})
"""Fields that the first schema did not have; they have defaults."""


def _old_values(value: msgspec.Struct) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value.__struct_fields__ if name not in NEWER)


SIDE_TABLES = (
    "idempotency", "provider_state", "journals", "dropped_responses", "api_keys", "completions",
    "trails", "item_places",
)  # fmt: skip
TABLES: dict[str, type[msgspec.Struct]] = {
    "sessions": Session, "turns": Turn, "runs": Run, "items": StoredItem, "records": Record,
    "events": Event, "idempotency": IdempotencyRow, "journals": JournalRow,
    "api_keys": ApiKeyRow, "completions": CompletionRow, "trails": HistoryHashRow,
    "item_places": ItemPlaceRow,
}  # fmt: skip
FLAGS = {"is_live", "is_visible", "is_retryable", "is_partial"}

ValueT = TypeVar("ValueT", bound=msgspec.Struct)


def schema(dialect: dict[str, str]) -> list[str]:
    """Return the statements that create the first schema, all seven steps."""
    columns = "version {int} primary key, name {text} not null, applied_at {real} not null"
    texts = [f"create table schema_versions ({columns})"]
    for path in STEPS:
        text = re.sub(r"^\s*--.*$", "", path.read_text(), flags=re.MULTILINE)
        texts += [part for part in text.split(";") if part.strip()]
        number, name = path.stem.split("_", 1)
        texts.append(f"insert into schema_versions values ({int(number)}, '{name}', {NOW})")
    return [text.format_map(dialect) for text in texts]


def rows_of_a_long_life() -> dict[str, list[tuple[Any, ...]]]:
    """Return rows for every table: two tenants, a fork, records of all kinds, keys, journals."""
    values = [
        *_edited(), *_fork(), *_waiting(), *_foreign(), *_pruned(), *_tombstone(),
        IdempotencyRow(Tenant("default"), "idem", b"hash", TurnId("turn_1"), 0, NOW),
        JournalRow(TurnId("turn_1"), 0, 0, 4, SessionId("ses_edited"), b"events"),
        ApiKeyRow("key_1", Tenant("acme"), "robot", b"h" * 32, False, NOW, None),
        ApiKeyRow("key_2", Tenant("default"), "old", b"g" * 32, True, NOW, NOW + 1),
        CompletionRow(
            TurnId("turn_1"), 0, Tenant("default"), SessionId("ses_edited"), "gpt-5", b"{}", NOW
        ),
        HistoryHashRow(SessionId("ses_foreign"), 2, 0, Tenant("acme"), b"t" * 16),
        ItemPlaceRow(Tenant("acme"), "msg_1", SessionId("ses_foreign"), 1),
    ]  # fmt: skip
    rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}
    for value in values:
        table = next(name for name, kind in TABLES.items() if kind is type(value))
        rows[table].append(_old_values(value))
    rows["provider_state"] = [
        ("ses_edited", '["openai","a","gpt-5"]', "openai", "a", "gpt-5", b"resp_9", 4, NOW)
    ]
    rows["dropped_responses"] = [("turn_2", 0, "ses_edited", NOW + 2)]
    return rows


COLUMNS = {
    **{
        table: ", ".join(name for name in kind.__struct_fields__ if name not in NEWER)
        for table, kind in TABLES.items()
    },
    "provider_state": "session_id, slot, provider, account, model, value, covers_seq, saved_at",
    "dropped_responses": "turn_id, step, session_id, dropped_at",
    "trails": "session_id, seq, record_no, tenant, trail",
}
"""The columns of each table; referenced tables come first."""


def _items(session_id: str, texts: Sequence[str], *, first: int = 1) -> list[StoredItem]:
    """Return items, two to a turn."""
    items = []
    for seq, text in enumerate(texts, first):
        role = "user" if seq % 2 else "assistant"
        body = msgspec.json.encode({"type": "message", "role": role, "content": text})
        new = read_item(body)
        items.append(
            StoredItem(
                session_id, seq, (seq + 1) // 2, new.kind, f"msg_{seq}", None, new.fingerprint,
                False, body,
            )
        )  # fmt: skip
    return items


def _turn(session: Session, number: int, turn_id: str, **fields: Any) -> Turn:
    known: dict[str, Any] = {
        "id": TurnId(turn_id), "session_id": session.id, "tenant": session.tenant,
        "number": number, "position": number, "source": "user",
        "owner": WorkerId("wrk_gone"), "attempts": 1,
        "request": b"request of " + turn_id.encode(), "body_hash": b"hash",
        "first_seq": 2 * number - 1, "kept_seq": 2 * number, "last_seq": 2 * number,
        "outcome": "completed", "accepted_at": NOW + number, "started_at": NOW + number,
        "ended_at": NOW + number + 0.5,
    }  # fmt: skip
    return Turn(**{**known, **fields})


def _run(turn: Turn, epoch: int, **fields: Any) -> Run:
    known: dict[str, Any] = {
        "id": RunId(f"run_{turn.id}_{epoch}"), "turn_id": turn.id, "session_id": turn.session_id,
        "generation": 1, "epoch": epoch, "worker": turn.owner, "step": 0,
        "first_seq": turn.first_seq or 1, "last_seq": turn.last_seq, "record_no": 0,
        "outcome": turn.outcome, "started_at": NOW + epoch, "ended_at": turn.ended_at,
        "input_tokens": 7,
        "cached_tokens": 1, "output_tokens": 3, "reasoning_tokens": 2, "result": b"result",
    }  # fmt: skip
    return Run(**{**known, **fields})


def _events(session: Session, kinds: Iterable[tuple[str, str | None, float]]) -> list[Event]:
    return [
        Event(
            session.id, no, session.tenant, kind, TurnId(turn) if turn else None,
            f'{{"no":{no}}}'.encode(), NOW + at,
        )
        for no, (kind, turn, at) in enumerate(kinds, 1)
    ]  # fmt: skip


def _edited() -> list[msgspec.Struct]:
    """Return a session with each kind of record, more epochs than entries, and several runs."""
    session = replace(
        begin_session(SessionId("ses_edited"), Tenant("default"), now=NOW, key=Key("edited")),
        epoch=90, version=40, head_seq=8, record_no=7, event_no=7, turn_count=4, hidden_count=2,
        last_user_activity_at=NOW + 4, input_tokens=28, output_tokens=12, metadata=b'{"a":"b"}',
    )  # fmt: skip
    turns = [_turn(session, number, f"turn_{number}") for number in (1, 2, 3, 4)]
    turns[1] = replace(
        turns[1], outcome="failed", error_code="boom", error_message="it broke", is_retryable=True,
        step=1, attempts=2, delivered_at=NOW + 3, retry_claim=2,
    )  # fmt: skip
    runs = [
        _run(turns[0], 1),
        _run(turns[1], 2, outcome="interrupted", late=b'{"tried":"finish"}', result=None),
        _run(turns[1], 3, step=1, heals=b'[{"failure_class":"stale_state","code":"gone"}]'),
        _run(turns[2], 88),
    ]
    texts = ["one", "first", "two", "second", "three", "third", "four", "fourth"]
    record = Record(session.id, 1, "rewind", 3, 4, TurnId("turn_3"), None, None, NOW + 3)
    summary = msgspec.json.encode({"summary": "one was said"})
    records = [
        record,
        replace(record, no=2, kind="compaction", from_seq=1, to_seq=2, turn_id=None, body=summary),
        replace(record, no=3, kind="undo", from_seq=1, to_seq=2, turn_id=None, undoes=2),
        replace(record, no=4, kind="elision", from_seq=6, to_seq=6, body=b'{"bytes":9}'),
        replace(record, no=5, kind="quarantine", from_seq=7, to_seq=7, body=b'{"code":"bad"}'),
        replace(record, no=6, kind="hide", from_seq=8, to_seq=8, turn_id=None),
        replace(record, no=7, kind="undo", from_seq=8, to_seq=8, turn_id=None, undoes=6),
    ]
    kinds = [
        ("session.created", None, 0.0), ("turn.started", "turn_1", 0.0),
        ("turn.completed", "turn_1", 1.5), ("turn.started", "turn_2", 2.0),
        ("turn.failed", "turn_2", 2.5), ("items.hidden", None, 3.0),
        ("turn.completed", "turn_4", 4.5),
    ]  # fmt: skip
    events = _events(session, kinds)
    return [session, *turns, *runs, *_items(session.id, texts), *records, *events]


def _fork() -> list[msgspec.Struct]:
    session = replace(
        begin_session(SessionId("ses_fork"), Tenant("default"), now=NOW + 9),
        parent_id=SessionId("ses_edited"), parent_seq=2, parent_record=1, head_seq=4, turn_count=1,
    )  # fmt: skip
    turn = _turn(session, 1, "turn_f1", first_seq=3, kept_seq=4, last_seq=4)
    items = [replace(item, turn_number=1) for item in _items(session.id, ["here", "so"], first=3)]
    return [session, turn, _run(turn, 1), *items]


def _waiting() -> list[msgspec.Struct]:
    """Return a session with one running turn that has a partial answer, and one that waits."""
    session = replace(
        begin_session(SessionId("ses_open"), Tenant("default"), now=NOW, key=Key("open")),
        epoch=1, head_seq=1, event_no=2, turn_count=2, active_turn_id=TurnId("turn_o1"),
        active_run_id=RunId("run_turn_o1_1"), owner=WorkerId("wrk_gone"),
    )  # fmt: skip
    still: dict[str, Any] = {"outcome": None, "ended_at": None}
    runs = _turn(session, 1, "turn_o1", kept_seq=1, last_seq=1, **still)
    job = pack_items([read_item(b'{"role":"user","content":"job"}')])
    waits = _turn(
        session, 2, "turn_o2", source="background", input=job, started_at=None, first_seq=None,
        kept_seq=None, last_seq=None, **still,
    )  # fmt: skip
    half = read_item(b'{"type":"message","role":"assistant","content":"and th"}')
    run = _run(runs, 1, partial=pack_items([half]), result=None, last_seq=None)
    events = _events(session, [("turn.started", "turn_o1", 1.0), ("turn.queued", "turn_o2", 2.0)])
    return [session, runs, waits, run, *_items(session.id, ["lost"]), *events]


def _foreign() -> list[msgspec.Struct]:
    """Return a hidden session of another tenant with more content than an entry holds."""
    session = replace(
        begin_session(
            SessionId("ses_foreign"), Tenant("acme"), now=NOW, key=Key("edited"), is_visible=False
        ),
        is_live=False, retired_at=NOW + 8, head_seq=200, turn_count=100,
    )  # fmt: skip
    turns = [_turn(session, number, f"turn_a{number}") for number in range(1, 101)]
    items = _items(session.id, [f"said {number}" for number in range(1, 201)])
    big = [replace(item, turn_number=1 if item.seq <= 150 else 2) for item in items]
    return [session, *turns, *big]


def _pruned() -> list[msgspec.Struct]:
    """Return a session of which only some events are left."""
    session = replace(
        begin_session(SessionId("ses_pruned"), Tenant("default"), now=NOW), event_no=9
    )
    events = _events(session, [("session.touched", None, float(no)) for no in range(9)])
    return [session, *events[3:5], *events[6:8]]


def _tombstone() -> list[msgspec.Struct]:
    session = replace(
        begin_session(SessionId("ses_erased"), Tenant("default"), now=NOW, key=Key("erased")),
        is_live=False, deleted_at=NOW + 7, retired_at=NOW + 7, head_seq=2, turn_count=1, epoch=3,
        event_no=3, record_no=1, metadata=b"{}",
    )  # fmt: skip
    turn = replace(_turn(session, 1, "turn_e1", outcome="cancelled"), request=b"", input=None)
    return [session, turn, _run(turn, 1, result=None)]


# ── in a database ───────────────────────────────────────────────────────────────────────────


def create_file(path: Path) -> None:
    """Write a store of the first schema with all kinds of rows."""
    connection = sqlite3.connect(path)
    for statement in schema(DIALECT):
        connection.execute(statement)
    for table, rows in rows_of_a_long_life().items():
        marks = ", ".join("?" * len(COLUMNS[table].split(",")))
        connection.executemany(f"insert into {table} ({COLUMNS[table]}) values ({marks})", rows)
    connection.commit()
    connection.close()


async def copy_to_postgres(path: Path, url: str) -> None:
    """Copy the rows of a file into tables of the first schema on PostgreSQL."""
    source = sqlite3.connect(path)
    target = await asyncpg.connect(url)
    steps = source.execute("select version, name, applied_at from schema_versions").fetchall()
    try:
        for statement in schema(TYPES):
            await target.execute(statement)
        await target.execute(f"delete from schema_versions where version > {len(steps)}")
        for table, columns in COLUMNS.items():
            if not source.execute(
                "select 1 from sqlite_master where name = ?", (table,)
            ).fetchone():
                continue
            rows = source.execute(f"select {columns} from {table}").fetchall()
            await target.copy_records_to_table(table, records=rows, columns=columns.split(", "))
    finally:
        await target.close()
        source.close()


# ── what it says ────────────────────────────────────────────────────────────────────────────


class Picture(msgspec.Struct):
    """The whole content of a store, by kind."""

    sessions: list[Session]
    turns: list[Turn]
    runs: list[Run]
    items: list[StoredItem]
    records: list[Record]
    events: list[Event]
    beside: dict[str, list[Any]]


def _values(
    connection: sqlite3.Connection, table: str, kind: type[ValueT], order: str
) -> list[ValueT]:
    names = [name for name in kind.__struct_fields__ if name not in NEWER]
    rows = connection.execute(f"select {', '.join(names)} from {table} order by {order}")
    return [
        kind(*(bool(row[at]) if name in FLAGS else row[at] for at, name in enumerate(names)))
        for row in rows
    ]


def picture_of_file(path: Path) -> Picture:
    """Return the content of the old tables, read with plain SQL."""
    connection = sqlite3.connect(path)
    try:
        tables = {row[0] for row in connection.execute("select name from sqlite_master")}
        return Picture(
            _values(connection, "sessions", Session, "id"),
            _values(connection, "turns", Turn, "session_id, number"),
            _values(connection, "runs", Run, "turn_id, epoch"),
            _values(connection, "items", StoredItem, "session_id, seq"),
            _values(connection, "records", Record, "session_id, no"),
            _values(connection, "events", Event, "session_id, no"),
            {
                table: sorted(
                    connection.execute(f"select {COLUMNS[table]} from {table}").fetchall()
                )
                if table in tables
                else []
                for table in SIDE_TABLES
            },
        )
    finally:
        connection.close()
