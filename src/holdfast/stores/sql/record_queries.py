"""Records as compaction needs them: heads along a line of forks, bodies only where they count."""

from msgspec.structs import replace

from holdfast.core.compaction.records import (
    InForce,
    RecordHead,
    Shown,
    in_force,
    read_compaction,
    read_elision,
    show,
)
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record, Span, merge_spans, visible_spans
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Compact, Hide, UndoCompaction
from holdfast.core.transaction.facts import Facts, Log
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.facts import (
    EVERYTHING,
    fenced_facts,
    find_hidden,
    find_items,
    find_lineage,
    lane_facts,
    read_session,
    session_row,
)
from holdfast.stores.sql.plan import Plan, every, one


def find_heads(of: Session) -> Plan[tuple[RecordHead, ...]]:
    """Return the records of a log, oldest first, its ancestors' before its own."""
    found: list[RecordHead] = []
    owner: Session | None = of
    number, upto = of.record_no, EVERYTHING
    while owner is not None:
        if number:
            rows = yield from every(sql.RECORD_HEADS, owner.id, number)
            found[:0] = [RecordHead(*(*row, upto)) for row in rows]
        if owner.parent_id is None:
            break
        number, upto = owner.parent_record, min(upto, owner.parent_seq)
        row = yield from session_row(owner.parent_id)
        owner = read_session(row) if row else None
    return tuple(found)


def compact_facts(command: Compact, now: float) -> Plan[Facts]:
    """The lane, every record of the log, and those that this turn wrote before."""
    facts = yield from fenced_facts(command, now)
    session = facts.session
    if session is None or not command.fence.holds(session):
        return facts
    heads = yield from find_heads(session)
    rows = yield from every(
        sql.RECORDS_OF_TURN, session.id, session.record_no, session.active_turn_id
    )
    return replace(facts, heads=heads, records=tuple(Record(*row) for row in rows))


def undo_facts(command: UndoCompaction, now: float) -> Plan[Facts]:
    """The session and its own records."""
    facts = yield from lane_facts(command.session_id, now)
    if facts.session is None:
        return facts
    rows = yield from every(sql.RECORDS, facts.session.id, facts.session.record_no)
    return replace(facts, records=tuple(Record(*row) for row in rows))


def hide_facts(command: Hide, now: float) -> Plan[Facts]:
    """The log that shows a range; where that is erased, every fork's that shows it too."""
    facts = yield from lane_facts(command.session_id, now)
    session = facts.session
    if session is None:
        return facts
    logs = [(yield from _log(session, EVERYTHING, command.from_seq))]
    front = [logs[0]] if command.erase else []
    while front:
        above = front.pop()
        for row in (yield from every(sql.FORKS_OF, above.session.id)):
            fork = Session(*row)
            upto = min(above.upto, fork.parent_seq)
            if upto >= command.from_seq:
                front.append((yield from _log(fork, upto, command.from_seq)))
                logs.append(front[-1])
    return replace(facts, logs=tuple(logs))


def _log(session: Session, upto: int, first: int) -> Plan[Log]:
    line = yield from find_lineage(session)
    carriers: list[StoredItem] = []
    last = session.head_seq
    for owner in line:
        start = max(first, owner.parent_seq + 1)
        rows = yield from every(sql.COMPACTION_ITEMS, owner.id, start, last)
        carriers += [StoredItem(*row) for row in rows]
        last = min(last, owner.parent_seq)
    return Log(
        session=session,
        upto=upto,
        line=frozenset(one.id for one in line),
        hidden=(yield from find_hidden(session)),
        heads=(yield from find_heads(session)),
        carriers=tuple(carriers),
    )


def context(of: Session) -> Plan[list[StoredItem]]:
    """Return a log as a model may be shown it; what a summary stands for is not even read."""
    heads = yield from find_heads(of)
    force = in_force(heads)
    shown = yield from _with_bodies(force)
    covered = force.compaction.to_seq if force.compaction is not None else 0
    kept = shown.compaction.keeps if shown.compaction is not None else ()
    spans: list[Span] = merge_spans((seq, seq) for seq in kept)
    spans += visible_spans(force.hidden, covered + 1, of.head_seq)
    items: list[StoredItem] = []
    for first, last in spans:
        items.extend((yield from find_items(of, first, last)))
    return show(items, shown)


def _with_bodies(force: InForce) -> Plan[Shown]:
    compaction = None
    if force.compaction is not None:
        row = yield from one(sql.RECORD_BODY, force.compaction.session_id, force.compaction.no)
        assert row is not None
        compaction = read_compaction(bytes(row[0]))
    elisions = []
    for head in force.elisions:
        row = yield from one(sql.RECORD_BODY, head.session_id, head.no)
        if row is not None and row[0] is not None:
            told = read_elision(bytes(row[0]))
            # Behind the point where a fork began, the same numbers are items of its own.
            cuts = tuple(cut for cut in told.cuts if cut[0] <= head.upto)
            elisions.append(replace(told, cuts=cuts))
    return Shown(force, compaction, tuple(elisions))
