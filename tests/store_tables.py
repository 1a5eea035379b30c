"""Read a store's log with plain SQL: the only place in tests that depends on the schema."""

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import Event
from holdfast.stores.sql.entries import (
    IDENTITY,
    read_body,
    read_events,
    read_records,
    read_run,
    read_session,
    read_turn,
    session_no,
    unpack_entries,
)


@dataclass
class Tables:
    """Every session, turn, run, item, record and event of a store."""

    sessions: dict[str, Session] = field(default_factory=dict)
    turns: dict[str, Turn] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    items: dict[str, list[StoredItem]] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    lanes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Turn, run, owner and hold of each lane in use, by session."""
    queues: dict[str, list[str]] = field(default_factory=dict)
    """The turns that wait, by session, in order."""

    @property
    def open_turns(self) -> list[str]:
        """The turns that have not ended."""
        return [turn.id for turn in self.turns.values() if turn.is_open]

    @property
    def open_runs(self) -> list[str]:
        """The runs that have not ended."""
        return [run.id for run in self.runs.values() if run.outcome is None]

    @property
    def every_item(self) -> list[StoredItem]:
        """The items of all logs."""
        return [item for listed in self.items.values() for item in listed]


class _Beside:
    """The rows outside the log, by their key."""

    def __init__(self, rows: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self.late = dict(rows("select run, body from late_writes"))
        self.partials = dict(rows("select run, body from partials"))
        self.inputs = dict(rows("select turn, input from queue"))
        marks = rows("select turn, step, delivered_at, retry_claim from deliveries")
        self.marks = {row[0]: row[1:] for row in marks}
        self.requests = dict(rows("select turn, request from log where request is not null"))


def read_tables(connection: sqlite3.Connection) -> Tables:
    """Return the logs of every session, and the rows outside them."""

    def rows(text: str) -> list[tuple[Any, ...]]:
        return connection.execute(text).fetchall()

    tables, beside = Tables(), _Beside(rows)
    identities = {
        row[0]: row[1:]
        for row in rows(f"select no, {', '.join(IDENTITY)} from sessions order by id")
    }
    for row in rows(
        "select session, n, at, turn, seq, turns, events, head, body, items from log "
        "order by session, n"
    ):
        identity = identities[row[0]]
        assert row[0] == session_no(identity[0])
        _read_entry(tables, beside, SessionId(identity[0]), Tenant(identity[1]), row)
        _, n, _, turn, seq, turns, events, head, _, _ = row
        tables.sessions[identity[0]] = read_session((*identity, n, seq, turns, events, turn, head))
    names = {no: identity[0] for no, identity in identities.items()}
    for no, *lane in rows("select session, turn, run, owner, hold_until from lanes"):
        tables.lanes[names[no]] = tuple(lane)
    for no, turn in rows("select session, turn from queue order by session, position"):
        tables.queues.setdefault(names[no], []).append(turn)
    tables.sessions = dict(sorted(tables.sessions.items()))
    return tables


def _read_entry(
    tables: Tables, beside: _Beside, session_id: SessionId, tenant: Tenant, row: tuple[Any, ...]
) -> None:
    _, _, at, turn_id, seq, _, last, _, body, items = row
    if turn_id is not None:
        mark = beside.marks.get(turn_id, (None, None, None))
        request, packed = beside.requests.get(turn_id), beside.inputs.get(turn_id)
        tables.turns[turn_id] = read_turn(
            (session_id, tenant, turn_id, body, request, packed, *mark)
        )
    for state in read_body(body, turn_id).runs:
        tables.runs[state.id] = read_run(
            state, TurnId(turn_id), session_id, partial=beside.partials.get(state.id),
            late=beside.late.get(state.id),
        )  # fmt: skip
    if items is not None:
        listed = unpack_entries([(seq, items)], session_id, 0, 2**62)
        tables.items.setdefault(session_id, []).extend(listed)
    for record in read_records(body, session_id):
        tables.records.setdefault(session_id, []).append(record)
    for event in read_events(body, session_id, tenant, turn_id, last, at):
        tables.events.setdefault(session_id, []).append(event)
