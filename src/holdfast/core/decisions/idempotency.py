"""Find repeats: a request that is sent again gets its one turn, its answer, a wait or a resume.

A repeat is recognized by its idempotency key, by an SDK's retry count, by tool outputs that were
sent before, or, for a command whose outcome was lost, by its ids.
"""

from msgspec.structs import replace

from holdfast.core.decisions.lane import (
    WORKER_LOST,
    Settled,
    begin,
    end_dead_owner,
    queued,
    started,
    tail_position,
)
from holdfast.core.decisions.worker_losses import TURN_ABANDONED, asked_again, may_ask_again
from holdfast.core.errors import IdempotencyMismatch, SessionDeleted, SessionRetired
from holdfast.core.model.turn import Fence, Turn
from holdfast.core.transaction.changes import Decision, RetryClaimed, refuse
from holdfast.core.transaction.commands import Accept, Append, Queued, Repeated, Started
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.session_draft import Draft

Admission = Started | Queued | Repeated

UNDELIVERED_SECONDS = 15 * 60.0
DELIVERED_SECONDS = 10.0
MAX_CLAIM = 60


def resubmitted(facts: Facts) -> Decision[Admission]:
    """Answer an accept that was committed before, but whose reply was lost."""
    turn, session, run = facts.turn, facts.session, facts.run
    assert turn is not None
    assert session is not None
    assert run is not None
    fence = Fence(session.id, run.generation, run.id, run.epoch)
    if fence.holds(session):
        return Decision(Started(turn, session, run, fence))
    return Decision(Repeated(turn, session, run, run.step))


def found_again(command: Accept, facts: Facts, turn: Turn) -> Decision[Admission]:
    """Answer an accept that was committed before, and whose turn was queued then."""
    session = facts.session
    if session is not None and turn.is_open and session.active_turn_id != turn.id:
        return Decision(Queued(turn, session, session.hold_until))
    return repeat(command, facts)


def is_unmarked_repeat(command: Accept, facts: Facts) -> bool:
    """Whether a request without a matching idempotency key is a repeat."""
    if command.same_as is not None:
        return facts.turn is not None
    return is_implicit_repeat(command, facts)


def is_implicit_repeat(command: Accept | Append, facts: Facts) -> bool:
    """Whether an SDK retries its latest request automatically, without the user."""
    turn = facts.turn
    if command.retry_count <= 0 or command.idempotency_key is not None or turn is None:
        return False
    if turn.tenant != command.tenant or turn.id == command.turn_id:
        return False
    if turn.body_hash != command.body_hash or turn.retry_claim & claim_of(command.retry_count):
        return False
    if turn.delivered_at is None:
        return facts.now - turn.accepted_at <= UNDELIVERED_SECONDS
    return facts.now - turn.delivered_at < DELIVERED_SECONDS


def claim_of(retry_count: int) -> int:
    """Return the bit that stands for an SDK's retry count; very high counts share one bit."""
    return 1 << min(retry_count, MAX_CLAIM)


def repeat(command: Accept, facts: Facts) -> Decision[Admission]:
    """Answer a repeated request with its one turn; resume the turn if it was interrupted."""
    row, turn, session = facts.repeat, facts.turn, facts.session
    if row is not None and row.body_hash != (command.body_hash or b""):
        return refuse(
            IdempotencyMismatch(f"idempotency key {row.key!r} was used with another body")
        )
    if turn is None or session is None or session.deleted_at is not None:
        return refuse(SessionDeleted("the session of this request was deleted"))
    step = turn.step
    if row is not None:
        step = row.step
    elif command.same_as is not None:
        step = command.same_as[1]
    elif command.retry_count > 0:
        turn = replace(turn, retry_claim=turn.retry_claim | claim_of(command.retry_count))
    is_answered = facts.run is not None and facts.run.outcome == "completed"
    if is_answered or step != turn.step:
        return Decision(Repeated(turn, session, facts.run, step), claimed(turn, facts))
    return _resume(command, facts, Draft(session, now=facts.now), turn)


def claimed(turn: Turn, facts: Facts) -> tuple[RetryClaimed, ...]:
    """Return the change that records the retry count as answered, or nothing if it is known."""
    if turn is facts.turn:
        return ()
    return (RetryClaimed(turn.id, turn.step, turn.retry_claim),)


def _resume(command: Accept, facts: Facts, draft: Draft, turn: Turn) -> Decision[Admission]:
    """Resume an interrupted turn, even if its owner was not known to be dead; else wait for it."""
    settled = end_dead_owner(draft, facts, worker=command.worker, limits=command.limits)
    is_noticed = settled.turn is not None and settled.turn.id == turn.id
    if settled.turn is not None and is_noticed:
        turn = replace(settled.turn, retry_claim=turn.retry_claim)
    if facts.turn is not None and turn.retry_claim != facts.turn.retry_claim:
        draft.add(RetryClaimed(turn.id, turn.step, turn.retry_claim))
    is_torn = turn.outcome == "interrupted" or (turn.outcome == "failed" and turn.is_retryable)
    if facts.repeat is not None and not is_noticed:
        is_torn = is_torn or may_ask_again(turn, command.limits, facts.now)
    if is_torn:
        if not draft.session.is_live:
            return refuse(SessionRetired(draft.session.id, facts.live_id))
        return _reopen(command, facts, draft, turn, settled)
    if is_noticed:
        return draft.decide(Repeated(turn, draft.session, facts.run, turn.step))
    return Decision(
        Repeated(turn, facts.session or draft.session, facts.run, turn.step), claimed(turn, facts)
    )


def _reopen(
    command: Accept, facts: Facts, draft: Draft, turn: Turn, settled: Settled
) -> Decision[Admission]:
    # Only attempts that lost their worker count towards the limit, not those that ended.
    is_lost = turn.error_code in (WORKER_LOST, TURN_ABANDONED)
    if turn.error_code == TURN_ABANDONED:
        turn = asked_again(turn, command.limits, facts.now)
    turn = replace(
        turn,
        outcome=None,
        error_code=None,
        error_message=None,
        is_retryable=False,
        ended_at=None,
        owner=command.worker,
        attempts=turn.attempts if is_lost else 0,
        losses=turn.losses if is_lost else None,
        position=tail_position(draft.session.turn_count, settled.waiting, facts.active),
    )
    if not settled.is_free or settled.waiting.count:
        draft.save_turn(turn, event="turn.queued")
        return draft.decide(queued(draft, turn))
    turn, run = begin(draft, turn, run_id=command.run_id, worker=command.worker, facts=facts)
    draft.save_turn(turn, run, "turn.started", attempts=turn.attempts)
    return draft.decide(started(draft, turn, run))
