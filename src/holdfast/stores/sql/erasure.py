"""Erase content for good: read the entries that contain it, blank it, and write them back.

Also the removal of what is too old to be kept.

The entries stay with their numbers, ids and outcomes, so that no late write revives the session.
"""

from collections.abc import Sequence
from itertools import takewhile

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.items import read_role
from holdfast.core.transaction import changes as ch
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Prune
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.channels.statements import (
    ERASE_MESSAGES,
    ERASE_TURN_FILES,
    ERASE_TURN_MESSAGES,
)
from holdfast.stores.sql.entries import (
    Body,
    Items,
    ItemState,
    pack,
    read_body,
    read_items,
    session_no,
)
from holdfast.stores.sql.lookups import find_number, find_session
from holdfast.stores.sql.plan import Ask, Plan, Statement, every, one
from holdfast.stores.sql.search import statements as search

ERASURES = (
    Statement("erase_partials", "delete from partials where session = ?1"),
    Statement("erase_queue", "delete from queue where session = ?1"),
    Statement("erase_late_writes", "delete from late_writes where session = ?1"),
    Statement("erase_journals", "delete from journals where session = ?1"),
)
"""The parameter is the session's number in the log."""
ERASURES_BY_ID = (
    Statement("erase_completions", "delete from completions where session_id = ?1"),
    Statement("erase_history_hashes", "delete from history_hashes where session_id = ?1"),
    Statement("erase_item_places", "delete from item_places where session_id = ?1"),
)

IDLE_SESSIONS = Statement(
    "idle_sessions",
    "select s.tenant, s.id from sessions s where s.id > ?2 and s.deleted_at is null "
    "and not exists (select 1 from lanes a where a.session = s.no) "
    "and not exists (select 1 from queue q where q.session = s.no) "
    "and not exists (select 1 from log l where l.session = s.no and l.n = "
    "(select max(n) from log where session = s.no and turn is not null) and l.at >= ?1) "
    "and s.created_at < ?1 "
    "and not exists (select 1 from sessions f where f.parent_id = s.id and f.deleted_at is null) "
    "order by s.id limit ?3",
)
FORGET_JOURNALS = Statement(
    "forget_journals",
    "delete from journals where turn_id < ?1 and not exists "
    "(select 1 from lanes a where a.turn = journals.turn_id)",
)
# Events are removed from entries, the oldest first, in batches.
PRUNED_UPTO = Statement("pruned_upto", "select pos from cursors where view = 'pruned'")
SAVE_PRUNED_UPTO = Statement(
    "save_pruned_upto",
    "insert into cursors (view, pos) values ('pruned', ?1) "
    "on conflict (view) do update set pos = excluded.pos",
)
ENTRIES_TO_PRUNE = Statement(
    "entries_to_prune",
    "select pos, session, n, body, at from log where pos > ?1 order by pos limit ?2",
)
PRUNED_AT_ONCE = 1000
AT_ONCE = 256
"""How many entries are read and written back at a time."""


def scrubbed(changes: Sequence[ch.Change]) -> tuple[ch.Change, ...]:
    """Return the changes without the content of sessions that they erase; it is never written."""
    erased = {change.session_id for change in changes if isinstance(change, ch.ContentErased)}
    if not erased:
        return tuple(changes)
    return tuple(
        _without_content(change)
        if isinstance(change, ch.LogAppended) and change.session.id in erased
        else change
        for change in changes
    )


def _without_content(change: ch.LogAppended) -> ch.LogAppended:
    """Return the last entries of an erased session: outcomes of its turns without content."""
    entries = tuple(
        ch.Entry(
            turn=None if entry.turn is None else replace(
                entry.turn, input=None, request=b"", error_message=None
            ),
            is_new_turn=entry.is_new_turn,
            runs=[
                replace(run, result=None, heals=None, error_message=None) for run in entry.runs
            ],
        )
        for entry in change.entries
    )  # fmt: skip
    return ch.LogAppended(change.session, change.before, entries, change.at)


def erasures(changes: Sequence[ch.Change]) -> Plan[list[Ask]]:
    """Return the statements that blank the content that the changes erase."""
    asks: list[Ask] = []
    blanked = _Blanked()
    for change in changes:
        match change:
            case ch.ContentErased():
                asks += yield from _erase_content(change.session_id)
            case ch.ItemErased():
                asks += yield from _erase_item(change, blanked)
            case ch.SummariesErased():
                yield from _erase_summaries(change, blanked)
            case _:
                pass
    asks += [(sql.SAVE_ITEMS, (*name, pack(items))) for name, items in blanked.items.items()]
    asks += [(sql.SAVE_BODY, (*name, pack(body))) for name, body in blanked.bodies.items()]
    return asks


class _Blanked(msgspec.Struct):
    """Entries with blanked content, by session and number.

    Each is written once: several changes of a command may erase parts of one entry.
    """

    items: dict[tuple[int, int], Items] = msgspec.field(default_factory=dict)
    bodies: dict[tuple[int, int], Body] = msgspec.field(default_factory=dict)


def _erase_content(session_id: SessionId) -> Plan[list[Ask]]:
    no = session_no(session_id)
    of_views = (search.REMOVE_SESSION, search.REMOVE_ACTIVITY)
    asks: list[Ask] = [(statement, (no,)) for statement in (*ERASURES, *of_views)]
    asks += [(statement, (session_id,)) for statement in (*ERASURES_BY_ID, ERASE_MESSAGES)]
    n = 0
    while True:
        rows = yield from every(sql.ENTRIES, no, n + 1, n + AT_ONCE, AT_ONCE)
        for row in rows:
            body = read_body(bytes(row[8]))
            asks.append((sql.BLANK_ENTRY, (no, row[0], pack(_blank(body)))))
            if row[9] is not None:
                ids = {state.item_id for state in read_items(bytes(row[9])).listed}
                asks += [(sql.DROP_ITEM_ID, (item_id, no)) for item_id in ids if item_id]
        if len(rows) < AT_ONCE:
            return asks
        n += AT_ONCE


def _blank(body: Body) -> Body:
    """Return an entry without content; ids and outcomes stay, and open turns become cancelled."""
    turn = body.turn
    if turn is not None:
        turn.error_message = turn.input = None
        turn.outcome = turn.outcome or "cancelled"
        turn.error_code = turn.error_code or "session_deleted"
    for run in body.runs:
        run.result = run.heals = run.error_message = None
        if run.outcome is None:
            run.outcome, run.error_code = "cancelled", "session_deleted"
    return Body(turn, body.runs, [], [])


def _erase_item(change: ch.ItemErased, blanked: _Blanked) -> Plan[list[Ask]]:
    """Blank an item, the input it came with if that waited, its stream's journal and messages."""
    session, no = (yield from find_session(change.session_id)), session_no(change.session_id)
    if session is None:
        return []
    n = yield from find_number(session, "seq", change.seq)
    entry = yield from one(sql.ITEM_ENTRY, no, n)
    if entry is None:
        return []
    name = (no, entry[0])
    items = blanked.items.get(name) or read_items(bytes(entry[2]))
    index = change.seq - (entry[1] - len(items.listed) + 1)
    if not 0 <= index < len(items.listed):
        return []
    old = items.listed[index]
    items.listed[index] = ItemState(old.kind, old.item_id, None, b"", old.is_partial, change.body)
    blanked.items[name] = items
    asks: list[Ask] = [(search.REMOVE_ITEMS, (no, entry[0], entry[0], change.seq, change.seq))]
    if entry[3] is not None:
        asks.append((sql.DROP_JOURNALS_OF_TURN, (entry[3],)))
        is_answer = old.kind != "message" or read_role(old.body).role != "user"
        named = (change.session_id, entry[3], int(is_answer), old.item_id or "")
        asks += [(statement, named) for statement in (ERASE_TURN_FILES, ERASE_TURN_MESSAGES)]
        for _, packed, number in (yield from every(sql.TURN_ENTRIES, entry[3])):
            body = blanked.bodies.get((no, number)) or read_body(bytes(packed))
            if body.turn is not None and body.turn.input is not None:
                # It ended before it started, and was sent again.
                body.turn.input = None
                blanked.bodies[no, number] = body
    return asks


def _erase_summaries(change: ch.SummariesErased, blanked: _Blanked) -> Plan[None]:
    no = session_no(change.session_id)
    for row in (yield from every(sql.RECORD_ENTRIES, no, 0)):
        body = blanked.bodies.get((no, row[2])) or read_body(bytes(row[1]))
        for record in body.records:
            is_about = record.from_seq <= change.to_seq and record.to_seq >= change.from_seq
            if record.kind == "compaction" and is_about and record.body is not None:
                record.body = None
                blanked.bodies[no, row[2]] = body


# ── retention ───────────────────────────────────────────────────────────────────────────────


def idle_sessions(
    seconds: float, after: SessionId, limit: int, now: float
) -> Plan[list[tuple[Tenant, SessionId]]]:
    """Return sessions that have been inactive for at least `seconds`, by id."""
    rows = yield from every(IDLE_SESSIONS, now - seconds, after, limit)
    return [(Tenant(row[0]), SessionId(row[1])) for row in rows]


def prune(command: Prune, now: float) -> Plan[tuple[Decision[bool], list[Ask]]]:
    """Return the statements that prune old events, journals and idempotency keys.

    The decision says whether more may be left.
    """
    before = now - command.older_than_seconds
    writes: list[Ask] = [
        (sql.FORGET_IDEMPOTENCY, (before,)),
        (FORGET_JOURNALS, (oldest_turn_id(before),)),
    ]
    row = yield from one(PRUNED_UPTO)
    entries = yield from every(ENTRIES_TO_PRUNE, row[0] if row else 0, PRUNED_AT_ONCE)
    # Positions grow with time: stop at the first young one.
    rows = list(takewhile(lambda entry: entry[4] < before, entries))
    for _, session, n, packed, _ in rows:
        body = read_body(bytes(packed))
        if body.events:
            body.events = []
            writes.append((sql.SAVE_BODY, (session, n, pack(body))))
    if rows:
        writes.append((SAVE_PRUNED_UPTO, (rows[-1][0],)))
    return Decision(len(rows) == PRUNED_AT_ONCE), writes


def oldest_turn_id(before: float) -> str:
    """Return an id that sorts before every turn accepted from then on: ids begin with the time."""
    return f"turn_{max(int(before * 1000), 0):011x}"
