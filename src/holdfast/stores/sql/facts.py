"""Reading the facts that a command's decision needs, and no more."""

from msgspec.structs import replace

from holdfast.core.compaction.records import RecordHead
from holdfast.core.decisions.import_session import IMPORTER
from holdfast.core.ids import RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record, Span, hidden_spans, merge_spans, visible_spans
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import ApiKeyRow, CompletionRow, IdempotencyRow
from holdfast.core.transaction.commands import (
    Accept,
    AddApiKey,
    Annotate,
    AnnotateCompletion,
    Append,
    Cancel,
    Claim,
    Compact,
    Continue,
    Delete,
    DropProviderState,
    DropResponse,
    Extend,
    Finish,
    ForgetState,
    Fork,
    Import,
    Pop,
    RecordHeal,
    Recover,
    Reserve,
    Reset,
    Restore,
    RevokeApiKey,
)
from holdfast.core.transaction.facts import Facts, Waiting
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.plan import Plan, Row, every, one

EVERYTHING = 2**62

# Where the parts of a row of `LANE_BY_…` begin.
_OWNER = len(Session.__struct_fields__)
_WAITING = _OWNER + 1
_ACTIVE = _WAITING + len(Waiting.__struct_fields__)
_RUN = _ACTIVE + len(Turn.__struct_fields__)

Fenced = Extend | Finish | DropProviderState | RecordHeal | Compact


def read_session(row: Row) -> Session:
    """Return the session of a row of `SESSION_BY_…`."""
    return Session(*row[:-1])


def find_turn(turn_id: TurnId | None) -> Plan[Turn | None]:
    """Return a turn by its id."""
    row = (yield from one(sql.TURN_BY_ID, turn_id)) if turn_id else None
    return Turn(*row) if row else None


def find_run(run_id: RunId | None) -> Plan[Run | None]:
    """Return a run by its id."""
    row = (yield from one(sql.RUN_BY_ID, run_id)) if run_id else None
    return Run(*row) if row else None


def find_lineage(session: Session) -> Plan[list[Session]]:
    """Return a session and those whose history it continues, the nearest first."""
    line = [session]
    while line[-1].parent_id is not None:
        row = yield from one(sql.SESSION_BY_ID, line[-1].parent_id)
        if row is None:
            break
        line.append(read_session(row))
    return line


def find_records(session: Session) -> Plan[list[tuple[Record, ...]]]:
    """Return the records over a session's log, its own and those of each ancestor, nearest first.

    An ancestor's are cut off where its log ends for us.
    """
    found: list[tuple[Record, ...]] = []
    session_id, records, upto = session.id, session.record_no, EVERYTHING
    parent: Session | None = session
    while parent is not None:
        if records:
            rows = yield from every(sql.VIEW_RECORDS, session_id, records)
            own = [Record(*row) for row in rows]
            found.append(tuple(replace(rec, to_seq=min(rec.to_seq, upto)) for rec in own))
        if parent.parent_id is None:
            break
        session_id, records = parent.parent_id, parent.parent_record
        upto = min(upto, parent.parent_seq)
        row = yield from one(sql.SESSION_BY_ID, session_id)
        parent = read_session(row) if row else None
    return found


def find_hidden(session: Session) -> Plan[tuple[Span, ...]]:
    """Return what records hide of a session's log, its ancestors' part included."""
    found = yield from find_records(session)
    return tuple(merge_spans(span for own in found for span in hidden_spans(own)))


def find_items(
    session: Session, first: int, last: int, limit: int = EVERYTHING
) -> Plan[list[StoredItem]]:
    """Return items by sequence, oldest first, wherever in the line of forks they are kept."""
    found: list[StoredItem] = []
    owner: Session | None = session
    while owner is not None and last >= first:
        start = max(first, owner.parent_seq + 1)
        if start <= last:
            rows = yield from every(sql.ITEMS_UP, owner.id, start, last, limit)
            found[:0] = [StoredItem(*row) for row in rows]
        if owner.parent_id is None:
            break
        last = min(last, owner.parent_seq)
        row = yield from one(sql.SESSION_BY_ID, owner.parent_id)
        owner = read_session(row) if row else None
    return found[:limit]


def lane_facts(session_id: SessionId, now: float) -> Plan[Facts]:
    """Return a session and the state of its lane."""
    return _read_lane((yield from one(sql.LANE_BY_ID, session_id)), now)


def _read_lane(row: Row | None, now: float) -> Facts:
    if row is None:
        return Facts(now=now)
    alive_until = row[_OWNER]
    return Facts(
        now=now,
        session=Session(*row[:_OWNER]),
        has_live_owner=alive_until is not None and alive_until > now,
        waiting=Waiting(*row[_WAITING:_ACTIVE]),
        active=Turn(*row[_ACTIVE:_RUN]) if row[_ACTIVE] is not None else None,
        active_run=Run(*row[_RUN:]) if row[_RUN] is not None else None,
    )


def session_row(session_id: SessionId) -> Plan[Row | None]:
    """Return the row of a session."""
    return (yield from one(sql.SESSION_BY_ID, session_id))


def accept_facts(command: Accept | Append, now: float) -> Plan[Facts]:
    """Repeats first, then identity, then the lane."""
    if command.again:
        facts = yield from _resubmitted(command, now)
        if facts is not None:
            return facts
    if command.idempotency_key is not None:
        found = yield from one(sql.IDEMPOTENCY_BY_KEY, command.tenant, command.idempotency_key)
        if found is not None:
            return (yield from _repeated(IdempotencyRow(*found), now))
    facts = Facts(now=now)
    if command.session_id is not None:
        facts = yield from lane_facts(command.session_id, now)
    elif command.key is not None:
        row = yield from one(sql.LANE_BY_KEY, command.tenant, command.key)
        facts = _read_lane(row, now)
    if isinstance(command, Append):
        if facts.session is None:
            return (yield from _with_generation(facts, command))
        if not facts.session.is_live:
            return (yield from _with_live(facts, facts.session))
        return (yield from _with_latest(command, facts, facts.session))
    return (yield from _more_for_accept(command, facts))


def continue_facts(command: Continue, now: float) -> Plan[Facts]:
    """The turn and its session; before its first batch, the session that it is to begin in."""
    if command.idempotency_key is not None:
        found = yield from one(sql.IDEMPOTENCY_BY_KEY, command.tenant, command.idempotency_key)
        if found is not None:
            return (yield from _repeated(IdempotencyRow(*found), now))
    if command.known is not None and not command.again:
        seen = command.known
        facts = yield from lane_facts(seen.session.id, now)
        is_so_still = facts.session is not None and facts.session.version == seen.session.version
        if is_so_still and seen.turn.last_seq == seen.session.head_seq:
            return replace(facts, turn=seen.turn)
    turn = yield from _turn_to_continue(command)
    if turn is not None:
        facts = replace((yield from lane_facts(turn.session_id, now)), turn=turn)
    elif command.session_id is not None:
        facts = yield from lane_facts(command.session_id, now)
    else:
        row = yield from one(sql.LANE_BY_KEY, command.tenant, command.key)
        facts = _read_lane(row, now)
    session = facts.session
    if session is None:
        return (yield from _with_generation(facts, command))
    if facts.turn is not None and facts.turn.last_seq != session.head_seq:
        return (yield from with_block(facts, facts.turn))
    if command.replaces_upto is not None:
        return replace(facts, hidden=(yield from find_hidden(session)))
    return facts


def _turn_to_continue(command: Continue) -> Plan[Turn | None]:
    """Return the turn of a batch; one that may be begun anew is only looked for if it was."""
    if command.spare_turn_id is not None:
        if not command.again:
            return None
        spare = yield from find_turn(command.spare_turn_id)
        turn = spare or (yield from find_turn(command.turn_id))
        # Sent before, it went into the one or the other; if neither has it, it begins anew.
        return turn if turn is not None and turn.step >= command.ordinal else None
    if command.ordinal or command.again:
        return (yield from find_turn(command.turn_id))
    return None


def pop_facts(command: Pop, now: float) -> Plan[Facts]:
    """The last visible item, or the one that this command took out of the view before."""
    facts = yield from lane_facts(command.session_id, now)
    session = facts.session
    if session is None:
        return facts
    if command.again:
        rows = yield from every(sql.RECORDS, session.id, session.record_no)
        for record in reversed([Record(*row) for row in rows]):
            if record.kind == "pop" and record.body == command.pop_id.encode():
                taken = yield from find_items(session, record.from_seq, record.to_seq)
                return replace(facts, last_item=taken[-1], is_popped=True)
    hidden = (yield from find_hidden(session)) if session.hidden_count else ()
    spans = visible_spans(hidden, 1, session.head_seq)
    if not spans:
        return facts
    last = yield from find_items(session, spans[-1][1], spans[-1][1])
    return replace(facts, hidden=hidden, last_item=last[-1] if last else None)


def reserve_facts(command: Reserve, now: float) -> Plan[Facts]:
    """The live session of the key, or what a new one needs."""
    if command.key is None:
        row = (yield from session_row(command.candidate_id)) if command.again else None
    else:
        row = yield from one(sql.SESSION_BY_KEY, command.tenant, command.key)
    if row is None:
        return (yield from _with_generation(Facts(now=now), command))
    return Facts(now=now, session=read_session(row))


def import_facts(command: Import, now: float) -> Plan[Facts]:
    """The session of that id, erased ones too; else the key's life; and the latest turn of it."""
    row = yield from session_row(command.session_id)
    facts = Facts(now=now, session=read_session(row) if row else None)
    if facts.session is None and command.key is not None:
        live = yield from one(sql.SESSION_BY_KEY, command.tenant, command.key)
        facts = replace(facts, live=read_session(live) if live else None)
        last = yield from one(sql.LAST_GENERATION, command.tenant, command.key)
        facts = replace(facts, next_generation=(last[0] or 0) + 1 if last else 1)
    known = facts.session or facts.live
    if known is None:
        return facts
    latest = yield from one(sql.LATEST_TURN, known.id)
    counted = yield from one(sql.IMPORTED_TURNS, known.id, IMPORTER)
    return replace(
        facts,
        turn=Turn(*latest) if latest else None,
        imported_turns=counted[0] if counted else 0,
        hidden=(yield from find_hidden(known)),
    )


def forget_facts(command: ForgetState, now: float) -> Plan[Facts]:
    """The session, and whether a provider remembers anything for it."""
    row = yield from session_row(command.session_id)
    found = yield from one(sql.PROVIDER_STATE, command.session_id)
    session = read_session(row) if row else None
    return Facts(now=now, session=session, has_provider_state=found is not None)


def _resubmitted(command: Accept | Append, now: float) -> Plan[Facts | None]:
    run = (yield from find_run(command.run_id)) if isinstance(command, Accept) else None
    turn = yield from find_turn(run.turn_id if run else command.turn_id)
    if turn is None:
        return None
    facts = yield from lane_facts(turn.session_id, now)
    return replace(facts, turn=turn, run=run)


def _repeated(row: IdempotencyRow, now: float) -> Plan[Facts]:
    turn = yield from find_turn(row.turn_id)
    if turn is None:
        return Facts(now=now, repeat=row)
    facts = replace((yield from lane_facts(turn.session_id, now)), repeat=row, turn=turn)
    return (yield from _with_last_run(facts, turn, row.step))


def _with_last_run(facts: Facts, turn: Turn, step: int) -> Plan[Facts]:
    last = yield from one(sql.LAST_RUN_OF_STEP, turn.id, step)
    facts = replace(facts, run=Run(*last) if last else None)
    return (yield from with_block(facts, turn))


def with_block(facts: Facts, turn: Turn) -> Plan[Facts]:
    """Add the block of a turn that began before, should it have to begin again."""
    session = facts.session
    if session is None or (turn.first_seq is None and turn.rewind_after is None):
        return facts
    hidden = yield from find_hidden(session)
    if turn.first_seq is None or turn.last_seq is None:
        return replace(facts, hidden=hidden)
    items = yield from find_items(session, turn.first_seq, turn.last_seq)
    return replace(facts, hidden=hidden, turn_items=tuple(items))


def _with_generation(facts: Facts, command: Accept | Append | Continue | Reserve) -> Plan[Facts]:
    if command.key is None:
        return facts
    last = yield from one(sql.LAST_GENERATION, command.tenant, command.key)
    return replace(facts, next_generation=(last[0] or 0) + 1 if last else 1)


def _more_for_accept(command: Accept, facts: Facts) -> Plan[Facts]:
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
        facts = replace(facts, hidden=(yield from find_hidden(as_then)))
        if session.record_no != command.parent.record_no:
            rows = yield from every(sql.VIEW_RECORDS, session.id, session.record_no)
            later = [Record(*row) for row in rows if row[1] > command.parent.record_no]
            is_changed = any(record.kind != "quarantine" for record in later)
            facts = replace(facts, is_view_changed=is_changed)
    if not session.is_live:
        return (yield from _with_live(facts, session))
    facts = yield from _with_latest(command, facts, session)
    if command.is_internal or command.on_busy == "rollback" or command.rewind is not None:
        facts = replace(facts, hidden=(yield from find_hidden(session)))
    return facts


def _with_latest(command: Accept | Append, facts: Facts, session: Session) -> Plan[Facts]:
    """Add the session's latest turn, should this be an SDK's own repeat of it.

    Where the turn that is repeated is known, add that.
    """
    if isinstance(command, Accept) and command.same_as is not None:
        turn_id, step = command.same_as
        same = yield from find_turn(turn_id)
        if same is None or same.session_id != session.id:
            return facts
        return (yield from _with_last_run(replace(facts, turn=same), same, step))
    if command.retry_count <= 0 or command.idempotency_key is not None:
        return facts
    row = yield from one(sql.LATEST_TURN, session.id)
    if row is None:
        return facts
    turn = Turn(*row)
    return (yield from _with_last_run(replace(facts, turn=turn), turn, turn.step))


def _with_live(facts: Facts, session: Session) -> Plan[Facts]:
    if session.key is None:
        return facts
    row = yield from one(sql.SESSION_BY_KEY, session.tenant, session.key)
    if row is None:
        return facts
    live = read_session(row)
    return replace(facts, live=live, live_id=live.id)


def claim_facts(command: Claim, now: float) -> Plan[Facts]:
    """The turn, its lane, and its block if it ran before."""
    turn = yield from find_turn(command.turn_id)
    if turn is None:
        return Facts(now=now)
    facts = replace((yield from lane_facts(turn.session_id, now)), turn=turn)
    if command.again:
        facts = replace(facts, run=(yield from find_run(command.run_id)))
    return (yield from with_block(facts, turn))


def fenced_facts(command: Fenced, now: float) -> Plan[Facts]:
    """The lane; and if the run lost it, the run's own record, which is all it may still touch."""
    fence = command.fence
    facts = yield from lane_facts(fence.session_id, now)
    if fence.holds(facts.session):
        if isinstance(command, DropProviderState):
            kept = yield from every(sql.PROVIDER_STATE, fence.session_id)
            return replace(facts, has_provider_state=bool(kept))
        if isinstance(command, Extend | Finish) and facts.session is not None:
            return (yield from _with_later_records(command, facts, facts.session))
        return facts
    run = yield from find_run(fence.run_id)
    turn = yield from find_turn(run.turn_id if run else None)
    return replace(facts, run=run, turn=turn)


def _with_later_records(command: Extend | Finish, facts: Facts, session: Session) -> Plan[Facts]:
    """Add the records, should there be any since the run read its context."""
    if command.shown_records is None or session.record_no <= command.shown_records:
        return facts
    rows = yield from every(sql.RECORD_HEADS, session.id, session.record_no)
    return replace(facts, heads=tuple(RecordHead(*(*row, EVERYTHING)) for row in rows))


def cancel_facts(command: Cancel | DropResponse, now: float) -> Plan[Facts]:
    """The turn and its lane."""
    turn = yield from find_turn(command.turn_id)
    if turn is None:
        return Facts(now=now)
    return replace((yield from lane_facts(turn.session_id, now)), turn=turn)


def api_key_facts(command: AddApiKey | RevokeApiKey, now: float) -> Plan[Facts]:
    """The key of that id."""
    row = yield from one(sql.API_KEY_BY_ID, command.id)
    return Facts(now=now, api_key=ApiKeyRow(*row) if row else None)


def completion_facts(command: AnnotateCompletion, now: float) -> Plan[Facts]:
    """The stored completion."""
    row = yield from one(sql.COMPLETION, command.tenant, command.turn_id, command.step)
    return Facts(now=now, completion=CompletionRow(*row) if row else None)


def lifecycle_facts(command: Reset | Restore | Delete | Fork | Annotate, now: float) -> Plan[Facts]:
    """The session, its rival for the key, and everything that is open in the one to be retired."""
    if isinstance(command, Reset | Fork) and command.idempotency_key is not None:
        found = yield from one(sql.IDEMPOTENCY_BY_KEY, command.tenant, command.idempotency_key)
        if found is not None:
            repeat = IdempotencyRow(*found)
            made = yield from session_row(SessionId(repeat.turn_id))
            return Facts(now=now, repeat=repeat, made=read_session(made) if made else None)
    facts = yield from lane_facts(command.session_id, now)
    session = facts.session
    if session is None:
        return facts
    if isinstance(command, Reset | Restore) and session.key is not None:
        facts = yield from _with_key(facts, session)
    if isinstance(command, Fork | Reset) and command.again:
        made = yield from session_row(command.new_id)
        facts = replace(facts, live=read_session(made)) if made else facts
    if isinstance(command, Restore) and facts.live is not None:
        lane = yield from lane_facts(facts.live.id, now)
        facts = replace(facts, active=lane.active, active_run=lane.active_run)
    if isinstance(command, Fork):
        facts = replace(facts, hidden=(yield from find_hidden(session)))
    if isinstance(command, Delete):
        latest = yield from one(sql.LATEST_TURN, session.id)
        facts = replace(facts, turn=Turn(*latest) if latest else None)
        facts = replace(facts, forks=(yield from _every_fork(session)))
    if isinstance(command, Reset | Restore | Delete):
        retired = facts.live if isinstance(command, Restore) and facts.live else session
        rows = yield from every(sql.OPEN_TURNS, retired.id)
        facts = replace(facts, open_turns=tuple(Turn(*row) for row in rows))
    return facts


def _with_key(facts: Facts, session: Session) -> Plan[Facts]:
    last = yield from one(sql.LAST_GENERATION, session.tenant, session.key)
    facts = replace(facts, next_generation=(last[0] or 0) + 1 if last else 1)
    return (yield from _with_live(facts, session))


def _every_fork(session: Session) -> Plan[tuple[Session, ...]]:
    """Return all sessions below this one, the nearest first."""
    found: list[Session] = []
    front = [session]
    while front:
        rows = yield from every(sql.FORKS_OF, front.pop().id)
        children = [Session(*row) for row in rows]
        found.extend(children)
        front.extend(children)
    return tuple(found)


def recover_facts(command: Recover, now: float) -> Plan[Facts]:
    """The lane, every open turn, and which of their workers are gone."""
    facts = yield from lane_facts(command.session_id, now)
    if facts.session is None:
        return facts
    rows = yield from every(sql.OPEN_TURNS, facts.session.id)
    turns = tuple(Turn(*found) for found in rows)
    gone: set[WorkerId] = set()
    for worker in {turn.owner for turn in turns}:
        alive = yield from one(sql.WORKER_BY_ID, worker)
        if alive is None or alive[0] <= now:
            gone.add(worker)
    return replace(facts, open_turns=turns, gone_owners=frozenset(gone))


def extend_facts(command: Extend, now: float) -> Plan[Facts]:
    """The run's lane; and for a batch that counts once, whether it came before."""
    facts = yield from fenced_facts(command, now)
    if command.idempotency_key is None:
        return facts
    found = yield from one(sql.IDEMPOTENCY_BY_KEY, command.tenant, command.idempotency_key)
    return replace(facts, repeat=IdempotencyRow(*found)) if found else facts


def finish_facts(command: Finish, now: float) -> Plan[Facts]:
    """Return a run's lane; where somebody waits in it, with the turn that is to have it next."""
    facts = yield from fenced_facts(command, now)
    successor = command.successor
    if successor is None or not facts.waiting.count or not command.fence.holds(facts.session):
        return facts
    turn = yield from find_turn(successor.turn_id)
    if turn is None:
        return facts
    return (yield from with_block(replace(facts, turn=turn), turn))
