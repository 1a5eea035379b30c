"""Reads for those who look: pages of sessions, items, turns, events. They never wait for a run."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.lifecycle import finished_seq, settled_seq
from holdfast.core.history.history_hash import NO_TRAIL, Step, TrailRow, extend_hash
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.item_ids import OTHER_PREFIX, name_at, owner_of, split_name
from holdfast.core.model.items import StoredItem
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.records import HIDING, Record, Span, in_force, visible_spans
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import ApiKeyRow, CompletionRow, Decision, Event, JournalRow
from holdfast.core.transaction.commands import Prune
from holdfast.ports.store import (
    CompletionQuery,
    ItemQuery,
    ListedItem,
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
    find_lineage,
    find_records,
    find_turn,
    read_session,
    session_row,
)
from holdfast.stores.sql.plan import Ask, Plan, Row, every, one
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


def idle_sessions(
    seconds: float, after: SessionId, limit: int, now: float
) -> Plan[list[tuple[Tenant, SessionId]]]:
    """Return sessions in which nothing has happened for so long, by id."""
    rows = yield from every(sql.IDLE_SESSIONS, now - seconds, after, limit)
    return [(Tenant(row[0]), SessionId(row[1])) for row in rows]


def prune(command: Prune, now: float) -> Plan[tuple[Decision[bool], list[Ask]]]:
    """Return the statements that forget old traces, and whether there may be more of them."""
    before = now - command.older_than_seconds
    # Ids begin with the time they were made, so that the oldest journals come first.
    oldest_kept = f"turn_{max(int(before * 1000), 0):011x}"
    writes: list[Ask] = [
        (sql.FORGET_IDEMPOTENCY, (before,)),
        (sql.FORGET_JOURNALS, (oldest_kept,)),
        (sql.FORGET_EVENTS, (before,)),
    ]
    row = yield from one(sql.OLDEST_EVENT)
    return Decision(row is not None and row[0] < before), writes


def trail_end(tenant: Tenant, trails: Sequence[bytes]) -> Plan[TrailRow | None]:
    """Return where a history ends that has one of these trails, the first that is kept."""
    for start in range(0, len(trails), sql.TRAILS_AT_ONCE):
        asked = list(trails[start : start + sql.TRAILS_AT_ONCE])
        padding = [NO_TRAIL] * (sql.TRAILS_AT_ONCE - len(asked))
        rows = yield from every(sql.TRAILS, tenant, *asked, *padding)
        found = [TrailRow(*row) for row in rows]
        for trail in asked:
            for row in found:
                if row.trail == trail and (yield from _still_says(row)):
                    return row
    return None


def _still_says(row: TrailRow) -> Plan[bool]:
    """Whether nothing of the history was erased since its trail was taken."""
    found = yield from session_row(row.session_id)
    if found is None:
        return False
    session = replace(read_session(found), record_no=row.record_no)
    hidden = yield from find_hidden(session)
    trail = NO_TRAIL
    for first, last in visible_spans(hidden, 1, row.seq):
        trail = extend_hash(trail, (yield from _steps(session, first, last)))
    return trail == row.trail


def _steps(of: Session, first: int, last: int) -> Plan[list[Step]]:
    """Read one visible range, wherever in the line of forks it is kept."""
    found: list[Step] = []
    owner: Session | None = of
    while owner is not None and last >= first:
        start = max(first, owner.parent_seq + 1)
        if start <= last:
            rows = yield from every(sql.STEPS, owner.id, start, last)
            found[:0] = [(bytes(row[0]), row[1]) for row in rows]
        last = min(last, owner.parent_seq)
        row = (yield from session_row(owner.parent_id)) if owner.parent_id else None
        owner = read_session(row) if row else None
    return found


def item_places(tenant: Tenant, item_id: str) -> Plan[list[SessionId]]:
    """Return unnamed sessions that have an item of this id."""
    rows = yield from every(sql.ITEM_PLACES, tenant, item_id)
    return [SessionId(row[0]) for row in rows]


def stored_bytes(tenant: Tenant) -> Plan[int]:
    """Return how many bytes the items of a tenant's sessions have."""
    rows = yield from every(sql.STORED_BYTES, tenant)
    return int(rows[0][0])


Stretch = tuple[Session, int, int]
"""An owner of items in a line of forks, and the first and last of them."""


def listing(of: Session, query: ItemQuery) -> Plan[list[ListedItem]]:
    """Return a page of items with their names and, in the log's view, what hides each."""
    page = yield from items(of, query)
    if not page:
        return []
    line = yield from _stretches(of)
    shared = yield from _shared(line, min(i.seq for i in page), max(i.seq for i in page))
    hidden: Sequence[Span] = (yield from find_hidden(of)) if shared else ()
    records = (yield from _hiding(of)) if query.view == "log" else []
    listed: list[ListedItem] = []
    for item in page:
        name = item.item_id or name_at(OTHER_PREFIX, item.seq)
        if item.item_id is not None and item.seq in shared:
            places = yield from _places(line, item.item_id)
            if owner_of(places, hidden) != item.seq:
                name = name_at(item.item_id, item.seq)
        listed.append(ListedItem(item, name, _what_hides(item, records)))
    return listed


def find_listed(of: Session, name: str) -> Plan[ListedItem | None]:
    """Return the item that goes by a name, hidden or not."""
    line = yield from _stretches(of)
    places = yield from _places(line, name)
    hidden: Sequence[Span] = (yield from find_hidden(of)) if of.hidden_count else ()
    parts = split_name(name)
    if places:
        seq = owner_of(places, hidden)
    elif parts is not None:
        seq = parts[1]
    else:
        return None
    if seq is None or not 1 <= seq <= of.head_seq:
        return None
    found = yield from find_items(of, seq, seq)
    if not found or (not places and parts and (found[0].item_id or OTHER_PREFIX) != parts[0]):
        return None
    records = (yield from _hiding(of)) if of.hidden_count else []
    return ListedItem(found[0], name, _what_hides(found[0], records))


def _stretches(of: Session) -> Plan[list[Stretch]]:
    """Return who keeps which part of a session's log, the oldest part first."""
    line = yield from find_lineage(of)
    last = of.head_seq
    stretches: list[Stretch] = []
    for owner in line:
        stretches.append((owner, owner.parent_seq + 1, last))
        last = min(last, owner.parent_seq)
    stretches.reverse()
    return stretches


def _places(line: Sequence[Stretch], item_id: str) -> Plan[list[int]]:
    """Return where an id occurs, oldest first."""
    places: list[int] = []
    for owner, first, last in line:
        rows = yield from every(sql.PLACES_OF_ITEM, owner.id, item_id, first, last)
        places.extend(row[0] for row in rows)
    return places


def _shared(line: Sequence[Stretch], first: int, last: int) -> Plan[set[int]]:
    """Return those places of a range whose id occurs elsewhere in the log too."""
    shared: set[int] = set()
    for owner, own_first, own_last in line:
        start, end = max(first, own_first), min(last, own_last)
        if start > end:
            continue
        for other, other_first, other_last in line:
            rows = yield from every(
                sql.SHARED_ITEM_IDS, owner.id, start, end, other.id, other_first, other_last
            )
            shared.update(row[0] for row in rows)
    return shared


def _hiding(of: Session) -> Plan[list[Record]]:
    """Return the records that hide something of a session's log, its ancestors' included."""
    found: list[Record] = []
    line = yield from find_lineage(of)
    upto, records = of.head_seq, of.record_no
    for owner in line:
        rows = yield from every(sql.RECORDS, owner.id, records)
        own = [Record(*row) for row in rows]
        undone = {record.undoes for record in own if record.kind == "undo"}
        # What an ancestor hides of its own later log is no business of its heirs.
        found.extend(
            replace(record, to_seq=min(record.to_seq, upto))
            for record in own
            if record.kind in HIDING and record.no not in undone and record.from_seq <= upto
        )
        upto, records = min(upto, owner.parent_seq), owner.parent_record
    return found


def _what_hides(item: StoredItem, records: Sequence[Record]) -> Record | None:
    for record in records:
        if record.from_seq <= item.seq <= record.to_seq:
            return record
    return None
