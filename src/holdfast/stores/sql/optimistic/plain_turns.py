"""The common commands, each in one step: from the command to its statements and its cached lane.

The decisions are those of `core/transaction/plain_turns.py`. Rows and lanes equal what
`decide_from_cache` and `LaneCache.note` come to, which do the same for every other command. Use
`decide_from_cache` for all commands in `PLANNERS` to switch this off.

The first turn of a session also writes the session. Nothing is read before: the statement that adds
the session is the gate, which adds no row if the key has a session, live or not. If two first turns
have the same key, the constraints of `sessions` accept one of them; the other is planned again with
reads. A key that is not cached is assumed to be new only if the last key that was read was new.
Otherwise each turn of a session that is no longer cached would fail here first.
"""

from collections.abc import Callable
from typing import Any

from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import Decision, JournalAdded, LogAppended
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.facts import Waiting
from holdfast.core.transaction.plain_turns import (
    continue_plainly,
    end_plainly,
    hand_over_plainly,
    queue_plainly,
    start_first_turn,
    start_plainly,
)
from holdfast.stores.cache.lane_cache import LANE_BYTES, Lane, LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.change_writer import add_journal
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.entries import (
    ACCEPTED,
    ENDED,
    ENDED_NEXT,
    SAME_TIME,
    STARTED,
    head_rest,
    head_values,
    pack,
    pack_items,
    run_result,
    run_values,
    session_no,
    turn_values,
)
from holdfast.stores.sql.optimistic.decisions import DECIDERS, decide_from_cache
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
_QUEUED = ("turn.queued", True, b"{}")
_APPENDED = "items.appended"
"""The events of the entries, packed; those without a kind follow from the turn's state."""
_NOBODY = Waiting()


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
        cached = lanes.find(session_id)
        if cached is None or command.retry_count > 0 or command.on_busy == "rollback":
            return decide_from_cache(command, now, lanes)
        lane = cached[0]
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
        session.epoch, session.record_no, session.hidden_count, "", name, *head_rest(session)
    )  # fmt: skip
    state = (*turn_values(turn), SAME_TIME, None, None)
    attempt = (
        name, run.generation, run.epoch, "", *run_values(run), SAME_TIME, None, *run_result(run)
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
    cached = lanes.find(fence.session_id)
    if cached is None or not fence.holds(cached[0].session):
        return None
    lane = cached[0]
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
    started = SAME_TIME if turn.started_at == turn.accepted_at else turn.started_at
    state: tuple[Any, ...] = (*turn_values(turn), started, now, turn.input)
    if turn.losses is not None:
        state += (turn.merged_into, turn.losses)
    elif turn.merged_into is not None:
        state += (turn.merged_into,)
    attempt = (
        "" if run.id == "run" + turn_id.removeprefix("turn") else run.id, run.generation, run.epoch,
        "" if run.worker == turn.owner else run.worker, *run_values(run),
        SAME_TIME if run.started_at == turn.started_at else run.started_at, SAME_TIME,
        *run_result(run),
    )  # fmt: skip
    kind = ENDED_NEXT if before.epoch == before.version else ENDED
    body = pack((state, (attempt,), (), (_COMPLETED,)))
    if lane.waiting:
        return _with_journal(plan_hand_over(decision, lane, no, kind, body))
    row = (
        no, session.version, kind, now, turn_id, seq, session.turn_count, session.event_no, None,
        pack(head_values(session)), body, pack_items(entry.items), None,
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
    state = (*turn_values(turn), None, None, None)
    row = (
        no, session.version, ACCEPTED, now, turn_id, session.head_seq, session.turn_count,
        session.event_no, None, pack(head_values(session)), pack((state, (), (), (_QUEUED,))), None,
        turn.request,
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
    head = pack(head_values(session))
    began = SAME_TIME if turn.started_at == turn.accepted_at else turn.started_at
    state: tuple[Any, ...] = (*turn_values(turn), began, turn.ended_at, None)
    if turn.losses is not None:
        state += (turn.merged_into, turn.losses)
    elif turn.merged_into is not None:
        state += (turn.merged_into,)
    attempt = (
        "" if run_id == "run" + turn_id.removeprefix("turn") else run_id, run.generation, run.epoch,
        "", *run_values(run), SAME_TIME if now == turn.started_at else now, None, *run_result(run),
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
    first, rest = lane.waiting[0], lane.waiting[1:]
    after = Lane(
        session, turn, run, rest,
        lane.waiting_bytes - LANE_BYTES - len(first.request) - len(first.input or b""),
        Waiting(len(rest), rest[0].position, rest[-1].position) if rest else _NOBODY,
    )  # fmt: skip
    return Planned(decision, writes, after)


def plan_batch(command: cmd.AppendBatch, now: float, lanes: LaneCache) -> Planned | None:
    """Plan a batch that only continues the last one of its run, which the command carries."""
    decision = continue_plainly(command, now)
    if decision is None:
        return None
    change = decision.changes[0]
    assert type(change) is LogAppended
    session, before, entry = change.session, change.before, change.entries[0]
    turn, items = entry.turn, entry.items
    assert turn is not None
    assert before is not None
    no, turn_id, seq = session_no(session.id), turn.id, session.head_seq
    started = SAME_TIME if turn.started_at == turn.accepted_at else turn.started_at
    state: tuple[Any, ...] = (*turn_values(turn), started, now, turn.input)
    if turn.losses is not None:
        state += (turn.merged_into, turn.losses)
    elif turn.merged_into is not None:
        state += (turn.merged_into,)
    # Without a detail, the event is about all items of the turn.
    detail = None if items[0].seq == turn.first_seq else entry.events[0].body
    row = (
        no, session.version, ENDED, now, turn_id, seq, session.turn_count, session.event_no, None,
        pack(head_values(session)), pack((state, (), (), ((_APPENDED, True, detail),))),
        pack_items(items), None,
    )  # fmt: skip
    writes: list[Ask] = [(sql.APPEND_ENTRY, row)]
    for item in items:
        if item.item_id is not None and item.item_id[-6:] != f"{item.seq:06x}":
            writes += ((sql.ADD_ITEM_ID, (no, item.item_id, item.seq)),)
    # A lane that is not cached as it was at the last batch stays unknown.
    cached = lanes.find(session.id)
    is_known = cached is not None and cached[0].session.version == before.version
    return Planned(decision, writes, Lane(session) if is_known and session.is_live else None)


PLANNERS: dict[type[Command[Any]], Planner] = {
    **dict.fromkeys(DECIDERS, decide_from_cache),
    cmd.Accept: plan_start,
    cmd.AppendBatch: plan_batch,
    cmd.Finish: plan_end,
}
"""How the commands are planned that need no reads where their lane is cached."""
