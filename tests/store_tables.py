"""The rows that a store's log stands for, read with plain SQL: the one place that knows the schema."""

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
    unpack_items,
)

Execute = Callable[[str], Any]


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
    """Turn, run, owner and hold of each lane that is taken, by session."""
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


def read_tables(connection: sqlite3.Connection) -> Tables:
    """Return what is in the log of every session, and what stands beside it."""

    def rows(text: str) -> list[tuple[Any, ...]]:
        return connection.execute(text).fetchall()

    tables = Tables()
    late = dict(rows("select run, body from late_writes"))
    partials = dict(rows("select run, body from partials"))
    inputs = dict(rows("select turn, input from queue"))
    marks = {row[0]: row[1:] for row in rows(
        "select turn, step, delivered_at, retry_claim from deliveries")}  # fmt: skip
    requests = dict(rows("select turn, request from log where request is not null"))
    identities = {row[0]: row[1:] for row in rows(
        f"select no, {', '.join(IDENTITY)} from sessions order by id")}  # fmt: skip
    log: dict[int, list[tuple[Any, ...]]] = {no: [] for no in identities}
    for row in rows(
        "select session, n, at, turn, seq, turns, events, head, body, items from log "
        "order by session, n"
    ):
        log[row[0]].append(row)
    for no, identity in identities.items():
        session_id, tenant = SessionId(identity[0]), Tenant(identity[1])
        assert no == session_no(session_id)
        for _, _, at, turn_id, seq, _, last, _, body, items in log[no]:
            _read_turn(tables, session_id, tenant, turn_id, body, inputs, requests, marks)
            for state in read_body(body).runs:
                tables.runs[state.id] = read_run(
                    state, TurnId(turn_id), session_id, partial=partials.get(state.id),
                    late=late.get(state.id),
                )  # fmt: skip
            if items is not None:
                listed = unpack_items(items, session_id, seq, 0, 2**62)
                tables.items.setdefault(session_id, []).extend(listed)
            for record in read_records(body, session_id):
                tables.records.setdefault(session_id, []).append(record)
            for event in read_events(body, session_id, tenant, turn_id, last, at):
                tables.events.setdefault(session_id, []).append(event)
        if log[no]:
            _, n, _, _, seq, turns, events, head, _, _ = log[no][-1]
            tables.sessions[session_id] = read_session((*identity, n, seq, turns, events, head))
    names = {no: identity[0] for no, identity in identities.items()}
    for no, *lane in rows("select session, turn, run, owner, hold_until from lanes"):
        tables.lanes[names[no]] = tuple(lane)
    for no, turn in rows("select session, turn from queue order by session, position"):
        tables.queues.setdefault(names[no], []).append(turn)
    return tables


def _read_turn(
    tables: Tables, session_id: SessionId, tenant: Tenant, turn_id: str | None, body: bytes,
    inputs: dict[str, bytes], requests: dict[str, bytes], marks: dict[str, tuple[Any, ...]],
) -> None:  # fmt: skip
    if turn_id is None:
        return
    step, delivered_at, claim = marks.get(turn_id, (None, None, None))
    tables.turns[turn_id] = read_turn(
        (
            session_id, tenant, turn_id, body, requests.get(turn_id), inputs.get(turn_id), step,
            delivered_at, claim,
        )
    )  # fmt: skip
