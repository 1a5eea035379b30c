"""The lane: who holds it, who is next, and how it is released.

Every function works on a draft of the session's row; the row's one fenced write is the guard.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.worker_losses import TURN_ABANDONED, is_given_up, with_loss
from holdfast.core.ids import RunId, WorkerId
from holdfast.core.model.gateway_items import APPROVAL_PREFIX
from holdfast.core.model.items import ERASED_ITEM, NewItem, StoredItem
from holdfast.core.model.records import Span, visible_spans
from holdfast.core.model.session import Session, read_pending_calls
from holdfast.core.model.turn import RUN_AGAIN, Fence, Outcome, Run, Turn, storable
from holdfast.core.transaction.changes import PartialDropped, ProviderStateDropped
from holdfast.core.transaction.commands import MAX_HOLD_SECONDS, LaneLimits, Queued, Started
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.core.transaction.outgoing import report_end, withdraw_approvals
from holdfast.core.transaction.session_draft import Draft

WORKER_LOST = "worker_lost"
HOLD_EXPIRED = "tool_wait_expired"
APPROVAL_EXPIRED = "approval_expired"
CLOCK_TOLERANCE_SECONDS = 60.0
"""A turn that started this much later than now was started before the clock was set back."""

_Block = tuple[int, int, int]
"""The first item of a turn, its last finished item, and its last item."""

_encode_items = msgspec.msgpack.Encoder().encode
_decode_items = msgspec.msgpack.Decoder(tuple[NewItem, ...]).decode


def pack_items(items: Sequence[NewItem]) -> bytes:
    """Serialize items for the queue row of a turn."""
    return _encode_items(tuple(items))


def unpack_items(packed: bytes | None) -> tuple[NewItem, ...]:
    """Deserialize what `pack_items` returned."""
    return _decode_items(packed) if packed else ()


def begin(
    draft: Draft,
    turn: Turn,
    *,
    run_id: RunId,
    worker: WorkerId,
    facts: Facts,
    items: Sequence[NewItem] = (),
) -> tuple[Turn, Run]:
    """Give the lane to `turn`: its items enter the log, its run begins under a new epoch.

    The items of a queued turn are packed in its queue row.
    """
    if turn.first_seq is None:
        hidden = facts.hidden
        if turn.rewind_after is not None and turn.rewind_upto is not None:
            span = (turn.rewind_after + 1, turn.rewind_upto)
            hidden = tuple(draft.hide("rewind", span, hidden, turn.id))
        first = draft.head_seq + 1
        items = items or unpack_items(turn.input)
        if items and items[0].is_instruction:
            replace_instructions(draft, items, replace(facts, hidden=hidden))
        kept = last = draft.append(items, turn.number)
    else:
        first, kept, last = _place_again(draft, turn, facts)
    turn = replace(
        turn,
        input=None,
        owner=worker,
        attempts=turn.attempts + 1,
        first_seq=first,
        kept_seq=kept,
        last_seq=last,
        started_at=turn.started_at or draft.now,
    )
    epoch = draft.take_lane(turn.id, run_id, worker)
    return turn, new_run(run_id, turn, epoch=epoch, draft=draft)


def started(draft: Draft, turn: Turn, run: Run, *, is_rolled_over: bool = False) -> Started:
    """Return the outcome for a turn that got the lane; all of its changes are in the draft."""
    fence = Fence(run.session_id, run.generation, run.id, run.epoch)
    return Started(turn, draft.session, run, fence, is_rolled_over)


def is_next(turn: Turn, session: Session, waiting: Waiting) -> bool:
    """Whether a turn is the first in the queue of a session's lane."""
    is_here = turn.session_id == session.id and turn.is_open
    return is_here and turn.position == waiting.first_position


def start_waiting(
    draft: Draft, turn: Turn, *, run_id: RunId, worker: WorkerId, facts: Facts
) -> Started:
    """Give a free lane to a turn that was queued."""
    turn, run = begin(draft, turn, run_id=run_id, worker=worker, facts=facts)
    draft.save_turn(turn, run, "turn.started", attempts=turn.attempts)
    return started(draft, turn, run)


def new_run(run_id: RunId, turn: Turn, *, epoch: int, draft: Draft) -> Run:
    """Return a new run; its answer is appended at the head."""
    return Run(
        id=run_id,
        turn_id=turn.id,
        session_id=draft.before.id,
        generation=draft.before.generation,
        epoch=epoch,
        worker=turn.owner,
        step=turn.step,
        first_seq=draft.head_seq + 1,
        started_at=draft.now,
    )


def _place_again(draft: Draft, turn: Turn, facts: Facts) -> _Block:
    """Move the items of a restarted turn to the head of the log, as one block."""
    hidden, block = facts.hidden, facts.turn_items
    assert turn.first_seq is not None
    assert turn.kept_seq is not None
    assert turn.last_seq is not None
    is_seen = bool(visible_spans(hidden, turn.first_seq, turn.kept_seq))
    if draft.head_seq == turn.last_seq and is_seen:
        if turn.kept_seq < turn.last_seq:
            draft.hide("retry", (turn.kept_seq + 1, turn.last_seq), hidden, turn.id)
        return turn.first_seq, turn.kept_seq, turn.last_seq
    # Later turns follow the old block, or hid it: append the block again, so that turns do not
    # interleave. If all of it is hidden, the repeated request still needs its whole input.
    kept = visible_items(block, hidden) if is_seen else _input_and_output(block, turn.kept_seq)
    hidden = tuple(draft.hide("retry", (turn.first_seq, turn.last_seq), hidden, turn.id))
    first = draft.head_seq + 1
    again = [_as_instruction(item, facts) for item in kept if not item.is_partial]
    if again and again[0].is_instruction:
        replace_instructions(draft, again, replace(facts, hidden=hidden))
    last = draft.append(again, turn.number)
    return first, last, last


def _as_instruction(item: StoredItem, facts: Facts) -> NewItem:
    """Return a stored item as a new one, marked if it belongs to the instructions in force."""
    span = facts.instructions
    is_instruction = span is not None and span[0] <= item.seq <= span[1]
    return replace(item.as_new(), is_instruction=is_instruction)


def replace_instructions(draft: Draft, items: Sequence[NewItem], facts: Facts) -> None:
    """Record that the next items to be appended begin with the session's instructions.

    Earlier instructions are hidden. Provider state contains them and is dropped.
    """
    if facts.instructions is not None and visible_spans(facts.hidden, *facts.instructions):
        draft.hide("replace", facts.instructions, facts.hidden)
    count = sum(1 for _ in takewhile(lambda item: item.is_instruction, items))
    first = draft.head_seq + 1
    draft.record("instructions", (first, first + count - 1))
    draft.add(ProviderStateDropped(draft.before.id))


def visible_items(block: Sequence[StoredItem], hidden: Sequence[Span]) -> list[StoredItem]:
    """Return the items of a turn's block that nothing hides."""
    return [item for item in block if not any(first <= item.seq <= last for first, last in hidden)]


def _input_and_output(block: Sequence[StoredItem], kept_seq: int) -> list[StoredItem]:
    """Return the input and finished output of a turn, without erased items."""
    return [item for item in block if item.seq <= kept_seq and item.body != ERASED_ITEM]


def keep_partial(draft: Draft, turn: Turn, partial: bytes | None) -> Turn:
    """Append the unfinished output of a run, marked as partial; a later attempt hides it."""
    if not partial:
        return turn
    return replace(turn, last_seq=draft.append(unpack_items(partial), turn.number, is_partial=True))


def end_turn(
    draft: Draft,
    turn: Turn,
    outcome: Outcome,
    *,
    code: str | None = None,
    message: str | None = None,
    is_retryable: bool = False,
    run: Run | None = None,
    partial: bytes | None = None,
) -> Turn:
    """End a turn, whether it held the lane or waited, and write the run that ended it.

    `partial` is its unfinished output.
    """
    ended = replace(
        turn,
        outcome=outcome,
        error_code=code,
        error_message=storable(message) if message is not None else None,
        is_retryable=is_retryable,
        ended_at=draft.now,
    )
    detail: dict[str, Any] = {"code": code} if code else {}
    draft.save_turn(
        ended, run, f"turn.{outcome}", first_seq=ended.first_seq, last_seq=ended.last_seq, **detail
    )
    if outcome == "failed" and is_retryable:
        draft.set(has_failed=True)
    if outcome == "cancelled":
        # The caller may wait in another process.
        draft.wake()
    if ended.source == "channel" and outcome != "completed":
        report_end(draft, ended, outcome, unpack_items(partial))
    return ended


def stop_active(
    draft: Draft,
    facts: Facts,
    outcome: Outcome,
    *,
    code: str,
    message: str,
    is_retryable: bool = False,
) -> Turn:
    """Take the lane from the turn that holds it; keep its finished and unfinished output."""
    assert facts.active is not None
    turn = _release_lane(draft, facts, outcome, code)
    partial = facts.active_run.partial if facts.active_run is not None else None
    return end_turn(
        draft, turn, outcome, code=code, message=message, is_retryable=is_retryable,
        partial=partial,
    )  # fmt: skip


def _release_lane(draft: Draft, facts: Facts, outcome: Outcome, code: str) -> Turn:
    turn, run = facts.active, facts.active_run
    assert turn is not None
    if run is not None:
        turn = keep_partial(draft, turn, run.partial)
        if run.partial is not None:
            draft.add(PartialDropped(run.id))
        draft.save_run(
            replace(
                run,
                outcome=outcome,
                error_code=code,
                ended_at=draft.now,
                partial=None,
                last_seq=draft.head_seq,
                record_no=draft.record_no,
            )
        )
        draft.abort(run.id)
    withdraw_approvals(draft, turn, is_late=code in (HOLD_EXPIRED, APPROVAL_EXPIRED))
    draft.raise_epoch()
    draft.free_lane()
    draft.wake()
    return turn


def _why_hold_ended(session: Session) -> tuple[str, str]:
    """Return the error code and message for a turn whose hold expired."""
    pending = read_pending_calls(session)
    approvals = [call_id for call_id in pending if call_id.startswith(APPROVAL_PREFIX)]
    if not approvals:
        return HOLD_EXPIRED, "the client's tools did not answer in time"
    if len(approvals) == len(pending):
        return APPROVAL_EXPIRED, "nobody answered the approval request in time"
    return HOLD_EXPIRED, "the client's tools and an approval request were not answered in time"


class Settled(NamedTuple):
    """The state of a lane after dead owners were removed, and the turn that this ended."""

    is_free: bool
    waiting: Waiting
    turn: Turn | None = None


def end_dead_owner(
    draft: Draft, facts: Facts, *, worker: WorkerId, limits: LaneLimits, is_forsaken: bool = False
) -> Settled:
    """Free the lane if its holder is gone.

    A run whose worker died ends as interrupted. If no connection waits for its turn, the turn
    returns to the front of its queue, for a bounded number of attempts. An expired hold ends its
    turn.
    """
    session, turn = draft.session, facts.active
    if turn is None:
        return Settled(True, facts.waiting)
    if session.is_held:
        if not _is_hold_over(session, turn, facts.now):
            return Settled(False, facts.waiting)
        code, message = _why_hold_ended(session)
        turn = stop_active(draft, facts, "interrupted", code=code, message=message)
        return Settled(True, facts.waiting, turn)
    if (facts.has_live_owner or session.owner == worker) and not is_forsaken:
        # This worker is alive, even if its lease expired while the store was unavailable.
        return Settled(False, facts.waiting)
    turn = with_loss(turn, facts, is_forsaken=is_forsaken)
    facts = replace(facts, active=turn)
    if is_given_up(turn, limits):
        message = f"given up after {turn.attempts} attempts that lost their worker"
        turn = stop_active(draft, facts, "failed", code=TURN_ABANDONED, message=message)
        return Settled(True, facts.waiting, turn)
    if turn.source in RUN_AGAIN and limits.can_run_again:
        turn = replace(_release_lane(draft, facts, "interrupted", WORKER_LOST), owner=worker)
        draft.save_turn(turn, event="turn.requeued", attempts=turn.attempts)
        return Settled(True, _with_front(facts.waiting, turn.position), turn)
    turn = stop_active(
        draft, facts, "interrupted", code=WORKER_LOST,
        message="the worker of this turn went away", is_retryable=True,
    )  # fmt: skip
    return Settled(True, facts.waiting, turn)


def _is_hold_over(session: Session, turn: Turn, now: float) -> bool:
    """Whether a hold has expired, or began before the clock was set back.

    Without the second rule, setting the clock back by a day would block the lane for a day.
    """
    if session.hold_until is None:
        return False
    is_ahead = session.hold_until > now + MAX_HOLD_SECONDS
    began = turn.started_at or turn.accepted_at
    return session.hold_until <= now or is_ahead or began > now + CLOCK_TOLERANCE_SECONDS


def _with_front(waiting: Waiting, position: int) -> Waiting:
    bounds = [waiting.first_position, waiting.last_position]
    positions = [position, *(place for place in bounds if place is not None)]
    return Waiting(waiting.count + 1, min(positions), max(positions))


def tail_position(turn_count: int, waiting: Waiting, active: Turn | None = None) -> int:
    """Return a queue position after all others; a resumed turn's may exceed its number."""
    return max(turn_count, waiting.last_position or 0, active.position if active else 0) + 1


def front_position(facts: Facts, waiting: Waiting) -> int:
    """Return a queue position before all others and before the turn that holds the lane."""
    places = [waiting.first_position, facts.active.position if facts.active else None]
    positions = [place for place in places if place is not None]
    return min(positions, default=1) - 1


def queued(draft: Draft, turn: Turn) -> Queued:
    """Return the outcome for a turn that has to wait."""
    return Queued(turn, draft.session, draft.session.hold_until)
