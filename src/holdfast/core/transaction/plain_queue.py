"""The two decisions of most turns on a busy lane: queue the turn, then hand the lane to it.

A turn that is accepted behind others is one entry of the log. The end of a run that hands the lane
to the next turn is two. They are built here in one step. All other cases are decided on a `Draft`,
which gives the same result for these.
"""

import msgspec
from msgspec.structs import replace

from holdfast.core.model.gateway_items import APPROVAL
from holdfast.core.model.items import NewItem
from holdfast.core.model.session import Session
from holdfast.core.model.turn import USER_ACTIVITY, Fence, Run, Turn
from holdfast.core.transaction.changes import (
    Decision,
    Entry,
    Event,
    LogAppended,
    QueueDropped,
    QueueSaved,
)
from holdfast.core.transaction.commands import Accept, Ended, Finish, Queued, Repeated, Started
from holdfast.core.transaction.facts import Waiting
from holdfast.core.transaction.plain_turns import (
    MAX_PLAIN_BYTES,
    MAX_PLAIN_ITEMS,
    NO_ACCEPT_OPTIONS,
    accept_options,
    end_plainly,
    number_items,
)

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[NewItem, ...]).decode
_NOBODY = Waiting()
_ATTEMPTS = b'{"attempts":%d}'
"""The detail of the event that starts a turn which waited."""


def queue_plainly(
    command: Accept, session: Session, active: Turn, waiting: Waiting, now: float
) -> Decision[Started | Queued | Repeated] | None:
    """Let a turn wait behind the others of its lane; None if anything else has to be decided.

    The caller has checked that the turn is no repeat, and that `active` has the lane.
    """
    if session.active_run_id is None or session.owner != command.worker or not session.is_live:
        return None
    if session.tenant != command.tenant or session.deleted_at is not None:
        return None
    if command.on_busy != "enqueue" or accept_options(command) != NO_ACCEPT_OPTIONS:
        return None
    limits, items, last = command.limits, command.items, waiting.last_position or 0
    if limits.full_bytes or limits.max_tenant_turns or command.reset.mode != "none":
        return None
    if waiting.count >= limits.max_waiting or len(items) != 1:
        return None
    if items[0].is_instruction or items[0].kind == APPROVAL:
        return None
    if not command.is_compared and command.body_hash == active.body_hash:
        return None
    session_id, turn_id, number = session.id, command.turn_id, session.turn_count + 1
    # Positional arguments take less than half the time of keywords.
    turn = Turn(
        turn_id, session_id, session.tenant, number,
        max(session.turn_count, last, active.position) + 1, command.source, command.worker, 0, 0,
        _pack(items), command.request, command.body_hash, None, None, None, None, None, None, None,
        None, False, now, None, None, None, 0,
    )  # fmt: skip
    is_active_user = command.source in USER_ACTIVITY
    after = replace(
        session, version=session.version + 1, event_no=session.event_no + 1, turn_count=number,
        last_user_activity_at=now if is_active_user else session.last_user_activity_at,
    )  # fmt: skip
    event = Event(session_id, after.event_no, session.tenant, "turn.queued", turn_id, b"{}", now)
    entry = Entry(turn, True, [], [], [], [event])
    appended = LogAppended(after, session, (entry,), now)
    return Decision(Queued(turn, after, session.hold_until), (appended, QueueSaved(turn)))


def hand_over_plainly(
    command: Finish, session: Session, turn: Turn, run: Run, following: Turn, now: float
) -> Decision[Ended] | None:
    """End a turn with its answer and start the one that is first in the queue, `following`.

    None if anything else has to be decided. The caller has checked that the run holds the lane.
    """
    named, packed = command.successor, following.input
    if named is None or named.turn_id != following.id or packed is None:
        return None
    if following.first_seq is not None or following.rewind_after is not None:
        return None
    if following.source == "channel" or len(packed) > MAX_PLAIN_BYTES:
        return None  # It may have to wait for the rest of its burst.
    if b"is_instruction" in packed:
        return None
    ended, items = end_plainly(command, session, turn, run, _NOBODY, now), _unpack(packed)
    if ended is None or len(items) > MAX_PLAIN_ITEMS:
        return None
    outcome, change = ended.outcome, ended.changes[0]
    assert type(outcome) is Ended
    assert type(change) is LogAppended
    free, worker, session_id = change.session, run.worker, session.id
    last, number, epoch = free.head_seq + len(items), following.number, free.version + 1
    stored = number_items(items, session_id, number, free.head_seq, now)
    if stored is None:
        return None
    begun = replace(
        following, input=None, owner=worker, attempts=following.attempts + 1,
        first_seq=free.head_seq + 1, kept_seq=last, last_seq=last,
        started_at=following.started_at or now,
    )  # fmt: skip
    begun_run = Run(
        named.run_id, begun.id, session_id, session.generation, epoch, worker, begun.step, last + 1,
        None, None, None, None, None, now, None, None, None, None, None, None, None, None, None,
    )  # fmt: skip
    after = replace(
        free, epoch=epoch, version=epoch, head_seq=last, event_no=free.event_no + 1,
        active_turn_id=begun.id, active_run_id=named.run_id, owner=worker, has_failed=False,
    )  # fmt: skip
    detail = _ATTEMPTS % begun.attempts
    event = Event(
        session_id, after.event_no, session.tenant, "turn.started", begun.id, detail, now
    )  # fmt: skip
    entry = Entry(begun, False, [begun_run], stored, [], [event])
    fence = Fence(session_id, session.generation, named.run_id, epoch)
    started = Started(begun, after, begun_run, fence)
    appended = LogAppended(after, session, (change.entries[0], entry), now)
    return Decision(
        Ended(outcome.turn, after, outcome.run, started),
        (appended, QueueDropped(begun.id), *ended.changes[1:]),
    )
