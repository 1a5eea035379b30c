"""How a turn is taken in: recognised if it came before, durable if it is new, started if it can be.

The order is part of the promise: repeats first, then identity, then the state of the lane.
"""

import msgspec
from msgspec.structs import replace

from holdfast.core.changes import Decision, TurnSaved, refuse
from holdfast.core.commands import (
    Accept,
    Append,
    Appended,
    Parent,
    Queued,
    Repeated,
    Reserve,
    Started,
)
from holdfast.core.draft import Draft
from holdfast.core.errors import (
    HoldfastError,
    IdempotencyMismatch,
    LaneFull,
    SessionBusy,
    SessionDeleted,
    SessionMoved,
    SessionNotFound,
    SessionRetired,
    TenantFull,
)
from holdfast.core.facts import Facts, Waiting
from holdfast.core.intake import add_completed, bring, new_turn, remember
from holdfast.core.lane import (
    WORKER_LOST,
    Settled,
    begin,
    front_position,
    queued,
    settle_gone,
    stop_active,
    tail_position,
)
from holdfast.core.lifecycle import finished_seq, fork_of, retire, settled_seq
from holdfast.core.session import Session, begin_session
from holdfast.core.turn import USER_ACTIVITY, Fence, Turn

Admission = Started | Queued | Repeated

UNDELIVERED_SECONDS = 15 * 60.0
DELIVERED_SECONDS = 10.0
CUT_IN_CODES = {"interrupt": "interrupted_by_turn", "rollback": "rolled_back"}


def accept(command: Accept, facts: Facts) -> Decision[Admission]:
    """Decide on one arrival."""
    if command.again and facts.run is not None and facts.run.id == command.run_id:
        return _resubmitted(facts)
    if command.again and facts.turn is not None and facts.turn.id == command.turn_id:
        return _found_again(command, facts, facts.turn)
    if facts.repeat is not None:
        return _repeat(command, facts)
    if command.is_internal:
        return _accept_internal(command, facts)
    if _is_implicit_repeat(command, facts):
        return _repeat(command, facts)
    if command.parent is not None and facts.session is not None:
        return _accept_child(command, facts, facts.session, command.parent)
    refusal = _unusable(command, facts) or _moved(command, facts) or _tenant_full(command, facts)
    if refusal is not None:
        return refuse(refusal)
    if facts.session is None:
        draft = _new_draft(command, facts)
        draft.tell("session.created", generation=draft.session.generation)
        return _admit(command, facts, draft, is_rolled_over=False)
    if _joins(command, facts):
        return _join(command, facts, Draft(facts.session, now=facts.now))
    return _accept_known(command, facts, facts.session)


def _resubmitted(facts: Facts) -> Decision[Admission]:
    """Answer an accept whose first commit went through although nobody heard of it."""
    turn, session, run = facts.turn, facts.session, facts.run
    assert turn is not None
    assert session is not None
    assert run is not None
    fence = Fence(session.id, run.generation, run.id, run.epoch)
    if fence.holds(session):
        return Decision(Started(turn, session, run, fence))
    return Decision(Repeated(turn, session, run, run.step))


def _found_again(command: Accept, facts: Facts, turn: Turn) -> Decision[Admission]:
    """Answer an accept whose first commit put its turn into the queue."""
    session = facts.session
    if session is not None and turn.is_open and session.active_turn_id != turn.id:
        return Decision(Queued(turn, session, session.hold_until))
    return _repeat(command, facts)


def _tenant_full(command: Accept, facts: Facts) -> HoldfastError | None:
    most = command.limits.max_tenant_turns
    if not most or facts.tenant_turns < most:
        return None
    return TenantFull(f"{facts.tenant_turns} turns are open, {most} may be")


def _moved(command: Accept, facts: Facts) -> HoldfastError | None:
    """What was worked out by looking at the log holds only for the log that was looked at."""
    session = facts.session
    if session is not None and command.after_turn not in (None, session.turn_count):
        return SessionMoved("another turn came between this one and its parent")
    settled = settled_seq(facts.session, facts.active) if facts.session is not None else 0
    if command.seen_seq is None or command.seen_seq == settled:
        return None
    return SessionMoved("the session moved on while the request was compared with it")


def _unusable(command: Accept | Append, facts: Facts) -> HoldfastError | None:
    session = facts.session
    if session is None:
        if command.session_id is None:
            return None
        return SessionNotFound(f"no session {command.session_id}")
    if session.tenant != command.tenant or session.deleted_at is not None:
        return SessionNotFound(f"no session {session.id}")
    if not session.is_live:
        return SessionRetired(session.id, facts.live_id)
    return None


def _new_draft(command: Accept | Append | Reserve, facts: Facts) -> Draft:
    session = begin_session(
        command.candidate_id,
        command.tenant,
        now=facts.now,
        key=command.key,
        generation=facts.next_generation,
    )
    return Draft(session, now=facts.now, is_new=True)


def _accept_child(
    command: Accept, facts: Facts, session: Session, parent: Parent
) -> Decision[Admission]:
    """Go on behind an earlier answer: in place if it is the head, else in a fork of its own."""
    if session.tenant != command.tenant or session.deleted_at is not None:
        return refuse(SessionNotFound(f"no session {session.id}"))
    # A compaction since then changes what is shown of the log, not what it says.
    is_head = session.head_seq == parent.seq and not facts.is_view_changed
    if session.is_live and is_head:
        if _joins(command, facts):
            return _join(command, facts, Draft(session, now=facts.now))
        if facts.active is None and facts.waiting.count == 0:
            return _accept_known(command, facts, session)
    child = fork_of(session, command.candidate_id, parent.seq, now=facts.now, hidden=facts.hidden)
    child = replace(child, parent_record=parent.record_no)
    draft = Draft(child, now=facts.now, is_new=True)
    draft.tell("session.created", generation=1, parent_session_id=session.id, after_seq=parent.seq)
    return _admit(command, Facts(now=facts.now), draft, is_rolled_over=False)


def _accept_known(command: Accept, facts: Facts, session: Session) -> Decision[Admission]:
    is_idle = facts.active is None and facts.waiting.count == 0
    verdict = None
    if is_idle and command.source in USER_ACTIVITY:
        verdict = command.reset.judge(session.last_user_activity_at, facts.now)
    if verdict == "hard" and (command.key is None or session.key is None):
        # Whoever names a session by its id means that one; only a key moves on.
        verdict = None
    if verdict == "hard":
        return _accept_after_reset(command, facts, session)
    draft = Draft(session, now=facts.now)
    if verdict == "soft":
        draft.tell("session.rolled_over", mode=command.reset.mode)
    return _admit(command, facts, draft, is_rolled_over=verdict == "soft")


def _accept_after_reset(command: Accept, facts: Facts, session: Session) -> Decision[Admission]:
    old = Draft(session, now=facts.now)
    retire(old, reason=f"{command.reset.mode}_rollover")
    fresh = begin_session(
        command.candidate_id,
        session.tenant,
        now=facts.now,
        key=session.key,
        generation=facts.next_generation,
        previous=session,
    )
    draft = Draft(fresh, now=facts.now, is_new=True)
    draft.tell("session.created", generation=fresh.generation, previous_session_id=session.id)
    decision = _admit(command, facts, draft, is_rolled_over=True)
    return replace(decision, changes=(*old.changes(), *decision.changes))


def _admit(
    command: Accept, facts: Facts, draft: Draft, *, is_rolled_over: bool
) -> Decision[Admission]:
    """Put a new turn into the lane: at once, at the end, or at the front, as it asked."""
    is_free, waiting, _ = settle_gone(draft, facts, worker=command.worker, limits=command.limits)
    is_first = is_free and waiting.count == 0
    if is_first and draft.session.head_seq == 0 and command.brought is not None:
        command = bring(command, draft, command.brought)
    position = tail_position(draft.session.turn_count, waiting, facts.active)
    if not is_first:
        refusal = _refusal(command, draft.session, waiting)
        if refusal is not None:
            return refuse(refusal)
        if command.on_busy in ("interrupt", "rollback"):
            position = front_position(facts, waiting)
            if not is_free:
                facts = _cut_in(command, facts, draft)
            is_first = True
    turn = new_turn(command, draft.session, position, facts.now)
    draft.set(turn_count=turn.number)
    if command.source in USER_ACTIVITY:
        draft.set(last_user_activity_at=facts.now)
    remember(command, draft, turn)
    if not is_first:
        draft.add_turn(turn)
        draft.tell("turn.queued", turn)
        return draft.decide(queued(draft, turn))
    started = begin(draft, turn, run_id=command.run_id, worker=command.worker, facts=facts)
    draft.add_turn(started.turn)
    draft.tell("turn.started", started.turn)
    started = replace(started, session=draft.session, is_rolled_over=is_rolled_over)
    return draft.decide(started)


def _refusal(command: Accept, session: Session, waiting: Waiting) -> HoldfastError | None:
    if command.on_busy == "reject":
        return SessionBusy(f"session {session.id} is busy")
    if command.on_busy == "enqueue" and waiting.count >= command.limits.max_waiting:
        return LaneFull(f"{waiting.count} turns wait in session {session.id}, no more may")
    return None


def _cut_in(command: Accept, facts: Facts, draft: Draft) -> Facts:
    """Cancel the turn that holds the lane; a rollback also takes its items out of the view."""
    message = f"another turn asked to {command.on_busy}"
    stopped = stop_active(
        draft, facts, "cancelled", code=CUT_IN_CODES[command.on_busy], message=message,
        is_retryable=False,
    )  # fmt: skip
    if command.on_busy == "interrupt" or stopped.first_seq is None or stopped.last_seq is None:
        return facts
    hidden = facts.hidden
    if stopped.first_seq <= stopped.last_seq:
        span = (stopped.first_seq, stopped.last_seq)
        hidden = tuple(draft.hide("rollback", span, hidden, stopped.id))
    return replace(facts, hidden=hidden)


def _joins(command: Accept, facts: Facts) -> bool:
    """Whether the input answers calls for which the lane is held."""
    session = facts.session
    if session is None or not session.is_held or facts.active is None:
        return False
    if session.hold_until is not None and session.hold_until <= facts.now:
        return False
    pending = set(msgspec.json.decode(session.pending_calls or "[]", type=list[str]))
    return any(item.call_id in pending and item.kind.endswith("_output") for item in command.items)


def _join(command: Accept, facts: Facts, draft: Draft) -> Decision[Admission]:
    """Continue the held turn with the outputs its calls were waiting for."""
    turn = facts.active
    assert turn is not None
    last = draft.append(command.items, turn.number)
    turn = replace(
        turn,
        step=turn.step + 1,
        attempts=0,
        kept_seq=last,
        last_seq=last,
        body_hash=command.body_hash,
        delivered_at=None,
        retry_claim=0,
    )
    if command.source in USER_ACTIVITY:
        draft.set(last_user_activity_at=facts.now)
    remember(command, draft, turn)
    started = begin(draft, turn, run_id=command.run_id, worker=command.worker, facts=facts)
    draft.save_turn(started.turn)
    draft.tell("turn.continued", started.turn, step=turn.step)
    return draft.decide(replace(started, session=draft.session))


def _is_implicit_repeat(command: Accept | Append, facts: Facts) -> bool:
    """Whether an SDK sends its latest request again of its own accord (and not a user)."""
    turn = facts.turn
    if command.retry_count <= 0 or command.idempotency_key is not None or turn is None:
        return False
    if turn.tenant != command.tenant or turn.id == command.turn_id:
        return False
    if turn.body_hash != command.body_hash or turn.retry_claim >= command.retry_count:
        return False
    if turn.delivered_at is None:
        return facts.now - turn.accepted_at <= UNDELIVERED_SECONDS
    return facts.now - turn.delivered_at < DELIVERED_SECONDS


def _repeat(command: Accept, facts: Facts) -> Decision[Admission]:
    """Answer a request that came before with its one turn; take up the turn if it was torn off."""
    row, turn, session = facts.repeat, facts.turn, facts.session
    if row is not None and row.body_hash != (command.body_hash or b""):
        return refuse(
            IdempotencyMismatch(f"idempotency key {row.key!r} was used with another body")
        )
    if turn is None or session is None or session.deleted_at is not None:
        return refuse(SessionDeleted("the session of this request was deleted"))
    step = row.step if row is not None else turn.step
    if row is None and command.retry_count > 0:
        turn = replace(turn, retry_claim=command.retry_count)
    is_answered = facts.run is not None and facts.run.outcome == "completed"
    if is_answered or step != turn.step:
        return Decision(Repeated(turn, session, facts.run, step), _claimed(turn, facts))
    return _take_up(command, facts, Draft(session, now=facts.now), turn)


def _claimed(turn: Turn, facts: Facts) -> tuple[TurnSaved, ...]:
    """Return the note that a retry with this count has been answered, where it is new."""
    return (TurnSaved(turn),) if turn is not facts.turn else ()


def _take_up(command: Accept, facts: Facts, draft: Draft, turn: Turn) -> Decision[Admission]:
    """Go on with a turn that was torn off, also if nobody has noticed yet; else wait for it."""
    settled = settle_gone(draft, facts, worker=command.worker, limits=command.limits)
    is_noticed = settled.turn is not None and settled.turn.id == turn.id
    if settled.turn is not None and is_noticed:
        turn = replace(settled.turn, retry_claim=turn.retry_claim)
    is_torn = turn.outcome == "interrupted" or (turn.outcome == "failed" and turn.is_retryable)
    if is_torn:
        if not draft.session.is_live:
            return refuse(SessionRetired(draft.session.id, facts.live_id))
        return _reopen(command, facts, draft, turn, settled)
    if is_noticed:
        return draft.decide(Repeated(turn, draft.session, facts.run, turn.step))
    return Decision(
        Repeated(turn, facts.session or draft.session, facts.run, turn.step), _claimed(turn, facts)
    )


def _reopen(
    command: Accept, facts: Facts, draft: Draft, turn: Turn, settled: Settled
) -> Decision[Admission]:
    turn = replace(
        turn,
        outcome=None,
        error_code=None,
        error_message=None,
        is_retryable=False,
        ended_at=None,
        owner=command.worker,
        # Only attempts that lost their worker count against a turn, not those that ended.
        attempts=turn.attempts if turn.error_code == WORKER_LOST else 0,
        position=tail_position(draft.session.turn_count, settled.waiting, facts.active),
    )
    if not settled.is_free or settled.waiting.count:
        draft.save_turn(turn)
        draft.tell("turn.queued", turn)
        return draft.decide(queued(draft, turn))
    started = begin(draft, turn, run_id=command.run_id, worker=command.worker, facts=facts)
    draft.save_turn(started.turn)
    draft.tell("turn.started", started.turn, attempts=started.turn.attempts)
    return draft.decide(replace(started, session=draft.session))


def _accept_internal(command: Accept, facts: Facts) -> Decision[Admission]:
    """Run beside the key: in a hidden fork of its finished history, leaving no trace on it."""
    hidden = begin_session(command.candidate_id, command.tenant, now=facts.now, is_visible=False)
    parent = facts.session
    if parent is not None and parent.tenant == command.tenant and parent.deleted_at is None:
        seq = finished_seq(parent, facts.active)
        child = fork_of(parent, hidden.id, seq, now=facts.now, hidden=facts.hidden)
        hidden = replace(child, is_visible=False)
    elif command.session_id is not None:
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    draft = Draft(hidden, now=facts.now, is_new=True)
    turn = new_turn(command, hidden, 1, facts.now)
    draft.set(turn_count=1)
    remember(command, draft, turn)
    alone = Facts(now=facts.now)
    started = begin(draft, turn, run_id=command.run_id, worker=command.worker, facts=alone)
    draft.add_turn(started.turn)
    return draft.decide(replace(started, session=draft.session))


def reserve(command: Reserve, facts: Facts) -> Decision[Session]:
    """Answer with the one live session of a key; the loser of a race gets the winner's."""
    if facts.session is not None:
        return Decision(facts.session)
    draft = _new_draft(command, facts)
    draft.set(metadata=command.metadata)
    draft.tell("session.created", generation=draft.session.generation)
    return draft.decide(draft.session)


def append(command: Append, facts: Facts) -> Decision[Appended]:
    """Add items with no run: one turn, begun and completed in the same commit."""
    session = facts.session
    if command.again and facts.turn is not None and facts.turn.id == command.turn_id:
        return _appended_before(command, facts)
    if facts.repeat is not None or _is_implicit_repeat(command, facts):
        return _appended_before(command, facts)
    refusal = _unusable(command, facts)
    if refusal is not None:
        return refuse(refusal)
    if session is None:
        draft = _new_draft(command, facts)
        draft.set(metadata=command.metadata)
        draft.tell("session.created", generation=draft.session.generation)
    else:
        draft = Draft(session, now=facts.now)
        if facts.active is not None or facts.waiting.count:
            return refuse(SessionBusy(f"session {session.id} is busy"))
    if command.source in USER_ACTIVITY:
        draft.set(last_user_activity_at=facts.now)
    turn = add_completed(command, draft, source=command.source)
    remember(command, draft, turn)
    return draft.decide(Appended(draft.session, turn))


def _appended_before(command: Append, facts: Facts) -> Decision[Appended]:
    """Answer a batch that came before with the turn that it was."""
    row, session, turn = facts.repeat, facts.session, facts.turn
    if row is not None and row.body_hash != (command.body_hash or b""):
        return refuse(IdempotencyMismatch(f"batch {row.key!r} was used with other items"))
    if turn is None or session is None or session.deleted_at is not None:
        return refuse(SessionDeleted("the session of this batch was deleted"))
    if turn.outcome != "completed":
        # It was to be appended behind others, and waits or was torn off: its lane decides.
        return refuse(SessionBusy(f"the batch of turn {turn.id} is not in the log yet"))
    if row is None and not command.again:
        turn = replace(turn, retry_claim=command.retry_count)
    return Decision(Appended(session, turn), _claimed(turn, facts))
