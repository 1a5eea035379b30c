"""Append items without a run of the gateway: as one completed turn, or batch by batch.

An external agent loop appends in batches. The end of such a run is not reported, so it never holds
the lane. Its items still form one block: if later items follow it, the block moves to the head
together with the new batch.
"""

from msgspec.structs import replace

from holdfast.core.decisions.accept import add_completed
from holdfast.core.decisions.idempotency import claim_of, claimed, is_implicit_repeat
from holdfast.core.decisions.identity import new_draft, tenant_full, unexpected, unusable
from holdfast.core.decisions.lane import tail_position, visible_items
from holdfast.core.errors import (
    HoldfastError,
    IdempotencyMismatch,
    SessionBusy,
    SessionDeleted,
    SessionMoved,
    SessionNotFound,
    TurnNotFound,
)
from holdfast.core.model.session import Session
from holdfast.core.model.turn import USER_ACTIVITY, Turn
from holdfast.core.transaction.changes import Decision, IdempotencyRow, refuse
from holdfast.core.transaction.commands import Append, AppendBatch, Appended, Pop, Popped
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.session_draft import Draft


def append(command: Append, facts: Facts) -> Decision[Appended]:
    """Append items as one turn that is started and completed in the same commit."""
    session = facts.session
    if command.again and facts.turn is not None and facts.turn.id == command.turn_id:
        return _appended_before(command, facts)
    if facts.repeat is not None or is_implicit_repeat(command, facts):
        return _appended_before(command, facts)
    refusal = unusable(command, facts) or tenant_full(command.limits, facts)
    if refusal is not None:
        return refuse(refusal)
    if session is None:
        draft = new_draft(command, facts)
        draft.set(metadata=command.metadata)
    else:
        draft = Draft(session, now=facts.now)
        if facts.active is not None or facts.waiting.count:
            return refuse(SessionBusy(f"session {session.id} is busy"))
    if command.source in USER_ACTIVITY:
        draft.set(last_user_activity_at=facts.now)
    turn = add_completed(command, draft, source=command.source)
    draft.bind_key(command.idempotency_key, command.body_hash, turn.id, turn.step)
    return draft.decide(Appended(draft.session, turn))


def _appended_before(command: Append, facts: Facts) -> Decision[Appended]:
    """Answer a repeated batch with the turn that it became."""
    row, session, turn = facts.repeat, facts.session, facts.turn
    if row is not None and row.body_hash != (command.body_hash or b""):
        return refuse(IdempotencyMismatch(f"batch {row.key!r} was used with other items"))
    if turn is None or session is None or session.deleted_at is not None:
        return refuse(SessionDeleted("the session of this batch was deleted"))
    if turn.outcome != "completed":
        # Its turn is queued or was interrupted in the queue: it may still get the lane.
        return refuse(SessionBusy(f"the batch of turn {turn.id} is not in the log yet"))
    if row is None and not command.again:
        turn = replace(turn, retry_claim=turn.retry_claim | claim_of(command.retry_count))
    return Decision(Appended(session, turn), claimed(turn, facts))


def continue_turn(command: AppendBatch, facts: Facts) -> Decision[Appended]:
    """Append a batch to its turn, once, in the session in which the turn began."""
    turn, session = facts.turn, facts.session
    if facts.repeat is not None:
        return _repeated(command, facts, facts.repeat)
    if turn is not None and turn.tenant != command.tenant:
        return refuse(TurnNotFound(f"no turn {turn.id}"))
    is_erased = session is not None and session.deleted_at is not None
    if turn is not None and session is not None and turn.step >= command.ordinal and not is_erased:
        return Decision(Appended(session, turn, is_repeat=True))
    refusal = (
        unexpected(command, facts) or _refusal(command, facts) or tenant_full(command.limits, facts)
    )
    if refusal is not None:
        return refuse(refusal)
    draft = new_draft(command, facts) if session is None else Draft(session, now=facts.now)
    draft.turns_may_wait = False  # such a turn is never queued: its first batch starts it
    return _write(command, facts, draft)


def _repeated(command: AppendBatch, facts: Facts, row: IdempotencyRow) -> Decision[Appended]:
    if row.body_hash != (command.body_hash or b""):
        return refuse(IdempotencyMismatch(f"batch {row.key!r} was used with other items"))
    if facts.turn is None or facts.session is None or facts.session.deleted_at is not None:
        return refuse(SessionDeleted("the session of this batch was deleted"))
    return Decision(Appended(facts.session, facts.turn, is_repeat=True))


def _refusal(command: AppendBatch, facts: Facts) -> HoldfastError | None:
    session = facts.session
    if session is None:
        if command.session_id is None:
            return None
        return SessionNotFound(f"no session {command.session_id}")
    if not session.exists_for(command.tenant):
        return SessionNotFound(f"no session {session.id}")
    if facts.active is not None or facts.waiting.count:
        return SessionBusy(f"session {session.id} is busy")
    if command.replaces_upto is not None and command.replaces_upto != session.head_seq:
        return SessionMoved("the session changed while it was compacted; retry")
    return None


def _write(command: AppendBatch, facts: Facts, draft: Draft) -> Decision[Appended]:
    if command.replaces_upto:
        draft.hide("replace", (1, command.replaces_upto), facts.hidden, command.turn_id)
    turn = facts.turn
    if turn is None:
        turn = _first_turn(command, draft.session, facts)
        draft.set(turn_count=turn.number)
        last = draft.append(command.items, turn.number)
        turn = replace(turn, kept_seq=last, last_seq=last)
        draft.save_turn(turn, is_new=True)
    else:
        if turn.last_seq != draft.head_seq:
            turn = _moved_to_head(draft, facts, turn)
        last = draft.append(command.items, turn.number)
        turn = replace(turn, step=command.ordinal, kept_seq=last, last_seq=last, ended_at=facts.now)
        draft.save_turn(turn)
    if command.source in USER_ACTIVITY:
        draft.set(last_user_activity_at=facts.now)
    draft.bind_key(command.idempotency_key, command.body_hash, turn.id, turn.step)
    draft.add_event("items.appended", turn, first_seq=last - len(command.items) + 1, last_seq=last)
    return draft.decide(Appended(draft.session, turn))


def _moved_to_head(draft: Draft, facts: Facts, turn: Turn) -> Turn:
    """Move the turn's block to the head of the log, after later items."""
    first, last = turn.first_seq, turn.last_seq
    assert first is not None
    assert last is not None
    if first <= last:
        draft.hide("move", (first, last), facts.hidden, turn.id)
    first = draft.head_seq + 1
    draft.append(
        [item.as_new() for item in visible_items(facts.turn_items, facts.hidden)], turn.number
    )
    return replace(turn, first_seq=first)


def _first_turn(command: AppendBatch, session: Session, facts: Facts) -> Turn:
    """Return the turn of a first batch: completed at once, because its end is not reported."""
    return Turn(
        id=command.spare_turn_id or command.turn_id,
        session_id=session.id,
        tenant=session.tenant,
        number=session.turn_count + 1,
        position=tail_position(session.turn_count, facts.waiting),
        source=command.source,
        owner=command.worker,
        step=command.ordinal,
        body_hash=command.body_hash,
        first_seq=session.head_seq + 1,
        outcome="completed",
        accepted_at=facts.now,
        started_at=facts.now,
        ended_at=facts.now,
    )


def pop(command: Pop, facts: Facts) -> Decision[Popped]:
    """Hide the last visible item; a repeat of the command returns the same item."""
    session = facts.session
    if session is None or not session.exists_for(command.tenant):
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    item = facts.last_item
    if item is None or facts.is_popped:
        return Decision(Popped(session, item))
    draft = Draft(session, now=facts.now)
    span = (item.seq, item.seq)
    draft.hide("pop", span, facts.hidden, body=command.pop_id.encode())
    draft.add_event("items.hidden", from_seq=item.seq, to_seq=item.seq, is_erased=False)
    return draft.decide(Popped(draft.session, item))
