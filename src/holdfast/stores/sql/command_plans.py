"""Plan a command: read its facts, let core decide, write the changes."""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.decisions import (
    accept,
    api_keys,
    append,
    compact,
    hide,
    identity,
    import_session,
    lifecycle,
    recovery,
    run,
    stored_completions,
)
from holdfast.core.errors import RunFenced
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import Decision, refuse
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.facts import Facts
from holdfast.stores.cache.lane_cache import Lane, LaneCache
from holdfast.stores.sql import facts, schedules
from holdfast.stores.sql import record_queries as records
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.change_writer import ERASING, writes
from holdfast.stores.sql.channels import facts as channel_facts
from holdfast.stores.sql.entries import EXPIRED
from holdfast.stores.sql.erasure import erasures, oldest_turn_id, prune, scrubbed
from holdfast.stores.sql.lookups import add_hidden_ranges
from holdfast.stores.sql.plan import Ask, Plan, Row, one
from holdfast.stores.sql.search.follower import index_log
from holdfast.stores.sql.usage import sum_usage

DELIVERIES_SECONDS = 30 * 60.0
"""How long deliveries of answers are remembered: twice as long as a retry may ask for one."""
LONGEST_LEASE_SECONDS = 300.0
"""The longest lease, so that a clock that jumps ahead cannot create a longer one."""

Read = Callable[[Any, float], Plan[Facts]]
Decide = Callable[[Any, Facts], Decision[Any]]

_DECIDED: dict[type[Command[Any]], tuple[Read, Decide]] = {
    cmd.Accept: (facts.accept_facts, accept.accept),
    cmd.Reserve: (facts.reserve_facts, identity.reserve),
    cmd.Append: (facts.accept_facts, append.append),
    cmd.AppendBatch: (facts.continue_facts, append.continue_turn),
    cmd.Pop: (facts.pop_facts, append.pop),
    cmd.Import: (facts.import_facts, import_session.take_over),
    cmd.Claim: (facts.claim_facts, recovery.claim),
    cmd.Extend: (facts.extend_facts, run.extend),
    cmd.Finish: (facts.finish_facts, run.finish),
    cmd.RecordHeal: (facts.fenced_facts, run.record_heal),
    cmd.Cancel: (facts.cancel_facts, run.cancel),
    cmd.RequestStop: (facts.stop_facts, run.request_stop),
    cmd.SettleStop: (facts.stop_facts, run.settle_stop),
    cmd.DropResponse: (facts.cancel_facts, stored_completions.drop_response),
    cmd.Reset: (facts.lifecycle_facts, lifecycle.reset),
    cmd.Restore: (facts.lifecycle_facts, lifecycle.restore),
    cmd.Delete: (facts.lifecycle_facts, lifecycle.delete),
    cmd.Fork: (facts.lifecycle_facts, lifecycle.fork),
    cmd.Hide: (records.hide_facts, hide.hide),
    cmd.Compact: (records.compact_facts, compact.compact),
    cmd.UndoCompaction: (records.undo_facts, compact.undo_compaction),
    cmd.Annotate: (facts.lifecycle_facts, lifecycle.annotate),
    cmd.ForgetState: (facts.forget_facts, lifecycle.forget_state),
    cmd.AnnotateCompletion: (facts.completion_facts, stored_completions.annotate_completion),
    cmd.AddApiKey: (facts.api_key_facts, api_keys.add_api_key),
    cmd.RevokeApiKey: (facts.api_key_facts, api_keys.revoke_api_key),
    cmd.Recover: (facts.recover_facts, recovery.recover),
    **channel_facts.DECIDED,
    **schedules.DECIDED,
}

# Commands whose facts include those of their lane.
_ON_LANES = frozenset({cmd.Accept, cmd.Append, cmd.Extend, cmd.Finish, cmd.RecordHeal})


class Planned(msgspec.Struct, frozen=True, gc=False):
    """A decision, and the statements that carry it out."""

    decision: Decision[Any]
    writes: list[Ask]
    lane: Lane | None = None
    """The lane after the decision, if it was computed with it."""


def plan(command: Command[Any], now: float, lanes: LaneCache) -> Plan[Planned]:
    """Plan one command; the driver writes and commits the result.

    The lane's new state is put into `lanes`, which must be cleared if the command is not committed.
    """
    decided = _DECIDED.get(type(command))
    if decided is None:
        return (yield from _plan_other(command, now))
    known = yield from decided[0](command, now)
    if type(command) in _ON_LANES:
        lanes.learn(known)
    decision = decided[1](command, known)
    lanes.note(decision.changes)
    changes = scrubbed(decision.changes)
    yield from add_hidden_ranges(changes)
    asks = writes(changes)
    if any(isinstance(change, ERASING) for change in changes):
        # Blank the entries before the last ones are added, which record how the session ended.
        asks = [*(yield from erasures(changes)), *asks]
    return Planned(decision, asks)


def _plan_other(command: Command[Any], now: float) -> Plan[Planned]:
    """Plan a command that needs no session."""
    if isinstance(command, cmd.Renew | cmd.ExpireWorker):
        return (yield from _plan_worker(command, now))
    if isinstance(command, cmd.Prune):
        return Planned(*(yield from prune(command, now)))
    if isinstance(command, cmd.IndexLog):
        return Planned(*(yield from index_log(command)))
    if isinstance(command, cmd.SumUsage):
        return Planned(*(yield from sum_usage(command)))
    assert isinstance(command, cmd.MarkDelivered), command
    return Planned(Decision(None), marks(command, now))


def marks(command: cmd.MarkDelivered, now: float) -> list[Ask]:
    """Return the statements that mark answers as delivered."""
    return [(sql.MARK_DELIVERED, (*step, now)) for step in command.steps]


def _plan_worker(command: cmd.Renew | cmd.ExpireWorker, now: float) -> Plan[Planned]:
    """Renew a lease; a worker that was declared dead may not continue under its id."""
    row = yield from one(sql.WORKER_BY_ID, command.worker)
    if isinstance(command, cmd.ExpireWorker):
        return _plan_expiry(command, row, now)
    alive_until = now + command.lease_seconds
    if row is not None and row[0] != EXPIRED:
        asks: list[Ask] = [
            (sql.SAVE_WORKER, (command.worker, alive_until)),
            (sql.CUT_LEASES, (now + max(LONGEST_LEASE_SECONDS, command.lease_seconds),)),
            (sql.FORGET_DELIVERIES, (oldest_turn_id(now - DELIVERIES_SECONDS),)),
        ]
        return Planned(Decision(alive_until), asks)
    if row is not None or not command.is_new:
        refused: Decision[Any] = refuse(RunFenced(f"worker {command.worker} was declared dead"))
        return Planned(refused, [])
    return Planned(Decision(alive_until), [(sql.ADD_WORKER, (command.worker, now, alive_until))])


def _plan_expiry(command: cmd.ExpireWorker, row: Row | None, now: float) -> Planned:
    if row is None:
        return Planned(Decision(True), [])
    if command.drop:
        return Planned(Decision(True), [(sql.DROP_WORKER, (command.worker,))])
    if command.alive_until is not None and command.alive_until != row[0]:
        return Planned(Decision(False), [])
    if row[0] == EXPIRED:
        return Planned(Decision(True), [])
    return Planned(Decision(True), [(sql.DECLARE_DEAD, (command.worker, min(now, row[0])))])
