"""Schedules: their statements, rows, facts and queries."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import astuple, replace

from holdfast.core.decisions import schedules
from holdfast.core.ids import Tenant
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.core.transaction import changes as ch
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Command
from holdfast.core.transaction.facts import Facts
from holdfast.stores.sql.lookups import no_facts
from holdfast.stores.sql.plan import (
    Ask,
    Plan,
    SnapshotReader,
    Statement,
    columns,
    every_as,
    insert,
    one_as,
    reading,
    row_reader,
    write_fields,
)

_COLUMNS = columns(ScheduleRow)
ADD_SCHEDULE = insert("add_schedule", "schedules", ScheduleRow)
# Compare-and-set on the due time and the run: only one of two workers claims a due time.
SAVE_SCHEDULE = Statement(
    "save_schedule",
    "update schedules set spec = ?2, is_from_file = ?3, is_paused = ?4, reason = ?5, "
    "failures = ?6, next_run_at = ?7, running_turn = ?8 where id = ?1 "
    "and coalesce(next_run_at, -1) = ?9 and coalesce(running_turn, '') = ?10",
    is_fenced=True,
)
DROP_SCHEDULE = Statement("drop_schedule", "delete from schedules where id = ?1")
SCHEDULE_BY_ID = Statement("schedule_by_id", f"select {_COLUMNS} from schedules where id = ?1")
SCHEDULE_BY_NAME = Statement(
    "schedule_by_name", f"select {_COLUMNS} from schedules where tenant = ?1 and name = ?2"
)
SCHEDULES = Statement("schedules", f"select {_COLUMNS} from schedules order by tenant, name")
SCHEDULES_UPWARDS = Statement(
    "schedules_upwards",
    f"select {_COLUMNS} from schedules where tenant = ?1 and (?2 = '' or name > ?2) "
    "order by name limit ?3",
)
SCHEDULES_DOWNWARDS = Statement(
    "schedules_downwards",
    f"select {_COLUMNS} from schedules where tenant = ?1 and (?2 = '' or name < ?2) "
    "order by name desc limit ?3",
)
# What the scheduler has to check: due times, and runs that may have ended.
ACTIVE_SCHEDULES = Statement(
    "active_schedules",
    f"select {_COLUMNS} from schedules where running_turn is not null "
    "or (is_paused = 0 and next_run_at <= ?1) order by next_run_at, id",
)
SAVE_RUN = insert(
    "save_schedule_run", "schedule_runs", ScheduleRunRow, key="schedule_id, scheduled_at"
)
DROP_RUN = Statement(
    "drop_schedule_run", "delete from schedule_runs where schedule_id = ?1 and scheduled_at = ?2"
)
_RUN = f"select {columns(ScheduleRunRow)} from schedule_runs "
RUNS = Statement(
    "schedule_runs", _RUN + "where schedule_id = ?1 order by scheduled_at desc limit ?2"
)
# From the newest run on: the others are not read.
RUN_OF_TURN = Statement(
    "schedule_run_of_turn",
    _RUN + "where schedule_id = ?1 and turn_id = ?2 order by scheduled_at desc limit 1",
)

# ── rows and changes ────────────────────────────────────────────────────────────────────────

read_schedule = row_reader(ScheduleRow)
read_run = row_reader(ScheduleRunRow)


def _save(change: ch.ScheduleSaved) -> Ask:
    row, before = change.row, change.before
    if before is None:
        return ADD_SCHEDULE, astuple(row)
    return SAVE_SCHEDULE, (
        row.id, row.spec, row.is_from_file, row.is_paused, row.reason, row.failures,
        row.next_run_at, row.running_turn,
        before.next_run_at if before.next_run_at is not None else -1.0, before.running_turn or "",
    )  # fmt: skip


WRITERS: dict[type, Callable[[Any], Ask]] = {
    ch.ScheduleSaved: _save,
    ch.ScheduleDropped: write_fields(DROP_SCHEDULE),
    ScheduleRunRow: write_fields(SAVE_RUN),
    ch.ScheduleRunDropped: write_fields(DROP_RUN),
}
"""The statement that writes each change of a schedule."""


# ── facts of commands ───────────────────────────────────────────────────────────────────────


def with_schedule(facts: Facts, schedule_id: str) -> Plan[Facts]:
    """Add a schedule by its id."""
    schedule = yield from one_as(read_schedule, SCHEDULE_BY_ID, schedule_id)
    return replace(facts, schedule=schedule)


def _by_id(command: cmd.SkipRun, now: float) -> Plan[Facts]:
    return with_schedule(Facts(now=now), command.id)


def _by_name(
    command: cmd.SaveSchedule | cmd.PauseSchedule | cmd.DeleteSchedule, now: float
) -> Plan[Facts]:
    return Facts(now=now, schedule=(yield from _find(command.tenant, command.name)))


def _run(command: cmd.SettleRun, now: float) -> Plan[Facts]:
    facts = yield from with_schedule(Facts(now=now), command.id)
    run = yield from one_as(read_run, RUN_OF_TURN, command.id, command.turn_id)
    return replace(facts, schedule_run=run)


DECIDED: dict[type[Command[Any]], tuple[Any, Any]] = {
    cmd.SaveSchedule: (_by_name, schedules.save_schedule),
    cmd.PauseSchedule: (_by_name, schedules.pause_schedule),
    cmd.DeleteSchedule: (_by_name, schedules.delete_schedule),
    cmd.SkipRun: (_by_id, schedules.skip_run),
    cmd.SettleRun: (_run, schedules.settle_run),
    cmd.ForgetRun: (no_facts, schedules.forget_run),
}


# ── queries ─────────────────────────────────────────────────────────────────────────────────


def _all() -> Plan[list[ScheduleRow]]:
    return every_as(read_schedule, SCHEDULES)


def _page(
    tenant: Tenant, *, after: str | None, limit: int, is_descending: bool
) -> Plan[list[ScheduleRow]]:
    statement = SCHEDULES_DOWNWARDS if is_descending else SCHEDULES_UPWARDS
    return every_as(read_schedule, statement, tenant, after or "", limit)


def _find(tenant: Tenant, name: str) -> Plan[ScheduleRow | None]:
    return one_as(read_schedule, SCHEDULE_BY_NAME, tenant, name)


def _active(now: float) -> Plan[tuple[float, list[ScheduleRow]]]:
    return now, (yield from every_as(read_schedule, ACTIVE_SCHEDULES, now))


def _runs(schedule_id: str, limit: int) -> Plan[list[ScheduleRunRow]]:
    return every_as(read_run, RUNS, schedule_id, limit)


class SqlScheduleReader(SnapshotReader):
    """Schedule queries; see `ports.schedules.ScheduleReader`."""

    schedules = reading(_all)
    page = reading(_page)
    schedule = reading(_find)
    runs = reading(_runs)

    async def active(self) -> tuple[float, list[ScheduleRow]]:
        """Return the store's time, and the schedules that are due or have a run."""
        return await self._run(_active)
