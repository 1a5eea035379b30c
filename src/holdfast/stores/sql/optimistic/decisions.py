"""Optimistic decisions: on a cached lane, without a read.

The first write of such a decision is fenced: it fails if the session changed since the state that
was decided on. Then nothing was written, and the command is planned again from what the store has.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.core.decisions import accept, append, run
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import Decision, LogAppended
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.facts import Facts
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.sql.change_writer import writes
from holdfast.stores.sql.command_plans import Planned


def decide_from_cache(command: Command[Any], now: float, lanes: LaneCache) -> Planned | None:
    """Return the plan of a command if its lane is cached and nothing else has to be read."""
    decide = DECIDERS.get(type(command))
    if decide is None or command.again:
        return None
    decision = decide(command, now, lanes)
    if decision is None or not decision.changes:
        return None
    first = decision.changes[0]
    if type(first) is LogAppended:
        session = first.session
        if (first.before or session).record_no != session.record_no:
            return None  # The entry of a record repeats the hidden ranges, which have to be read.
    asks = writes(decision.changes)
    if not asks or not asks[0][0].is_fenced:
        return None  # A refusal writes no gate that could detect a stale cache.
    return Planned(decision, asks)


def _accept(command: cmd.Accept, now: float, lanes: LaneCache) -> Decision[Any] | None:
    """Decide on a turn, if its lane is all of what `accept_facts` would read."""
    if command.parent is not None or command.same_as is not None or command.rewind is not None:
        return None
    if command.is_internal or command.on_busy == "rollback":
        return None
    if command.items and command.items[0].is_instruction:
        return None
    if command.limits.max_tenant_turns or command.reset.mode != "none":
        return None
    facts = _of_arrival(command, now, lanes)
    return None if facts is None else accept.accept(command, facts)


def _append(command: cmd.Append, now: float, lanes: LaneCache) -> Decision[Any] | None:
    facts = _of_arrival(command, now, lanes)
    return None if facts is None else append.append(command, facts)


def _extend(command: cmd.Extend, now: float, lanes: LaneCache) -> Decision[Any] | None:
    is_known = command.idempotency_key is None and not command.merges
    facts = _of_run(command, now, lanes) if is_known else None
    return None if facts is None else run.extend(command, facts)


def _finish(command: cmd.Finish, now: float, lanes: LaneCache) -> Decision[Any] | None:
    facts = _of_run(command, now, lanes)
    if facts is None or command.refused_from is not None or command.left_out:
        return None  # Whether other items are hidden has to be read.
    if command.successor is not None and facts.waiting.count:
        turn = lanes.waiting_turn(command.fence.session_id, command.successor.turn_id)
        if turn is None or turn.first_seq is not None or turn.rewind_after is not None:
            return None
        if turn.input is not None and b"is_instruction" in turn.input:
            return None  # What it wrote before, or hides, has to be read.
        facts = replace(facts, turn=turn)
    return run.finish(command, facts)


def _of_run(command: cmd.Extend | cmd.Finish, now: float, lanes: LaneCache) -> Facts | None:
    facts = lanes.run_by(command.fence, now)
    if facts is None or facts.session is None or command.shown_records is None:
        return facts
    # What was written over the log since the run read it has to be looked at.
    return facts if facts.session.record_no <= command.shown_records else None


def _of_arrival(command: cmd.Accept | cmd.Append, now: float, lanes: LaneCache) -> Facts | None:
    """Return the lane that an arrival finds, unless it may be a repeat of an earlier one."""
    if command.idempotency_key is not None or command.retry_count > 0:
        return None
    session_id = command.session_id or lanes.keys.get((command.tenant, command.key))
    return lanes.of_session(session_id, command.worker, now) if session_id is not None else None


DECIDERS: dict[type[Command[Any]], Callable[[Any, float, LaneCache], Decision[Any] | None]] = {
    cmd.Accept: _accept,
    cmd.Append: _append,
    cmd.Extend: _extend,
    cmd.Finish: _finish,
}
"""How commands are decided on a cached lane; None if more has to be read."""
