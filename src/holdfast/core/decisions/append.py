"""Append items without a run: one turn, started and completed in the same commit."""

from msgspec.structs import replace

from holdfast.core.decisions.accept import add_completed
from holdfast.core.decisions.idempotency import claim_of, claimed, is_implicit_repeat
from holdfast.core.decisions.identity import new_draft, tenant_full, unusable
from holdfast.core.errors import IdempotencyMismatch, SessionBusy, SessionDeleted
from holdfast.core.model.turn import USER_ACTIVITY
from holdfast.core.transaction.changes import Decision, refuse
from holdfast.core.transaction.commands import Append, Appended
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
