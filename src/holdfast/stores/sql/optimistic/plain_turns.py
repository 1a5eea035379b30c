"""The two commits of nearly every turn: from the command to its statements and its cached lane.

A turn that starts on an idle lane, and a run that ends with its answer, write one entry and the
row of their lane. Both are built here in one step, from the values of the decision; those of busy
lanes are in `plain_queue`. They equal what `decide_from_cache` and `LaneCache.note` come to, which
do the same for every other command. Use `decide_from_cache` for all commands to switch this off.

The first turn of a session also writes the session. Nothing is read before: the statement that adds
the session is the gate, which adds no row if the key has a session, live or not. If two first turns
have the same key, the constraints of `sessions` accept one of them; the other is planned again with
reads. A key that is not cached is assumed to be new only if the last key that was read was new.
Otherwise each turn of a session that is no longer cached would fail here first.
"""

from collections.abc import Callable
from typing import Any

from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import JournalAdded, LogAppended
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.plain_queue import hand_over_plainly
from holdfast.core.transaction.plain_turns import end_plainly, start_first_turn, start_plainly
from holdfast.stores.cache.lane_cache import Lane, LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.change_writer import add_journal
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.entries import (
    ENDED,
    ENDED_NEXT,
    SAME_TIME,
    STARTED,
    pack,
    pack_items,
    session_no,
)
from holdfast.stores.sql.optimistic.decisions import DECIDERS, decide_from_cache
from holdfast.stores.sql.optimistic.plain_batches import plan_batch
from holdfast.stores.sql.optimistic.plain_queue import plan_hand_over, plan_queued
from holdfast.stores.sql.plan import Ask, Statement

# The generation is null, and the row is refused, if the key ever had a session. The constraints are
# not enough: the first generation that was imported may have another number than 1.
ADD_FIRST_SESSION = Statement(
    "add_first_session",
    sql.ADD_SESSION.text.replace(
        "?5,",
        "(select cast(?5 as bigint) where not exists "
        "(select 1 from sessions where tenant = ?3 and key = ?4)),",
    ),
    is_fenced=True,
)
KEY_AT = slice(2, 4)
"""Position of tenant and key in its parameters."""
Planner = Callable[[Any, float, LaneCache], Planned | None]
"""Returns what a command writes on the lane that is cached; None if it has to be read."""
_CREATED = ("session.created", False, b'{"generation":1}')
_STARTED = ("", True, b"{}")
_COMPLETED = ("", True, None)
"""The events of the entries, packed: of the last two, the turn's state tells what they say."""


def plan_start(command: cmd.Accept, now: float, lanes: LaneCache) -> Planned | None:
    """Plan an arrival, in one step if it starts or waits on a cached lane, or starts a session."""
    session_id = command.session_id or lanes.keys.get((command.tenant, command.key))
    if session_id is None:
        if command.key is not None and not lanes.expects_new_keys:
            return None
        decision = start_first_turn(command, 1, now)
        if decision is None:
            return None
    else:
        known = lanes.find(session_id)
        if known is None or command.retry_count > 0 or command.on_busy == "rollback":
            return decide_from_cache(command, now, lanes)
        lane = known[0]
        if lane.session.active_turn_id is not None:
            return plan_queued(command, now, lane) or decide_from_cache(command, now, lanes)
        decision = start_plainly(command, lane.session, lane.queue, now)
        if decision is None:
            return decide_from_cache(command, now, lanes)
    change = decision.changes[0]
    assert type(change) is LogAppended
    session, entry = change.session, change.entries[0]
    turn, run, item = entry.turn, entry.runs[0], entry.items[0]
    assert turn is not None
    no, seq, turn_id, run_id = session_no(session.id), item.seq, turn.id, run.id
    name = "" if run_id == "run" + turn_id.removeprefix("turn") else run_id
    head = (
        session.epoch, session.record_no, session.hidden_count, "", name, session.owner, None, None,
        session.last_user_activity_at, session.input_tokens, session.cached_tokens,
        session.output_tokens, session.reasoning_tokens, session.has_failed,
    )  # fmt: skip
    state = (
        turn.number, turn.position, turn.source, turn.owner, 0, 1, turn.body_hash, None, None, seq,
        seq, seq, None, None, None, False, now, SAME_TIME, None, None,
    )  # fmt: skip
    attempt = (
        name, run.generation, run.epoch, "", 0, run.first_seq, None, None, None, None, None,
        SAME_TIME, None, None, None, None, None, None, None,
    )  # fmt: skip
    events = (_STARTED,) if change.before is not None else (_CREATED, _STARTED)
    row = (
        no, session.version, STARTED, now, turn_id, seq, session.turn_count, session.event_no, None,
        pack(head), pack((state, (attempt,), (), events)), pack_items(entry.items), turn.request,
    )  # fmt: skip
    writes: list[Ask] = [(sql.APPEND_ENTRY, row)]
    if change.before is None:
        gate = ADD_FIRST_SESSION if session.key is not None else sql.ADD_SESSION
        identity = (
            no, session.id, session.tenant, session.key, 1, True, True, None, None, 0, 0, now, None,
            None, b"{}", turn.source,
        )  # fmt: skip
        writes = [(gate, identity), (sql.ADD_ENTRY, row)]
    writes.append((sql.HOLD_LANE, (no, turn_id, run_id, turn.owner, None)))
    item_id = item.item_id
    if item_id is not None and item_id[-6:] != f"{seq:06x}":
        writes.append((sql.ADD_ITEM_ID, (no, item_id, seq)))
    return Planned(decision, writes, Lane(session, turn, run))


def plan_end(command: cmd.Finish, now: float, lanes: LaneCache) -> Planned | None:
    """Plan the end of a run, in one step if it ends with its answer.

    The lane is free afterwards, or that of the first turn that waits.
    """
    fence, shown = command.fence, command.shown_records
    known = lanes.find(fence.session_id)
    if known is None or not fence.holds(known[0].session):
        return None
    lane = known[0]
    before, active, run = lane.session, lane.active, lane.run
    if active is None or run is None or (shown is not None and before.record_no > shown):
        return None
    if lane.waiting:
        decision = hand_over_plainly(command, before, active, run, lane.waiting[0], now)
    else:
        decision = end_plainly(command, before, active, run, lane.queue, now)
    if decision is None:
        return decide_from_cache(command, now, lanes)
    change = decision.changes[0]
    assert type(change) is LogAppended
    session, entry = change.session, change.entries[0]
    turn, run = entry.turn, entry.runs[0]
    assert turn is not None
    no, seq, turn_id = session_no(session.id), turn.last_seq, turn.id
    state: tuple[Any, ...] = (
        turn.number, turn.position, turn.source, turn.owner, turn.step, turn.attempts,
        turn.body_hash, turn.rewind_after, turn.rewind_upto, turn.first_seq, seq, seq, "completed",
        None, None, False, turn.accepted_at,
        SAME_TIME if turn.started_at == turn.accepted_at else turn.started_at, now, turn.input,
    )  # fmt: skip
    if turn.merged_into is not None:
        state += (turn.merged_into,)
    attempt = (
        "" if run.id == "run" + turn_id.removeprefix("turn") else run.id, run.generation, run.epoch,
        "" if run.worker == turn.owner else run.worker, run.step, run.first_seq, seq, run.record_no,
        "completed", None, None,
        SAME_TIME if run.started_at == turn.started_at else run.started_at, SAME_TIME,
        run.input_tokens, run.cached_tokens, run.output_tokens, run.reasoning_tokens, run.result,
        run.heals,
    )  # fmt: skip
    kind = ENDED_NEXT if before.epoch == before.version else ENDED
    body = pack((state, (attempt,), (), (_COMPLETED,)))
    if lane.waiting:
        return _with_journal(plan_hand_over(decision, lane, no, kind, body))
    head = (
        session.epoch, session.record_no, session.hidden_count, None, None, None, None, None,
        session.last_user_activity_at, session.input_tokens, session.cached_tokens,
        session.output_tokens, session.reasoning_tokens, session.has_failed,
    )  # fmt: skip
    row = (
        no, session.version, kind, now, turn_id, seq, session.turn_count, session.event_no, None,
        pack(head), body, pack_items(entry.items), None,
    )  # fmt: skip
    writes: list[Ask] = [(sql.APPEND_ENTRY, row), (sql.FREE_LANE, (no,))]
    for item in entry.items:
        if item.item_id is not None and item.item_id[-6:] != f"{item.seq:06x}":
            writes += ((sql.ADD_ITEM_ID, (no, item.item_id, item.seq)),)
    planned = Planned(decision, writes, Lane(session))
    return planned if command.journal is None else _with_journal(planned)


def _with_journal(planned: Planned) -> Planned:
    """Return the end of a run with the rest of its stream, if that is part of it."""
    journal = planned.decision.changes[-1]
    if type(journal) is JournalAdded:
        add_journal(journal, planned.writes)
    return planned


PLANNERS: dict[type[Command[Any]], Planner] = {
    **dict.fromkeys(DECIDERS, decide_from_cache),
    cmd.Accept: plan_start,
    cmd.AppendBatch: plan_batch,
    cmd.Finish: plan_end,
}
"""How the commands are planned that need no reads where their lane is cached."""
