"""Start the next turn of a lane, and recover what dead workers left."""

from msgspec.structs import replace

from holdfast.core.decisions.channels.turns import burst_of, collects, merge, ready_at
from holdfast.core.decisions.lane import (
    CLOCK_TOLERANCE_SECONDS,
    WORKER_LOST,
    end_dead_owner,
    end_turn,
    queued,
    start_waiting,
)
from holdfast.core.errors import (
    HoldfastError,
    RunFenced,
    SessionDeleted,
    SessionNotFound,
    TurnCancelled,
    TurnInterrupted,
    TurnNotFound,
)
from holdfast.core.model.turn import RUN_AGAIN, Fence, Turn
from holdfast.core.transaction.changes import Decision, refuse
from holdfast.core.transaction.commands import Claim, Queued, Recover, Recovered, Started
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.session_draft import Draft


def claim(command: Claim, facts: Facts) -> Decision[Started | Queued]:
    """Start a queued turn if the lane is free and it is first in the queue."""
    turn, session, run = facts.turn, facts.session, facts.run
    if session is not None and session.deleted_at is not None:
        return refuse(SessionDeleted("the session of this turn was deleted"))
    if turn is None or session is None:
        return refuse(TurnNotFound(f"no turn {command.turn_id}"))
    if command.again and run is not None:
        fence = Fence(session.id, run.generation, run.id, run.epoch)
        if fence.holds(session):
            return Decision(Started(turn, session, run, fence))
    if not turn.is_open:
        return refuse(_why_ended(turn))
    if command.again and run is not None:
        return refuse(RunFenced(f"run {run.id} of turn {turn.id} began, and lost its lane"))
    draft = Draft(session, now=facts.now)
    is_free, waiting, settled = end_dead_owner(
        draft, facts, worker=command.worker, limits=command.limits
    )
    if session.active_turn_id == turn.id:
        # Its own earlier run is still in progress, or was ended just now: the caller claims again.
        return _still_queued(draft, queued(draft, settled or turn), settled)
    if not is_free or waiting.first_position != turn.position:
        return _still_queued(draft, queued(draft, turn), settled)
    gathered = _gather(draft, turn, facts)
    if isinstance(gathered, Queued):
        return _still_queued(draft, gathered, settled)
    begun = start_waiting(
        draft, gathered, run_id=command.run_id, worker=command.worker, facts=facts
    )
    return draft.decide(begun)


def _why_ended(turn: Turn) -> HoldfastError:
    if turn.outcome == "cancelled":
        return TurnCancelled(turn.id, turn.error_code)
    return TurnInterrupted(f"turn {turn.id} ended as {turn.outcome}")


def _still_queued(
    draft: Draft, outcome: Queued, settled: Turn | None
) -> Decision[Started | Queued]:
    """Decide that a turn still waits; write the end of a dead owner's turn, if there was one."""
    return draft.decide(outcome) if settled else Decision(outcome)


def _gather(draft: Draft, turn: Turn, facts: Facts) -> Turn | Queued:
    """Return the turn merged with its burst, or `Queued` if the burst may not be complete."""
    if not collects(turn):
        return turn
    burst = burst_of(turn, facts.open_turns)
    ready = ready_at(burst)
    # Messages from the future arrived before the clock was set back: they have waited enough.
    is_ahead = burst[-1].accepted_at > facts.now + CLOCK_TOLERANCE_SECONDS
    waits = facts.now < ready and not is_ahead
    return Queued(turn, draft.session, ready) if waits else merge(draft, burst)


def recover(command: Recover, facts: Facts) -> Decision[Recovered]:
    """End or adopt what dead workers left in this session; leave live workers' turns alone."""
    session = facts.session
    if session is None or session.deleted_at is not None:
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    draft = Draft(session, now=facts.now)
    is_forsaken = session.owner == command.worker and session.active_run_id in command.forsaken
    settled = end_dead_owner(
        draft, facts, worker=command.worker, limits=command.limits, is_forsaken=is_forsaken
    )
    is_touched = settled.turn is not None
    is_from_worker = is_touched and not session.is_held
    for turn in facts.open_turns:
        if facts.active is not None and turn.id == facts.active.id:
            continue
        is_own = turn.owner == command.worker
        is_forsaken = is_own and turn.id in command.forsaken
        if is_forsaken or (turn.owner in facts.gone_owners and not is_own):
            _inherit(draft, turn, command)
            is_touched = is_from_worker = True
    if not is_touched:
        return Decision(Recovered(session, is_from_worker))
    draft.wake()
    return draft.decide(Recovered(draft.session, is_from_worker))


def _inherit(draft: Draft, turn: Turn, command: Recover) -> None:
    """Adopt a waiting turn, or end it as interrupted if its client was lost with its worker."""
    if turn.source in RUN_AGAIN and command.limits.can_run_again:
        draft.save_turn(replace(turn, owner=command.worker))
        return
    end_turn(
        draft, turn, "interrupted", code=WORKER_LOST,
        message="the worker of this turn went away", is_retryable=True,
    )  # fmt: skip
