"""Reads for those who look: pages of sessions, items, turns, events. They never wait for a run."""

from typing import NamedTuple

import msgspec

from holdfast.core.decisions.lifecycle import finished_seq, settled_seq
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.records import Record, Span, in_force, visible_spans
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import ApiKeyRow, CompletionRow, Event, JournalRow
from holdfast.ports.store import (
    CompletionQuery,
    ItemQuery,
    Order,
    Outline,
    OutlineEntry,
    Place,
    PlacedEvent,
    ResponseView,
    SessionQuery,
    SessionView,
    Transcript,
    TurnView,
)
from holdfast.stores.cache.transcript_cache import NOTHING, Readings, listed
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.facts import (
    EVERYTHING,
    find_hidden,
    find_items,
    find_records,
    find_turn,
    read_session,
    session_row,
)
from holdfast.stores.sql.plan import Plan, Row, every, one
from holdfast.stores.sql.statement_builder import Statement


def session(
    tenant: Tenant, session_id: SessionId | None, key: Key | None, now: float
) -> Plan[SessionView | None]:
    """Return one session as the outside may see it."""
    if session_id is not None:
        row = yield from session_row(session_id)
    else:
        row = yield from one(sql.SESSION_BY_KEY, tenant, key)
    if row is None:
        return None
    found = read_session(row)
    if found.tenant != tenant or found.deleted_at is not None:
        return None
    return (yield from _view(row, now))


def _view(row: Row, now: float) -> Plan[SessionView]:
    found, alive_until = read_session(row), row[-1]
    waiting = yield from one(sql.WAITING, found.id, found.active_turn_id or "")
    last = yield from one(sql.LAST_ENDED_TURN, found.id)
    return SessionView(
        found,
        found.status(has_live_owner=alive_until is not None and alive_until > now),
        waiting[0] if waiting else 0,
        Turn(*last) if last else None,
    )


def sessions(tenant: Tenant, query: SessionQuery, now: float) -> Plan[list[SessionView]]:
    """Return a page of sessions. Status is judged now, so it is filtered after reading."""
    found: list[SessionView] = []
    after = query.after or ""
    wants_all = query.generations or query.status == "retired"
    statement = sql.LIST_SESSIONS_UP if query.order == "asc" else sql.LIST_SESSIONS_DOWN
    while len(found) < query.limit:
        wanted = query.limit - len(found)
        filters = (int(wants_all), query.key or "", after, wanted, query.status or "")
        rows = yield from every(statement, tenant, *filters)
        for row in rows:
            view = yield from _view(row, now)
            if query.status is None or view.status == query.status:
                found.append(view)
        if len(rows) < wanted:
            break
        after = rows[-1][0]
    return found


def items(of: Session, query: ItemQuery) -> Plan[list[StoredItem]]:
    """Return a page of items; the hidden ranges are skipped before reading, not after."""
    is_up = query.order == "asc"
    first = query.after + 1 if is_up and query.after is not None else 1
    last = query.after - 1 if not is_up and query.after is not None else of.head_seq
    last = min(last, of.head_seq)
    spans: list[Span] = [(first, last)] if first <= last else []
    if query.view == "visible" and of.hidden_count:
        hidden = yield from find_hidden(of)
        spans = visible_spans(hidden, first, last) if first <= last else []
    left = EVERYTHING if query.limit is None else query.limit
    found: list[StoredItem] = []
    for start, end in spans if is_up else reversed(spans):
        if left <= 0:
            break
        if is_up:
            stop = end if left == EVERYTHING else min(end, start + left - 1)
            part = yield from find_items(of, start, stop)
        else:
            begin = start if left == EVERYTHING else max(start, end - left + 1)
            part = yield from find_items(of, begin, end)
            part.reverse()
        found.extend(part)
        left = left if left == EVERYTHING else left - len(part)
    return found


class Long(NamedTuple):
    """What was asked for is more than was to be read."""

    rows: int


def transcript(
    tenant: Tenant, session_id: SessionId | None, key: Key | None, last: int | None,
    known: Readings, at_most: int = EVERYTHING,
) -> Plan[Transcript | Long | None]:  # fmt: skip
    """Return the end of what is visible, as bytes, if it takes no more rows than `at_most`."""
    if session_id is not None:
        row = yield from session_row(session_id)
    else:
        row = yield from one(sql.SESSION_BY_KEY, tenant, key)
    found = read_session(row) if row is not None else None
    if found is None or found.tenant != tenant or found.deleted_at is not None:
        return None
    before = known.find(found) if last is None else None
    spans: list[Span] = [(before.head_seq + 1 if before else 1, found.head_seq)]
    if found.hidden_count and not before:
        spans = visible_spans((yield from find_hidden(found)), 1, found.head_seq)
    spans = _last_of(spans, last)
    rows_to_read = sum(end - first + 1 for first, end in spans)
    if rows_to_read > at_most:
        return Long(rows_to_read)
    bodies: list[bytes] = []
    for first, end in spans:
        rows = yield from _rows(sql.BODIES, found, first, end)
        bodies += [row[0] for row in rows]
    return Transcript(found, listed(bodies, before.listed if before else NOTHING))


def _last_of(spans: list[Span], count: int | None) -> list[Span]:
    """Return the part of (disjoint, ordered) spans that holds the last `count` numbers."""
    if count is None:
        return spans
    kept: list[Span] = []
    for first, end in reversed(spans):
        if count <= 0:
            break
        start = max(first, end - count + 1)
        kept.insert(0, (start, end))
        count -= end - start + 1
    return kept


def _rows(statement: Statement, of: Session, first: int, last: int) -> Plan[list[Row]]:
    """Read one range, wherever in the line of forks it is kept."""
    found: list[Row] = []
    owner: Session | None = of
    while owner is not None and last >= first:
        start = max(first, owner.parent_seq + 1)
        if start <= last:
            rows = yield from every(statement, owner.id, start, last)
            found = rows + found if found else rows
        last = min(last, owner.parent_seq)
        row = (yield from session_row(owner.parent_id)) if owner.parent_id else None
        owner = read_session(row) if row else None
    return found


def outline(
    tenant: Tenant, session_id: SessionId | None, key: Key | None, now: float
) -> Plan[Outline | None]:
    """Return what of a session is settled, without its content."""
    view = yield from session(tenant, session_id, key, now)
    if view is None:
        return None
    found = view.session
    active = yield from find_turn(found.active_turn_id)
    upto = settled_seq(found, active)
    spans: list[Span] = [(1, found.head_seq)] if found.head_seq else []
    if found.hidden_count:
        spans = visible_spans((yield from find_hidden(found)), 1, found.head_seq)
    entries: list[OutlineEntry] = []
    for first, last in spans:
        entries.extend((yield from _outline_part(found, first, last)))
    running = [entry for entry in entries if entry.seq > upto] if upto < found.head_seq else []
    settled = entries[: len(entries) - len(running)]
    return Outline(found, upto, settled, running, _open_from(found, active, now))


def _open_from(of: Session, active: Turn | None, now: float) -> int | None:
    """Return where the turn begins that has the lane; one whose tools are overdue has ended."""
    if active is None or (of.hold_until is not None and of.hold_until <= now):
        return None
    return finished_seq(of, active) + 1


def _outline_part(of: Session, first: int, last: int) -> Plan[list[OutlineEntry]]:
    rows = yield from _rows(sql.OUTLINE, of, first, last)
    return [OutlineEntry(*row) for row in rows]


def hidden(of: Session) -> Plan[list[Span]]:
    """Return the hidden ranges."""
    return list((yield from find_hidden(of)))


def records(of: Session) -> Plan[list[Record]]:
    """Return a session's own records."""
    rows = yield from every(sql.RECORDS, of.id, of.record_no)
    return [Record(*row) for row in rows]


def lineage_records(of: Session) -> Plan[list[Record]]:
    """Return the records over a session's log that are in force, those of its ancestors too."""
    found = yield from find_records(of)
    return [record for own in reversed(found) for record in in_force(own)]


def turn(tenant: Tenant, turn_id: TurnId, now: float) -> Plan[TurnView | None]:
    """Return a turn and what its lane says of it."""
    found = yield from find_turn(turn_id)
    if found is None or found.tenant != tenant:
        return None
    row = yield from session_row(found.session_id)
    if row is None:
        return None
    owner = read_session(row)
    if owner.deleted_at is not None:
        return None
    is_alive = row[-1] is not None and row[-1] > now
    return TurnView(found, found.status(owner, has_live_owner=is_alive))


def turns(
    session_id: SessionId, after: int, limit: int, order: Order, now: float
) -> Plan[list[TurnView]]:
    """Return a page of turns."""
    row = yield from session_row(session_id)
    if row is None:
        return []
    owner = read_session(row)
    is_alive = row[-1] is not None and row[-1] > now
    statement = sql.TURNS_UP if order == "asc" else sql.TURNS_DOWN
    rows = yield from every(statement, session_id, after, limit)
    found = [Turn(*turn_row) for turn_row in rows]
    return [TurnView(one, one.status(owner, has_live_owner=is_alive)) for one in found]


def runs(turn_id: TurnId) -> Plan[list[Run]]:
    """Return every attempt at a turn."""
    rows = yield from every(sql.RUNS_OF_TURN, turn_id)
    return [Run(*row) for row in rows]


def response(tenant: Tenant, turn_id: TurnId, step: int, now: float) -> Plan[ResponseView | None]:
    """Return what is known of the response that a step of a turn gives."""
    found = yield from find_turn(turn_id)
    if found is None or found.tenant != tenant or step > found.step:
        return None
    row = yield from session_row(found.session_id)
    owner = read_session(row) if row else None
    if row is None or owner is None or owner.deleted_at is not None:
        return None
    if (yield from one(sql.DROPPED_RESPONSE, turn_id, step)) is not None:
        return None
    last = yield from one(sql.LAST_RUN_OF_STEP, turn_id, step)
    is_alive = row[-1] is not None and row[-1] > now
    status = found.status(owner, has_live_owner=is_alive)
    return ResponseView(found, status, owner, Run(*last) if last else None, step)


def journal(turn_id: TurnId, step: int, after: int, limit: int) -> Plan[list[JournalRow]]:
    """Return batches of a response's journal."""
    rows = yield from every(sql.JOURNAL, turn_id, step, after, limit)
    return [JournalRow(*row) for row in rows]


def provider_state(session_id: SessionId) -> Plan[list[ProviderState]]:
    """Return what providers remember for a session."""
    rows = yield from every(sql.PROVIDER_STATE, session_id)
    return [ProviderState(*row) for row in rows]


def events(session_id: SessionId, after: int, limit: int) -> Plan[list[Event]]:
    """Return facts after a cursor."""
    rows = yield from every(sql.EVENTS, session_id, after, limit)
    return [Event(*row) for row in rows]


def feed(tenant: Tenant, after: Place, limit: int) -> Plan[list[PlacedEvent]]:
    """Return a tenant's facts behind a place, in the order of their commits."""
    rows = yield from every(sql.FEED, tenant, after.txid, after.position, limit)
    return [PlacedEvent(Event(*row[:-2]), Place(*row[-2:])) for row in rows]


def feed_end(tenant: Tenant) -> Plan[Place]:
    """Return the place of a tenant's newest fact that may be read."""
    row = yield from one(sql.FEED_END, tenant)
    return Place(*row) if row else Place(0, 0)


def completion(tenant: Tenant, turn_id: TurnId, step: int) -> Plan[CompletionRow | None]:
    """Return one stored completion."""
    row = yield from one(sql.COMPLETION, tenant, turn_id, step)
    return CompletionRow(*row) if row else None


def completions(tenant: Tenant, query: CompletionQuery) -> Plan[list[CompletionRow]]:
    """Return a page of stored completions; metadata is looked at after reading."""
    found: list[CompletionRow] = []
    turn_id, step = query.after or ("", 0)
    statement = sql.COMPLETIONS_UP if query.order == "asc" else sql.COMPLETIONS_DOWN
    while len(found) < query.limit:
        rows = yield from every(statement, tenant, query.model or "", turn_id, step, query.limit)
        read = [CompletionRow(*row) for row in rows]
        found.extend(row for row in read if _has_metadata(row, query.metadata))
        if len(rows) < query.limit:
            break
        turn_id, step = read[-1].turn_id, read[-1].step
    return found[: query.limit]


def _has_metadata(row: CompletionRow, wanted: dict[str, str]) -> bool:
    if not wanted:
        return True
    kept = msgspec.json.decode(row.metadata, type=dict[str, str])
    return all(kept.get(name) == value for name, value in wanted.items())


def api_keys() -> Plan[list[ApiKeyRow]]:
    """Return every API key."""
    rows = yield from every(sql.API_KEYS)
    return [ApiKeyRow(*row) for row in rows]
