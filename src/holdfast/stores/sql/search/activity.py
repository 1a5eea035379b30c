"""List sessions by last activity: a view that follows the log, merged with newer entries."""

from holdfast.core.ids import SessionId, Tenant
from holdfast.ports.store import SessionQuery, SessionView
from holdfast.stores.sql.entries import session_no
from holdfast.stores.sql.lookups import EVERYTHING
from holdfast.stores.sql.plan import Plan, Row, Statement, every, one
from holdfast.stores.sql.queries import RUNNING, session_view, sessions
from holdfast.stores.sql.search import statements as sql
from holdfast.stores.sql.statements import LAST_ID, LIST_SESSIONS_DOWN

TAIL = 1000
"""How many entries the view may lag behind and still be used."""
NEVER, ALWAYS = -1e18, 1e18
Rank = tuple[float, int]
"""The time of a session's last activity, and the session's number in the log."""


def sessions_by_activity(tenant: Tenant, query: SessionQuery) -> Plan[list[SessionView]]:
    """Return a page of sessions, the most recently active first; of retired ones, the last retired.

    If the view lags far behind, because it is off or being built, the newest session comes first
    instead.
    """
    if query.status == "retired" and not query.key:
        return (yield from _retired(tenant, query))
    tail = yield from _tail()
    if tail is None:
        return (yield from sessions(tenant, query))
    before = yield from _rank(query.after, tail)
    views: list[SessionView] = []
    while len(views) < query.limit:
        rows = yield from _rows(tenant, query, tail, before)
        for row, rank in rows:
            before = rank
            view = yield from session_view(row)
            if query.status is None or view.status == query.status:
                views.append(view)
            if len(views) == query.limit:
                break
        if len(rows) < query.limit or query.status == "running":
            break
    return views


def _retired(tenant: Tenant, query: SessionQuery) -> Plan[list[SessionView]]:
    """Return a page of retired sessions, which the view does not tell from live ones."""
    cursor = yield from one(sql.RETIRED_AT, query.after or "")
    before = cursor if cursor is not None and cursor[0] is not None else (ALWAYS, 0)
    rows = yield from every(sql.LIST_RETIRED, tenant, 1, "", "retired", *before, query.limit)
    views: list[SessionView] = []
    for row in rows:
        view = yield from session_view(row)
        views.append(view)
    return views


def _tail() -> Plan[dict[int, float] | None]:
    """Return the activity that the view lacks; None if that is too much."""
    cursor = yield from one(sql.CURSOR)
    newest = yield from one(sql.NEWEST)
    seen = cursor[1] if cursor else 0
    if newest is not None and newest[0] - seen > TAIL:
        return None
    rows = yield from every(sql.ACTIVITY_TAIL, seen)
    return {row[0]: row[1] for row in rows}


def _rank(session_id: SessionId | None, tail: dict[int, float]) -> Plan[Rank]:
    if session_id is None:
        return ALWAYS, 0
    no = session_no(session_id)
    if no in tail:
        return tail[no], no
    row = yield from one(sql.ACTIVITY_OF, no)
    return (row[0] if row else NEVER), no


def _running(
    tenant: Tenant, query: SessionQuery, tail: dict[int, float], before: Rank
) -> Plan[list[tuple[Row, Rank]]]:
    """Return the sessions whose lane is taken with their ranks: they are few among all sessions."""
    times = {no: at for no, at in (yield from every(sql.ACTIVITY_OF_LANES)) if at is not None}
    times.update(tail)
    listed = RUNNING[LIST_SESSIONS_DOWN]
    filters = (int(query.generations), "", LAST_ID, EVERYTHING, "running")
    ranked: list[tuple[Row, Rank]] = []
    for row in (yield from every(listed, tenant, *filters)):
        no = session_no(row[0])
        ranked.append((row, (times.get(no, NEVER), no)))
    return sorted(
        (ranked_row for ranked_row in ranked if ranked_row[1] < before), key=_rank_of, reverse=True
    )


def _rank_of(ranked_row: tuple[Row, Rank]) -> Rank:
    return ranked_row[1]


def _rows(
    tenant: Tenant, query: SessionQuery, tail: dict[int, float], before: Rank
) -> Plan[list[tuple[Row, Rank]]]:
    """Return the next sessions with their ranks: some from the tail, the others from the view."""
    if query.status == "running" and not query.key:
        return (yield from _running(tenant, query, tail, before))
    wants_all = int(query.generations or query.status == "retired")
    filters = (tenant, wants_all, query.key or "", query.status or "")
    rows: list[tuple[Row, Rank]] = []
    recent = sorted(((at, no) for no, at in tail.items() if (at, no) < before), reverse=True)
    for at, no in recent:
        # The tail has the sessions of all tenants and states.
        row = yield from one(_of(query, sql.LISTED_SESSION), *filters, no)
        if row is not None:
            rows.append((row, (at, no)))
        if len(rows) == query.limit:
            break
    limit = query.limit + len(tail)
    listed = _of(query, sql.LIST_BY_ACTIVITY)
    for row in (yield from every(listed, *filters, *before, limit)):
        no = session_no(row[0])
        if no not in tail:
            rows.append((row[:-1], (row[-1], no)))
    rows.sort(key=_rank_of, reverse=True)
    return rows[: query.limit]


def _of(query: SessionQuery, statement: Statement) -> Statement:
    """Return the statement that finds the sessions of a key by an index, if a key is given."""
    return sql.OF_KEY[statement] if query.key else statement
