"""Decide about compactions: write records over the log for the run that owns it, or undo them."""

from holdfast.core.compaction.records import in_force, read_compaction, read_elision, write_body
from holdfast.core.decisions.hide import is_changed
from holdfast.core.decisions.run import count_usage, fenced
from holdfast.core.errors import CompactionNotFound, ItemNotFound, SessionMoved, SessionNotFound
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from holdfast.core.transaction.changes import Decision, ProviderStateDropped, refuse
from holdfast.core.transaction.commands import Compact, UndoCompaction
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.session_draft import Draft

NOTHING = (1, 0)
"""The range of a record that refers to another record, not to items."""


def compact(command: Compact, facts: Facts) -> Decision[Session]:
    """Write the records, if the run still owns the session and they shorten what is shown."""
    if not command.fence.holds(facts.session):
        return fenced(command.fence, facts, tried="compact", count=0)
    session = facts.session
    assert session is not None
    if command.again and any(_id_of(record) == _requested_id(command) for record in facts.records):
        return Decision(session)
    if command.compaction is not None and is_changed(
        session, facts.heads, command.shown_records, command.to_seq
    ):
        return refuse(SessionMoved("the summarized range was changed in the meantime"))
    if not _is_possible(command, facts, session):
        return refuse(ItemNotFound(f"session {session.id} cannot be compacted up to that item"))
    draft = Draft(session, now=facts.now)
    summary, elision = command.compaction, command.elision
    turn_id = facts.active.id if facts.active else None
    if summary is not None:
        draft.record("compaction", (1, command.to_seq), turn_id=turn_id, body=write_body(summary))
        if summary.usage is not None:
            count_usage(draft, summary.usage)
    if elision is not None:
        span = (min(seq for seq, _ in elision.cuts), max(seq for seq, _ in elision.cuts))
        draft.record("elision", span, turn_id=turn_id, body=write_body(elision))
    # The provider's state holds the log as it was shown before.
    draft.add(ProviderStateDropped(session.id))
    compaction = summary or elision
    assert compaction is not None
    draft.add_event(
        "session.compacted",
        facts.active,
        compaction_id=compaction.id,
        reason=compaction.reason,
        mode=summary.mode if summary is not None else "elide",
        to_seq=command.to_seq or None,
        shortened=len(elision.cuts) if elision is not None else 0,
        tokens_before=compaction.tokens_before,
        tokens_after=compaction.tokens_after,
        assumed_window=compaction.assumed_window,
    )
    if facts.active_run is not None:
        draft.save_run(facts.active_run)
    return draft.decide(draft.session)


def _is_possible(command: Compact, facts: Facts, session: Session) -> bool:
    """Whether the ranges are in the log, continue the last compaction, and save tokens."""
    summary, elision = command.compaction, command.elision
    if summary is None and elision is None:
        return False
    if summary is not None:
        current = in_force(facts.heads).compaction
        covered = current.to_seq if current is not None else 0
        if not max(covered, 1) <= command.to_seq <= session.head_seq:
            return False
        if not all(1 <= seq <= command.to_seq for seq in summary.keeps):
            return False
        if summary.tokens_after >= summary.tokens_before:
            return False
    if elision is None:
        return True
    return bool(elision.cuts) and all(1 <= seq <= session.head_seq for seq, _ in elision.cuts)


def _requested_id(command: Compact) -> str | None:
    compaction = command.compaction or command.elision
    return compaction.id if compaction is not None else None


def _id_of(record: Record) -> str | None:
    """Return the id of the compaction that a record belongs to, or None without a body."""
    if record.body is None:
        return None
    if record.kind == "compaction":
        return read_compaction(record.body).id
    return read_elision(record.body).id if record.kind == "elision" else None


def undo_compaction(command: UndoCompaction, facts: Facts) -> Decision[Session]:
    """Undo a compaction: its range is shown and sent to providers again."""
    session = facts.session
    if session is None or not session.exists_for(command.tenant):
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    compactions = [record for record in facts.records if _id_of(record) == command.compaction_id]
    if not compactions:
        return refuse(CompactionNotFound(f"no compaction {command.compaction_id}"))
    undone = {record.undoes for record in facts.records if record.kind == "undo"}
    remaining = [record for record in compactions if record.no not in undone]
    if not remaining:
        return Decision(session)
    draft = Draft(session, now=facts.now)
    for record in remaining:
        draft.record("undo", NOTHING, undoes=record.no)
    draft.add(ProviderStateDropped(session.id))
    draft.add_event("session.compaction_undone", compaction_id=command.compaction_id)
    return draft.decide(draft.session)
