"""Reports over all sessions: workers and lanes as they are now, usage as recorded in the log."""

from collections.abc import Iterable
from functools import partial

import msgspec

from holdfast.core.healing.policy import read_heals
from holdfast.ports.reports import (
    INTERVAL_SECONDS,
    Interval,
    LaneView,
    UsageReport,
    UsageRow,
    WorkerView,
)
from holdfast.stores.sql.entries import ENDS, STARTED, STEP, RunState, TurnState, read_body
from holdfast.stores.sql.plan import Plan, Row, Statement, every, every_as, one
from holdfast.stores.sql.statements import IS_INDEXED, IS_LAST_OF_TURN
from holdfast.stores.sql.store import SqlStore

PAGE_ROWS = 500
MAX_ENTRIES = 200_000
"""The most entries that one usage report reads."""
MAX_LATENCIES = 2000
"""The most durations kept per row, enough for percentiles; of more, a regular sample is kept."""

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
# Times grow with positions unless the clock was set back, so a binary search finds the start.
LAST_POS = Statement("report_last_pos", "select coalesce(max(pos), 0) from log")
AT_POS = Statement("report_at_pos", "select at, pos from log where pos >= ?1 order by pos limit 1")
# Entries that end a run or a turn. Only the last entry of a turn counts: a turn that failed may
# have been reopened.
RUN_ENDS = Statement(
    "report_ends",
    "select l.pos, l.at, l.kind, l.body, s.tenant, "
    "(select a.request from log a where a.turn = l.turn and a.request is not null "
    f"and {IS_INDEXED.format(entry='a')}), case when {IS_LAST_OF_TURN} then 1 else 0 end "
    "from log l join sessions s on s.no = l.session where l.pos >= ?1 and l.at < ?2 "
    f"and l.turn is not null and l.kind in {(STEP, *ENDS)} order by l.pos limit ?3",
)


class _Request(msgspec.Struct):
    model: str = ""


_read_request = msgspec.json.Decoder(_Request).decode


class SqlReports:
    """Reports over a SQL store."""

    def __init__(self, store: SqlStore, *, max_entries: int = MAX_ENTRIES) -> None:
        self._store = store
        self._max_pages = -(-max_entries // PAGE_ROWS)

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
        counter = _UsageCounter(INTERVAL_SECONDS[interval], since, until)
        pos = await self._store.query(lambda _: _first_pos(since))
        for _ in range(self._max_pages):
            rows = await self._store.query(partial(_ends, pos, until))
            counter.add(rows)
            if len(rows) < PAGE_ROWS:
                return UsageReport(counter.rows())
            pos = rows[-1][0] + 1
        return counter.partial_report()


def _ends(pos: int, until: float, _: float) -> Plan[list[Row]]:
    return every(RUN_ENDS, pos, until, PAGE_ROWS)


def _first_pos(since: float) -> Plan[int]:
    """Return the position of the first entry since a time."""
    row = yield from one(LAST_POS)
    low, high = 0, (row[0] if row else 0) + 1
    while low < high:
        middle = (low + high) // 2
        found = yield from one(AT_POS, middle)
        if found is None or found[0] >= since:
            high = middle
        else:
            low = found[1] + 1
    return low


class _Latencies:
    """Keeps a regular sample of the added durations, in bounded memory."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self._stride = 1
        self._seen = 0

    def add(self, milliseconds: int) -> None:
        """Keep a duration, or every n-th once there are many."""
        if self._seen % self._stride == 0:
            self.kept.append(milliseconds)
        self._seen += 1
        if len(self.kept) > MAX_LATENCIES:
            self.kept = self.kept[::2]
            self._stride *= 2


class _UsageCounter:
    """Sums up the ends of runs and turns by interval, tenant and model."""

    def __init__(self, seconds: int, since: float, until: float) -> None:
        self._seconds = seconds
        self._since, self._until = since, until
        self._rows: dict[tuple[int, str, str], UsageRow] = {}
        self._latencies: dict[tuple[int, str, str], _Latencies] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Count a page of entries."""
        for _, at, kind, packed, tenant, request, is_last in rows:
            if not self._since <= at < self._until:
                continue
            body = read_body(packed)
            model = _model_asked(request)
            start = int(at // self._seconds) * self._seconds
            for run in body.runs:
                if run.outcome is not None:
                    self._add_run(self._row(start, tenant, _model_of(run, model)), run)
            if kind in ENDS and is_last and body.turn is not None:
                used = _model_of(body.runs[-1], model) if body.runs else model
                self._add_turn((start, tenant, used), body.turn)

    def rows(self) -> list[UsageRow]:
        """Return the counted rows, oldest first."""
        for key, latencies in self._latencies.items():
            self._rows[key].latencies_ms = sorted(latencies.kept)
        return [self._rows[key] for key in sorted(self._rows)]

    def partial_report(self) -> UsageReport:
        """Return the intervals that were counted completely, and where to continue."""
        rows = self.rows()
        last = rows[-1].start if rows else None
        complete = [row for row in rows if row.start != last]
        if not complete or last is None:
            return UsageReport(rows, is_complete=False)
        return UsageReport(complete, is_complete=False, next_since=float(last))

    def _row(self, start: int, tenant: str, model: str) -> UsageRow:
        key = (start, tenant, model)
        if key not in self._rows:
            self._rows[key] = UsageRow(start, tenant, model)
        return self._rows[key]

    def _add_turn(self, key: tuple[int, str, str], turn: TurnState) -> None:
        row = self._row(*key)
        row.turns += 1
        match turn.outcome:
            case "completed":
                row.completed += 1
                if turn.started_at is not None and turn.ended_at is not None:
                    latencies = self._latencies.setdefault(key, _Latencies())
                    latencies.add(round((turn.ended_at - turn.started_at) * 1000))
            case "failed":
                row.failed += 1
            case "cancelled":
                row.cancelled += 1
            case _:
                row.interrupted += 1

    @staticmethod
    def _add_run(row: UsageRow, run: RunState) -> None:
        row.runs += 1
        row.heals += len(read_heals(run.heals))
        row.input_tokens += run.input_tokens or 0
        row.cached_tokens += run.cached_tokens or 0
        row.output_tokens += run.output_tokens or 0
        row.reasoning_tokens += run.reasoning_tokens or 0


def _model_asked(request: bytes | None) -> str:
    """Return the model that a turn's request names; requests of embedded turns may be anything."""
    try:
        return _read_request(request).model if request else ""
    except msgspec.DecodeError:
        return ""


def _model_of(run: RunState, requested: str) -> str:
    """Return the model that a run ended with, which after a fallback is not the requested one."""
    fallbacks = [heal.next_model for heal in read_heals(run.heals) if heal.next_model]
    return fallbacks[-1] if fallbacks else requested
