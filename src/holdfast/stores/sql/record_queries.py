"""Reads of records: for compaction, and for comparing a request with a log."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from holdfast.core.compaction.records import (
    InForce,
    RecordHead,
    Shown,
    heads_of,
    in_force,
    read_compaction,
    read_elision,
    show,
)
from holdfast.core.decisions.lifecycle import finished_seq, settled_seq
from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.model.gateway_items import ATTACHMENT, COMPLETION, is_user_message
from holdfast.core.model.items import ERASED_ITEM, StoredItem
from holdfast.core.model.records import (
    HIDING,
    Span,
    merge_spans,
    visible_spans,
)
from holdfast.core.model.session import Session
from holdfast.core.model.synthetic_outputs import OUTPUT_KINDS
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import Compact, Hide, UndoCompaction
from holdfast.core.transaction.facts import Facts, Log
from holdfast.ports.store import Outline, OutlineEntry, SessionView
from holdfast.stores.cache.context_cache import ContextCache, is_as_stored
from holdfast.stores.sql import queries
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.entries import ItemState, read_session, session_no, unpack_entries
from holdfast.stores.sql.facts import fenced_facts
from holdfast.stores.sql.lookups import (
    EVERYTHING,
    find_hidden,
    find_hidden_ranges,
    find_items,
    find_lineage,
    find_packed,
    find_turn,
    lane_facts,
    own_records,
    records_in_line,
)
from holdfast.stores.sql.plan import Plan, every
from holdfast.stores.sql.queries import Long

_STEP_OUTPUTS = OUTPUT_KINDS | {COMPLETION, ATTACHMENT}
"""Kinds of items after which the input of other requests may join a turn."""

MAX_OUTLINED = 2_000
"""The most items of a cached log that are outlined on the event loop, in 0.4 ms."""


def find_heads(of: Session) -> Plan[tuple[RecordHead, ...]]:
    """Return the records of a log, oldest first, its ancestors' before its own."""
    records = yield from records_in_line(of)
    return tuple(head for own, upto in reversed(records) for head in heads_of(own, upto))


def compact_facts(command: Compact, now: float) -> Plan[Facts]:
    """Read the lane, every record of the log, and those that this turn wrote before."""
    facts = yield from fenced_facts(command, now)
    session = facts.session
    if session is None or not command.fence.holds(session):
        return facts
    heads = yield from find_heads(session)
    own = yield from own_records(session.id, session.record_no)
    written = tuple(record for record in own if record.turn_id == session.active_turn_id)
    return replace(facts, heads=heads, records=written)


def undo_facts(command: UndoCompaction, now: float) -> Plan[Facts]:
    """Read the session and its own records."""
    facts = yield from lane_facts(command.session_id, now)
    if facts.session is None:
        return facts
    own = yield from own_records(facts.session.id, facts.session.record_no)
    return replace(facts, records=tuple(own))


def hide_facts(command: Hide, now: float) -> Plan[Facts]:
    """Read the log that shows a range; for an erasure, also every fork that shows it."""
    facts = yield from lane_facts(command.session_id, now)
    session = facts.session
    if session is None:
        return facts
    also = [*command.also]
    if command.erase and session.record_no:
        for span in ((command.from_seq, command.to_seq), *zip(also, also, strict=True)):
            also += yield from _copies(session, *span)
    first = min(command.from_seq, *also) if also else command.from_seq
    logs = [replace((yield from _log(session, EVERYTHING, first)), also=tuple(also))]
    front = [logs[0]] if command.erase else []
    while front:
        above = front.pop()
        for row in (yield from every(sql.FORKS_OF, above.session.id)):
            fork = read_session(row)
            upto = min(above.upto, fork.parent_seq)
            if upto >= first:
                front.append((yield from _log(fork, upto, first)))
                logs.append(front[-1])
    return replace(facts, logs=tuple(logs))


def _copies(session: Session, first: int, last: int) -> Plan[tuple[int, ...]]:
    """Return where items of a range were written as well: a turn that moved has several blocks."""
    ends: dict[TurnId, list[int]] = {}
    for record in (yield from own_records(session.id, session.record_no)):
        if record.kind in ("retry", "move") and record.turn_id is not None:
            ends.setdefault(record.turn_id, []).append(record.to_seq)
    seqs: list[int] = []
    for turn_id, blocks in ends.items():
        # The same text twice in one block is not a copy.
        written: list[tuple[int, int, bytes]] = []
        for no, seq, packed in (yield from every(sql.TURN_ITEMS, turn_id)):
            if no == session_no(session.id):
                for item in unpack_entries([(seq, packed)], session.id, 1, session.head_seq):
                    block = sum(item.seq > end for end in blocks)
                    written.append((item.seq, block, item.body))
        erased = {(block, body) for seq, block, body in written if first <= seq <= last}
        bodies = {body for _, body in erased} - {ERASED_ITEM}
        seqs += [
            seq for seq, block, body in written if body in bodies and (block, body) not in erased
        ]
    return tuple(seqs)


def _log(session: Session, upto: int, first: int) -> Plan[Log]:
    line = yield from find_lineage(session)
    items = yield from find_items(session, first, session.head_seq)
    return Log(
        session=session,
        upto=upto,
        line=frozenset(one.id for one in line),
        hidden=(yield from find_hidden(session)),
        heads=(yield from find_heads(session)),
        carriers=tuple(item for item in items if item.kind == "compaction"),
    )


class ContextParts(NamedTuple):
    """Which items a context consists of, and how they are shown."""

    spans: list[Span]
    shown: Shown
    is_plain: bool
    """Whether records only hide items, or there are none."""

    def show(self, items: list[StoredItem]) -> tuple[list[StoredItem], bool]:
        """Return the context of these items, and whether all are shown as they are stored."""
        is_plain = self.is_plain and is_as_stored(items)
        if is_plain and self.shown == _PLAIN:
            return items, True
        return show(items, self.shown), is_plain


_PLAIN = Shown(InForce())


def context(of: Session) -> Plan[tuple[list[StoredItem], bool]]:
    """Return the log as a model may see it; items that a summary replaces are not read.

    The flag says whether all items are shown as they are stored and no compaction was recorded.
    """
    parts = yield from context_parts(of)
    items = []
    for first, last in parts.spans:
        items.extend((yield from find_items(of, first, last)))
    return parts.show(items)


def context_parts(of: Session) -> Plan[ContextParts]:
    """Return which items the context of a session consists of."""
    if not of.record_no and of.parent_id is None:
        # Nearly every log has no record that changes how it is shown.
        return ContextParts([(1, of.head_seq)], _PLAIN, True)
    heads = yield from find_heads(of)
    force = in_force(heads)
    shown = yield from _with_bodies(force)
    covered = force.compaction.to_seq if force.compaction is not None else 0
    kept = shown.compaction.keeps if shown.compaction is not None else ()
    spans: list[Span] = merge_spans((seq, seq) for seq in kept)
    spans += visible_spans(force.hidden, covered + 1, of.head_seq)
    is_plain = all(head.kind in HIDING or head.kind == "quarantine" for head in heads)
    return ContextParts(spans, shown, is_plain)


def _with_bodies(force: InForce) -> Plan[Shown]:
    compaction = None
    if force.compaction is not None:
        body = yield from _record_body(force.compaction)
        assert body is not None
        compaction = read_compaction(body)
    elisions = []
    for head in force.elisions:
        body = yield from _record_body(head)
        if body is not None:
            elision = read_elision(body)
            # After the point of a fork, the same numbers belong to the fork's own items.
            cuts = tuple(cut for cut in elision.cuts if cut[0] <= head.upto)
            elisions.append(replace(elision, cuts=cuts))
    return Shown(force, compaction, tuple(elisions))


def _record_body(head: RecordHead) -> Plan[bytes | None]:
    records = yield from own_records(head.session_id, head.no, head.no)
    return records[0].body if records else None


def forks(tenant: Tenant, session_id: SessionId, limit: int) -> Plan[list[SessionView]]:
    """Return the visible sessions that were forked from a session."""
    rows = yield from every(sql.LIST_FORKS, session_id, tenant, limit)
    views: list[SessionView] = []
    for row in rows:
        view = yield from queries.session_view(row)
        views.append(view)
    return views


def descendants(session_id: SessionId) -> Plan[list[SessionId]]:
    """Return all descendants of a session, including hidden and erased ones."""
    ids: list[SessionId] = []
    front = [session_id]
    while front:
        rows = yield from every(sql.EVERY_FORK_OF, front.pop())
        children = [SessionId(row[0]) for row in rows]
        ids += children
        front += children
    return ids


def outline(
    tenant: Tenant, session_id: SessionId | None, key: Key | None, last: int | None, now: float,
    contexts: ContextCache, at_most: int = EVERYTHING,
) -> Plan[Outline | Long | None]:  # fmt: skip
    """Return the outline of a session: its settled part without content.

    Return `Long` if that takes more rows than `at_most`, or if a cached log is long.
    """
    row = yield from queries.named(tenant, session_id, key)
    if row is None:
        return None
    session = read_session(row)
    log = contexts.whole_log(session) if session.active_turn_id is None else None
    if log is not None:
        items = log[-last:] if last is not None else log
        if at_most < len(items) > MAX_OUTLINED:
            return Long(len(items))
        entries = _outlined(session.head_seq - len(items) + 1, [(i.turn_number, i) for i in items])
        return Outline(
            session, session.head_seq, entries, is_whole=len(entries) == session.head_seq
        )
    active = yield from find_turn(session.active_turn_id)
    upto = settled_seq(session, active)
    spans: list[Span] = [(1, session.head_seq)] if session.head_seq else []
    ranges = yield from find_hidden_ranges(session)
    if session.hidden_count:
        spans = visible_spans(ranges.hidden, 1, session.head_seq)
    shown, spans = spans, queries.last_of(spans, last)
    if spans and ranges.instructions is not None:
        # Instructions are compared separately from the history, wherever they were given.
        first, end = ranges.instructions
        spans[:0] = visible_spans(ranges.hidden, first, min(end, spans[0][0] - 1))
    rows_to_read = sum(end - first + 1 for first, end in spans)
    if rows_to_read > at_most:
        return Long(rows_to_read)
    entries = []
    for first, end in spans:
        packed = yield from find_packed(session, first, end)
        entries += _outlined(first, [(each.turn_number, i) for each in packed for i in each.listed])
    if ranges.refused:
        entries = [_with_refusal(entry, ranges.refused) for entry in entries]
    if session.record_no:
        entries = _with_instructions(entries, ranges.instructions)
    running = [entry for entry in entries if entry.seq > upto] if upto < session.head_seq else []
    settled = entries[: len(entries) - len(running)]
    is_whole = len(entries) == sum(end - first + 1 for first, end in shown)
    return Outline(session, upto, settled, running, _open_from(session, active, now), is_whole)


def _with_refusal(entry: OutlineEntry, refused: Sequence[Span]) -> OutlineEntry:
    is_refused = any(first <= entry.seq <= last for first, last in refused)
    return replace(entry, is_refused=True) if is_refused else entry


def _with_instructions(entries: list[OutlineEntry], span: Span | None) -> list[OutlineEntry]:
    if span is None:
        return entries
    return [
        replace(entry, is_instruction=True)
        if span[0] <= entry.seq <= span[1] and not entry.is_refused
        else entry
        for entry in entries
    ]


def _open_from(of: Session, active: Turn | None, now: float) -> int | None:
    """Return where the open turn of the lane begins; None if there is none or its hold expired."""
    if active is None or (of.hold_until is not None and of.hold_until <= now):
        return None
    return finished_seq(of, active) + 1


def _outlined(
    first: int, numbered: Iterable[tuple[int, ItemState | StoredItem]]
) -> list[OutlineEntry]:
    """Return consecutive items without their content; each comes with the number of its turn."""
    outlined: list[OutlineEntry] = []
    turn, is_after_output = 0, False
    for number, item in numbered:
        if number != turn:
            turn, is_after_output = number, False
        kind = item.kind
        is_joined = is_after_output and kind == "message" and is_user_message(item.body)
        is_after_output = is_joined or kind in _STEP_OUTPUTS
        torn_body = item.body if item.is_partial else None
        outlined.append(
            OutlineEntry(
                first + len(outlined), kind, item.fingerprint, torn_body, item.call_id,
                is_joined=is_joined,
            )
        )  # fmt: skip
    return outlined
