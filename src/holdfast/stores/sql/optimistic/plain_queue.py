"""The two commits of nearly every turn on a busy lane: from the command to its statements.

A turn that waits behind others writes an entry and a row of the queue. The end of a run that hands
the lane over writes two entries and the row of the lane, and takes the next turn off the queue.
Both equal what `decide_from_cache` and `LaneCache.note` come to.
"""

from typing import Any

from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import Decision, LogAppended
from holdfast.core.transaction.facts import Waiting
from holdfast.core.transaction.plain_queue import queue_plainly
from holdfast.stores.cache.lane_cache import LANE_BYTES, Lane
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.entries import ACCEPTED, SAME_TIME, STARTED, pack, pack_items, session_no
from holdfast.stores.sql.plan import Ask

_QUEUED = [("turn.queued", True, b"{}")]
_NOBODY = Waiting()


def plan_queued(command: cmd.Accept, now: float, lane: Lane) -> Planned | None:
    """Plan the arrival of a turn that waits in a cached, busy lane; None if it is not plain."""
    active, waiting = lane.active, lane.waiting
    if active is None:
        return None
    decision = queue_plainly(command, lane.session, active, lane.queue, now)
    if decision is None:
        return None
    change = decision.changes[0]
    assert type(change) is LogAppended
    session, turn = change.session, change.entries[0].turn
    assert turn is not None
    no, turn_id, position = session_no(session.id), turn.id, turn.position
    packed = turn.input or b""
    head = (
        session.epoch, session.record_no, session.hidden_count, session.active_turn_id,
        session.active_run_id, session.owner, session.hold_until, session.pending_calls,
        session.last_user_activity_at, session.input_tokens, session.cached_tokens,
        session.output_tokens, session.reasoning_tokens, session.has_failed,
    )  # fmt: skip
    state = (
        turn.number, position, turn.source, turn.owner, 0, 0, turn.body_hash, None, None, None,
        None, None, None, None, None, False, now, None, None, None,
    )  # fmt: skip
    row = (
        no, session.version, ACCEPTED, now, turn_id, session.head_seq, session.turn_count,
        session.event_no, None, pack(head), pack((state, (), (), _QUEUED)), None, turn.request,
    )  # fmt: skip
    writes: list[Ask] = [
        (sql.APPEND_ENTRY, row),
        (sql.ENQUEUE, (no, position, turn_id, turn.owner, packed)),
    ]
    queued = (*waiting, turn)
    after = Lane(
        session, active, lane.run, queued,
        lane.waiting_bytes + LANE_BYTES + len(turn.request) + len(packed),
        Waiting(len(queued), queued[0].position, position),
    )  # fmt: skip
    return Planned(decision, writes, after)


def plan_hand_over(
    decision: Decision[cmd.Ended], lane: Lane, no: int, kind: int, ended_body: bytes
) -> Planned:
    """Plan the end of a run, packed as `ended_body`, and the start of the first turn that waits."""
    change = decision.changes[0]
    assert type(change) is LogAppended
    session, (ended, begun), now = change.session, change.entries, change.at
    turn, run = begun.turn, begun.runs[0]
    assert ended.turn is not None
    assert turn is not None
    turn_id, run_id, version, events = turn.id, run.id, session.version, session.event_no
    head = pack(
        (
            session.epoch, session.record_no, session.hidden_count, turn_id, run_id, session.owner,
            None, None, session.last_user_activity_at, session.input_tokens, session.cached_tokens,
            session.output_tokens, session.reasoning_tokens, session.has_failed,
        )
    )  # fmt: skip
    state: tuple[Any, ...] = (
        turn.number, turn.position, turn.source, turn.owner, turn.step, turn.attempts,
        turn.body_hash, None, turn.rewind_upto, turn.first_seq, turn.kept_seq, turn.last_seq, None,
        turn.error_code, turn.error_message, turn.is_retryable, turn.accepted_at,
        SAME_TIME if turn.started_at == turn.accepted_at else turn.started_at, turn.ended_at, None,
    )  # fmt: skip
    if turn.merged_into is not None:
        state += (turn.merged_into,)
    attempt = (
        "" if run_id == "run" + turn_id.removeprefix("turn") else run_id, run.generation, run.epoch,
        "", run.step, run.first_seq, None, None, None, None, None,
        SAME_TIME if now == turn.started_at else now, None, None, None, None, None, None, None,
    )  # fmt: skip
    started = [("", True, begun.events[0].body)]
    writes: list[Ask] = [
        (
            sql.APPEND_ENTRY,
            (
                no, version - 1, kind, now, ended.turn.id, ended.turn.last_seq, session.turn_count,
                events - 1, None, head, ended_body, pack_items(ended.items), None,
            ),
        ),
        (
            sql.ADD_ENTRY,
            (
                no, version, STARTED, now, turn_id, session.head_seq, session.turn_count, events,
                None, head, pack((state, (attempt,), (), started)), pack_items(begun.items), None,
            ),
        ),
        (sql.HOLD_LANE, (no, turn_id, run_id, session.owner, None)),
    ]  # fmt: skip
    for item in (*ended.items, *begun.items):
        if item.item_id is not None and item.item_id[-6:] != f"{item.seq:06x}":
            writes += ((sql.ADD_ITEM_ID, (no, item.item_id, item.seq)),)
    writes.append((sql.DEQUEUE, (turn_id,)))
    first, left = lane.waiting[0], lane.waiting[1:]
    after = Lane(
        session, turn, run, left,
        lane.waiting_bytes - LANE_BYTES - len(first.request) - len(first.input or b""),
        Waiting(len(left), left[0].position, left[-1].position) if left else _NOBODY,
    )  # fmt: skip
    return Planned(decision, writes, after)
