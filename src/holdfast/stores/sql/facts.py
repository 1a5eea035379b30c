"""Read the facts that a command's decision needs, and no more."""

from msgspec.structs import replace

from holdfast.core.compaction.records import heads_of
from holdfast.core.decisions.import_session import IMPORTER
from holdfast.core.ids import Key, SessionId, Tenant, WorkerId
from holdfast.core.model.records import visible_spans
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import (
    ApiKeyRow,
    CompletionRow,
    IdempotencyRow,
    StopRequestRow,
)
from holdfast.core.transaction.facts import Facts
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.entries import (
    read_session,
    read_turn,
    session_no,
)
from holdfast.stores.sql.lookups import (
    EVERYTHING,
    changes_view,
    find_hidden,
    find_instructions,
    find_items,
    find_live,
    find_repeat,
    find_run,
    find_session,
    find_turn,
    is_living,
    lane_facts,
    lane_of_key,
    last_run_of_step,
    latest_turn,
    open_turns,
    own_records,
)
from holdfast.stores.sql.plan import Plan, every, one, one_as
from holdfast.stores.sql.schedules import with_schedule

Fenced = cmd.Extend | cmd.Finish | cmd.RecordHeal | cmd.Compact


def accept_facts(command: cmd.Accept | cmd.Append, now: float) -> Plan[Facts]:
    """Read repeats first, then identity, then the lane."""
    if command.again:
        facts = yield from _resubmitted(command, now)
        if facts is not None:
            return facts
    repeat = yield from find_repeat(command.tenant, command.idempotency_key)
    if repeat is not None:
        return (yield from _repeated(repeat, now))
    facts = Facts(now=now)
    if command.session_id is not None:
        facts = yield from lane_facts(command.session_id, now)
    elif command.key is not None:
        facts = yield from lane_of_key(command.tenant, command.key, now)
    if isinstance(command, cmd.Append):
        if facts.session is None:
            return (yield from _with_generation(facts, command))
        if not facts.session.is_live:
            return (yield from _with_live(facts, facts.session))
        return (yield from _with_latest(command, facts, facts.session))
    return (yield from _more_for_accept(command, facts))


def continue_facts(command: cmd.AppendBatch, now: float) -> Plan[Facts]:
    """Read the turn and its session; before the first batch, the session it will begin in."""
    repeat = yield from find_repeat(command.tenant, command.idempotency_key)
    if repeat is not None:
        return (yield from _repeated(repeat, now))
    if command.known is not None and not command.again:
        seen = command.known
        facts = yield from lane_facts(seen.session.id, now)
        is_current = facts.session is not None and facts.session.version == seen.session.version
        if is_current and seen.turn.last_seq == seen.session.head_seq:
            return replace(facts, turn=seen.turn)
    turn = yield from _turn_to_continue(command)
    if turn is not None:
        facts = replace((yield from lane_facts(turn.session_id, now)), turn=turn)
    elif command.session_id is not None:
        facts = yield from lane_facts(command.session_id, now)
    else:
        facts = yield from lane_of_key(command.tenant, command.key, now)
    session = facts.session
    if session is None:
        return (yield from _with_generation(facts, command))
    if facts.turn is not None and facts.turn.last_seq != session.head_seq:
        return (yield from with_block(facts, facts.turn))
    if command.replaces_upto is not None:
        return replace(facts, hidden=(yield from find_hidden(session)))
    return facts


def _turn_to_continue(command: cmd.AppendBatch) -> Plan[Turn | None]:
    """Return the turn of a batch; if it may have been started anew, read it only for a repeat."""
    if command.spare_turn_id is not None:
        if not command.again:
            return None
        spare = yield from find_turn(command.spare_turn_id)
        turn = spare or (yield from find_turn(command.turn_id))
        # An earlier attempt used one of the two ids; if neither turn has the batch, it starts
        # again.
        return turn if turn is not None and turn.step >= command.ordinal else None
    if command.ordinal or command.again:
        return (yield from find_turn(command.turn_id))
    return None


def pop_facts(command: cmd.Pop, now: float) -> Plan[Facts]:
    """Read the last visible item, or the one that an earlier attempt of this command hid."""
    facts = yield from lane_facts(command.session_id, now)
    session = facts.session
    if session is None:
        return facts
    if command.again:
        for record in reversed((yield from own_records(session.id, session.record_no))):
            if record.kind == "pop" and record.body == command.pop_id.encode():
                popped = yield from find_items(session, record.from_seq, record.to_seq)
                return replace(facts, last_item=popped[-1], is_popped=True)
    hidden = (yield from find_hidden(session)) if session.hidden_count else ()
    spans = visible_spans(hidden, 1, session.head_seq)
    if not spans:
        return facts
    last = yield from find_items(session, spans[-1][1], spans[-1][1])
    return replace(facts, hidden=hidden, last_item=last[-1] if last else None)


def reserve_facts(command: cmd.Reserve, now: float) -> Plan[Facts]:
    """Read the live session of the key, or what a new one needs."""
    if command.key is None:
        session = (yield from find_session(command.candidate_id)) if command.again else None
    else:
        session = yield from find_live(command.tenant, command.key)
    if session is None:
        return (yield from _with_generation(Facts(now=now), command))
    return Facts(now=now, session=session)


def import_facts(command: cmd.Import, now: float) -> Plan[Facts]:
    """Read the session with that id, erased or not, else the key's session; and its last turn."""
    facts = Facts(now=now, session=(yield from find_session(command.session_id)))
    if facts.session is None and command.key is not None:
        facts = replace(facts, live=(yield from find_live(command.tenant, command.key)))
        facts = yield from _with_generation(facts, command)
    session = facts.session or facts.live
    if session is None:
        return facts
    rows = yield from every(sql.TURNS_BETWEEN, session_no(session.id), 1, session.version)
    turns = sorted(map(read_turn, rows), key=lambda turn: turn.number)
    return replace(
        facts,
        turn=turns[-1] if turns else None,
        imported_turns=sum(turn.owner == IMPORTER for turn in turns),
        hidden=(yield from find_hidden(session)),
    )


def forget_facts(command: cmd.ForgetState, now: float) -> Plan[Facts]:
    """Read the session, and whether it has provider state."""
    session = yield from find_session(command.session_id)
    row = yield from one(sql.PROVIDER_STATE, command.session_id)
    return Facts(now=now, session=session, has_provider_state=row is not None)


def _resubmitted(command: cmd.Accept | cmd.Append, now: float) -> Plan[Facts | None]:
    joined = yield from one(sql.JOINED_TURN, command.turn_id)
    turn = yield from find_turn(joined[0] if joined else command.turn_id)
    if turn is None:
        return None
    run = None
    if isinstance(command, cmd.Accept):
        run = yield from find_run(turn.id, command.run_id)
    facts = yield from lane_facts(turn.session_id, now)
    return replace(facts, turn=turn, run=run)


def _repeated(row: IdempotencyRow, now: float) -> Plan[Facts]:
    turn = yield from find_turn(row.turn_id)
    if turn is None:
        return Facts(now=now, repeat=row)
    facts = replace((yield from lane_facts(turn.session_id, now)), repeat=row, turn=turn)
    return (yield from _with_last_run(facts, turn, row.step))


def _with_last_run(facts: Facts, turn: Turn, step: int) -> Plan[Facts]:
    facts = replace(facts, run=(yield from last_run_of_step(turn.id, step)))
    return (yield from with_block(facts, turn))


def gives_instructions(turn: Turn) -> bool:
    """Whether the input of a waiting turn may replace the session's instructions."""
    return turn.input is not None and b"is_instruction" in turn.input


def with_block(facts: Facts, turn: Turn) -> Plan[Facts]:
    """Add the items of a turn that began before, in case it has to begin again."""
    session = facts.session
    is_new = turn.first_seq is None and turn.rewind_after is None
    if session is None or (is_new and not gives_instructions(turn)):
        return facts
    hidden = yield from find_hidden(session)
    if session.record_no or session.parent_id is not None:
        facts = replace(facts, instructions=(yield from find_instructions(session)))
    if turn.first_seq is None or turn.last_seq is None:
        return replace(facts, hidden=hidden)
    items = yield from find_items(session, turn.first_seq, turn.last_seq)
    return replace(facts, hidden=hidden, turn_items=tuple(items))


def _with_generation(
    facts: Facts, command: cmd.Accept | cmd.Append | cmd.AppendBatch | cmd.Import | cmd.Reserve
) -> Plan[Facts]:
    if command.key is None:
        return facts
    generation = yield from _next_generation(command.tenant, command.key)
    return replace(facts, next_generation=generation)


def _next_generation(tenant: Tenant, key: Key) -> Plan[int]:
    last = yield from one(sql.LAST_GENERATION, tenant, key)
    return (last[0] or 0) + 1 if last else 1


def _more_for_accept(command: cmd.Accept, facts: Facts) -> Plan[Facts]:
    if command.schedule is not None:
        facts = yield from with_schedule(facts, command.schedule.schedule_id)
    session = facts.session
    if command.limits.max_tenant_turns:
        counted = yield from one(sql.TENANT_TURNS, command.tenant)
        facts = replace(facts, tenant_turns=counted[0] if counted else 0)
    if session is None or command.reset.mode != "none":
        facts = yield from _with_generation(facts, command)
    if session is None:
        return facts
    if command.parent is not None:
        as_then = replace(session, record_no=command.parent.record_no)
        facts = replace(facts, parent_hidden=(yield from find_hidden(as_then)))
        if session.record_no != command.parent.record_no:
            later = yield from own_records(
                session.id, session.record_no, command.parent.record_no + 1
            )
            is_changed = any(
                record.kind != "quarantine" for record in later if changes_view(record)
            )
            facts = replace(facts, is_view_changed=is_changed)
    if not session.is_live:
        return (yield from _with_live(facts, session))
    facts = yield from _with_latest(command, facts, session)
    if command.is_internal or command.on_busy == "rollback" or command.rewind is not None:
        facts = replace(facts, hidden=(yield from find_hidden(session)))
    if command.items and command.items[0].is_instruction:
        hidden = yield from find_hidden(session)
        instructions = yield from find_instructions(session)
        facts = replace(facts, hidden=hidden, instructions=instructions)
    return facts


def _with_latest(command: cmd.Accept | cmd.Append, facts: Facts, session: Session) -> Plan[Facts]:
    """Add the session's latest turn, in case this is an SDK's automatic retry of it.

    If the repeated turn is known, add that one.
    """
    if isinstance(command, cmd.Accept) and command.same_as is not None:
        turn_id, step = command.same_as
        same = yield from find_turn(turn_id)
        if same is None or same.session_id != session.id:
            return facts
        return (yield from _with_last_run(replace(facts, turn=same), same, step))
    if command.retry_count <= 0 or command.idempotency_key is not None:
        return facts
    turn = yield from latest_turn(session)
    if turn is None:
        return facts
    return (yield from _with_last_run(replace(facts, turn=turn), turn, turn.step))


def _with_live(facts: Facts, session: Session) -> Plan[Facts]:
    if session.key is None:
        return facts
    live = yield from find_live(session.tenant, session.key)
    return facts if live is None else replace(facts, live=live, live_id=live.id)


def claim_facts(command: cmd.Claim, now: float) -> Plan[Facts]:
    """Read the turn, its lane, and its items if it ran before."""
    turn = yield from find_turn(command.turn_id)
    if turn is None:
        return Facts(now=now)
    facts = replace((yield from lane_facts(turn.session_id, now)), turn=turn)
    if command.again:
        facts = replace(facts, run=(yield from find_run(turn.id, command.run_id)))
    if turn.source == "channel":
        facts = replace(facts, open_turns=(yield from open_turns(turn.session_id)))
    return (yield from with_block(facts, turn))


def fenced_facts(command: Fenced, now: float) -> Plan[Facts]:
    """Read the lane; if the run lost it, also the run's own record, which is all it may change."""
    fence = command.fence
    facts = yield from lane_facts(fence.session_id, now)
    if fence.holds(facts.session):
        if isinstance(command, cmd.Extend | cmd.Finish) and facts.session is not None:
            return (yield from _with_later_records(command, facts, facts.session))
        return facts
    # The epoch of a run is the number of the entry that started it, which names its turn.
    row = yield from one(sql.ENTRY_TURN, session_no(fence.session_id), fence.epoch)
    turn = yield from find_turn(row[0] if row else None)
    run = yield from find_run(turn.id if turn else None, fence.run_id)
    return replace(facts, run=run, turn=turn)


def _with_later_records(
    command: cmd.Extend | cmd.Finish, facts: Facts, session: Session
) -> Plan[Facts]:
    """Add the session's records if there are new ones since the run read its context."""
    if command.shown_records is None or session.record_no <= command.shown_records:
        return facts
    records = yield from own_records(session.id, session.record_no)
    return replace(facts, heads=heads_of(records, EVERYTHING))


def cancel_facts(
    command: cmd.Cancel | cmd.RequestStop | cmd.SettleStop | cmd.DropResponse, now: float
) -> Plan[Facts]:
    """Read the turn and its lane."""
    turn = yield from find_turn(command.turn_id)
    if turn is None:
        return Facts(now=now)
    return replace((yield from lane_facts(turn.session_id, now)), turn=turn)


def stop_facts(command: cmd.RequestStop | cmd.SettleStop, now: float) -> Plan[Facts]:
    """Read the turn, its lane, and the request to end its run."""
    facts = yield from cancel_facts(command, now)
    if facts.session is None or facts.session.active_run_id is None:
        return facts
    row = yield from one_as(StopRequestRow, sql.STOP_REQUEST, facts.session.active_run_id)
    return replace(facts, stop_request=row)


def api_key_facts(command: cmd.AddApiKey | cmd.RevokeApiKey, now: float) -> Plan[Facts]:
    """Read the key with that id."""
    key = yield from one_as(ApiKeyRow, sql.API_KEY_BY_ID, command.id)
    return Facts(now=now, api_key=key)


def completion_facts(command: cmd.AnnotateCompletion, now: float) -> Plan[Facts]:
    """Read the stored completion."""
    name = (command.tenant, command.turn_id, command.step)
    return Facts(now=now, completion=(yield from one_as(CompletionRow, sql.COMPLETION, *name)))


def lifecycle_facts(
    command: cmd.Reset | cmd.Restore | cmd.Delete | cmd.Fork | cmd.Annotate, now: float
) -> Plan[Facts]:
    """Read the session, its rival for the key, and the open turns of the one to be retired."""
    if isinstance(command, cmd.Reset | cmd.Fork):
        repeat = yield from find_repeat(command.tenant, command.idempotency_key)
        if repeat is not None:
            created = yield from find_session(SessionId(repeat.turn_id))
            return Facts(now=now, repeat=repeat, created=created)
    facts = yield from lane_facts(command.session_id, now)
    session = facts.session
    if session is None:
        return facts
    if isinstance(command, cmd.Reset | cmd.Restore) and session.key is not None:
        generation = yield from _next_generation(session.tenant, session.key)
        facts = yield from _with_live(replace(facts, next_generation=generation), session)
    if isinstance(command, cmd.Fork | cmd.Reset) and command.again:
        created = yield from find_session(command.new_id)
        facts = replace(facts, live=created) if created is not None else facts
    if isinstance(command, cmd.Restore) and facts.live is not None:
        lane = yield from lane_facts(facts.live.id, now)
        facts = replace(facts, active=lane.active, active_run=lane.active_run)
    if isinstance(command, cmd.Fork):
        facts = replace(facts, hidden=(yield from find_hidden(session)))
    if isinstance(command, cmd.Delete):
        facts = replace(facts, turn=(yield from latest_turn(session)))
        facts = replace(facts, forks=(yield from _every_fork(session)))
    if isinstance(command, cmd.Reset | cmd.Restore | cmd.Delete):
        retired = facts.live if isinstance(command, cmd.Restore) and facts.live else session
        facts = replace(facts, open_turns=(yield from open_turns(retired.id)))
    return facts


def _every_fork(session: Session) -> Plan[tuple[Session, ...]]:
    """Return all descendants of this session, the nearest first."""
    forks: list[Session] = []
    front = [session]
    while front:
        rows = yield from every(sql.FORKS_OF, front.pop().id)
        children = [read_session(row) for row in rows]
        forks.extend(children)
        front.extend(children)
    return tuple(forks)


def recover_facts(command: cmd.Recover, now: float) -> Plan[Facts]:
    """Read the lane, every open turn, and which of their workers are gone."""
    facts = yield from lane_facts(command.session_id, now)
    if facts.session is None:
        return facts
    turns = yield from open_turns(facts.session.id)
    dead_workers: set[WorkerId] = set()
    for worker in {turn.owner for turn in turns}:
        alive = yield from one(sql.WORKER_BY_ID, worker)
        if alive is None or not is_living(alive[0]):
            dead_workers.add(worker)
    return replace(facts, open_turns=turns, gone_owners=frozenset(dead_workers))


def extend_facts(command: cmd.Extend, now: float) -> Plan[Facts]:
    """Read the run's lane; for a batch that must count once, also whether it was written before."""
    facts = yield from fenced_facts(command, now)
    if command.merges and facts.session is not None:
        facts = replace(facts, open_turns=(yield from open_turns(facts.session.id)))
    repeat = yield from find_repeat(command.tenant, command.idempotency_key)
    return replace(facts, repeat=repeat) if repeat is not None else facts


def finish_facts(command: cmd.Finish, now: float) -> Plan[Facts]:
    """Read a run's lane and the next turn of its queue."""
    facts = yield from fenced_facts(command, now)
    hides = command.refused_from is not None or bool(command.left_out)
    if hides and facts.session is not None:
        facts = replace(facts, hidden=(yield from find_hidden(facts.session)))
    successor = command.successor
    if successor is None or not facts.waiting.count or not command.fence.holds(facts.session):
        return facts
    turn = yield from find_turn(successor.turn_id)
    if turn is None:
        return facts
    return (yield from with_block(replace(facts, turn=turn), turn))
