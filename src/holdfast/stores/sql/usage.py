"""Sums of usage: a follower of the log adds them up, and a report reads them.

The follower writes whole batches. What is newer is added by the report itself, so that it is exact
to the last turn; if there is too much of that, it says until when it is complete.
"""

from collections.abc import Iterable
from functools import partial
from itertools import groupby
from typing import Any

import msgspec

from holdfast.core.healing.policy import read_heals
from holdfast.core.ids import Tenant, WorkerId
from holdfast.core.model.usage_sums import DAY, HOUR, UsageSum, merged, model_name
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import LogPosition, SumUsage
from holdfast.ports.reports import INTERVAL_SECONDS, Interval, UsageReport
from holdfast.stores.sql.channels.statements import CURSOR, MOVE_CURSOR, START_CURSOR
from holdfast.stores.sql.entries import ENDS, STEP, Body, RunState, pack, read_body
from holdfast.stores.sql.plan import Ask, Plan, QueryRunner, Row, Statement, every, insert, one
from holdfast.stores.sql.search.statements import NEWEST
from holdfast.stores.sql.statements import ENTRIES_OF_TURN, REQUEST

VIEW = "usage"
READ_ROWS = 64
"""Entries that are read at once, on the event loop."""
MAX_TAIL = 1000
"""Entries that a report adds to the sums."""

_COUNTED = f"l.turn is not null and l.kind in {(STEP, *ENDS)}"
# Entries after a position, in the order of the feed (see `statements.FEED`). Only of those that end
# a run or a turn the content is read.
_ENTRIES = (
    "select l.txid, l.pos, l.at, l.kind, l.n, l.turn, (select s.tenant from sessions s "
    f"where s.no = l.session), case when {_COUNTED} then l.body end, "
    f"case when {_COUNTED} then {REQUEST.format(turn='l.turn')} end from log l where "
)
_IN_ORDER = "(l.txid, l.pos) > (?1, ?2) {settled}order by l.txid, l.pos limit ?3"
_BY_POSITION = "l.txid >= ?1 and l.pos > ?2 order by l.pos limit ?3"
USAGE_BACKLOG = Statement(
    "usage_backlog",
    _ENTRIES + _BY_POSITION,
    postgres=_ENTRIES + _IN_ORDER.format(settled="and l.txid < (select txid from feed_horizon) "),
)
# The same for a report, which counts what is committed whatever may be committed before it.
USAGE_TAIL = Statement(
    "usage_tail", _ENTRIES + _BY_POSITION, postgres=_ENTRIES + _IN_ORDER.format(settled="")
)
# How an earlier attempt of a turn ended, which counts no more.
EARLIER_END = Statement(
    "earlier_end",
    f"select l.at, l.body {ENTRIES_OF_TURN}and l.n < ?2 and l.kind in {ENDS} "
    "order by l.n desc limit 1",
)


class UsageRow(msgspec.Struct, frozen=True):
    """A row of `usage_sums`."""

    seconds: int
    start: int
    tenant: Tenant
    model: str
    turns: int
    completed: int
    failed: int
    cancelled: int
    interrupted: int
    runs: int
    heals: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    longest_ms: int
    latencies: bytes


_COLUMNS = ", ".join(UsageRow.__struct_fields__[1:])
SAVE_USAGE = insert("save_usage", "usage_sums", UsageRow, key="seconds, start, tenant, model")
USAGE_OF_TENANT = Statement(
    "usage_of_tenant",
    f"select {_COLUMNS} from usage_sums where seconds = ?1 and start = ?2 and tenant = ?3",
)
USAGE_BETWEEN = Statement(
    "usage_between",
    f"select {_COLUMNS} from usage_sums where seconds = ?1 and start >= ?2 and start < ?3",
)

_values = msgspec.structs.astuple
_read_latencies = msgspec.msgpack.Decoder(dict[int, int]).decode


class _Request(msgspec.Struct):
    model: str = ""


_read_request = msgspec.json.Decoder(_Request).decode


class _Slice(msgspec.Struct):
    """What some of the next entries used."""

    entries: int
    upto: LogPosition
    at: float
    """When the last of them was written."""
    sums: list[UsageSum]


class SqlUsage:
    """The sums of a SQL store."""

    def __init__(self, run: QueryRunner, run_inline: QueryRunner) -> None:
        self._run = run
        self._run_inline = run_inline

    async def read_backlog(self, worker: WorkerId, limit: int) -> SumUsage | None:
        """Return the command that adds up the next entries."""
        after = upto = await self._run_inline(lambda _: _cursor())
        sums = _Sums(HOUR)
        read, has_more = 0, True
        while has_more and read < limit:
            count = min(READ_ROWS, limit - read)
            part = await self._run_inline(partial(_read_next, upto, count))
            has_more = part.entries == count
            read += part.entries
            upto = part.upto
            sums.add(part.sums)
        if not read:
            return None
        return SumUsage(
            worker=worker, after=after, upto=upto, sums=tuple(sums.rows()), has_more=has_more
        )

    async def backlog(self) -> int:
        """Return how many positions of the log are not added up yet."""
        return await self._run_inline(lambda _: _count_backlog())

    async def report(self, since: float, until: float, interval: Interval) -> UsageReport:
        """Return the usage of a time range, in whole hours."""
        return await self._run(lambda _: _report(since, until, INTERVAL_SECONDS[interval]))


def _cursor() -> Plan[LogPosition]:
    row = yield from one(CURSOR, VIEW)
    return (row[0], row[1]) if row is not None else (0, 0)


def _count_backlog() -> Plan[int]:
    _, pos = yield from _cursor()
    newest = yield from one(NEWEST)
    return max((newest[0] if newest else 0) - pos, 0)


# ── what entries used ───────────────────────────────────────────────────────────────────────


def _read_next(after: LogPosition, limit: int, _: float) -> Plan[_Slice]:
    return _read(USAGE_BACKLOG, after, limit)


def _read(statement: Statement, after: LogPosition, limit: int) -> Plan[_Slice]:
    rows = yield from every(statement, *after, limit)
    part = _Slice(len(rows), after, 0.0, [])
    for row in rows:
        part.upto, part.at = (row[0], row[1]), row[2]
        if row[7] is not None:
            part.sums += yield from _used(row)
    return part


def _used(row: Row) -> Plan[list[UsageSum]]:
    """Return what one entry adds: the runs and the turn that it ends."""
    at, kind, n, turn_id, tenant, packed, request = row[2:9]
    body, asked = read_body(packed), _model_asked(request)
    sums = [
        _run_sum(_sum(at, tenant, _model_of(run, asked)), run)
        for run in body.runs
        if run.outcome is not None
    ]
    if kind not in ENDS or body.turn is None:
        return sums
    sums.append(_turn_sum(at, tenant, body, asked, 1))
    if not (body.runs and body.runs[0].id == ""):
        # Not the first run of its turn: only the last end of a turn that was reopened counts.
        earlier = yield from one(EARLIER_END, turn_id, n)
        if earlier is not None:
            sums.append(_turn_sum(earlier[0], tenant, read_body(earlier[1]), asked, -1))
    return sums


def _sum(at: float, tenant: Tenant, model: str) -> UsageSum:
    return UsageSum(int(at // HOUR) * HOUR, tenant, model_name(model))


def _run_sum(used: UsageSum, run: RunState) -> UsageSum:
    used.runs, used.heals = 1, len(read_heals(run.heals))
    used.input_tokens = run.input_tokens or 0
    used.cached_tokens = run.cached_tokens or 0
    used.output_tokens = run.output_tokens or 0
    used.reasoning_tokens = run.reasoning_tokens or 0
    return used


def _turn_sum(at: float, tenant: Tenant, body: Body, asked: str, count: int) -> UsageSum:
    """Count the end of a turn, or take it back."""
    used = _sum(at, tenant, _model_of(body.runs[-1], asked) if body.runs else asked)
    turn = body.turn
    assert turn is not None, "the end of a turn has its state"
    used.turns = count
    match turn.outcome:
        case "completed":
            used.completed = count
            if count > 0 and turn.started_at is not None and turn.ended_at is not None:
                used.add_latency(round((turn.ended_at - turn.started_at) * 1000))
        case "failed":
            used.failed = count
        case "cancelled":
            used.cancelled = count
        case _:
            used.interrupted = count
    return used


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


# ── sums ────────────────────────────────────────────────────────────────────────────────────


class _Sums:
    """Adds up by interval, tenant and model."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._sums: dict[tuple[int, str, str], UsageSum] = {}

    def add(self, used: Iterable[UsageSum]) -> None:
        """Add sums of intervals that are no longer than these."""
        for one_sum in used:
            start = one_sum.start // self._seconds * self._seconds
            key = (start, one_sum.tenant, one_sum.model)
            total = self._sums.get(key)
            if total is None:
                total = UsageSum(start, one_sum.tenant, one_sum.model)
                self._sums[key] = total
            total.add(one_sum)

    def rows(self) -> list[UsageSum]:
        """Return the sums, oldest first."""
        return [self._sums[key] for key in sorted(self._sums)]


def sum_usage(command: SumUsage) -> Plan[tuple[Decision[bool], list[Ask]]]:
    """Return the statements that add sums, unless another follower has done so.

    Of two followers that read the same sums, only one moves the cursor.
    """
    row = yield from one(CURSOR, VIEW)
    position = (row[0], row[1]) if row is not None else None
    if (position or (0, 0)) != command.after:
        return Decision(position == command.upto), []
    asks: list[Ask] = [(START_CURSOR, (VIEW, *command.upto))]
    if position is not None:
        asks = [(MOVE_CURSOR, (VIEW, *command.upto, *position))]
    for seconds in (HOUR, DAY):
        sums = _Sums(seconds)
        sums.add(command.sums)
        for (start, tenant), group in groupby(sums.rows(), lambda used: (used.start, used.tenant)):
            known = yield from every(USAGE_OF_TENANT, seconds, start, tenant)
            for used in merged(map(_read_sum, known), group):
                asks.append((SAVE_USAGE, _columns_of(seconds, used)))
    return Decision(True), asks


def _read_sum(row: Row) -> UsageSum:
    values = (*row[:-1], _read_latencies(row[-1]))
    return UsageSum(*values)


def _columns_of(seconds: int, used: UsageSum) -> tuple[Any, ...]:
    return (seconds, *_values(used)[:-1], pack(used.latencies))


def _report(since: float, until: float, seconds: int) -> Plan[UsageReport]:
    first, last = int(since // HOUR) * HOUR, -int(-until // HOUR) * HOUR
    sums = _Sums(seconds)
    for size, start, end in _ranges(first, last, seconds):
        rows = yield from every(USAGE_BETWEEN, size, start, end)
        sums.add(map(_read_sum, rows))
    place, read = (yield from _cursor()), 0
    while read < MAX_TAIL:
        part = yield from _read(USAGE_TAIL, place, READ_ROWS)
        sums.add(used for used in part.sums if first <= used.start < last)
        place, read = part.upto, read + part.entries
        if part.entries < READ_ROWS:
            return UsageReport(sums.rows(), first, last)
    return UsageReport(sums.rows(), first, last, complete_until=part.at)


def _ranges(first: int, last: int, seconds: int) -> list[tuple[int, int, int]]:
    """Return the sums to read: those of whole days, and of hours before and after them."""
    begin, end = -(-first // DAY) * DAY, last // DAY * DAY
    if seconds == HOUR or begin >= end:
        return [(HOUR, first, last)]
    return [(HOUR, first, begin), (DAY, begin, end), (HOUR, end, last)]
