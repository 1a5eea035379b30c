"""Queries of `holdfast doctor` for states that must not occur."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.item_ids import place_in
from holdfast.core.model.items import read_item
from holdfast.core.model.session import Session
from holdfast.core.projection.project import project
from holdfast.ports.store import ItemQuery
from holdfast.stores.sql.entries import (
    ENDED,
    ENDS,
    STARTED,
    Body,
    read_body,
    read_items,
    read_session,
    session_no,
)
from holdfast.stores.sql.plan import Plan, Row, Statement, every, every_as, one
from holdfast.stores.sql.queries import items
from holdfast.stores.sql.statements import (
    IS_INDEXED,
    IS_LAST_OF_TURN,
    ITEM_ENTRIES,
    LAST_ENTRY_OF_TURN,
    LAST_ID,
    SELECT_SESSION,
)

_LAST = "l.n = (select max(n) from log where session = s.no)"
_LAST_KIND = f"(select l.kind from {LAST_ENTRY_OF_TURN})"
_LAST_BODY = f"(select l.body from {LAST_ENTRY_OF_TURN})"

# Entries are numbered from 1 without a gap, and there is at least one.
ENTRY_GAPS = Statement(
    "entry_gaps",
    "select id, newest, entries from (select s.id, "
    "coalesce((select max(n) from log where session = s.no), 1) as newest, "
    "(select count(*) from log where session = s.no) as entries from sessions s) c "
    "where entries <> newest order by id limit ?1",
)
# Counts of items, turns and events only grow from entry to entry.
COUNTS_BACK = Statement(
    "counts_back",
    "select s.id, c.n from (select session, n, "
    "seq - lag(seq) over w as seq_step, turns - lag(turns) over w as turn_step, "
    "events - lag(events) over w as event_step from log "
    "window w as (partition by session order by n)) c join sessions s on s.no = c.session "
    "where c.seq_step < 0 or c.turn_step < 0 or c.event_step < 0 order by s.id, c.n limit ?1",
)
# Item ids with a number beyond the end of the log: entries are missing.
LOST_ENDS = Statement(
    "lost_ends",
    "select (select id from sessions where no = c.session) as id, newest, seq from "
    "(select i.session, i.newest, (select seq from log where session = i.session "
    "order by n desc limit 1) as seq from "
    "(select session, max(seq) as newest from item_ids group by session) i) c "
    "where newest > seq order by id limit ?1",
)
# Entries that the search index refers to but that do not exist. Entries are never deleted.
LOST_ENTRIES = Statement(
    "lost_entries",
    "select distinct i.pos from search_items i where not exists "
    "(select 1 from log l where l.pos = i.pos) order by i.pos limit ?1",
)
# Entries of unknown sessions.
UNKNOWN_LOGS = Statement(
    "unknown_logs",
    "select l.session, count(*) from log l where not exists "
    "(select 1 from sessions s where s.no = l.session) group by l.session limit ?1",
)
# Each turn has one entry that accepted it and contains its request.
TURN_GAPS = Statement(
    "turn_gaps",
    "select s.id, l.turns, (select count(*) from log a where a.session = s.no "
    "and a.request is not null) as found from log l join sessions s on s.no = l.session "
    f"where {_LAST} and s.deleted_at is null and l.turns <> (select count(*) from log a "
    "where a.session = s.no and a.request is not null) order by s.id limit ?1",
)
# An open turn that has neither the lane nor a place in the queue never ends.
STRAY_TURNS = Statement(
    "stray_turns",
    "select l.turn, s.id from log l join sessions s on s.no = l.session "
    f"where l.turn is not null and l.kind not in {ENDS} and s.deleted_at is null "
    f"and {IS_LAST_OF_TURN} and not exists (select 1 from lanes a where a.turn = l.turn) "
    "and not exists (select 1 from queue q where q.turn = l.turn) order by l.turn limit ?1",
)
# Lanes with the state in their sessions' last entries, and the last entry of their turn.
LANES = Statement(
    "lanes",
    "select s.id, a.turn, a.run, a.owner, a.hold_until, "
    f"{_LAST_KIND.format(turn='a.turn')}, s.no from lanes a "
    "left join sessions s on s.no = a.session where a.session > ?1 order by a.session limit ?2",
)
SESSION_OF_LANE = Statement("session_of_lane", SELECT_SESSION + "where s.id = ?1")
LANE = Statement("lane", "select turn from lanes where session = ?1")
# Waiting turns that have ended, or that have the lane as well.
STALE_QUEUE = Statement(
    "stale_queue",
    "select q.turn, s.id from queue q left join sessions s on s.no = q.session "
    f"where coalesce({_LAST_KIND.format(turn='q.turn')}, {ENDED}) in {ENDS} "
    "or exists (select 1 from lanes a where a.turn = q.turn) order by q.turn limit ?1",
)
# Runs whose owner is alive, but that have taken very long.
LONG_RUNS = Statement(
    "long_runs",
    "select id, turn, began from (select s.id, a.turn, (select max(l.at) from log l "
    f"where l.turn = a.turn and {IS_INDEXED.format(entry='l')} and l.kind = {STARTED}) "
    "as began from lanes a join sessions s on s.no = a.session join workers w on w.id = a.owner "
    "where w.alive_until > ?1) r where began < ?2 order by began limit ?3",
)
# Provider state of a session that has ended, or about items that do not exist.
STALE_STATE = Statement(
    "stale_state",
    "select s.tenant, p.session_id, p.provider, p.model, p.covers_seq, l.seq, s.is_live "
    "from provider_state p join sessions s on s.id = p.session_id "
    f"join log l on l.session = s.no + 0 and {_LAST} "
    "where s.is_live = 0 or p.covers_seq > l.seq order by p.session_id limit ?1",
)
LATEST_TIMES = Statement(
    "latest_times",
    "select max(at) from (select max(at) as at from log "
    "union all select max(created_at) from sessions) times",
)
# Entries about turns, newest first, and whether each is the last one of its turn.
RECENT_ENTRIES = Statement(
    "recent_entries",
    "select l.pos, l.turn, s.id, l.body, l.kind, "
    f"case when {IS_LAST_OF_TURN} then 1 else 0 end "
    "from log l join sessions s on s.no = l.session "
    "where l.pos < ?1 and l.turn is not null and l.at > ?2 order by l.pos desc limit ?3",
)
SESSIONS_AFTER = Statement(
    "sessions_after",
    SELECT_SESSION + "where s.deleted_at is null and (s.is_live = 1 or ?3 = 1) "
    "and s.id < ?1 order by s.id desc limit ?2",
)
ITEM_ID = Statement(
    "item_id", "select 1 from item_ids where item_id = ?1 and session = ?2 and seq = ?3"
)
ORPHANS = Statement(
    "orphans",
    "select s.id, a.turn, a.owner from lanes a join sessions s on s.no = a.session + 0 "
    "left join workers w on w.id = a.owner "
    "where a.owner is not null and (w.id is null or w.alive_until <= ?1) order by s.id limit ?2",
)
EXPIRED_HOLDS = Statement(
    "expired_holds",
    "select s.id, a.turn from lanes a join sessions s on s.no = a.session + 0 "
    "where a.hold_until <= ?1 order by s.id limit ?2",
)
ABANDONED_TURNS = Statement(
    "abandoned_turns",
    f"select q.turn, s.id, {_LAST_BODY.format(turn='q.turn')} from queue q "
    "join sessions s on s.no = q.session left join workers w on w.id = q.owner "
    "where w.id is null or w.alive_until <= ?1 order by q.turn limit ?2",
)
# Every entry, to verify a copy.
ALL_ENTRIES = Statement(
    "all_entries",
    "select s.no, s.parent_seq, s.deleted_at, l.n, l.seq, l.items from sessions s "
    "left join log l on l.session = s.no order by s.no, l.n",
)

FIRST_POS = 2**62
LANES_AT_ONCE = 500


class BrokenItem(msgspec.Struct, frozen=True):
    """An item that cannot be part of a request."""

    tenant: Tenant
    session_id: SessionId
    seq: int
    why: str


class Mismatch(msgspec.Struct, frozen=True):
    """A contradiction to the log of a session."""

    session_id: SessionId
    why: str


class SessionsChecked(msgspec.Struct):
    """Problems in a page of sessions that were read completely."""

    last: str | None = None
    """The last session of the page; None if there are no more."""
    items: list[BrokenItem] = []
    logs: list[Mismatch] = []
    item_ids: list[Mismatch] = []
    lanes: list[Mismatch] = []


class StaleState(msgspec.Struct, frozen=True):
    """Provider state that should not exist."""

    tenant: Tenant
    session_id: SessionId
    provider: str
    model: str
    covers_seq: int
    head_seq: int
    is_live: bool


class TurnProblem(msgspec.Struct, frozen=True):
    """A turn in which something went wrong, and the code of what."""

    turn_id: TurnId
    session_id: SessionId
    code: str


class TurnEnd(msgspec.Struct, frozen=True):
    """A turn that has ended, and the code with which it failed, or None."""

    turn_id: TurnId
    session_id: SessionId
    code: str | None


class RecentTurns(msgspec.Struct):
    """Problems of recent turns, up to a position in the log."""

    next_pos: int | None
    ended: list[TurnEnd] = []
    """The turns that have ended, newest first."""
    heals: list[TurnProblem] = []
    """Turns whose provider no longer had the state that the request referred to."""


class _Heal(msgspec.Struct):
    failure_class: str
    code: str | None = None


def now(now: float) -> Plan[float]:
    """Return the database's time."""
    yield from ()
    return now


def latest_time(now: float) -> Plan[tuple[float, float | None]]:
    """Return the current time, and the latest time that was written."""
    times = yield from every(LATEST_TIMES)
    return now, times[0][0]


def stale_state(limit: int) -> Plan[list[StaleState]]:
    """Return provider state of sessions that have ended, or about items that do not exist."""
    return every_as(StaleState, STALE_STATE, limit)


def abandoned_turns(now: float, limit: int) -> Plan[list[tuple[TurnId, SessionId, str]]]:
    """Return turns that wait for a dead worker, with their sources."""
    rows = yield from every(ABANDONED_TURNS, now, limit)
    return [(row[0], row[1], _source(row[2])) for row in rows]


def _source(packed: bytes | None) -> str:
    turn = read_body(packed).turn if packed is not None else None
    return turn.source if turn is not None else "unknown"


# ── lanes ───────────────────────────────────────────────────────────────────────────────────


def wrong_lanes(limit: int) -> Plan[list[Mismatch]]:
    """Return lanes and queues that contradict the logs of their sessions."""
    wrong: list[Mismatch] = []
    after = -1
    while True:
        lanes = yield from every(LANES, after, LANES_AT_ONCE)
        for row in lanes:
            wrong += yield from _judge_lane(row)
        if len(lanes) < LANES_AT_ONCE or len(wrong) >= limit:
            break
        after = lanes[-1][6]
    for turn_id, session_id in (yield from every(STALE_QUEUE, limit)):
        wrong.append(Mismatch(session_id, f"turn {turn_id} waits, but has ended or has the lane"))
    return wrong[:limit]


def _judge_lane(row: Row) -> Plan[list[Mismatch]]:
    session_id, turn_id, *holder, last_kind, _ = row
    if session_id is None:
        return [Mismatch(SessionId("unknown"), f"turn {turn_id} has the lane of no session")]
    found = yield from one(SESSION_OF_LANE, session_id)
    if found is None or last_kind is None:
        return [Mismatch(session_id, f"turn {turn_id} has the lane, but is not in the log")]
    if last_kind in ENDS:
        return [Mismatch(session_id, f"turn {turn_id} has the lane, but has ended")]
    session = read_session(found)
    if (session.active_turn_id, session.active_run_id, session.owner, session.hold_until) != (
        turn_id, *holder
    ):  # fmt: skip
        return [Mismatch(session_id, f"turn {turn_id} has the lane, but not by the last entry")]
    return []


# ── recent turns ────────────────────────────────────────────────────────────────────────────


def recent_turns(pos: int, since: float, limit: int) -> Plan[RecentTurns]:
    """Return the ends and problems of turns since a time, before a position in the log."""
    entries = yield from every(RECENT_ENTRIES, pos, since, limit)
    recent = RecentTurns(entries[-1][0] if len(entries) == limit else None)
    seen: set[str] = set()
    for _, turn_id, session_id, packed, kind, is_last in entries:
        body = read_body(packed, turn_id)
        turn = body.turn
        if kind in ENDS and is_last and turn is not None:
            code = (turn.error_code or "no code") if turn.outcome == "failed" else None
            recent.ended.append(TurnEnd(turn_id, session_id, code))
        recent.heals += [
            TurnProblem(turn_id, session_id, code) for code in _stale_heals(body, since, seen)
        ]
    return recent


def _stale_heals(body: Body, since: float, seen: set[str]) -> Iterator[str]:
    """Return the codes of stale provider state, once for each run."""
    for run in body.runs:
        if run.heals is None or run.started_at <= since or run.id in seen:
            continue
        seen.add(run.id)
        try:
            heals = msgspec.json.decode(run.heals, type=list[_Heal])
        except msgspec.DecodeError:
            continue
        yield from (heal.code or "no code" for heal in heals if heal.failure_class == "stale_state")


# ── sessions that are read whole ────────────────────────────────────────────────────────────


def check_sessions(after: str, limit: int, *, with_retired: bool) -> Plan[SessionsChecked]:
    """Check a page of sessions completely: their logs, item ids, lanes and projections."""
    rows = yield from every(SESSIONS_AFTER, after or LAST_ID, limit, int(with_retired))
    checked = SessionsChecked(rows[-1][0] if len(rows) == limit else None)
    for row in rows:
        session = read_session(row)
        if session.active_turn_id is not None:
            lane = yield from one(LANE, session_no(session.id))
            if lane is None or lane[0] != session.active_turn_id:
                lost = f"turn {session.active_turn_id} has the lane only by the last entry"
                checked.lanes.append(Mismatch(session.id, lost))
        why = yield from _judge_log(session, checked)
        if why is not None:
            checked.logs.append(Mismatch(session.id, why))
            continue
        checked.items += yield from _broken_items(session)
    return checked


def _judge_log(session: Session, checked: SessionsChecked) -> Plan[str | None]:
    """Return how the items of a session's log differ from its entries' counts, or None."""
    no = session_no(session.id)
    entries = yield from every(ITEM_ENTRIES, no, 1, session.version)
    seq, listed = session.parent_seq, set[tuple[str, int]]()
    for last, packed in entries:
        try:
            states = read_items(packed).listed
        except msgspec.DecodeError:
            return f"the entry with item {last} cannot be read"
        if seq + len(states) != last:
            return f"should have {last - seq} items up to {last}, and has {len(states)}"
        ids = ((state.item_id, seq + at) for at, state in enumerate(states, 1))
        listed.update(
            (item_id, place)
            for item_id, place in ids
            if item_id is not None and place_in(item_id) != place
        )
        seq = last
    if seq != session.head_seq:
        return f"should have items up to {session.head_seq}, and has them up to {seq}"
    missing = 0
    for item_id, place in listed:
        missing += (yield from one(ITEM_ID, item_id, no, place)) is None
    if missing:
        wrong = f"{missing} item ids are wrong or missing"
        checked.item_ids.append(Mismatch(session.id, wrong))
    return None


def _broken_items(session: Session) -> Plan[list[BrokenItem]]:
    visible = yield from items(session, ItemQuery())
    spoiled: list[BrokenItem] = []
    for item in visible:
        try:
            read_item(item.body)
        except HoldfastError as exc:
            spoiled.append(BrokenItem(session.tenant, session.id, item.seq, exc.message))
    if not spoiled:
        # The projection itself repairs tool call pairs; here it only must not raise.
        project(visible)
    return spoiled


def broken_logs(entries: Iterable[Sequence[Any]]) -> set[int]:
    """Return the numbers of sessions whose entries or items have gaps, given all entries.

    Of a deleted session only the numbers of the entries are checked: its items were erased.
    """
    broken: set[int] = set()
    session, n, seq = None, 0, 0
    for no, parent_seq, deleted_at, number, last, packed in entries:
        if no != session:
            session, n, seq = no, 0, parent_seq
        n += 1
        is_counted = number == n
        if is_counted and deleted_at is None:
            seq += len(read_items(packed).listed) if packed is not None else 0
            is_counted = seq == last
        if not is_counted:
            broken.add(no)
    return broken
