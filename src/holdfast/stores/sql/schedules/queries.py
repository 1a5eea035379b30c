"""Queries about schedules for the scheduler and operators."""

from holdfast.core.ids import Tenant
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.stores.sql.plan import Plan, QueryRunner, every, one
from holdfast.stores.sql.schedules import statements as sql
from holdfast.stores.sql.schedules.rows import read_run, read_schedule


class SqlScheduleReader:
    """Schedule queries, each in one snapshot."""

    def __init__(self, run: QueryRunner) -> None:
        self._run = run

    async def schedules(self) -> list[ScheduleRow]:
        """Return every schedule, by tenant and name."""
        return await self._run(lambda _: _all())

    async def page(
        self, tenant: Tenant, *, after: str | None, limit: int, is_descending: bool
    ) -> list[ScheduleRow]:
        """Return schedules of a tenant by name, after the one named `after`."""
        return await self._run(lambda _: _page(tenant, after, limit, is_descending))

    async def schedule(self, tenant: Tenant, name: str) -> ScheduleRow | None:
        """Return one schedule."""
        return await self._run(lambda _: _by_name(tenant, name))

    async def active(self) -> tuple[float, list[ScheduleRow]]:
        """Return the store's time, and the schedules that are due or have a run."""
        return await self._run(_active)

    async def runs(self, schedule_id: str, limit: int) -> list[ScheduleRunRow]:
        """Return the runs of a schedule, the newest first."""
        return await self._run(lambda _: _runs(schedule_id, limit))


def _all() -> Plan[list[ScheduleRow]]:
    rows = yield from every(sql.SCHEDULES)
    return [read_schedule(row) for row in rows]


def _page(
    tenant: Tenant, after: str | None, limit: int, is_descending: bool
) -> Plan[list[ScheduleRow]]:
    statement = sql.SCHEDULES_DOWNWARDS if is_descending else sql.SCHEDULES_UPWARDS
    rows = yield from every(statement, tenant, after or "", limit)
    return [read_schedule(row) for row in rows]


def _by_name(tenant: Tenant, name: str) -> Plan[ScheduleRow | None]:
    row = yield from one(sql.SCHEDULE_BY_NAME, tenant, name)
    return read_schedule(row) if row is not None else None


def _active(now: float) -> Plan[tuple[float, list[ScheduleRow]]]:
    rows = yield from every(sql.ACTIVE_SCHEDULES, now)
    return now, [read_schedule(row) for row in rows]


def _runs(schedule_id: str, limit: int) -> Plan[list[ScheduleRunRow]]:
    rows = yield from every(sql.RUNS, schedule_id, limit)
    return [read_run(row) for row in rows]
