"""What a run may write, and how it ends: every write is fenced, and the end is atomic."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.channels.turns import collects
from holdfast.core.decisions.hide import is_changed, without_hidden
from holdfast.core.decisions.lane import (
    end_turn,
    is_next,
    keep_partial,
    pack_items,
    start_waiting,
    stop_active,
    unpack_items,
)
from holdfast.core.errors import IdempotencyMismatch, RunFenced, TurnNotFound
from holdfast.core.healing.policy import Heal, read_heals, write_heals
from holdfast.core.model.items import NewItem
from holdfast.core.model.records import Span, merge_spans
from holdfast.core.model.session import ProviderState, Session, Usage
from holdfast.core.model.turn import NO_LOSSES, Fence, Run, Turn, storable
from holdfast.core.transaction.changes import (
    CompletionRow,
    Decision,
    LateWriteNoted,
    PartialDropped,
    PartialSaved,
    ProviderStateDropped,
    ProviderStateSaved,
    StopRequestDropped,
    StopRequestRow,
    refuse,
)
from holdfast.core.transaction.commands import (
    Cancel,
    Ended,
    Extend,
    Finish,
    RecordHeal,
    RequestStop,
    SettleStop,
    Started,
)
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.outgoing import queue_parts
from holdfast.core.transaction.plain_turns import end_plainly
from holdfast.core.transaction.session_draft import Draft

OutcomeT = TypeVar("OutcomeT")
_NOTHING_USED = Usage()


def extend(command: Extend, facts: Facts) -> Decision[Session]:
    """Append the finished output of a run, and save its unfinished output."""
    if not command.fence.holds(facts.session):
        return fenced(command.fence, facts, tried="extend", count=len(command.items))
    session, turn, run = facts.session, facts.active, facts.active_run
    assert session is not None
    assert turn is not None
    assert run is not None
    if command.again and command.items and not _missing(command, session):
        return Decision(session)
    row = facts.repeat
    if row is not None and row.body_hash != (command.body_hash or b""):
        return refuse(IdempotencyMismatch(f"batch {row.key!r} was used with other items"))
    if row is not None and row.turn_id != turn.id:
        return Decision(session)  # another turn wrote it (an earlier attempt's is written again)
    draft = Draft(session, now=facts.now)
    items = without_hidden(_missing(command, session), session, facts.heads, command.shown_records)
    if items or command.merges:
        draft.append(items, turn.number)
        merged = _merge(draft, turn, command, facts) if command.merges else ()
        last = draft.head_seq
        losses = replace(turn.losses or NO_LOSSES, stepped_at=facts.now)
        draft.save_turn(replace(turn, kept_seq=last, last_seq=last, losses=losses))
        draft.save_run(_after_step(run, command.usage))
        draft.add_event("items.added", turn, first_seq=session.head_seq + 1, last_seq=last)
        _end_merged(draft, merged)
    if command.idempotency_key is not None and row is None:
        draft.bind_key(command.idempotency_key, command.body_hash, turn.id, turn.step)
    if command.partial is not None:
        draft.add(PartialSaved(session.id, run.id, pack_items(command.partial)))
    elif command.items and run.partial is not None:
        draft.add(PartialDropped(run.id))
    if command.journal is not None:
        draft.journal(turn, command.journal, run.id)
    _keep_step(draft, turn, command, facts)
    return draft.decide(draft.session)


def _merge(draft: Draft, turn: Turn, command: Extend, facts: Facts) -> list[Turn]:
    """Append the input of waiting turns that join the running one; return those turns."""
    merged: list[Turn] = []
    for waiting in sorted(facts.open_turns, key=lambda each: each.position):
        is_waiting = waiting.id in command.merges and waiting.id != turn.id
        if is_waiting and waiting.first_seq is None and waiting.rewind_after is None:
            draft.append(unpack_items(waiting.input), turn.number)
            merged.append(replace(waiting, input=None, merged_into=turn.id))
    return merged


def _end_merged(draft: Draft, merged: Sequence[Turn]) -> None:
    """End the turns that have joined another one, and wake their callers."""
    for turn in merged:
        end_turn(draft, turn, "completed")
        draft.wake()


def _keep_step(draft: Draft, turn: Turn, command: Extend, facts: Facts) -> None:
    """Count the usage, save the provider state and queue the messages of a step within a turn."""
    if command.outbox:
        queue_parts(draft, command.outbox, turn.id, turn.step)
    if command.usage is not None and command.usage.is_countable:
        count_usage(draft, command.usage)
    if command.provider_state is not None:
        _keep_state(draft, command.provider_state, command, facts)


def finish(command: Finish, facts: Facts) -> Decision[Ended]:
    """End a run. A run that lost its session changes nothing but its own record."""
    if not command.fence.holds(facts.session):
        return _finish_fenced(command, facts)
    session, turn, run = facts.session, facts.active, facts.active_run
    assert session is not None
    assert turn is not None
    assert run is not None
    ended = None
    if not facts.heads:
        ended = end_plainly(command, session, turn, run, facts.waiting, facts.now)
    return ended or finish_any(command, facts, session, turn, run)


def finish_any(
    command: Finish, facts: Facts, session: Session, turn: Turn, run: Run
) -> Decision[Ended]:
    """End a run that holds its lane, in the general case, step by step."""
    draft = Draft(session, now=facts.now)
    if command.usage is not None and not count_usage(draft, command.usage, command.counted):
        command = replace(command, usage=None)
    items = _missing(command, session)
    if facts.heads:
        items = without_hidden(items, session, facts.heads, command.shown_records)
    last = draft.append(items, turn.number)
    turn = replace(turn, kept_seq=last, last_seq=last)
    if command.partial:
        turn = keep_partial(draft, turn, pack_items(command.partial))
    if run.partial is None:
        draft.partial_run = None
    run = _ended_run(run, command, draft)
    if command.journal is not None:
        draft.journal(turn, command.journal, run.id)
    is_completed = command.outcome == "completed"
    if is_completed:
        _keep_for_later(draft, turn, command, facts)
    if is_completed and command.pending_calls:
        turn = _hold(draft, turn, run, command)
    else:
        draft.free_lane()
        turn = end_turn(
            draft,
            turn,
            command.outcome,
            code=command.error_code,
            message=command.error_message,
            is_retryable=command.is_retryable,
            run=run,
            partial=pack_items(command.partial) if command.partial else None,
        )
    if command.refused_from is not None or command.left_out:
        facts = _hide_refused(draft, turn, command, facts)
    begun = _hand_over(draft, run, command, facts) if facts.waiting.count else None
    return draft.decide(Ended(turn, draft.session, run, begun))


def _hide_refused(draft: Draft, turn: Turn, command: Finish, facts: Facts) -> Facts:
    """Hide the input that a provider refused, and the answer to it.

    A conversation at the provider may contain that input, so provider state is dropped.
    """
    spans = merge_spans((seq, seq) for seq in command.left_out if seq not in command.placeholders)
    if command.refused_from is not None:
        spans.append((command.refused_from, draft.head_seq))
    hidden: Sequence[Span] = facts.hidden
    for span in spans:
        hidden = draft.hide("refused", span, hidden, turn.id)
    for span in merge_spans((seq, seq) for seq in command.placeholders):
        draft.record("quarantine", span, turn_id=turn.id)
    draft.add(ProviderStateDropped(draft.before.id))
    return replace(facts, hidden=tuple(hidden))


def _hand_over(draft: Draft, run: Run, command: Finish, facts: Facts) -> Started | None:
    """Start the named successor if it is next in the queue; otherwise wake the waiters."""
    turn, named, session = facts.turn, command.successor, draft.session
    is_free = session.active_turn_id is None
    if not is_free or turn is None or named is None or not is_next(turn, session, facts.waiting):
        draft.wake()
        return None
    if collects(turn):
        # It may have to wait for the rest of its burst, which only a claim checks.
        draft.wake()
        return None
    return start_waiting(draft, turn, run_id=named.run_id, worker=run.worker, facts=facts)


def _keep_for_later(draft: Draft, turn: Turn, command: Finish, facts: Facts) -> None:
    """Write what later requests look up, and queue the messages that a channel sends."""
    completion, session = command.completion, draft.before
    if completion is not None:
        row = CompletionRow(
            turn.id, turn.step, session.tenant, session.id, completion.model, completion.metadata,
            facts.now,
        )  # fmt: skip
        draft.add(row)
    if command.history_hash:
        draft.index_history(command.history_hash)
    if command.provider_state is not None:
        _keep_state(draft, command.provider_state, command, facts)
    if command.outbox:
        queue_parts(draft, command.outbox, turn.id, turn.step)


def _keep_state(draft: Draft, state: ProviderState, command: Extend | Finish, facts: Facts) -> None:
    """Save provider state, or drop all of it if items were hidden meanwhile."""
    if is_changed(draft.before, facts.heads, command.shown_records):
        draft.add(ProviderStateDropped(draft.before.id))
        return
    covering = replace(state, covers_seq=draft.head_seq)
    draft.add(ProviderStateSaved(draft.before.id, covering, facts.now))


def _missing(command: Extend | Finish, session: Session) -> tuple[NewItem, ...]:
    """Return the items that are not in the log yet; the reply to an earlier commit may be lost.

    While a run's fence holds, only that run appends, so all items after `after_seq` are its own.
    """
    if command.after_seq is None:
        return command.items
    return command.items[max(session.head_seq - command.after_seq, 0) :]


def _hold(draft: Draft, turn: Turn, run: Run, command: Finish) -> Turn:
    """Hold the lane until the client's tools have answered."""
    draft.set(
        active_run_id=None,
        owner=None,
        hold_until=draft.now + command.hold_seconds,
        pending_calls=msgspec.json.encode(command.pending_calls).decode(),
    )
    draft.save_turn(turn, run, "turn.requires_action", calls=list(command.pending_calls))
    return turn


def _ended_run(run: Run, command: Finish, draft: Draft) -> Run:
    usage = command.usage
    return replace(
        run,
        last_seq=draft.head_seq,
        record_no=draft.record_no,
        outcome=command.outcome,
        error_code=command.error_code,
        error_message=storable(command.error_message) if command.error_message else None,
        ended_at=draft.now,
        partial=None,
        result=command.result,
        heals=command.heals if command.heals is not None else run.heals,
        input_tokens=usage.input_tokens if usage else run.input_tokens,
        cached_tokens=usage.cached_tokens if usage else run.cached_tokens,
        output_tokens=usage.output_tokens if usage else run.output_tokens,
        reasoning_tokens=usage.reasoning_tokens if usage else run.reasoning_tokens,
    )


def _after_step(run: Run, usage: Usage | None) -> Run:
    """Return the run with the usage of one step added, so that a crash does not lose it."""
    if usage is None or not usage.is_countable:
        return replace(run, partial=None) if run.partial is not None else run
    return replace(
        run,
        partial=None,
        input_tokens=(run.input_tokens or 0) + usage.input_tokens,
        cached_tokens=(run.cached_tokens or 0) + usage.cached_tokens,
        output_tokens=(run.output_tokens or 0) + usage.output_tokens,
        reasoning_tokens=(run.reasoning_tokens or 0) + usage.reasoning_tokens,
    )


def count_usage(draft: Draft, usage: Usage, counted: Usage | None = None) -> bool:
    """Add a run's usage, minus what was counted before; return False if it is implausible."""
    if not usage.is_countable:
        return False
    session, done = draft.before, counted or _NOTHING_USED
    draft.set(
        input_tokens=session.input_tokens + usage.input_tokens - done.input_tokens,
        cached_tokens=session.cached_tokens + usage.cached_tokens - done.cached_tokens,
        output_tokens=session.output_tokens + usage.output_tokens - done.output_tokens,
        reasoning_tokens=session.reasoning_tokens + usage.reasoning_tokens - done.reasoning_tokens,
    )
    return True


def _finish_fenced(command: Finish, facts: Facts) -> Decision[Ended]:
    run, turn, session = facts.run, facts.turn, facts.session
    is_done = run is not None and run.outcome == command.outcome and run.late is None
    if command.again and is_done and run is not None and turn is not None and session is not None:
        return Decision(Ended(turn, session, run))
    return fenced(command.fence, facts, tried=command.outcome, count=len(command.items))


def fenced(fence: Fence, facts: Facts, *, tried: str, count: int) -> Decision[OutcomeT]:
    """Reject a late write, and record the attempt with its run."""
    error = RunFenced(_why(fence, facts.session))
    if facts.run is None or (facts.session is not None and facts.session.deleted_at is not None):
        return refuse(error)
    late = msgspec.json.encode({"tried": tried, "items": count, "at": facts.now})
    run = facts.run
    return Decision(error, (LateWriteNoted(run.id, run.turn_id, run.session_id, late),))


def _why(fence: Fence, session: Session | None) -> str:
    if session is None or session.deleted_at is not None:
        return f"run {fence.run_id}: session {fence.session_id} is gone"
    return (
        f"run {fence.run_id} holds epoch {fence.epoch} of session {fence.session_id}, "
        f"which is at {session.epoch}"
    )


def record_heal(command: RecordHeal, facts: Facts) -> Decision[Session]:
    """Add a heal to its run, if the run still owns the session."""
    if not command.fence.holds(facts.session):
        return fenced(command.fence, facts, tried="record_heal", count=0)
    session, run = facts.session, facts.active_run
    assert session is not None
    assert run is not None
    done = read_heals(run.heals)
    if command.again and len(done) > command.number:
        return Decision(session)
    draft = Draft(session, now=facts.now)
    draft.save_run(replace(run, heals=write_heals([*done, command.heal])))
    if command.drops_state:
        draft.add(ProviderStateDropped(session.id, command.slot))
    heal = command.heal
    fallback = {"next_model": heal.next_model} if heal.next_model else {}
    draft.add_event(
        "turn.healed",
        facts.active,
        failure=heal.failure_class,
        action=heal.action,
        code=heal.code,
        **fallback,
    )
    if heal.items:
        _set_aside(draft, run, heal)
    return draft.decide(draft.session)


def _set_aside(draft: Draft, run: Run, heal: Heal) -> None:
    """Record that a provider cannot process these items; drop provider state that contains them."""
    why = msgspec.json.encode({"code": heal.code, "message": heal.message})
    spans = merge_spans((seq, seq) for seq in heal.items)
    for span in spans:
        draft.record("quarantine", span, turn_id=run.turn_id, body=why)
    draft.add(ProviderStateDropped(draft.session.id, from_seq=spans[0][0]))
    draft.add_event("items.quarantined", None, items=list(heal.items), code=heal.code)


def request_stop(command: RequestStop, facts: Facts) -> Decision[bool]:
    """Ask the worker of a running turn to end it; only that worker knows which output was shown."""
    turn, session = facts.turn, facts.session
    if turn is None or session is None or turn.tenant != command.tenant:
        return Decision(False)
    if session.active_turn_id != turn.id or session.active_run_id is None:
        return Decision(False)
    stop_request = facts.stop_request
    if stop_request is not None and stop_request.caller is None and command.caller is not None:
        return Decision(True, woken=(session.id,))  # it ends whether its client reads or not
    row = StopRequestRow(session.active_run_id, command.code, command.caller, facts.now)
    return Decision(True, (row,), (session.id,))


def settle_stop(command: SettleStop, facts: Facts) -> Decision[bool]:
    """Grant or withdraw a request to end a run, unless that was decided before."""
    turn, session, row = facts.turn, facts.session, facts.stop_request
    if turn is None or session is None or turn.tenant != command.tenant:
        return Decision(False)
    if session.active_turn_id != turn.id:
        return Decision(turn.outcome == "cancelled")
    if row is None or row.caller not in (None, command.caller):
        return Decision(False)
    if row.caller is None:
        return Decision(True)
    if command.is_granted:
        return Decision(True, (replace(row, caller=None),))
    return Decision(False, (StopRequestDropped(row.run_id),))


def cancel(command: Cancel, facts: Facts) -> Decision[Turn]:
    """End an open turn; a turn that has ended is not changed."""
    turn, session = facts.turn, facts.session
    if turn is None or session is None or turn.tenant != command.tenant:
        return refuse(TurnNotFound(f"no turn {command.turn_id}"))
    if session.deleted_at is not None:
        return refuse(TurnNotFound(f"no turn {command.turn_id}"))
    is_active = session.active_turn_id == turn.id
    if not turn.is_open or (command.only_if_queued and is_active):
        return Decision(turn)
    draft = Draft(session, now=facts.now)
    if is_active:
        turn = stop_active(
            draft, facts, command.outcome, code=command.code, message=command.reason,
            is_retryable=command.is_retryable,
        )  # fmt: skip
    else:
        turn = end_turn(
            draft, turn, command.outcome, code=command.code, message=command.reason,
            is_retryable=command.is_retryable,
        )  # fmt: skip
    draft.wake()
    return draft.decide(turn)
