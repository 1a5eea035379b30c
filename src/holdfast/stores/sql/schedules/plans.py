"""Commands about schedules: their facts and decisions."""

from typing import Any

from msgspec.structs import replace

from holdfast.core.decisions import schedules
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.facts import Facts
from holdfast.stores.sql.plan import Plan, one
from holdfast.stores.sql.schedules import statements as sql
from holdfast.stores.sql.schedules.rows import read_run, read_schedule


def with_schedule(facts: Facts, schedule_id: str) -> Plan[Facts]:
    """Add a schedule by its id."""
    row = yield from one(sql.SCHEDULE_BY_ID, schedule_id)
    return facts if row is None else replace(facts, schedule=read_schedule(row))


def _by_id(command: cmd.SkipRun, now: float) -> Plan[Facts]:
    return (yield from with_schedule(Facts(now=now), command.id))


def _by_name(
    command: cmd.SaveSchedule | cmd.PauseSchedule | cmd.DeleteSchedule, now: float
) -> Plan[Facts]:
    row = yield from one(sql.SCHEDULE_BY_NAME, command.tenant, command.name)
    return Facts(now=now, schedule=read_schedule(row) if row is not None else None)


def _run(command: cmd.SettleRun, now: float) -> Plan[Facts]:
    facts = yield from with_schedule(Facts(now=now), command.id)
    row = yield from one(sql.RUN_OF_TURN, command.id, command.turn_id)
    return facts if row is None else replace(facts, schedule_run=read_run(row))


def _nothing(_: cmd.ForgetRun, now: float) -> Plan[Facts]:
    yield from ()
    return Facts(now=now)


DECIDED: dict[type[Command[Any]], tuple[Any, Any]] = {
    cmd.SaveSchedule: (_by_name, schedules.save_schedule),
    cmd.PauseSchedule: (_by_name, schedules.pause_schedule),
    cmd.DeleteSchedule: (_by_name, schedules.delete_schedule),
    cmd.SkipRun: (_by_id, schedules.skip_run),
    cmd.SettleRun: (_run, schedules.settle_run),
    cmd.ForgetRun: (_nothing, schedules.forget_run),
}
