"""Queries about schedules for the scheduler and operators."""

from holdfast.core.ids import Tenant
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.stores.sql.plan import Plan, SnapshotReader, every, one, reading
from holdfast.stores.sql.schedules import statements as sql
from holdfast.stores.sql.schedules.rows import read_run, read_schedule


def _all() -> Plan[list[ScheduleRow]]:
    rows = yield from every(sql.SCHEDULES)
    return [read_schedule(row) for row in rows]


def _page(
    tenant: Tenant, *, after: str | None, limit: int, is_descending: bool
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


class SqlScheduleReader(SnapshotReader):
    """Schedule queries; see `ports.schedules.ScheduleReader`."""

    schedules = reading(_all)
    page = reading(_page)
    schedule = reading(_by_name)
    runs = reading(_runs)

    async def active(self) -> tuple[float, list[ScheduleRow]]:
        """Return the store's time, and the schedules that are due or have a run."""
        return await self._run(_active)
