"""Reports over all sessions: workers and lanes as they are now, and usage."""

from holdfast.ports.reports import Interval, LaneView, UsageReport, WorkerView
from holdfast.stores.sql.entries import STARTED, STEP
from holdfast.stores.sql.plan import Plan, Row, Statement, every, every_as
from holdfast.stores.sql.statements import IS_INDEXED
from holdfast.stores.sql.store import SqlStore

WORKERS = Statement(
    "report_workers",
    "select w.id, w.started_at, w.alive_until, "
    "(select count(*) from lanes a where a.owner = w.id), "
    "(select count(*) from queue q where q.owner = w.id) from workers w order by w.started_at",
)
# Lanes in use, the longest queue first, and when their turn got them.
LANES = Statement(
    "report_lanes",
    "select s.id, s.tenant, s.key, a.turn, a.run, a.owner, a.hold_until, "
    "(select count(*) from queue q where q.session = a.session) as waiting, "
    f"(select max(l.at) from log l where l.turn = a.turn and {IS_INDEXED.format(entry='l')} "
    f"and l.kind in ({STARTED}, {STEP})) "
    "from lanes a join sessions s on s.no = a.session + 0 order by waiting desc, s.id limit ?1",
)


class SqlReports:
    """Reports over a SQL store."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def workers(self) -> list[WorkerView]:
        """Return the workers."""

        def query(now: float) -> Plan[list[tuple[Row, bool]]]:
            rows = yield from every(WORKERS)
            return [(row, row[2] > now) for row in rows]

        found = await self._store.query(query)
        dead = {worker.id for worker in await self._store.workers() if worker.is_gone}
        return [
            WorkerView(row[0], row[1], row[2], is_leased and row[0] not in dead, row[3], row[4])
            for row, is_leased in found
        ]

    async def lanes(self, limit: int) -> list[LaneView]:
        """Return lanes in use."""
        return await self._store.query(lambda _: every_as(LaneView, LANES, limit))

    async def usage(self, since: float, until: float, interval: Interval) -> UsageReport:
        """Return usage by interval, tenant and model."""
        return await self._store.usage.report(since, until, interval)
