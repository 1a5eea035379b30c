"""Read whole sessions for an export: small ones many at a time, large ones in parts.

A page is one short snapshot. A large session is read as of the version that its page saw, so that
its parts agree however long its reader takes.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import msgspec

from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.ports.store import ExportedSession, ExportPage, SessionView, TurnView, TurnWithRuns
from holdfast.stores.cache.lineage_cache import LineageCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.entries import (
    ENDED_NEXT,
    ENDS,
    RunState,
    read_body,
    read_run,
    read_session,
    read_turn,
    session_no,
    unpack_entries,
)
from holdfast.stores.sql.lookups import (
    EVERYTHING,
    find_items,
    find_number,
    find_session,
    is_living,
)
from holdfast.stores.sql.plan import Plan, Row, Statement, every, one
from holdfast.stores.sql.queries import hiding_records, name_items, session_view, stored_ids

MAX_SESSIONS = 64
"""Sessions of one page: a few milliseconds of work."""
MAX_ENTRIES = 256
"""Log entries, and items that forks inherit, of one page. A session with more is large."""
MAX_BYTES = 1024 * 1024
"""Stored bytes of one page. A session with more is large."""
COUNTED_AT_ONCE = 10_000
"""Sessions that one read counts."""
MAX_SKIPPED_ENDS = 16
"""How many ends of turns are looked at for the turn that ended last, as in `last_ended`."""

_RANGES, _VALUE, _END = "json_each(?1) r cross", "json_extract(r.value, '$[", "]')"
_PG_RANGES, _PG_VALUE, _PG_END = (
    "json_array_elements(?1::text::json) r (value)", "(r.value ->> ", ")::bigint"
)  # fmt: skip


def _of_sessions(name: str, text: str) -> Statement:
    """Return a statement over several sessions, given as JSON: number and last entry of each."""
    return Statement(
        name,
        text.format(ranges=_RANGES, value=_VALUE, end=_END),
        postgres=text.format(ranges=_PG_RANGES, value=_PG_VALUE, end=_PG_END),
    )


_FROM_LOG = (
    "from {ranges} join log l on l.session = {value}0{end} and l.n between 1 and {value}1{end}"
)
LOG_SIZES = _of_sessions(
    "log_sizes",
    "select l.session, sum(length(l.body) + coalesce(length(l.items), 0) "
    f"+ coalesce(length(l.request), 0)) {_FROM_LOG} group by l.session",
)
LOGS = _of_sessions(
    "logs",
    "select l.session, l.n, l.kind, l.turn, l.body, l.request, l.seq, l.items "
    f"{_FROM_LOG} order by l.session, l.n",
)
QUEUES = _of_sessions(
    "queues",
    "select q.session, count(*) from {ranges} join queue q on q.session = {value}0{end} "
    "group by q.session",
)
_OF_TURN = f"from log e where e.turn = t.turn and {sql.IS_INDEXED.format(entry='e')}"
_AND_ITS_END = (
    "l.session = e.session and l.n between e.n and e.n + 1 "
    f"and (l.n = e.n or l.kind = {ENDED_NEXT})"
)
_LOG_OF_TURNS = (
    "select l.session, l.n, l.kind, l.turn, l.body, l.request from (select distinct o.turn "
    "from log o where o.session = ?1 and o.n between ?2 and ?3 and o.turn is not null) t {joins} "
    "where l.session = ?1 and l.n <= ?4 order by l.n"
)
# All entries about the turns of a range of entries, up to the version of an export. The offsets
# leave PostgreSQL no other plan than to look for the entries of each turn.
LOG_OF_TURNS = Statement(
    "log_of_turns",
    _LOG_OF_TURNS.format(
        joins=f"join log e on {_OF_TURN.partition(' where ')[2]} join log l on {_AND_ITS_END}"
    ),
    postgres=_LOG_OF_TURNS.format(
        joins=f"cross join lateral (select e.session, e.n {_OF_TURN} offset 0) e "
        f"cross join lateral (select l.* from log l where {_AND_ITS_END} offset 0) l"
    ),
)
# The tenant's sessions are counted in slices: their filters are in no index.
COUNT_SESSIONS = Statement(
    "count_sessions",
    "select coalesce(sum(q.is_listed), 0), max(q.id) from (select s.id, case when s.is_visible = 1 "
    f"and s.deleted_at is null and {sql.IS_LIVE} then 1 else 0 end as is_listed from sessions s "
    "where s.tenant = ?1 and s.id > ?3 order by s.id limit ?4) q",
)


def export_page(
    tenant: Tenant, after: SessionId, generations: bool, limit: int, lines: LineageCache
) -> Plan[ExportPage]:
    """Return the next sessions of a tenant by id: small ones complete, or one large one."""
    count = min(limit, MAX_SESSIONS)
    flag = int(generations)
    listed = yield from every(sql.LIST_SESSIONS_UP, tenant, flag, "", after, count + 1, "")
    found = [_Found(row, read_session(row)) for row in listed[:count]]
    fitting = _fitting([_entries(each.session) for each in found], MAX_ENTRIES)
    if fitting:
        rows = yield from every(LOG_SIZES, _numbers(found[:fitting]))
        sizes = {row[0]: row[1] for row in rows}
        fitting = _fitting([sizes[each.no] for each in found[:fitting]], MAX_BYTES)
    if not fitting and found:
        view = yield from session_view(found[0].row)
        return ExportPage([ExportedSession(view, is_large=True)], has_more=len(listed) > 1)
    exported = yield from _whole_sessions(found[:fitting], lines)
    return ExportPage(exported, has_more=len(listed) > fitting)


class _Found(NamedTuple):
    """A session and the row that it was read from."""

    row: Row
    session: Session

    @property
    def no(self) -> int:
        return session_no(self.session.id)

    @property
    def has_live_owner(self) -> bool:
        return is_living(self.row[-1])


def _entries(session: Session) -> int:
    return session.version + session.parent_seq


def _fitting(sizes: Sequence[int], limit: int) -> int:
    """Return how many sizes from the beginning fit into a limit together."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > limit:
            return count
    return len(sizes)


def _numbers(found: Sequence[_Found]) -> str:
    return msgspec.json.encode([(each.no, each.session.version) for each in found]).decode()


def _whole_sessions(found: Sequence[_Found], lines: LineageCache) -> Plan[list[ExportedSession]]:
    if not found:
        return []
    numbers = _numbers(found)
    waiting = {row[0]: row[1] for row in (yield from every(QUEUES, numbers))}
    logs: dict[int, list[Row]] = {each.no: [] for each in found}
    for row in (yield from every(LOGS, numbers)):
        logs[row[0]].append(row)
    by_turn = {no: _by_turn(log) for no, log in logs.items()}
    late = yield from _late_writes(by_turn.values())
    whole = []
    for each in found:
        log, session = logs[each.no], each.session
        turns = _turns(session, by_turn[each.no], late, has_live_owner=each.has_live_owner)
        status = session.status(has_live_owner=each.has_live_owner)
        view = SessionView(session, status, waiting.get(each.no, 0), _last_ended(log, turns))
        packed = [row for row in log if row[-1] is not None]
        items = unpack_entries(packed, session.id, 1, EVERYTHING)
        if session.parent_seq:
            items = [*(yield from find_items(session, 1, session.parent_seq, lines)), *items]
        whole.append((view, turns, items))
    stored = yield from stored_ids([item for _, _, items in whole for item in items])
    exported = []
    for view, turns, items in whole:
        records = yield from hiding_records(view.session)
        named = yield from name_items(view.session, items, records, stored, lines)
        exported.append(ExportedSession(view, turns, named))
    return exported


class _TurnEntries:
    """What the entries about a turn say: its last body, its request, and its runs."""

    def __init__(self) -> None:
        self.last = b""
        self.request: bytes | None = None
        self.runs: dict[RunId, RunState] = {}


_ByTurn = dict[TurnId, _TurnEntries]


def _by_turn(log: Sequence[Row]) -> _ByTurn:
    """Return what entries, in order, say about each of their turns."""
    by_turn: _ByTurn = {}
    for _, _, _, turn_id, body, request, *_ in log:
        if turn_id is None:
            continue
        entries = by_turn.setdefault(turn_id, _TurnEntries())
        entries.last = body
        if request is not None:
            entries.request = request
        for state in read_body(body, turn_id).runs:
            entries.runs[state.id] = state
    return by_turn


def _turns(
    session: Session, by_turn: _ByTurn, late: Mapping[RunId, bytes], *, has_live_owner: bool
) -> list[TurnWithRuns]:
    """Return the turns of a session, oldest first."""
    found = []
    for turn_id, entries in by_turn.items():
        row = (session.id, session.tenant, turn_id, entries.last, entries.request)
        turn = read_turn((*row, None, None, None, None))
        runs = [
            read_run(state, turn_id, session.id, late=late.get(state.id))
            for state in entries.runs.values()
        ]
        runs.sort(key=_epoch)
        status = turn.status(session, has_live_owner=has_live_owner)
        found.append(TurnWithRuns(TurnView(turn, status), runs))
    found.sort(key=_number)
    return found


_epoch, _number = attrgetter("epoch"), attrgetter("view.turn.number")


def _last_ended(log: Sequence[Row], turns: Sequence[TurnWithRuns]) -> Turn | None:
    """Return the turn that ended last, except turns that were reopened since."""
    by_id = {each.view.turn.id: each.view.turn for each in turns}
    ends = (row[3] for row in reversed(log) if row[2] in ENDS)
    for turn_id in islice(ends, MAX_SKIPPED_ENDS):
        turn = by_id.get(turn_id)
        if turn is not None and not turn.is_open:
            return turn
    return None


def _late_writes(sessions: Iterable[_ByTurn]) -> Plan[dict[RunId, bytes]]:
    """Return what the runs of turns tried to write after they had lost their session."""
    runs = [run for turns in sessions for entries in turns.values() for run in entries.runs]
    if not runs:
        return {}
    rows = yield from every(sql.LATE_WRITES, msgspec.json.encode(runs).decode())
    return {row[0]: bytes(row[1]) for row in rows}


def turns_as_of(
    session: Session, *, is_running: bool, after: int, limit: int
) -> Plan[list[TurnWithRuns]]:
    """Return a page of a session's turns as they were at its version."""
    now = yield from find_session(session.id)
    first, last = after + 1, min(after + limit, session.turn_count)
    if now is None or now.deleted_at is not None or first > last:
        return []
    low = yield from find_number(session, "turns", first)
    high = yield from find_number(session, "turns", last)
    log = yield from every(LOG_OF_TURNS, session_no(session.id), low, high, session.version)
    by_turn = _by_turn(log)
    late = yield from _late_writes([by_turn])
    turns = _turns(session, by_turn, late, has_live_owner=is_running)
    return [each for each in turns if first <= each.view.turn.number <= last]


def count_sessions(
    tenant: Tenant, *, after: SessionId, generations: bool
) -> Plan[tuple[int, SessionId | None]]:
    """Count the sessions of an export in a slice, and return the id to continue after."""
    row = yield from one(COUNT_SESSIONS, tenant, int(generations), after, COUNTED_AT_ONCE)
    if row is None or row[1] is None:
        return 0, None
    return row[0], SessionId(row[1])
