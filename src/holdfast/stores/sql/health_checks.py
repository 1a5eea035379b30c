"""Queries of `holdfast doctor` for states that must not occur."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.item_ids import place_in
from holdfast.core.model.items import read_item
from holdfast.core.model.records import visible_spans
from holdfast.core.model.session import Session
from holdfast.core.projection.project import project
from holdfast.stores.sql.entries import (
    ENDED,
    ENDS,
    STARTED,
    Body,
    read_body,
    read_items,
    read_session,
    session_no,
    unpack_entries,
)
from holdfast.stores.sql.lookups import find_hidden
from holdfast.stores.sql.plan import Plan, Row, Statement, every, one
from holdfast.stores.sql.statements import (
    IS_INDEXED,
    IS_LAST_OF_TURN,
    LAST_ENTRY_OF_TURN,
    LAST_ID,
    SELECT_SESSION,
)

_LAST_KIND = f"(select l.kind from {LAST_ENTRY_OF_TURN})"
_LAST_BODY = f"(select l.body from {LAST_ENTRY_OF_TURN})"
_EACH = "json_each(?1) r cross"
_EACH_IN_POSTGRES = "json_array_elements(?1::text::json) r (value)"
_EACH_TEXT = "json_array_elements_text(?1::text::json) r (value)"

# ── The log, by its positions ───────────────────────────────────────────────────────────────

# The newest entries: how many, the first and last position, and the time of the first.
NEWEST_ENTRIES = Statement(
    "newest_entries",
    "select count(*), min(pos), max(pos), min(at) from "
    "(select pos, at from log order by pos desc limit ?1) l",
)
# Entries of unknown sessions.
UNKNOWN_LOGS = Statement(
    "unknown_logs",
    "select session, count(*) from (select l.session + 0 as session from log l "
    "where l.pos >= ?1 and l.pos < ?2 and not exists "
    "(select 1 from sessions s where s.no = l.session)) u group by session order by session",
)
# An open turn that has neither the lane nor a place in the queue never ends.
STRAY_TURNS = Statement(
    "stray_turns",
    # Neither a join nor a subquery without an offset: PostgreSQL may read a table into a hash.
    "select turn, session from (select l.turn, (select s.id from sessions s "
    "where s.no = l.session and s.deleted_at is null) as session from log l "
    "where l.pos >= ?1 and l.pos < ?2 and l.turn is not null "
    f"and l.kind not in {ENDS} "
    "and not exists (select 1 from lanes a where a.session = l.session and a.turn = l.turn "
    "limit 1 offset 0) "
    "and not exists (select 1 from queue q where q.turn = l.turn limit 1 offset 0) "
    f"and {IS_LAST_OF_TURN}) t where session is not null",
)
# The sessions with entries there, and the last of them.
WRITTEN_SESSIONS = Statement(
    "written_sessions",
    # `+ 0`: otherwise SQLite reads the whole log in the order of its groups.
    "select session, max(pos) from (select session + 0 as session, pos from log "
    "where pos >= ?1 and pos < ?2) l group by session",
)
# Entries that the search index refers to but that do not exist. Entries are never deleted.
LOST_ENTRIES = Statement(
    "lost_entries",
    "select distinct i.pos from search_items i where i.id >= ?1 and i.id < ?2 and not exists "
    "(select 1 from log l where l.pos = i.pos) order by i.pos",
)
LAST_INDEXED = Statement("last_indexed", "select coalesce(max(id), 0) from search_items")
# Item ids with a number beyond the end of the log: entries are missing.
LOST_ENDS = Statement(
    "lost_ends",
    "select i.item_id, i.session, i.seq, (select seq from log where session = i.session "
    "order by n desc limit 1), (select id from sessions where no = i.session) from item_ids i "
    "where (i.item_id, i.session, i.seq) > (?1, ?2, ?3) "
    "order by i.item_id, i.session, i.seq limit ?4",
)

# ── Sessions, by lists of their numbers ─────────────────────────────────────────────────────

SESSION_PAGE = Statement(
    "session_page", "select no, id from sessions where id < ?1 order by id desc limit ?2"
)
_SESSIONS_OF = SELECT_SESSION.replace("from sessions s", "from {each} join sessions s on {same}", 1)
SESSIONS_OF = Statement(
    "sessions_of",
    _SESSIONS_OF.format(each=_EACH, same="s.no = r.value"),
    postgres=_SESSIONS_OF.format(each=_EACH_TEXT, same="s.no = r.value::bigint"),
)
# Parts of logs; each is given by its session, its first and its last entry.
_PARTS = (
    "select l.session, l.n, l.seq, l.turns, l.events, "
    "case when l.request is null then 0 else 1 end, l.items from {each} join log l "
    "on l.session = {value}0{end} and l.n between {value}1{end} and {value}2{end}"
)
LOG_PARTS = Statement(
    "log_parts",
    _PARTS.format(each=_EACH, value="json_extract(r.value, '$[", end="]')"),
    postgres=_PARTS.format(each=_EACH_IN_POSTGRES, value="(r.value ->> ", end=")::bigint"),
)
LANES_OF = Statement(
    "lanes_of",
    f"select a.session, a.turn from {_EACH} join lanes a on a.session = r.value",
    postgres=f"select a.session, a.turn from {_EACH_TEXT} join lanes a "
    "on a.session = r.value::bigint",
)
# How many of these ids, each with its session and place, are in the index.
_IDS = (
    "select i.session, count(*) from {each} join item_ids i on i.item_id = {value}0{text} "
    "and i.session = {value}1{end} and i.seq = {value}2{end} group by i.session"
)
ITEM_IDS_OF = Statement(
    "item_ids_of",
    _IDS.format(each=_EACH, value="json_extract(r.value, '$[", text="]')", end="]')"),
    postgres=_IDS.format(each=_EACH_IN_POSTGRES, value="(r.value ->> ", text=")", end=")::bigint"),
)
STATE_OF = Statement(
    "state_of",
    "select p.session_id, p.provider, p.covers_seq from "
    f"{_EACH} join provider_state p on p.session_id = r.value",
    postgres="select p.session_id, p.provider, p.covers_seq from "
    f"{_EACH_TEXT} join provider_state p on p.session_id = r.value",
)

# ── Lanes, queues and workers ───────────────────────────────────────────────────────────────

# Lanes with the state in their sessions' last entries, and the last entry of their turn.
LANES = Statement(
    "lanes",
    "select s.id, a.turn, a.run, a.owner, a.hold_until, "
    f"{_LAST_KIND.format(turn='a.turn')}, s.no from lanes a "
    "left join sessions s on s.no = a.session where a.session > ?1 order by a.session limit ?2",
)
SESSION_OF_LANE = Statement("session_of_lane", SELECT_SESSION + "where s.id = ?1")
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
# The newest times; none is much older than the entries before it, unless a clock went back.
LATEST_TIMES = Statement(
    "latest_times",
    "select max(at) from (select at from (select at from log order by pos desc limit ?1) l "
    "union all select created_at from "
    "(select created_at from sessions order by id desc limit ?1) s) times",
)
# Entries, newest first, and whether each is the last one of its turn if it is an end.
RECENT_ENTRIES = Statement(
    "recent_entries",
    "select l.pos, l.at, l.turn, (select s.id from sessions s where s.no = l.session), "
    "case when l.turn is not null then l.body end, l.kind, "
    f"case when l.kind in {ENDS} and {IS_LAST_OF_TURN} then 1 else 0 end "
    "from (select pos, session, n, at, turn, kind, body from log where pos < ?1 "
    "order by pos desc limit ?2) l",
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
ENTRIES_AT_ONCE = 1000
"""The entries of a part of a log, and of the parts that are read at once."""


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


class LogPart(NamedTuple):
    """A part of a session's log, from an entry on; of entry 0 on: only its last part."""

    session: int
    first: int = 1
    id: SessionId = SessionId("")
    """The session's id, if its row is known to exist."""


class StaleState(msgspec.Struct, frozen=True):
    """Provider state that should not exist."""

    tenant: Tenant
    session_id: SessionId
    provider: str
    covers_seq: int
    head_seq: int
    is_live: bool


class SessionsChecked(msgspec.Struct):
    """Problems in parts of logs, and the parts that are left to check."""

    left: list[LogPart] = []
    entries: int = 0
    """How many entries were read."""
    items: list[BrokenItem] = []
    logs: list[Mismatch] = []
    counts: list[Mismatch] = []
    turns: list[Mismatch] = []
    item_ids: list[Mismatch] = []
    lanes: list[Mismatch] = []
    states: list[StaleState] = []


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


def latest_time(limit: int, now: float) -> Plan[tuple[float, float | None]]:
    """Return the current time, and the latest time that was written of late."""
    times = yield from every(LATEST_TIMES, limit)
    return now, times[0][0]


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
    entries = yield from every(RECENT_ENTRIES, pos, limit)
    entries = sorted(entries, key=itemgetter(0), reverse=True)
    is_end = len(entries) < limit or entries[-1][1] <= since
    recent = RecentTurns(None if is_end else entries[-1][0])
    seen: set[str] = set()
    for _, at, turn_id, session_id, packed, kind, is_last in entries:
        if turn_id is None or session_id is None or at <= since:
            continue
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


# ── sessions ────────────────────────────────────────────────────────────────────────────────


def session_page(before: str, limit: int) -> Plan[list[LogPart]]:
    """Return the whole logs of the newest sessions, or of those before an id."""
    rows = yield from every(SESSION_PAGE, before or LAST_ID, limit)
    return [LogPart(no, 1, session_id) for no, session_id in rows]


def check_sessions(parts: Sequence[LogPart], *, with_retired: bool) -> Plan[SessionsChecked]:
    """Check parts of logs: as many as have few entries together, and the next one.

    Checked are entries and their counts, item ids, lanes, provider state and projections.
    """
    numbers = [part.session for part in parts]
    rows = yield from _each(SESSIONS_OF, numbers)
    sessions = {session_no(row[0]): read_session(row) for row in rows}
    checked = SessionsChecked()
    readings: list[_Reading] = []
    for at, part in enumerate(parts):
        if checked.entries >= ENTRIES_AT_ONCE:
            checked.left += parts[at:]
            break
        session = sessions.get(part.session)
        if session is None:
            if part.id:  # else its entries belong to nobody, which another check says
                checked.logs.append(Mismatch(part.id, "should have entries but has none"))
            continue
        first = part.first or max(session.version - ENTRIES_AT_ONCE + 1, 1)
        last = min(first + ENTRIES_AT_ONCE - 1, session.version)
        readings.append(_Reading(part.session, session, first, last))
        checked.entries += last - first + 1
        if last < session.version:
            checked.left.append(LogPart(part.session, last + 1, part.id))
    yield from _check_logs(readings, checked, with_retired=with_retired)
    # What is about a session as a whole is checked with the end of its log.
    ended = [reading.session for reading in readings if reading.last == reading.session.version]
    yield from _check_lanes(ended, checked)
    yield from _check_states(ended, checked)
    return checked


class _Reading(NamedTuple):
    """A part of a log that is read."""

    number: int
    session: Session
    first: int
    last: int


def _each(statement: Statement, values: Sequence[Any]) -> Plan[list[Row]]:
    """Return the rows of a statement about each of these values."""
    if not values:
        return []
    return (yield from every(statement, msgspec.json.encode(values).decode()))


def _check_logs(
    readings: Sequence[_Reading], checked: SessionsChecked, *, with_retired: bool
) -> Plan[None]:
    # Each with the entry before it, from which its counts go on.
    spans = [(one.number, max(one.first - 1, 1), one.last) for one in readings]
    entries: dict[int, list[Row]] = {one.number: [] for one in readings}
    for row in (yield from _each(LOG_PARTS, spans)):
        entries[row[0]].append(row)
    named: dict[int, set[tuple[str, int]]] = {}
    for reading in readings:
        session = reading.session
        rows = sorted(entries[reading.number], key=itemgetter(1))
        listed = _judge_log(reading, rows, checked)
        is_shown = session.deleted_at is None and (session.is_live or with_retired)
        if listed is not None and is_shown:
            named[reading.number] = listed
            checked.items += yield from _broken_items(session, rows, reading.first)
    yield from _check_item_ids(readings, named, checked)


def _judge_log(
    reading: _Reading, rows: list[Row], checked: SessionsChecked
) -> set[tuple[str, int]] | None:
    """Compare the entries of a part with their counts; return the ids of its items.

    None if the items are not as they should be.
    """
    session, first = reading.session, reading.first
    expected = reading.last - max(first - 1, 1) + 1
    if len(rows) != expected:
        why = f"should have {expected} entries up to {reading.last} but has {len(rows)}"
        checked.logs.append(Mismatch(session.id, why))
        return None
    seq, turns = session.parent_seq, 0
    if first > 1:
        seq, turns = rows[0][2], rows[0][3]
    judged = rows if first == 1 else rows[1:]
    for before, row in pairwise(rows):
        if row[2] < before[2] or row[3] < before[3] or row[4] < before[4]:
            why = f"entry {row[1]} counts less than the one before it"
            checked.counts.append(Mismatch(session.id, why))
    if session.deleted_at is not None:
        return None  # its items and requests were erased
    turns += sum(row[5] for row in judged)
    if turns != rows[-1][3]:
        why = f"should have {rows[-1][3]} turns up to entry {reading.last} but has {turns}"
        checked.turns.append(Mismatch(session.id, why))
    try:
        return _named_items(judged, seq)
    except _WrongItems as exc:
        checked.logs.append(Mismatch(session.id, str(exc)))
        return None


class _WrongItems(Exception):
    """The items of a log are not those that its entries count."""


def _named_items(rows: Iterable[Row], seq: int) -> set[tuple[str, int]]:
    """Return the items with ids that do not say where they are; raise if items are missing."""
    listed: set[tuple[str, int]] = set()
    for _, n, last, _, _, _, packed in rows:
        try:
            states = read_items(packed).listed if packed is not None else []
        except msgspec.DecodeError:
            raise _WrongItems(f"the items of entry {n} cannot be read") from None
        if seq + len(states) != last:
            raise _WrongItems(f"should have {last - seq} items up to {last}, and has {len(states)}")
        for place, state in enumerate(states, seq + 1):
            if state.item_id is not None and place_in(state.item_id) != place:
                listed.add((state.item_id, place))
        seq = last
    return listed


def _check_item_ids(
    readings: Sequence[_Reading], named: dict[int, set[tuple[str, int]]], checked: SessionsChecked
) -> Plan[None]:
    places = [(item_id, no, seq) for no, listed in named.items() for item_id, seq in listed]
    rows = yield from _each(ITEM_IDS_OF, places)
    found = {row[0]: row[1] for row in rows}
    for reading in readings:
        missing = len(named.get(reading.number, ())) - found.get(reading.number, 0)
        if missing:
            why = f"{missing} item ids are wrong or missing"
            checked.item_ids.append(Mismatch(reading.session.id, why))


def _check_lanes(sessions: Sequence[Session], checked: SessionsChecked) -> Plan[None]:
    """Find turns that have the lane by the log alone."""
    active = {session_no(one.id): one for one in sessions if one.active_turn_id is not None}
    rows = yield from _each(LANES_OF, list(active))
    turns = {row[0]: row[1] for row in rows}
    for number, session in active.items():
        if turns.get(number) != session.active_turn_id:
            lost = f"turn {session.active_turn_id} has the lane only by the last entry"
            checked.lanes.append(Mismatch(session.id, lost))


def _check_states(sessions: Sequence[Session], checked: SessionsChecked) -> Plan[None]:
    """Find provider state of sessions that have ended, or about items that do not exist."""
    by_id = {session.id: session for session in sessions}
    rows = yield from _each(STATE_OF, list(by_id))
    for session_id, provider, covers_seq in rows:
        session = by_id[session_id]
        if not session.is_live or covers_seq > session.head_seq:
            checked.states.append(
                StaleState(
                    session.tenant, session_id, provider, covers_seq, session.head_seq,
                    session.is_live,
                )
            )  # fmt: skip


def _broken_items(session: Session, rows: list[Row], first: int) -> Plan[list[BrokenItem]]:
    """Return the visible items of a part that cannot be read."""
    after = rows[0][2] if first > 1 else session.parent_seq
    packed = [(row[2], row[6]) for row in rows if row[6] is not None and row[2] > after]
    hidden = (yield from find_hidden(session)) if session.hidden_count else ()
    visible = [
        item
        for start, end in visible_spans(hidden, after + 1, rows[-1][2])
        for item in unpack_entries(packed, session.id, start, end)
    ]
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


# ── parts of tables ─────────────────────────────────────────────────────────────────────────


def lost_ends(after: tuple[str, int, int], limit: int) -> Plan[tuple[list[Row], Row | None]]:
    """Return item ids beyond the ends of their logs, in a page of all, and where the page ends."""
    rows = yield from every(LOST_ENDS, *after, limit)
    lost = [row for row in rows if row[3] is not None and row[2] > row[3]]
    return lost, rows[-1][:3] if len(rows) == limit else None


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
