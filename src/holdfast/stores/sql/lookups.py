"""Find sessions, turns, runs, records and items in the log with as few reads as possible."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import (
    HIDING,
    NOTHING_HIDDEN,
    REFUSED,
    HiddenRanges,
    Record,
    Span,
    hidden_spans,
    merge_spans,
)
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn, WorkerDeath
from holdfast.core.transaction.changes import Change, Entry, IdempotencyRow, LogAppended
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.stores.cache.lineage_cache import Lineage, LineageCache, Part
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.entries import (
    EXPIRED,
    SESSION_WIDTH,
    Items,
    read_body,
    read_items,
    read_records,
    read_run,
    read_session,
    read_turn,
    session_no,
    unpack_entries,
)
from holdfast.stores.sql.plan import Plan, Row, Statement, every, every_as, one, one_as

EVERYTHING = 2**62
SMALL_PART = 64
"""A part with fewer items is always read completely, even if a page ends in it."""
NEAR_ENTRIES = 3
NEAR_ITEMS = 16
"""How many extra entries and items may be read around a range to save the exact search."""
MAX_RANGES = 64
"""Most hidden ranges that an entry stores; if there are more, all records are read."""

# Offsets of the parts of a `LANE_BY_…` row.
_OWNER = SESSION_WIDTH
_WAITING = _OWNER + 1
_ACTIVE = _WAITING + len(Waiting.__struct_fields__)
_PARTIAL = _ACTIVE + 9

# Ids are a client's own affair: those of other tenants and of idle sessions are passed over.
BUSY_SESSIONS_WITH = Statement(
    "busy_sessions_with",
    # Not a join: it might read all lanes.
    "select distinct q.id from (select (select s.id from sessions s where s.no = i.session "
    "and s.tenant = ?1 and exists (select 1 from lanes l where l.session = i.session)) as id "
    "from item_ids i where i.item_id = ?2) q where q.id is not null limit 16",
)

Count = Literal["seq", "turns", "events"]
_COUNTS: dict[Count, int] = {"seq": 0, "turns": 1, "events": 2}


def find_turn(turn_id: TurnId | None) -> Plan[Turn | None]:
    """Return a turn by its id."""
    row = (yield from one(sql.TURN_BY_ID, turn_id)) if turn_id else None
    return read_turn(row) if row else None


def find_repeat(tenant: Tenant | None, key: str | None) -> Plan[IdempotencyRow | None]:
    """Return what an idempotency key is bound to; None if it was not used, or there is no key."""
    if key is None:
        return None
    return (yield from one_as(IdempotencyRow, sql.IDEMPOTENCY_BY_KEY, tenant, key))


def find_runs(turn_id: TurnId) -> Plan[list[Run]]:
    """Return every attempt at a turn, oldest first."""
    rows = yield from every(sql.TURN_ENTRIES, turn_id)
    states = {
        state.id: (state, row[0]) for row in rows for state in read_body(row[1], turn_id).runs
    }
    ids = msgspec.json.encode(list(states)).decode()
    noted_rows = (yield from every(sql.LATE_WRITES, ids)) if states else []
    late: dict[RunId, bytes] = {row[0]: bytes(row[1]) for row in noted_rows}
    runs: list[Run] = []
    for state, session_id in states.values():
        partial = None
        if state.outcome is None:
            kept = yield from one(sql.PARTIAL, state.id)
            partial = bytes(kept[0]) if kept else None
        late_write = late.get(state.id)
        runs.append(read_run(state, turn_id, session_id, partial=partial, late=late_write))
    return sorted(runs, key=lambda run: run.epoch)


def find_busy_sessions(tenant: Tenant, item_id: str) -> Plan[list[SessionId]]:
    """Return sessions whose lane is taken and that have an item of this id."""
    return every_as(SessionId, BUSY_SESSIONS_WITH, tenant, item_id)


def find_run(turn_id: TurnId | None, run_id: RunId) -> Plan[Run | None]:
    """Return a run of a turn by its id."""
    runs = (yield from find_runs(turn_id)) if turn_id else []
    return next((run for run in runs if run.id == run_id), None)


class _Place(NamedTuple):
    """An entry of a session, and the value of a count there."""

    n: int
    reached: int


def find_number(session: Session, count: Count, target: int, *, beside: int = 0) -> Plan[int]:
    """Return the number of the first entry of a session at which a count reaches a target.

    Counts grow with the entries, mostly evenly, so an interpolation search needs few reads, however
    long the log is. If `beside` is negative, an entry shortly before the exact one will do; if it
    is positive, one shortly after it. The search probes `beside` entries away from its guess, so
    that one read is mostly enough.
    """
    at = _COUNTS[count]
    low = _Place(0, session.parent_seq if count == "seq" else 0)
    high = _Place(session.version, (session.head_seq, session.turn_count, session.event_no)[at])
    is_even = True
    while high.n - low.n > 1:
        if beside < 0 and target - low.reached <= NEAR_ITEMS:
            return low.n + 1
        if beside > 0 and high.reached - target <= NEAR_ITEMS:
            return high.n
        middle = (low.n + high.n) // 2
        if is_even and high.reached > low.reached:
            share = (target - low.reached) * (high.n - low.n) // (high.reached - low.reached)
            middle = min(max(low.n + share + beside, low.n + 1), high.n - 1)
        # If interpolation closes in from one side only, halving every other time ends the search.
        is_even = not is_even
        row = yield from one(sql.COUNTS, session_no(session.id), middle)
        assert row is not None, f"entry {middle} of session {session.id} is missing"
        if row[at] >= target:
            high = _Place(middle, row[at])
        else:
            low = _Place(middle, row[at])
    return high.n


def find_lineage(session: Session) -> Plan[list[Session]]:
    """Return a session and its ancestors, the nearest first."""
    line = [session]
    while line[-1].parent_id is not None:
        parent = yield from find_session(line[-1].parent_id)
        if parent is None:
            break
        line.append(parent)
    return line


def find_ancestors(of: Session, first: int, lines: LineageCache | None = None) -> Plan[Lineage]:
    """Return the ancestors of a fork back to the item `first`, in at most one read.

    A lineage that is cached is read twice as far back, so that paging through it needs few reads.
    """
    assert of.parent_id is not None
    line = lines.find(of.parent_id, first) if lines is not None else None
    if line is None:
        if lines is not None:
            first = max(2 * first - of.head_seq, 0)
        rows = yield from every(sql.ANCESTORS, of.parent_id, first)
        line = Lineage([(row[0], session_no(row[0]), row[1]) for row in rows], first)
        if lines is not None:
            lines.keep(of.parent_id, line)
    return line


def places_in_line(
    of: Session, places: Sequence[tuple[int, int]], lines: LineageCache | None = None
) -> Plan[list[int]]:
    """Return the items of those places (session number, item) that are in a session's lineage."""
    own = session_no(of.id)
    own_places = [seq for no, seq in places if no == own and of.parent_seq < seq <= of.head_seq]
    others = [(no, seq) for no, seq in places if no != own and seq <= of.parent_seq]
    if not others or of.parent_id is None:
        return own_places
    line = yield from find_ancestors(of, min(seq for _, seq in others), lines)
    for no, seq in others:
        part = line.by_session.get(no)
        if part is not None and part[0] <= seq <= part[1]:
            own_places.append(seq)
    return own_places


def own_records(session_id: SessionId, upto: int, first: int = 0) -> Plan[list[Record]]:
    """Return a session's own records with numbers from `first` to `upto`."""
    if not upto:
        return []
    rows = yield from every(sql.RECORD_ENTRIES, session_no(session_id), first)
    records = [record for row in rows for record in read_records(row[1], session_id)]
    return [record for record in records if first <= record.no <= upto]


def records_in_line(session: Session) -> Plan[list[tuple[list[Record], int]]]:
    """Return the records over a session's log: its own and those of each ancestor, nearest first.

    Each list is followed by the last item that its records apply to: the point of the fork.
    """
    found: list[tuple[list[Record], int]] = []
    number, upto = session.record_no, EVERYTHING
    for owner in (yield from find_lineage(session)):
        own = yield from own_records(owner.id, number)
        if own:
            found.append((own, upto))
        number, upto = owner.parent_record, min(upto, owner.parent_seq)
    return found


def find_records(session: Session) -> Plan[list[tuple[Record, ...]]]:
    """Return the records that change the view of a session's log, cut off at the forks."""
    return [
        tuple(
            replace(record, to_seq=min(record.to_seq, upto))
            for record in own
            if changes_view(record)
        )
        for own, upto in (yield from records_in_line(session))
    ]


def changes_view(record: Record) -> bool:
    """Whether a record changes which items are in the view; undone compactions are empty."""
    is_view = record.kind not in ("compaction", "elision", "instructions")
    return is_view and record.from_seq <= record.to_seq


def find_instructions(session: Session) -> Plan[Span | None]:
    """Return the range of items with a session's instructions, including inherited ones."""
    number, upto = session.record_no, session.head_seq
    for owner in (yield from find_lineage(session)):
        for record in reversed((yield from own_records(owner.id, number))):
            if record.kind == "instructions" and record.to_seq <= upto:
                return record.from_seq, record.to_seq
        number, upto = owner.parent_record, min(upto, owner.parent_seq)
    return None


def find_hidden(session: Session) -> Plan[tuple[Span, ...]]:
    """Return the hidden ranges of a session's log, including the inherited part."""
    ranges = yield from find_hidden_ranges(session)
    return ranges.all()


def find_hidden_ranges(session: Session) -> Plan[HiddenRanges]:
    """Return the hidden ranges of a log from the entry of its last record, or a fork's first entry.

    If that entry lacks them (too many ranges, several records at once), all records are read.
    """
    no = session_no(session.id)
    if session.record_no:
        row = yield from one(sql.RECORD_ENTRY, no, session.record_no)
    elif session.parent_id is not None:
        row = yield from one(sql.FIRST_ENTRY, no)
    else:
        return NOTHING_HIDDEN
    kept = read_body(bytes(row[0])).hidden if row is not None else None
    if kept is not None:
        return kept
    records = yield from find_records(session)
    refused = merge_spans(span for own in records for span in hidden_spans(own, REFUSED))
    hidden = merge_spans(span for own in records for span in hidden_spans(own, HIDING - REFUSED))
    return HiddenRanges(tuple(hidden), tuple(refused), (yield from find_instructions(session)))


def add_hidden_ranges(changes: Sequence[Change]) -> Plan[None]:
    """Store the hidden ranges in new entries that change them."""
    for change in changes:
        if type(change) is LogAppended:
            yield from _add_hidden_ranges(change)


def _add_hidden_ranges(change: LogAppended) -> Plan[None]:
    session, before = change.session, change.before
    if before is not None and before.record_no == session.record_no:
        return
    ranges = NOTHING_HIDDEN
    if before is not None:
        ranges = yield from find_hidden_ranges(before)
    elif session.parent_id is not None:
        parent = yield from find_session(session.parent_id)
        if parent is not None:
            parent = replace(parent, record_no=session.parent_record)
            inherited = (yield from find_hidden_ranges(parent)).upto(session.parent_seq)
            if inherited is None:
                return
            ranges = inherited
        _keep_ranges(change.entries[0], ranges)
    for entry in change.entries:
        if entry.records:
            ranges = ranges.after(entry.records)
            _keep_ranges(entry, ranges)


def _keep_ranges(entry: Entry, ranges: HiddenRanges) -> None:
    if len(ranges.hidden) + len(ranges.refused) <= MAX_RANGES:
        entry.hidden = ranges


def find_items(
    session: Session, first: int, last: int, lines: LineageCache | None = None
) -> Plan[list[StoredItem]]:
    """Return items by sequence number, oldest first, whichever ancestor stores them."""
    items: list[StoredItem] = []
    for part, rows in (yield from _entries_by_part(session, first, last, lines)):
        items += unpack_entries(rows, part.session_id, part.first, part.last)
    return items


def find_turn_items(
    of: Session, turn_id: TurnId, first: int, last: int
) -> Plan[list[StoredItem] | None]:
    """Return a range of items from the entries of their turn; None if some are not in them."""
    own = session_no(of.id)
    rows = [row for row in (yield from every(sql.TURN_ITEMS, turn_id)) if row[0] == own]
    items = unpack_entries(rows, of.id, first, last)
    return items if len(items) == last - first + 1 else None


def find_packed(
    of: Session, first: int, last: int, lines: LineageCache | None = None
) -> Plan[list[Items]]:
    """Return a range of items in their packed form, by entry, whichever ancestor stores them."""
    packed: list[Items] = []
    for part, rows in (yield from _entries_by_part(of, first, last, lines)):
        for row in rows:
            items = read_items(row[-1])
            at = row[-2] - len(items.listed) + 1
            # The entries may extend beyond the range.
            items.listed = items.listed[max(part.first - at, 0) : max(part.last - at + 1, 0)]
            packed.append(items)
    return packed


def _entries_by_part(
    of: Session, first: int, last: int, lines: LineageCache | None
) -> Plan[list[tuple[Part, list[Row]]]]:
    """Return the entries with a range of items, by the session that stores them, oldest first.

    Each row ends with the number of its last item and the items. One statement reads the entries of
    all sessions.
    """
    parts = yield from find_parts(of, first, last, lines)
    if len(parts) == 1:
        part, no, (low, high) = parts[0]
        return [(part, (yield from every(sql.ITEM_ENTRIES, no, low, high)))]
    if not parts:
        return []
    ranges = msgspec.json.encode([(no, low, high) for _, no, (low, high) in parts]).decode()
    rows_by_session: dict[int, list[Row]] = {no: [] for _, no, _ in parts}
    for row in sorted((yield from every(sql.RANGE_ENTRIES, ranges)), key=itemgetter(1)):
        rows_by_session[row[0]].append(row)
    return [(part, rows_by_session[no]) for part, no, _ in parts]


def find_parts(
    of: Session, first: int, last: int, lines: LineageCache | None
) -> Plan[list[tuple[Part, int, Span]]]:
    """Return the parts of a range of items, oldest first, with session number and entry range.

    Entries are never renumbered, so the entry range of an ancestor's whole part is cached with its
    lineage. Of a small part, all entries are read.
    """
    parts: list[tuple[Part, int, Span]] = []
    last = min(last, of.head_seq)
    start = max(first, of.parent_seq + 1)
    if start <= last:
        own = yield from _entry_range(of, start, last)
        parts.append((Part(of.id, start, last), session_no(of.id), own))
    last = min(last, of.parent_seq)
    if of.parent_id is None or first > last:
        return parts
    line = yield from find_ancestors(of, first, lines)
    for part in line.between(first, last):
        no = session_no(part.session_id)
        span = line.by_session[no]
        is_whole = span == (part.first, part.last) or span[1] - span[0] < SMALL_PART
        entries = line.entries.get(no) if is_whole else None
        if entries is None:
            owner = yield from find_session(part.session_id)
            assert owner is not None, f"session {part.session_id} of a line of forks is missing"
            bounds = span if is_whole else (part.first, part.last)
            entries = yield from _entry_range(owner, *bounds)
            if is_whole:
                line.entries[no] = entries
        parts.append((part, no, entries))
    parts.reverse()
    return parts


def _entry_range(owner: Session, first: int, last: int) -> Plan[Span]:
    """Return an entry range that contains a range of a session's own items; it may be larger."""
    low, high = 1, owner.version
    if first > owner.parent_seq + 1:
        low = yield from find_number(owner, "seq", first, beside=-NEAR_ENTRIES)
    if last < owner.head_seq:
        high = yield from find_number(owner, "seq", last, beside=NEAR_ENTRIES)
    return low, high


def lane_facts(session_id: SessionId, now: float) -> Plan[Facts]:
    """Return a session and the state of its lane."""
    facts = _read_lane((yield from one(sql.LANE_BY_ID, session_id)), now)
    if facts.active_run is not None and not facts.has_live_owner:
        return (yield from _with_death(facts, facts.active_run.worker))
    return facts


def changed_lane(
    session_id: SessionId, version: int, now: float
) -> Plan[tuple[Facts, list[StoredItem]] | None]:
    """Return the state of a lane and its first new items; None if it is still at this version."""
    row = yield from one(sql.CHANGED_LANE, session_id, version)
    if row is None:
        return None
    facts = _read_lane(row, now)
    rows = list(zip(row[-2] or (), row[-1] or (), strict=True))
    return facts, unpack_entries(rows, session_id, 1, EVERYTHING)


def lane_of_key(tenant: Tenant, key: Key | None, now: float) -> Plan[Facts]:
    """Return the live session of a key and the state of its lane."""
    facts = _read_lane((yield from one(sql.LANE_BY_KEY, tenant, key)), now)
    if facts.active_run is not None and not facts.has_live_owner:
        return (yield from _with_death(facts, facts.active_run.worker))
    return facts


def _with_death(facts: Facts, worker: WorkerId) -> Plan[Facts]:
    """Add how the worker of a run died; one that said goodbye has no row."""
    row = yield from one(sql.WORKER_DEATH, worker)
    return replace(facts, owner_death=WorkerDeath(*row)) if row is not None else facts


def no_facts(_: Command[Any], now: float) -> Plan[Facts]:
    """Read nothing but the time."""
    yield from ()
    return Facts(now=now)


def is_living(alive_until: float | None) -> bool:
    """Whether a worker was not declared dead; one without a row, and so without a lease, was.

    The end of a lease is not compared with the time: the clock may have stepped.
    """
    return alive_until is not None and alive_until != EXPIRED


def _read_lane(row: Row | None, now: float) -> Facts:
    if row is None:
        return Facts(now=now)
    session = read_session(row)
    active, run = None, None
    if row[_ACTIVE + 2] is not None:
        active = read_turn(row[_ACTIVE:_PARTIAL])
        run = _active_run(session, active, row[_ACTIVE + 3], row[_PARTIAL])
    return Facts(
        now=now,
        session=session,
        has_live_owner=is_living(row[_OWNER]),
        waiting=Waiting(*row[_WAITING:_ACTIVE]),
        active=active,
        active_run=run,
    )


def _active_run(session: Session, active: Turn, body: bytes, partial: bytes | None) -> Run | None:
    """Return the run that has the lane; every entry about a running turn has the run's state."""
    for state in read_body(body, active.id).runs:
        if state.id == session.active_run_id:
            kept = bytes(partial) if partial is not None else None
            return read_run(state, active.id, session.id, partial=kept)
    return None


def session_row(session_id: SessionId) -> Plan[Row | None]:
    """Return the row of a session; its last column is the lease of the lane's owner."""
    return one(sql.SESSION_BY_ID, session_id)


def find_session(session_id: SessionId) -> Plan[Session | None]:
    """Return a session by its id."""
    row = yield from one(sql.SESSION_BY_ID, session_id)
    return read_session(row) if row is not None else None


def find_live(tenant: Tenant, key: Key) -> Plan[Session | None]:
    """Return the live session of a key."""
    row = yield from one(sql.SESSION_BY_KEY, tenant, key)
    return read_session(row) if row is not None else None


def latest_turn(session: Session) -> Plan[Turn | None]:
    """Return the turn of a session that was accepted most recently."""
    if not session.turn_count:
        return None
    n = yield from find_number(session, "turns", session.turn_count)
    row = yield from one(sql.ENTRY_TURN, session_no(session.id), n)
    return (yield from find_turn(row[0])) if row else None


def last_run_of_step(turn_id: TurnId, step: int) -> Plan[Run | None]:
    """Return the last attempt at a step of a turn."""
    runs = yield from find_runs(turn_id)
    return next((run for run in reversed(runs) if run.step == step), None)


def open_turns(session_id: SessionId) -> Plan[tuple[Turn, ...]]:
    """Return every open turn of a session, in the order of the lane."""
    rows = yield from every(sql.OPEN_TURNS, session_no(session_id))
    return tuple(sorted(map(read_turn, rows), key=lambda turn: turn.position))
