"""Accept a turn: find repeats, make new turns durable, start them if the lane is free.

The order is part of the promise: repeats first, then identity, then the state of the lane.
"""

from msgspec.structs import replace

from holdfast.core.decisions.idempotency import (
    Admission,
    found_again,
    is_unmarked_repeat,
    repeat,
    resubmitted,
)
from holdfast.core.decisions.identity import new_draft, tenant_full, unexpected, unusable
from holdfast.core.decisions.lane import (
    begin,
    end_dead_owner,
    front_position,
    pack_items,
    queued,
    replace_instructions,
    started,
    stop_active,
    tail_position,
)
from holdfast.core.decisions.lifecycle import begin_next, finished_seq, fork_of, retire, settled_seq
from holdfast.core.decisions.schedules import unclaimable
from holdfast.core.errors import (
    ApprovalNotFound,
    ComparisonNeeded,
    HoldfastError,
    LaneFull,
    SessionBusy,
    SessionChanged,
    SessionMoved,
    SessionNotFound,
)
from holdfast.core.model.gateway_items import APPROVAL
from holdfast.core.model.schedule import ScheduleClaim, ScheduleRunRow
from holdfast.core.model.session import Session, begin_session, read_pending_calls
from holdfast.core.model.turn import STEERING, USER_ACTIVITY, Source, Turn
from holdfast.core.transaction.changes import (
    Decision,
    ScheduleSaved,
    TurnJoined,
    refuse,
)
from holdfast.core.transaction.commands import Accept, Append, ImportedPrefix, Parent
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.core.transaction.outgoing import report_approvals
from holdfast.core.transaction.plain_turns import start_first_turn, start_plainly
from holdfast.core.transaction.session_draft import Draft

_NO_APPROVAL = "no call waits for this approval any more"
SUPERSEDED = "superseded"
CUT_IN_CODES = {"interrupt": "interrupted_by_turn", "rollback": "rolled_back"}


def accept(command: Accept, facts: Facts) -> Decision[Admission]:
    """Decide about one incoming request."""
    session = facts.session
    if facts.active is None and facts.turn is None and not facts.repeat:
        if session is None:
            decision = start_first_turn(command, facts.next_generation, facts.now)
        else:
            decision = start_plainly(command, session, facts.waiting, facts.now)
        if decision is not None:
            return decision
    return accept_any(command, facts)


def accept_any(command: Accept, facts: Facts) -> Decision[Admission]:
    """Decide about any incoming request, step by step."""
    if command.again or facts.repeat is not None or facts.turn is not None:
        again = _repeated(command, facts)
        if again is not None:
            return again
    changed = unexpected(command, facts) if command.expected_id is not None else None
    if changed is not None:
        return refuse(changed)
    if command.is_internal:
        return _accept_internal(command, facts)
    if command.parent is not None and facts.session is not None:
        return _accept_child(command, facts, facts.session, command.parent)
    refusal = _why_refused(command, facts)
    if refusal is not None:
        return refuse(refusal)
    if facts.session is None:
        return _admit(command, facts, new_draft(command, facts), is_rolled_over=False)
    if facts.active is not None and _joins(command, facts):
        return _join(command, facts, Draft(facts.session, now=facts.now))
    if command.items and command.items[0].kind == APPROVAL:
        # An answer to an approval request that nothing waits for is no reason to call a model.
        return refuse(ApprovalNotFound(_NO_APPROVAL))
    return _accept_known(command, facts, facts.session)


def _why_refused(command: Accept, facts: Facts) -> HoldfastError | None:
    """Return the error if a turn must be rejected, or None."""
    refusal = unclaimable(command, facts) if command.schedule is not None else None
    refusal = refusal or unusable(command, facts)
    if refusal is None and not command.is_compared:
        refusal = _uncompared(command, facts)
    if refusal is None and (command.after_turn is not None or command.seen_seq is not None):
        refusal = _stale_view(command, facts)
    limits = command.limits
    if refusal is None and (limits.full_bytes or limits.max_tenant_turns):
        refusal = tenant_full(limits, facts)
    return refusal


def _repeated(command: Accept, facts: Facts) -> Decision[Admission] | None:
    """Return the decision about a repeated request, or None if the request is new."""
    if command.again and facts.run is not None and facts.run.id == command.run_id:
        return resubmitted(facts)
    if command.again and facts.turn is not None and facts.turn.id == command.turn_id:
        return found_again(command, facts, facts.turn)
    if facts.repeat is not None:
        return repeat(command, facts)
    if not command.is_internal and facts.turn is not None and is_unmarked_repeat(command, facts):
        return repeat(command, facts)
    return None


def _uncompared(command: Accept, facts: Facts) -> HoldfastError | None:
    """Return an error for input that may repeat the log but was not compared with it.

    The same body may come from a client that has stopped the answer in flight; input that is sent
    again after a failure replaces the first one.
    """
    session, active = facts.session, facts.active
    if session is None:
        return None
    if active is None:
        return ComparisonNeeded(session.id, None) if session.has_failed else None
    is_same = command.body_hash is not None and command.body_hash == active.body_hash
    may_be_stopped = command.has_streams or session.owner != command.worker
    if is_same and may_be_stopped and session.active_run_id is not None:
        return ComparisonNeeded(session.id, active.id)
    return None


def _stale_view(command: Accept, facts: Facts) -> HoldfastError | None:
    """Return an error if the log has changed since the request was compared with it, or None."""
    session = facts.session
    if session is not None and command.after_turn not in (None, session.turn_count):
        return SessionMoved("another turn was added after the parent; compare again")
    if command.seen_seq is None:
        return None
    settled = settled_seq(session, facts.active) if session is not None else 0
    active_id = facts.active.id if facts.active is not None else None
    if command.seen_seq == settled and command.supersedes in (None, active_id):
        return None
    return SessionMoved("the session changed while the request was compared with it; retry")


def _accept_child(
    command: Accept, facts: Facts, session: Session, parent: Parent
) -> Decision[Admission]:
    """Continue after an earlier answer: in the same session if that is its head, else in a fork."""
    if session.tenant != command.tenant or session.deleted_at is not None:
        return refuse(SessionNotFound(f"no session {session.id}"))
    # A compaction since then does not matter: it changes what is shown of the log, not the log.
    full = tenant_full(command.limits, facts)
    if full is not None:
        return refuse(full)
    is_head = session.head_seq == parent.seq and not facts.is_view_changed
    is_next = session.is_live and is_head
    if is_next and _joins(command, facts):
        return _join(command, facts, Draft(session, now=facts.now))
    if command.items and command.items[0].kind == APPROVAL:
        return refuse(ApprovalNotFound(_NO_APPROVAL))
    if is_next and facts.active is None and facts.waiting.count == 0:
        return _accept_known(command, facts, session)
    hidden = facts.parent_hidden
    child = fork_of(session, command.candidate_id, parent.seq, now=facts.now, hidden=hidden)
    child = replace(child, parent_record=parent.record_no)
    draft = Draft(child, now=facts.now, is_new=True)
    draft.is_parent_ahead = parent.record_no < session.record_no
    draft.add_event(
        "session.created", generation=1, parent_session_id=session.id, after_seq=parent.seq
    )
    return _admit(command, Facts(now=facts.now), draft, is_rolled_over=False)


def _accept_known(command: Accept, facts: Facts, session: Session) -> Decision[Admission]:
    verdict = None
    is_idle = facts.active is None and facts.waiting.count == 0
    if command.reset.mode != "none" and is_idle and command.source in USER_ACTIVITY:
        verdict = command.reset.judge(session.last_user_activity_at, facts.now)
    if verdict == "hard" and (command.key is None or session.key is None):
        # A session id names exactly that session; only a key follows resets.
        verdict = None
    if verdict == "hard" and command.expected_id is not None:
        # The reset policy ends the generation that this message was written for.
        return refuse(SessionChanged(session.id, None))
    if verdict == "hard":
        return _accept_after_reset(command, facts, session)
    draft = Draft(session, now=facts.now)
    if verdict == "soft":
        draft.add_event("session.rolled_over", mode=command.reset.mode)
    return _admit(command, facts, draft, is_rolled_over=verdict == "soft")


def _accept_after_reset(command: Accept, facts: Facts, session: Session) -> Decision[Admission]:
    old = Draft(session, now=facts.now)
    retire(old, reason=f"{command.reset.mode}_rollover")
    draft = begin_next(session, command.candidate_id, facts)
    decision = _admit(command, facts, draft, is_rolled_over=True)
    return replace(decision, changes=(*old.changes(), *decision.changes))


def _admit(
    command: Accept, facts: Facts, draft: Draft, *, is_rolled_over: bool
) -> Decision[Admission]:
    """Put a new turn into the lane: start it, or queue it at the end or the front, as requested."""
    is_free, waiting = True, facts.waiting
    if facts.active is not None:
        is_free = _abandon_calls(command, facts, draft)
        if not is_free and command.supersedes is None:
            is_free, waiting, _ = end_dead_owner(
                draft, facts, worker=command.worker, limits=command.limits
            )
    is_first = is_free and waiting.count == 0 and command.collect_seconds <= 0
    if command.brought is not None and is_first and draft.head_seq == 0:
        command = write_prefix(command, draft, command.brought)
    session = draft.session
    position = (
        STEERING + session.turn_count + 1
        if command.on_busy == "steer"
        else tail_position(session.turn_count, waiting, facts.active)
    )
    is_busy = not is_free or waiting.count > 0
    if is_busy:
        refusal = _refusal(command, session, waiting)
        if refusal is not None:
            return refuse(refusal)
        if command.on_busy in ("interrupt", "rollback"):
            position = front_position(facts, waiting)
            if not is_free:
                facts = _preempt(command, facts, draft)
                session = draft.session
            is_first = True
    turn = new_turn(command, session, position, facts.now)
    is_activity = command.source in USER_ACTIVITY
    draft.set(
        turn_count=turn.number,
        last_user_activity_at=facts.now if is_activity else session.last_user_activity_at,
    )
    if command.idempotency_key is not None or command.schedule is not None:
        draft.bind_key(command.idempotency_key, command.body_hash, turn.id, turn.step)
        _claim_due_time(command.schedule, facts, draft, turn)
    if not is_first:
        return _enqueue(command, draft, turn, is_collecting=not is_busy)
    turn, run = begin(
        draft, turn, run_id=command.run_id, worker=command.worker, facts=facts, items=command.items
    )
    draft.save_turn(turn, run, "turn.started", is_new=True)
    return draft.decide(started(draft, turn, run, is_rolled_over=is_rolled_over))


def _enqueue(
    command: Accept, draft: Draft, turn: Turn, *, is_collecting: bool
) -> Decision[Admission]:
    """Queue a turn until its lane is free, or until the rest of its burst has arrived."""
    turn = replace(turn, input=pack_items(command.items))
    draft.save_turn(turn, event="turn.queued", is_new=True)
    waits = queued(draft, turn)
    if is_collecting:
        waits = replace(waits, check_again_at=draft.now + command.collect_seconds)
    return draft.decide(waits)


def _abandon_calls(command: Accept, facts: Facts, draft: Draft) -> bool:
    """End the wait for tool calls that the client abandons; return whether there was one."""
    active = facts.active
    if active is None or active.id != command.abandons or not draft.session.is_held:
        return False
    message = "the client went on without the outputs of its tools"
    stop_active(draft, facts, "interrupted", code="tool_calls_abandoned", message=message)
    return True


def _claim_due_time(claim: ScheduleClaim | None, facts: Facts, draft: Draft, turn: Turn) -> None:
    """Advance the schedule whose run this turn is, in the same commit."""
    row = facts.schedule
    if claim is None or row is None:
        return
    running = replace(row, next_run_at=claim.next_run_at, running_turn=turn.id, reason="")
    draft.add(ScheduleSaved(running, row))
    run = ScheduleRunRow(
        schedule_id=row.id, scheduled_at=claim.scheduled_at, turn_id=turn.id,
        session_id=draft.before.id, outcome="",
    )  # fmt: skip
    draft.add(run)


def _refusal(command: Accept, session: Session, waiting: Waiting) -> HoldfastError | None:
    if command.on_busy == "reject":
        return SessionBusy(f"session {session.id} is busy")
    if command.on_busy in ("enqueue", "steer") and waiting.count >= command.limits.max_waiting:
        return LaneFull(f"{waiting.count} turns wait in session {session.id}; no more are accepted")
    return None


def _preempt(command: Accept, facts: Facts, draft: Draft) -> Facts:
    """Cancel the turn that holds the lane; a rollback also hides its items."""
    message = f"another turn asked to {command.on_busy}"
    code = SUPERSEDED if command.supersedes is not None else CUT_IN_CODES[command.on_busy]
    stopped = stop_active(draft, facts, "cancelled", code=code, message=message)
    if command.on_busy == "interrupt" or stopped.first_seq is None or stopped.last_seq is None:
        return facts
    hidden = facts.hidden
    if stopped.first_seq <= stopped.last_seq:
        span = (stopped.first_seq, stopped.last_seq)
        hidden = tuple(draft.hide("rollback", span, hidden, stopped.id))
    return replace(facts, hidden=hidden)


def _joins(command: Accept, facts: Facts) -> bool:
    """Whether the input has outputs or approvals that the lane is held for."""
    session = facts.session
    if facts.active is None or session is None or not session.is_held:
        return False
    if session.hold_until is not None and session.hold_until <= facts.now:
        return False
    pending = set(read_pending_calls(session))
    return any(
        item.call_id in pending and (item.kind.endswith("_output") or item.kind == APPROVAL)
        for item in command.items
    )


def _join(command: Accept, facts: Facts, draft: Draft) -> Decision[Admission]:
    """Continue the held turn with the outputs that it was waiting for."""
    turn = facts.active
    assert turn is not None
    last = draft.append(command.items, turn.number)
    turn = replace(
        turn,
        step=turn.step + 1,
        attempts=0,
        losses=None,
        kept_seq=last,
        last_seq=last,
        body_hash=command.body_hash,
        delivered_at=None,
        retry_claim=0,
    )
    if command.source in USER_ACTIVITY:
        draft.set(last_user_activity_at=facts.now)
    draft.bind_key(command.idempotency_key, command.body_hash, turn.id, turn.step)
    report_approvals(draft, turn, command.items)
    draft.add(TurnJoined(command.turn_id, turn.id, command.run_id, draft.before.id))
    turn, run = begin(draft, turn, run_id=command.run_id, worker=command.worker, facts=facts)
    draft.save_turn(turn, run, "turn.continued", step=turn.step)
    return draft.decide(started(draft, turn, run))


def _accept_internal(command: Accept, facts: Facts) -> Decision[Admission]:
    """Run in a hidden fork of the key's finished history; the key's own session is unchanged."""
    refusal = unusable(command, facts) or tenant_full(command.limits, facts)
    if refusal is not None:
        return refuse(refusal)
    hidden = begin_session(
        command.candidate_id,
        command.tenant,
        now=facts.now,
        is_visible=False,
        started_by=command.source,
    )
    parent = facts.session
    if parent is not None:
        seq = finished_seq(parent, facts.active)
        child = fork_of(parent, hidden.id, seq, now=facts.now, hidden=facts.hidden)
        hidden = replace(child, is_visible=False)
    draft = Draft(hidden, now=facts.now, is_new=True)
    turn = new_turn(command, hidden, 1, facts.now)
    draft.set(turn_count=1)
    draft.bind_key(command.idempotency_key, command.body_hash, turn.id, turn.step)
    alone = Facts(now=facts.now)
    turn, run = begin(
        draft, turn, run_id=command.run_id, worker=command.worker, facts=alone, items=command.items
    )
    draft.save_turn(turn, run, is_new=True)
    return draft.decide(started(draft, turn, run))


def new_turn(command: Accept | Append, session: Session, position: int, now: float) -> Turn:
    """Return the new turn. Its input is in the log, or packed in the queue row."""
    rewind, request = None, b""
    if isinstance(command, Accept):
        rewind, request = command.rewind, command.request
    if rewind is not None and rewind[1] > session.head_seq:
        rewind = None  # It refers to another generation's log: this one was never that long.
    return Turn(
        id=command.turn_id,
        session_id=session.id,
        tenant=session.tenant,
        number=session.turn_count + 1,
        position=position,
        source=command.source,
        owner=command.worker,
        request=request,
        body_hash=command.body_hash,
        rewind_after=rewind[0] if rewind else None,
        rewind_upto=rewind[1] if rewind else None,
        accepted_at=now,
    )


def add_completed(command: Accept | Append, draft: Draft, *, source: Source) -> Turn:
    """Append items at the head as a turn that is completed at once."""
    session = draft.session
    position = tail_position(session.turn_count, Waiting())
    turn = new_turn(command, session, position, draft.now)
    first = draft.head_seq + 1
    if command.items and command.items[0].is_instruction:
        replace_instructions(draft, command.items, Facts(now=draft.now))
    last = draft.append(command.items, turn.number)
    draft.set(turn_count=turn.number)
    turn = replace(
        turn,
        source=source,
        request=b"",
        body_hash=command.body_hash if isinstance(command, Append) else None,
        first_seq=first,
        kept_seq=last,
        last_seq=last,
        outcome="completed",
        started_at=draft.now,
        ended_at=draft.now,
    )
    draft.save_turn(turn, event="items.appended", is_new=True, first_seq=first, last_seq=last)
    return turn


def write_prefix(command: Accept, draft: Draft, brought: ImportedPrefix) -> Accept:
    """Write the history that a client sends as a completed turn; return the command with the rest.

    A request that arrives while the new part runs finds this history in the log.
    """
    history = replace(command, turn_id=brought.turn_id, items=command.items[: brought.count])
    add_completed(history, draft, source="system")
    draft.index_history(brought.history_hash)
    return replace(command, items=command.items[brought.count :])
