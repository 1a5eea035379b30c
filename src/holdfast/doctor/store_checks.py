"""Checks of a store: before it is opened, then of its sessions, lanes and logs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.core.errors import StoreClosed, StoreError
from holdfast.core.healing.redaction import plain_code
from holdfast.doctor.channel_checks import check_channels, utc
from holdfast.doctor.findings import Finding
from holdfast.stores.sql import health_checks as checks
from holdfast.stores.sql.plan import Plan, Row, Statement, every, one
from holdfast.stores.sql.schema_info import StoreInspection
from holdfast.stores.sql.store import SqlStore

ResultT = TypeVar("ResultT")

MIN_FREE_BYTES = 1024**3
MIN_FREE_SHARE = 0.03
MAX_WAL_BYTES = 1024**3
MAX_SKEW_SECONDS = 2.0
FUTURE_SECONDS = 60.0
RECENT_SECONDS = 86400.0
FAILED_IN_A_ROW = 3
"""How many turns of a session fail with the same code before that is a finding of its own."""
PAGE_SIZE = 100
MAX_ROWS = 1000
MAX_FINDINGS = 1000
"""The most findings of one check."""
SESSIONS_READ = 1000
"""Sessions, the last written ones, whose logs are read, unless the check is deep."""
ENTRIES_READ = 20_000
"""Newest entries that are read, in their logs and for failures, unless the check is deep."""
SLICE = 10_000
"""Positions of the log or the index that one statement reads."""
IDS_AT_ONCE = 5000


@dataclass(slots=True)
class Coverage:
    """How much of a store was checked; the rest of it only by a deep check."""

    is_deep: bool = False
    is_whole: bool = True
    """Whether everything was looked at. Of retired sessions only a deep check reads the items."""
    entries: int = 0
    """The entries of the log that were read, the newest ones."""
    since: float | None = None
    """When the first of them was written."""
    sessions: int = 0
    """The sessions whose logs were read, those that were written last."""
    most_entries: int = ENTRIES_READ
    most_sessions: int = SESSIONS_READ
    pause: float = 0.0
    """How long a deep check waits after each slice, as a multiple of the time that it took."""

    def describe(self) -> str:
        """Say in words what was looked at if that was not everything."""
        since = f", since {utc(self.since)}" if self.since is not None else ""
        return (
            f"looked at the newest {self.entries} entries of the log{since}, and at "
            f"{self.sessions} sessions; --deep looks at everything"
        )


def check_inspection(inspection: StoreInspection) -> Iterator[Finding]:
    """Yield findings that do not need the store to be open."""
    location = inspection.path or inspection.kind
    if inspection.kind == "memory":
        yield Finding(code="store_in_memory", subject=location, detail="memory:")
        return
    if not inspection.exists:
        yield Finding(code="store_missing", subject=location, detail=location)
        return
    if inspection.is_foreign:
        detail = f"{location}: {inspection.refusal}"
        yield Finding(code="store_foreign", subject=location, detail=detail)
        return
    yield from _read_only(inspection, location)
    if inspection.is_bare and not inspection.damage and inspection.refusal is None:
        detail = f"{location} has no tables yet"
        yield Finding(code="store_missing", subject=location, detail=detail)
        return
    for line in inspection.damage[:1]:
        yield Finding(code="store_damaged", subject=location, detail=f"{location}: {line}")
    yield from _schema(inspection, location)
    yield from _durability(inspection)
    yield from _disk(inspection, location)
    if inspection.path is not None:
        yield from _permissions(Path(inspection.path))
    ahead = inspection.clock_ahead_seconds
    if ahead is not None and abs(ahead) > MAX_SKEW_SECONDS:
        direction = "ahead of" if ahead > 0 else "behind"
        detail = f"the database's clock is {abs(ahead):.1f} s {direction} this machine's"
        yield Finding(code="clock_skewed", subject="clock", detail=detail)


def _read_only(inspection: StoreInspection, location: str) -> Iterator[Finding]:
    settings = inspection.settings
    if settings.get("transaction_read_only") == "on":
        detail = "default_transaction_read_only is on"
        if settings.get("in_hot_standby") == "on":
            detail = "the server is a standby (in recovery)"
            if inspection.is_standby_wanted:
                detail += ", as target_session_attrs asks for"
                yield Finding(code="store_standby", subject=location, detail=detail)
                return
        yield Finding(code="store_read_only", subject=location, detail=f"{location}: {detail}")


def _schema(inspection: StoreInspection, location: str) -> Iterator[Finding]:
    if inspection.damage:
        return
    if inspection.refusal is not None:
        code = "schema_too_old" if inspection.is_first_schema else "schema_too_new"
        yield Finding(code=code, subject=location, detail=f"{location}: {inspection.refusal}")
    elif inspection.pending:
        detail = f"{location}: pending migrations: {', '.join(inspection.pending)}"
        yield Finding(code="schema_behind", subject=location, detail=detail)
    for name in inspection.missing:
        yield Finding(code="schema_incomplete", subject=name, detail=f"{name} is missing")


def _durability(inspection: StoreInspection) -> Iterator[Finding]:
    settings = inspection.settings
    if inspection.kind == "sqlite" and settings.get("journal_mode", "wal") != "wal":
        # A gateway sets it whenever it opens the file, unless the file system cannot.
        detail = f"journal_mode is {settings['journal_mode']}, not wal"
        yield Finding(code="durability_weak", subject="journal_mode", detail=detail)
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if settings.get(name) == "off":
            yield Finding(code="durability_weak", subject=name, detail=f"{name} is off")
    risk = inspection.replication.risk() if inspection.replication is not None else None
    if risk is not None:
        yield Finding(code=risk.code, subject="replication", detail=risk.detail)


def _disk(inspection: StoreInspection, location: str) -> Iterator[Finding]:
    free, total = inspection.free_bytes, inspection.total_bytes
    if free is not None and total and free < max(MIN_FREE_BYTES, total * MIN_FREE_SHARE):
        detail = f"{free / 1024**2:.0f} MiB free of {total / 1024**2:.0f}"
        yield Finding(code="disk_low", subject=location, detail=detail)
    if inspection.wal_bytes is not None and inspection.wal_bytes > MAX_WAL_BYTES:
        detail = f"{location}-wal has {inspection.wal_bytes / 1024**2:.0f} MiB"
        yield Finding(code="wal_large", subject=location, detail=detail)


def _permissions(database: Path) -> Iterator[Finding]:
    """Yield the store's files and directory that other users may access."""
    for path in exposed_paths(database):
        detail = f"{path} has mode {path.stat().st_mode & 0o777:04o}"
        yield Finding(code="permissions_open", subject=str(path), detail=detail)


def exposed_paths(database: Path) -> list[Path]:
    """Return the database and its directory, if group or others may access them.

    The directory counts only if it belongs to the store alone. SQLite's log files have the mode
    of the database. Nothing is exposed if the database has been removed meanwhile.
    """
    if not database.exists():
        return []
    paths = [database]
    directory = database.absolute().parent
    own_names = {f"{database.name}{suffix}" for suffix in ("", "-wal", "-shm", "-workers")}
    if {path.name for path in directory.iterdir()} <= own_names:
        paths.append(directory)
    return [path for path in paths if path.stat().st_mode & 0o077]


async def check_contents(
    store: SqlStore, *, turn_seconds: float, coverage: Coverage | None = None
) -> AsyncIterator[Finding]:
    """Yield findings about lanes, logs, channels and provider state.

    What grows with the store is only checked as far as it is new, unless the check is deep; then it
    is read in slices. A check that fails does not stop the others. `coverage` says how far to check
    and is told how far it was.
    """
    scope = _Scope(store, coverage or Coverage())
    for name, findings in (
        ("lanes", _lanes(store, turn_seconds)),
        ("queues", _queues(store)),
        ("channels", _channels(store)),
        ("clock", _clock(store)),
        ("log", _log(scope)),
        ("search", _search(scope)),
        ("items", _item_ids(scope)),
        ("sessions", _sessions(scope)),
        ("turns", _recent_turns(scope)),
    ):
        async for finding in _bounded(name, findings):
            yield finding


async def _bounded(name: str, findings: AsyncIterator[Finding]) -> AsyncIterator[Finding]:
    """Yield the findings of a check, and one more if it does not get to its end."""
    found = 0
    try:
        async for finding in findings:
            yield finding
            found += 1
            if found == MAX_FINDINGS:
                detail = f"{name}: stopped after {MAX_FINDINGS} findings"
                yield Finding(code="check_unfinished", subject=name, detail=detail)
                return
    except StoreClosed:
        raise
    except StoreError as exc:
        detail = f"{name}: {exc.message}"
        yield Finding(code="check_unfinished", subject=name, detail=detail)


class _Scope:
    """The part of a store that is checked: the newest entries and the sessions that they are of."""

    def __init__(self, store: SqlStore, coverage: Coverage) -> None:
        self._store = store
        self.is_deep = coverage.is_deep
        self.coverage = coverage

    async def query(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Read a slice; a deep check may leave the database to others as long."""
        began = time.monotonic()
        result = await self._store.query(query)
        if self.is_deep and self.coverage.pause:
            await asyncio.sleep((time.monotonic() - began) * self.coverage.pause)
        return result

    async def positions(self) -> AsyncIterator[tuple[int, int]]:
        """Yield ranges of positions in the log, the oldest first."""
        coverage = self.coverage
        row = await self.query(lambda _: one(checks.NEWEST_ENTRIES, coverage.most_entries))
        if row is None or row[2] is None:
            return
        count, first, last, since = row
        if not self.is_deep:
            coverage.is_whole &= count < coverage.most_entries
            coverage.entries, coverage.since = count, since
        for start in range(0 if self.is_deep else first, last + 1, SLICE):
            yield start, min(start + SLICE, last + 1)

    async def logs(self) -> AsyncIterator[list[checks.LogPart]]:
        """Yield the parts of logs to check, in pages."""
        if not self.is_deep:
            parts = await self._last_written()
            for at in range(0, len(parts), PAGE_SIZE):
                yield parts[at : at + PAGE_SIZE]
            return
        before = ""
        while page := await self.query(partial(_page, before)):
            yield page
            before = page[-1].id

    async def _last_written(self) -> list[checks.LogPart]:
        """Return the ends of the logs that were written last, and of the newest sessions."""
        written: dict[int, int] = {}
        async for positions in self.positions():
            rows = await self.query(partial(_rows, checks.WRITTEN_SESSIONS, *positions))
            written.update((session, pos) for session, pos in rows)
        first = 1 if self.coverage.is_whole else 0
        newest = {part.session: part for part in await self.query(partial(_page, ""))}
        others = sorted(written.keys() - newest.keys(), key=written.__getitem__, reverse=True)
        parts = [part._replace(first=first) for part in newest.values()]
        parts += [checks.LogPart(session, first) for session in others]
        self.coverage.is_whole &= len(parts) <= self.coverage.most_sessions
        return parts[: self.coverage.most_sessions]


def _page(before: str, _: float) -> Plan[list[checks.LogPart]]:
    return checks.session_page(before, PAGE_SIZE)


def _rows(statement: Statement, *parameters: object) -> Plan[list[Row]]:
    """Return the rows of a query; the last parameter is its time."""
    return every(statement, *parameters[:-1])


async def _lanes(store: SqlStore, turn_seconds: float) -> AsyncIterator[Finding]:
    # Expired leases, and leases of dead processes on this machine.
    dead_workers = {worker.id for worker in await store.workers() if worker.is_gone}
    for worker in sorted(dead_workers):
        yield Finding(code="lease_expired", subject=worker, detail=f"worker {worker}")
    orphans = await store.query(lambda now: every(checks.ORPHANS, now, MAX_ROWS))
    for session_id, turn_id, owner in orphans:
        detail = f"session {session_id}, turn {turn_id}, worker {owner}"
        yield Finding(code="run_orphaned", subject=turn_id, detail=detail)
    for worker in sorted(dead_workers):
        for run in await store.owned_runs(worker):
            if run.turn_id not in {row[1] for row in orphans}:
                detail = f"session {run.session_id}, turn {run.turn_id}, worker {worker}"
                yield Finding(code="run_orphaned", subject=run.turn_id, detail=detail)
    for turn_id, session_id, source in await store.query(
        lambda now: checks.abandoned_turns(now, MAX_ROWS)
    ):
        detail = f"{source} turn {turn_id} of session {session_id}"
        yield Finding(code="turn_abandoned", subject=turn_id, detail=detail)
    for session_id, turn_id in await store.query(
        lambda now: every(checks.EXPIRED_HOLDS, now, MAX_ROWS)
    ):
        detail = f"session {session_id}, turn {turn_id}"
        yield Finding(code="hold_expired", subject=turn_id, detail=detail)
    for session_id, turn_id, began in await store.query(
        lambda now: every(checks.LONG_RUNS, now, now - turn_seconds, MAX_ROWS)
    ):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began))
        detail = f"turn {turn_id} of session {session_id} has run since {since}"
        yield Finding(code="run_stuck", subject=turn_id, detail=detail)


async def _queues(store: SqlStore) -> AsyncIterator[Finding]:
    """Yield lanes and queues that contradict the logs."""
    for lane in await store.query(lambda _: checks.wrong_lanes(MAX_ROWS)):
        yield _mismatch("lane_wrong", lane)


async def _channels(store: SqlStore) -> AsyncIterator[Finding]:
    async for finding in check_channels(store, await store.query(checks.now)):
        yield finding


def _mismatch(code: str, mismatch: checks.Mismatch) -> Finding:
    detail = f"session {mismatch.session_id}: {mismatch.why}"
    return Finding(code=code, subject=mismatch.session_id, detail=detail)


async def _clock(store: SqlStore) -> AsyncIterator[Finding]:
    now, newest = await store.query(partial(checks.latest_time, MAX_ROWS))
    if newest is not None and newest > now + FUTURE_SECONDS:
        detail = f"the newest time is {newest - now:.0f} s ahead"
        yield Finding(code="clock_went_back", subject="clock", detail=detail)


async def _log(scope: _Scope) -> AsyncIterator[Finding]:
    """Yield entries of no session, and turns that nothing will end."""
    unknown: dict[int, int] = {}
    async for positions in scope.positions():
        for session, count in await scope.query(partial(_rows, checks.UNKNOWN_LOGS, *positions)):
            unknown[session] = unknown.get(session, 0) + count
        for turn_id, session_id in await scope.query(
            partial(_rows, checks.STRAY_TURNS, *positions)
        ):
            detail = f"turn {turn_id} of session {session_id}"
            yield Finding(code="run_without_lane", subject=turn_id, detail=detail)
    for session, count in unknown.items():
        detail = f"{count} entries are of a session that is not there (number {session})"
        yield Finding(code="log_gap", subject=str(session), detail=detail)


async def _search(scope: _Scope) -> AsyncIterator[Finding]:
    """Yield entries that were indexed for search but do not exist."""
    row = await scope.query(lambda _: one(checks.LAST_INDEXED))
    end = (row[0] if row else 0) + 1
    first = 0 if scope.is_deep else max(end - SLICE, 0)
    scope.coverage.is_whole &= first == 0
    for start in range(first, end, SLICE):
        ids = (start, min(start + SLICE, end))
        for (pos,) in await scope.query(partial(_rows, checks.LOST_ENTRIES, *ids)):
            detail = f"the entry at {pos} was indexed for search but is not there"
            yield Finding(code="log_gap", subject=f"entry {pos}", detail=detail)


async def _item_ids(scope: _Scope) -> AsyncIterator[Finding]:
    """Yield sessions with item ids beyond the ends of their logs.

    Ids are indexed for look-ups: nothing tells the newest ones, or those of a session. Unless they
    are few, only a deep check reads them all.
    """
    after: Row | None = ("", 0, 0)
    found: set[str] = set()
    while after is not None:
        rows, after = await scope.query(partial(_lost_ends, (after[0], after[1], after[2])))
        for _, number, seq, last, session_id in rows:
            subject = session_id or str(number)
            if subject not in found:
                found.add(subject)
                detail = f"session {subject} should have {seq} items but has {last}"
                yield Finding(code="log_gap", subject=subject, detail=detail)
        if not scope.is_deep:
            scope.coverage.is_whole &= after is None
            return


def _lost_ends(after: tuple[str, int, int], _: float) -> Plan[tuple[list[Row], Row | None]]:
    return checks.lost_ends(after, IDS_AT_ONCE)


async def _sessions(scope: _Scope) -> AsyncIterator[Finding]:
    """Yield problems of sessions whose logs are read: of those that were written last, or all."""
    entries, coverage = 0, scope.coverage
    async for page in scope.logs():
        left = page
        while left:
            if entries >= coverage.most_entries and not scope.is_deep:
                coverage.is_whole = False
                return
            checked = await scope.query(partial(_parts, left, scope.is_deep))
            left = checked.left
            entries += checked.entries
            for finding in _session_findings(checked):
                yield finding
        coverage.sessions += len(page)
    if scope.is_deep:
        coverage.entries = entries


def _parts(parts: list[checks.LogPart], is_deep: bool, _: float) -> Plan[checks.SessionsChecked]:
    return checks.check_sessions(parts, with_retired=is_deep)


def _session_findings(checked: checks.SessionsChecked) -> Iterator[Finding]:
    for code, rows in (
        ("log_gap", checked.logs),
        ("log_counts_wrong", checked.counts),
        ("turn_gap", checked.turns),
        ("item_ids_wrong", checked.item_ids),
        ("lane_wrong", checked.lanes),
    ):
        for mismatch in rows:
            yield _mismatch(code, mismatch)
    for item in checked.items:
        detail = f"session {item.session_id}, item {item.seq}: {item.why}"
        subject = f"{item.tenant}/{item.session_id}/{item.seq}"
        yield Finding(code="projection_invalid", subject=subject, detail=detail)
    for state in checked.states:
        reason = "is retired" if not state.is_live else f"ends at item {state.head_seq}"
        detail = (
            f"{state.provider} remembers items up to {state.covers_seq} of session "
            f"{state.session_id}, which {reason}"
        )
        subject = f"{state.tenant}/{state.session_id}"
        yield Finding(code="provider_state_stale", subject=subject, detail=detail)


def _recent(pos: int, now: float) -> Plan[checks.RecentTurns]:
    return checks.recent_turns(pos, now - RECENT_SECONDS, MAX_ROWS)


class FailuresInARow:
    """Counts the last turns of each session that failed with the same code."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[int, str | None]] = {}
        self._settled: set[str] = set()

    def add(self, ended: Sequence[checks.TurnEnd]) -> None:
        """Count turns, newest first."""
        for turn in ended:
            if turn.session_id in self._settled:
                continue
            count, code = self._rows.get(turn.session_id, (0, turn.code))
            if turn.code is None or turn.code != code:
                self._settled.add(turn.session_id)
            else:
                self._rows[turn.session_id] = count + 1, code

    def found(self) -> Iterator[tuple[str, int, str]]:
        """Yield the sessions whose last turns failed alike, with their number and code."""
        for session_id, (count, code) in self._rows.items():
            if count >= FAILED_IN_A_ROW:
                yield session_id, count, plain_code(code) or "no code"


async def _recent_turns(scope: _Scope) -> AsyncIterator[Finding]:
    """Yield problems of turns of the last day, in a bounded number of entries."""
    pos: int | None = checks.FIRST_POS
    seen = 0
    heals: dict[str, checks.TurnProblem] = {}
    codes: dict[str, str | None] = {}
    row = FailuresInARow()
    while pos is not None and seen < scope.coverage.most_entries:
        recent = await scope.query(partial(_recent, pos))
        pos = recent.next_pos
        seen += MAX_ROWS
        heals |= {heal.turn_id: heal for heal in recent.heals}
        row.add(recent.ended)
        for turn in recent.ended:
            if turn.code is None:
                continue
            codes[turn.turn_id] = turn.code
            # Without the message: a provider's message may quote the user.
            code = plain_code(turn.code) or "no code"
            detail = f"turn {turn.turn_id} of session {turn.session_id}: {code}"
            yield Finding(code="turn_failed", subject=turn.turn_id, detail=detail)
    for session_id, count, code in row.found():
        detail = f"session {session_id}: its last {count} turns failed with {code}"
        yield Finding(code="session_failing", subject=session_id, detail=detail)
    for heal in heals.values():
        if heal.turn_id in codes and codes[heal.turn_id] == heal.code:
            # The same error occurred with the whole history: the provider had not lost anything.
            continue
        code = plain_code(heal.code) or "no code"
        detail = f"turn {heal.turn_id} of session {heal.session_id}: {code}"
        yield Finding(code="provider_forgot", subject=heal.turn_id, detail=detail)
