"""Hide or erase a range of a log, with every summary of it, also in forks.

A hidden range disappears from the view of its own session; older forks still show it. An erased
range is gone in every fork that shares it. A summary is a record, and may also be an item that was
returned to a client: both go with the range that they summarize.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from holdfast.core.compaction.records import Name, RecordHead, carried_record
from holdfast.core.errors import ItemNotFound, SessionNotFound
from holdfast.core.model.items import ERASED_ITEM, NewItem, StoredItem
from holdfast.core.model.records import HIDING, Record, Span, visible_spans
from holdfast.core.model.session import Session
from holdfast.core.transaction.changes import Change, Decision, ItemErased, SummariesErased, refuse
from holdfast.core.transaction.commands import Hide
from holdfast.core.transaction.facts import Facts, Log
from holdfast.core.transaction.session_draft import Draft


def hide(command: Hide, facts: Facts) -> Decision[Session]:
    """Hide a range by a record; erasing also blanks its content for good."""
    session = facts.session
    if session is None or not session.exists_for(command.tenant):
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    span = (command.from_seq, command.to_seq)
    if not 1 <= span[0] <= span[1] <= session.head_seq:
        return refuse(ItemNotFound(f"session {session.id} has no items {span[0]} to {span[1]}"))
    own, *forks = facts.logs
    if command.again and not visible_spans(own.hidden, *span):
        return Decision(session, tuple(_erasures(own, span)) if command.erase else ())
    spans = [span, *((seq, seq) for seq in own.also)]
    draft = _hidden(own, command, spans, facts.now)
    changes: list[Change] = [*draft.changes()]
    for fork in forks:
        shared = [(first, min(last, fork.upto)) for first, last in spans if first <= fork.upto]
        changes += _hidden(fork, command, shared, facts.now).changes()
    return Decision(draft.session, tuple(changes))


def _hidden(log: Log, command: Hide, spans: Sequence[Span], now: float) -> Draft:
    """Hide ranges in one log, and the items that carry summaries of them."""
    draft = Draft(log.session, now=now)
    hidden: Sequence[Span] = log.hidden
    is_own = log.session.id == command.session_id
    for span in spans:
        if (is_own and span is spans[0]) or visible_spans(hidden, *span):
            hidden = draft.hide(command.kind, span, hidden)
        for item in _carriers(log, span):
            if visible_spans(hidden, item.seq, item.seq):
                hidden = draft.hide("hide", (item.seq, item.seq), hidden)
        if command.erase:
            for erasure in _erasures(log, span):
                draft.add(erasure)
        draft.add_event("items.hidden", from_seq=span[0], to_seq=span[1], is_erased=command.erase)
    return draft


def _erasures(log: Log, span: Span) -> Iterable[Change]:
    session = log.session
    own = range(max(span[0], session.parent_seq + 1), span[1] + 1)
    carriers = (item.seq for item in _carriers(log, span) if item.session_id == session.id)
    for seq in sorted({*own, *carriers}):
        yield ItemErased(session.id, seq, ERASED_ITEM)
    yield SummariesErased(session.id, span[0], span[1])


def _carriers(log: Log, span: Span) -> list[StoredItem]:
    """Return the items of a log that contain a summary of a range."""
    ends = _ends(log.heads)
    return [
        item
        for item in log.carriers
        if item.seq > span[0] and _covers(span[0], carried_record(item.body), log.line, ends)
    ]


def _ends(heads: Iterable[RecordHead]) -> dict[Name, int]:
    return {(head.session_id, head.no): head.to_seq for head in heads if head.kind == "compaction"}


def _covers(seq: int, record: Name | None, line: Iterable[str], ends: dict[Name, int]) -> bool:
    """Whether a summary covers an item; one without a record may cover any item."""
    return record is not None and record[0] in line and ends.get(record, seq) >= seq


# ── while a run works ───────────────────────────────────────────────────────────────────────


def is_changed(
    session: Session,
    heads: Iterable[RecordHead | Record],
    shown_records: int | None,
    upto: int | None = None,
) -> bool:
    """Whether anything, up to an item, was hidden or shown again since a run read its context."""
    return shown_records is not None and any(
        _changes(session, head, shown_records) and (upto is None or head.from_seq <= upto)
        for head in heads
    )


def _changes(session: Session, head: RecordHead | Record, shown_records: int) -> bool:
    is_later = head.session_id == session.id and head.no > shown_records
    return is_later and (head.kind in HIDING or head.kind == "undo")


def without_hidden(
    items: Sequence[NewItem],
    session: Session,
    heads: Sequence[RecordHead],
    shown_records: int | None,
) -> tuple[NewItem, ...]:
    """Return a run's new items, with summaries blanked if their range was hidden meanwhile."""
    if shown_records is None:
        return tuple(items)
    hiding = [head for head in heads if head.kind in HIDING]
    later = [head.from_seq for head in hiding if _changes(session, head, shown_records)]
    first = min(later, default=None)
    if first is None:
        return tuple(items)
    ends = _ends(heads)
    return tuple(
        replace(item, body=ERASED_ITEM, fingerprint=b"")
        if _covers(first, carried_record(item.body), (session.id,), ends)
        else item
        for item in items
    )
