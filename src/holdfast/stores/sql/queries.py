"""Read queries: pages of sessions, items, turns and events. They never wait for a run."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.history.history_hash import EMPTY_HISTORY, HistoryHashRow, Step, extend_hash
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.item_ids import OTHER_PREFIX, name_at, owner_of, place_in, split_name
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import (
    HIDING,
    Record,
    Span,
    in_force,
    visible_spans,
)
from holdfast.core.model.session import ProviderState, Session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.changes import (
    ApiKeyRow,
    CompletionRow,
    Event,
    JournalRow,
    StopRequestRow,
)
from holdfast.ports.store import (
    CompletionQuery,
    FeedPlace,
    ItemQuery,
    ListedItem,
    Order,
    PlacedEvent,
    ResponseView,
    SessionQuery,
    SessionView,
    Transcript,
    TurnView,
)
from holdfast.stores.cache.context_cache import NOTHING, ContextCache, TranscriptCache, listed
from holdfast.stores.cache.lineage_cache import LineageCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.entries import (
    read_events,
    read_session,
    read_turn,
    session_no,
)
from holdfast.stores.sql.lookups import (
    EVERYTHING,
    find_hidden,
    find_hidden_ranges,
    find_items,
    find_number,
    find_packed,
    find_parts,
    find_records,
    find_session,
    find_turn,
    find_turn_items,
    is_living,
    last_run_of_step,
    own_records,
    places_in_line,
    records_in_line,
    session_row,
)
from holdfast.stores.sql.plan import Plan, Row, Statement, every, every_as, one, one_as

MAX_PLACES = 100
"""The most sessions with one item id that are compared with a lineage at once."""
MAX_HASHED = 400
"""The most items of a log that are hashed on the event loop, in about 1 ms."""
EVENTS_PER_ENTRY = 1024
"""Factor in event places: entry position times this, plus the event's far smaller number in it."""


def session(
    tenant: Tenant, *, session_id: SessionId | None = None, key: Key | None = None
) -> Plan[SessionView | None]:
    """Return one session as the API shows it."""
    row = yield from named(tenant, session_id, key)
    return (yield from session_view(row)) if row is not None else None


def session_alone(
    tenant: Tenant, *, session_id: SessionId | None = None, key: Key | None = None
) -> Plan[Session | None]:
    """Return one session without its queue and its last turn."""
    row = yield from named(tenant, session_id, key)
    return read_session(row) if row is not None else None


def named(tenant: Tenant, session_id: SessionId | None, key: Key | None) -> Plan[Row | None]:
    """Return the row of a session by its id or key, unless it is foreign or was erased."""
    if session_id is not None:
        row = yield from session_row(session_id)
    else:
        row = yield from one(sql.SESSION_BY_KEY, tenant, key)
    return row if row is not None and read_session(row).exists_for(tenant) else None


def session_view(row: Row) -> Plan[SessionView]:
    """Return the session of a row as the API shows it."""
    session = read_session(row)
    waiting = yield from one(sql.WAITING, session_no(session.id))
    return SessionView(
        session,
        session.status(has_live_owner=is_living(row[-1])),
        waiting[0] if waiting else 0,
        (yield from _last_ended(session)),
    )


def _last_ended(of: Session) -> Plan[Turn | None]:
    """Return the turn that ended last, except turns that were reopened since."""
    if not of.turn_count:
        return None
    for row in (yield from every(sql.LAST_ENDED, session_no(of.id))):
        turn = yield from find_turn(row[0])
        if turn is not None and not turn.is_open:
            return turn
    return None


def _from_lanes(listed: Statement) -> Statement:
    # No index of tenants or ids fits these texts.
    text = re.sub("(and|where|order by) s.(id|tenant)", r"\1 s.\2 || ''", listed.text)
    chosen, _, order = text.partition(" order by s.")
    return Statement(
        listed.name.replace("list_", "list_running_"),
        text.replace("left join lanes a on a.session = s.no ", "").replace(
            "from sessions s", "from lanes a join sessions s on s.no = a.session + 0"
        ),
        postgres=f"select q.* from lanes z cross join lateral ({chosen} and s.no = z.session "
        f"offset 0) q order by q.{order}",
    )


RUNNING = {one: _from_lanes(one) for one in (sql.LIST_SESSIONS_UP, sql.LIST_SESSIONS_DOWN)}
"""The same lists of sessions whose lane is taken: not all sessions of the tenant are read."""
RETIRED = {
    one: Statement(
        one.name.replace("list_", "list_retired_"), one.text.replace(sql.IS_LIVE, sql.IS_RETIRED)
    )
    for one in (sql.LIST_SESSIONS_UP, sql.LIST_SESSIONS_DOWN)
}
"""The same lists of retired sessions, which have an index of their own."""


def sessions(tenant: Tenant, query: SessionQuery) -> Plan[list[SessionView]]:
    """Return a page of sessions. Status depends on the lane, so it is filtered after reading."""
    views: list[SessionView] = []
    after = query.after or ("" if query.order == "asc" else sql.LAST_ID)
    wants_all = query.generations or query.status == "retired"
    statement = sql.LIST_SESSIONS_UP if query.order == "asc" else sql.LIST_SESSIONS_DOWN
    if query.key:
        statement = sql.OF_KEY[statement]
    elif query.status == "running":
        statement = RUNNING[statement]
    elif query.status == "retired":
        statement = RETIRED[statement]
    while len(views) < query.limit:
        missing = query.limit - len(views)
        filters = (int(wants_all), query.key or "", after, missing, query.status or "")
        rows = yield from every(statement, tenant, *filters)
        for row in rows:
            view = yield from session_view(row)
            if query.status is None or view.status == query.status:
                views.append(view)
        if len(rows) < missing:
            break
        after = rows[-1][0]
    return views


def items(
    of: Session, query: ItemQuery, lines: LineageCache | None = None
) -> Plan[list[StoredItem]]:
    """Return a page of items; the hidden ranges are skipped before reading, not after."""
    is_up = query.order == "asc"
    first = query.after + 1 if is_up and query.after is not None else 1
    last = query.after - 1 if not is_up and query.after is not None else of.head_seq
    last = min(last, of.head_seq)
    spans: list[Span] = [(first, last)] if first <= last else []
    if query.view == "visible" and of.hidden_count:
        hidden = yield from find_hidden(of)
        spans = visible_spans(hidden, first, last) if first <= last else []
    limit_left = EVERYTHING if query.limit is None else query.limit
    if query.turn_id is not None and is_up and len(spans) == 1:
        stop = min(last, first + limit_left - 1)
        of_turn = yield from find_turn_items(of, query.turn_id, first, stop)
        if of_turn is not None:
            return of_turn
    items_found: list[StoredItem] = []
    for start, end in spans if is_up else reversed(spans):
        if limit_left <= 0:
            break
        if is_up:
            stop = end if limit_left == EVERYTHING else min(end, start + limit_left - 1)
            part = yield from find_items(of, start, stop, lines)
        else:
            begin = start if limit_left == EVERYTHING else max(start, end - limit_left + 1)
            part = yield from find_items(of, begin, end, lines)
            part.reverse()
        items_found.extend(part)
        limit_left = limit_left if limit_left == EVERYTHING else limit_left - len(part)
    return items_found


class Long(NamedTuple):
    """The result is larger than the limit."""

    rows: int


def transcript(
    tenant: Tenant, session_id: SessionId | None, key: Key | None, last: int | None,
    readings: TranscriptCache, at_most: int = EVERYTHING, lines: LineageCache | None = None,
) -> Plan[Transcript | Long | None]:  # fmt: skip
    """Return the last visible items as bytes, or `Long` if that takes more rows than `at_most`."""
    row = yield from named(tenant, session_id, key)
    if row is None:
        return None
    session = read_session(row)
    before = readings.find(session) if last is None else None
    spans: list[Span] = [(before.head_seq + 1 if before else 1, session.head_seq)]
    if session.hidden_count and not before:
        spans = visible_spans((yield from find_hidden(session)), 1, session.head_seq)
    spans = last_of(spans, last)
    rows_to_read = sum(end - first + 1 for first, end in spans)
    if rows_to_read > at_most:
        return Long(rows_to_read)
    bodies: list[bytes] = []
    for first, end in spans:
        for items in (yield from find_packed(session, first, end, lines)):
            bodies += [item.body for item in items.listed]
    return Transcript(session, listed(bodies, before.listed if before else NOTHING))


def last_of(spans: list[Span], count: int | None) -> list[Span]:
    """Return the part of disjoint, ordered spans that contains the last `count` numbers."""
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


def stop_requests() -> Plan[list[StopRequestRow]]:
    """Return the runs that other processes ask to end."""
    return every_as(StopRequestRow, sql.STOP_REQUESTS)


def hidden(session: Session) -> Plan[list[Span]]:
    """Return the hidden ranges."""
    return list((yield from find_hidden(session)))


def records(session: Session) -> Plan[list[Record]]:
    """Return a session's own records."""
    return own_records(session.id, session.record_no)


def lineage_records(session: Session) -> Plan[list[Record]]:
    """Return the records in force over a session's log, including those of its ancestors."""
    records = yield from find_records(session)
    return [record for own in reversed(records) for record in in_force(own)]


def turn(tenant: Tenant, turn_id: TurnId) -> Plan[TurnView | None]:
    """Return a turn and its state in the lane."""
    found = yield from find_turn(turn_id)
    if found is None or found.tenant != tenant:
        return None
    row = yield from session_row(found.session_id)
    if row is None:
        return None
    owner = read_session(row)
    if owner.deleted_at is not None:
        return None
    return TurnView(found, found.status(owner, has_live_owner=is_living(row[-1])))


def turns(
    session_id: SessionId, *, after: int = 0, limit: int = 20, order: Order = "asc"
) -> Plan[list[TurnView]]:
    """Return a page of turns."""
    row = yield from session_row(session_id)
    if row is None:
        return []
    owner = read_session(row)
    is_alive = is_living(row[-1])
    if order == "asc":
        first, last = after + 1, min(after + limit, owner.turn_count)
    else:
        last = min(after - 1, owner.turn_count) if after else owner.turn_count
        first = max(last - limit + 1, 1)
    if first > last:
        return []
    low = yield from find_number(owner, "turns", first)
    high = yield from find_number(owner, "turns", last)
    rows = yield from every(sql.TURNS_BETWEEN, session_no(owner.id), low, high)
    rows_found = sorted(map(read_turn, rows), key=lambda turn: turn.number, reverse=order == "desc")
    return [
        TurnView(one, one.status(owner, has_live_owner=is_alive))
        for one in rows_found
        if first <= one.number <= last
    ]


def response(tenant: Tenant, turn_id: TurnId, step: int) -> Plan[ResponseView | None]:
    """Return the record of the response of a turn's step."""
    turn = yield from find_turn(turn_id)
    if turn is None or turn.tenant != tenant or step > turn.step:
        return None
    row = yield from session_row(turn.session_id)
    owner = read_session(row) if row else None
    if row is None or owner is None or owner.deleted_at is not None:
        return None
    if (yield from one(sql.DROPPED_RESPONSE, turn_id, step)) is not None:
        return None
    last = yield from last_run_of_step(turn_id, step)
    status = turn.status(owner, has_live_owner=is_living(row[-1]))
    return ResponseView(turn, status, owner, last, step)


def journal(turn_id: TurnId, step: int, after: int, limit: int) -> Plan[list[JournalRow]]:
    """Return batches of a response's journal."""
    return every_as(JournalRow, sql.JOURNAL, turn_id, step, after, limit)


def provider_state(session_id: SessionId) -> Plan[list[ProviderState]]:
    """Return the provider state of a session."""
    return every_as(ProviderState, sql.PROVIDER_STATE, session_id)


def events(session_id: SessionId, after: int, limit: int) -> Plan[list[Event]]:
    """Return facts after a cursor."""
    owner = yield from find_session(session_id)
    if owner is None or after >= owner.event_no:
        return []
    low = yield from find_number(owner, "events", after + 1)
    events_found: list[Event] = []
    while low <= owner.version and len(events_found) < limit:
        # At most as many entries as events are needed, not counting some without any.
        rows = yield from every(sql.ENTRIES, session_no(session_id), low, owner.version, limit + 1)
        for n, _, at, turn_id, _, _, last, _, body, _, _ in rows:
            events_found += read_events(bytes(body), owner.id, owner.tenant, turn_id, last, at)
            low = n + 1
        if not rows:
            break
    return [event for event in events_found if event.no > after][:limit]


def feed(tenant: Tenant, after: FeedPlace, limit: int) -> Plan[list[PlacedEvent]]:
    """Return a tenant's facts after a place, in the order of their commits."""
    pos, skipped = divmod(after.position, EVENTS_PER_ENTRY)
    placed: list[PlacedEvent] = []
    txid = after.txid
    while len(placed) < limit:
        rows = yield from every(sql.FEED, tenant, txid, pos, limit + 1)
        for session_id, turn_id, at, last, body, entry_txid, entry_pos in rows:
            listed_events = read_events(bytes(body), session_id, tenant, turn_id, last, at)
            is_first = (entry_txid, entry_pos) == (after.txid, pos) and skipped
            for index, event in enumerate(listed_events, 1):
                if not is_first or index > skipped:
                    place = FeedPlace(entry_txid, entry_pos * EVENTS_PER_ENTRY + index)
                    placed.append(PlacedEvent(event, place))
        if len(rows) <= limit:
            break
        txid, pos = rows[-1][5], rows[-1][6] + 1
        skipped = 0
    return placed[:limit]


def event_place(tenant: Tenant, session_id: SessionId, number: int) -> Plan[FeedPlace | None]:
    """Return the place of an event in its tenant's feed, also of an erased session."""
    owner = yield from find_session(session_id)
    if owner is None or owner.tenant != tenant or not 1 <= number <= owner.event_no:
        return None
    n = yield from find_number(owner, "events", number)
    row = yield from one(sql.ENTRY_PLACE, session_no(session_id), n)
    if row is None:
        return None
    return FeedPlace(row[0], row[1] * EVENTS_PER_ENTRY + number - row[2])


def own_place(tenant: Tenant, place: FeedPlace) -> Plan[FeedPlace | None]:
    """Return a place of a tenant's feed if it is exactly that of an event of the tenant."""
    pos, index = divmod(place.position, EVENTS_PER_ENTRY)
    row = yield from one(sql.OWN_ENTRY, tenant, pos)
    if row is None or not 1 <= index <= row[1]:
        return None
    return FeedPlace(row[0], place.position)


def log_end() -> Plan[FeedPlace]:
    """Return the place after every fact that can be read now."""
    row = yield from one(sql.LOG_END)
    return FeedPlace(row[0], (row[1] + 1) * EVENTS_PER_ENTRY) if row else FeedPlace()


def completion(tenant: Tenant, turn_id: TurnId, step: int) -> Plan[CompletionRow | None]:
    """Return one stored completion."""
    return one_as(CompletionRow, sql.COMPLETION, tenant, turn_id, step)


def completions(tenant: Tenant, query: CompletionQuery) -> Plan[list[CompletionRow]]:
    """Return a page of stored completions; metadata is filtered after reading."""
    rows_found: list[CompletionRow] = []
    is_up = query.order == "asc"
    statement = sql.COMPLETIONS_UP if is_up else sql.COMPLETIONS_DOWN
    turn_id, step = query.after or ("" if is_up else sql.LAST_ID, 0)
    while len(rows_found) < query.limit:
        rows = yield from every(statement, tenant, query.model or "", turn_id, step, query.limit)
        read = [CompletionRow(*row) for row in rows]
        rows_found.extend(row for row in read if _has_metadata(row, query.metadata))
        if len(rows) < query.limit:
            break
        turn_id, step = read[-1].turn_id, read[-1].step
    return rows_found[: query.limit]


def _has_metadata(row: CompletionRow, required: dict[str, str]) -> bool:
    if not required:
        return True
    kept = msgspec.json.decode(row.metadata, type=dict[str, str])
    return all(kept.get(name) == value for name, value in required.items())


def api_keys() -> Plan[list[ApiKeyRow]]:
    """Return every API key."""
    return every_as(ApiKeyRow, sql.API_KEYS)


def find_history(
    tenant: Tenant, history_hashes: Sequence[bytes], contexts: ContextCache,
    at_most: int = EVERYTHING,
) -> Plan[HistoryHashRow | Long | None]:  # fmt: skip
    """Return where a history with one of these hashes ends; earlier hashes are preferred.

    Return `Long` if more than `at_most` items have to be hashed to know that.
    """
    for start in range(0, len(history_hashes), sql.HASHES_AT_ONCE):
        hashes = list(history_hashes[start : start + sql.HASHES_AT_ONCE])
        padding = [EMPTY_HISTORY] * (sql.HASHES_AT_ONCE - len(hashes))
        parameters = (tenant, *hashes, *padding)
        rows = yield from every_as(HistoryHashRow, sql.FIND_HISTORY_HASHES, *parameters)
        for history_hash in hashes:
            for row in rows:
                if row.history_hash != history_hash:
                    continue
                at_most -= row.seq
                if at_most < 0:
                    return Long(row.seq)
                if (yield from _still_matches(row, contexts)):
                    return row
    return None


def _still_matches(row: HistoryHashRow, contexts: ContextCache) -> Plan[bool]:
    """Whether the log up to its end still has this hash.

    It has not if something was erased, or if another turn wrote between the items of this one.
    """
    found = yield from find_session(row.session_id)
    if found is None:
        return False
    log = contexts.whole_log(found)
    if log is not None:
        steps_hashed: list[Step] = [(item.fingerprint, item.call_id) for item in log[: row.seq]]
        return extend_hash(EMPTY_HISTORY, steps_hashed) == row.history_hash
    session = replace(found, record_no=row.record_no)
    hidden = yield from find_hidden(session)
    history_hash = EMPTY_HISTORY
    for first, last in visible_spans(hidden, 1, row.seq):
        for items in (yield from find_packed(session, first, last)):
            steps: list[Step] = [(one.fingerprint, one.call_id) for one in items.listed]
            history_hash = extend_hash(history_hash, steps)
    return history_hash == row.history_hash


def item_places(tenant: Tenant, item_id: str) -> Plan[list[SessionId]]:
    """Return sessions without a key that have an item with this id."""
    return every_as(SessionId, sql.ITEM_PLACES, tenant, item_id)


def stored_bytes(tenant: Tenant) -> Plan[int]:
    """Return the size in bytes of the items of a tenant's sessions."""
    rows = yield from every(sql.STORED_BYTES, tenant)
    return int(rows[0][0])


def _shown_items(of: Session, query: ItemQuery, lines: LineageCache) -> Plan[list[StoredItem]]:
    """Return a page of items in the order in which a model sees them: the instructions first."""
    span = (yield from find_hidden_ranges(of)).instructions
    if span is None:
        return (yield from items(of, query, lines))
    lead = yield from items(of, ItemQuery(after=span[0] - 1, limit=span[1] - span[0] + 1), lines)
    lead = [item for item in lead if item.seq <= span[1]]
    after, limit, is_up = query.after, query.limit, query.order == "asc"
    if after is not None and span[0] <= after <= span[1]:
        lead = [item for item in lead if (item.seq > after) == is_up and item.seq != after]
        query = replace(query, after=None if is_up else 0)
    elif after is not None and is_up:
        lead = []
    wider = None if limit is None else limit + span[1] - span[0] + 1
    candidates = yield from items(of, replace(query, limit=wider), lines)
    rest = [item for item in candidates if not span[0] <= item.seq <= span[1]]
    return ([*lead, *rest] if is_up else [*rest, *reversed(lead)])[:limit]


def listing(of: Session, query: ItemQuery, lines: LineageCache) -> Plan[list[ListedItem]]:
    """Return a page of items with names and, in the log's view, the record that hides each."""
    page = yield from (
        _shown_items(of, query, lines) if query.view == "visible" else items(of, query, lines)
    )
    if not page:
        return []
    records = (yield from hiding_records(of)) if query.view == "log" else []
    return (yield from name_items(of, page, records, (yield from stored_ids(page)), lines))


def stored_ids(page: Sequence[StoredItem]) -> Plan[dict[str, int]]:
    """Return how many rows the ids of items have, up to two; ids without a row are left out."""
    names = [item.item_id for item in page if item.item_id is not None and "\0" not in item.item_id]
    if not names:
        return {}
    rows = yield from every(sql.STORED_IDS, msgspec.json.encode(names).decode())
    return {row[0]: row[1] for row in rows if row[1]}


def name_items(
    of: Session,
    page: Sequence[StoredItem],
    records: Sequence[Record],
    stored: Mapping[str, int],
    lines: LineageCache,
) -> Plan[list[ListedItem]]:
    """Return items with their names and what hides them; `stored` counts the rows of their ids."""
    hidden: Sequence[Span] | None = None
    listed: list[ListedItem] = []
    for item in page:
        name = item.item_id or name_at(OTHER_PREFIX, item.seq)
        if item.item_id is not None:
            count, place = stored.get(item.item_id, 0), place_in(item.item_id)
            # The item has a row of its own, unless its id ends with its place.
            is_shared = (
                count > 0
                if place == item.seq
                else count > 1 or (place is not None and 1 <= place <= of.head_seq)
            )
            places = (yield from _places(of, item.item_id, lines)) if is_shared else []
            if len(places) > 1:
                if hidden is None:
                    hidden = yield from find_hidden(of)
                if owner_of(places, hidden) != item.seq:
                    name = name_at(item.item_id, item.seq)
        listed.append(ListedItem(item, name, _what_hides(item, records)))
    return listed


def find_listed(of: Session, name: str, lines: LineageCache) -> Plan[ListedItem | None]:
    """Return the item with a name, hidden or not."""
    places = yield from _places(of, name, lines)
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
    items = yield from find_items(of, seq, seq, lines)
    if not items or (not places and parts and (items[0].item_id or OTHER_PREFIX) != parts[0]):
        return None
    records = [] if visible_spans(hidden, seq, seq) else (yield from hiding_records(of))
    return ListedItem(items[0], name, _what_hides(items[0], records))


def _places(of: Session, item_id: str, lines: LineageCache) -> Plan[list[int]]:
    """Return where an id occurs in a session's log, oldest first.

    An id that very many sessions use is looked up in each part of the lineage instead.
    """
    rows = yield from every(sql.FIRST_PLACES, item_id, MAX_PLACES)
    places: set[int] = set()
    if len(rows) < MAX_PLACES:
        pairs = [(row[0], row[1]) for row in rows]
        places.update((yield from places_in_line(of, pairs, lines)))
    else:
        for part, no, _ in (yield from find_parts(of, 1, of.head_seq, lines)):
            span = (part.first, part.last)
            found = yield from every(sql.PLACES_OF_ITEM, no, item_id, *span)
            places.update(row[0] for row in found)
    place = place_in(item_id)
    if place is not None and place not in places and 1 <= place <= of.head_seq:
        at_place = yield from find_items(of, place, place, lines)
        places.update(item.seq for item in at_place if item.item_id == item_id)
    return sorted(places)


def hiding_records(of: Session) -> Plan[list[Record]]:
    """Return the records that hide parts of a session's log, including its ancestors' records."""
    return [
        # What an ancestor hides after the point of the fork does not affect the fork.
        replace(record, to_seq=min(record.to_seq, upto, of.head_seq))
        for own, upto in (yield from records_in_line(of))
        for record in in_force(own)
        if record.kind in HIDING and record.from_seq <= min(upto, of.head_seq)
    ]


def _what_hides(item: StoredItem, records: Sequence[Record]) -> Record | None:
    for record in records:
        if record.from_seq <= item.seq <= record.to_seq:
            return record
    return None
