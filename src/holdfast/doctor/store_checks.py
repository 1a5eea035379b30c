"""Checks of a store: before it is opened, then of its sessions, lanes and logs."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

from holdfast.core.healing.redaction import plain_code
from holdfast.doctor.channel_checks import check_channels
from holdfast.doctor.findings import Finding
from holdfast.stores.sql import health_checks as checks
from holdfast.stores.sql.plan import Plan, Row, Statement, every
from holdfast.stores.sql.schema_info import StoreInspection
from holdfast.stores.sql.store import SqlStore

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
SESSIONS_READ = 1000
"""Newest live sessions that are read completely, unless the check is deep."""
ENTRIES_READ = 20_000
"""Newest entries that are searched for failures, unless the check is deep."""


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
    store: SqlStore, *, turn_seconds: float, is_deep: bool = False
) -> AsyncIterator[Finding]:
    """Yield findings about lanes, logs, channels and provider state."""
    async for finding in _lanes(store, turn_seconds):
        yield finding
    async for finding in _lanes_and_logs(store):
        yield finding
    async for finding in _logs(store):
        yield finding
    async for finding in check_channels(store, await store.query(checks.now)):
        yield finding
    async for finding in _sessions(store, is_deep=is_deep):
        yield finding
    async for finding in _providers(store, is_deep=is_deep):
        yield finding


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


async def _lanes_and_logs(store: SqlStore) -> AsyncIterator[Finding]:
    """Yield lanes and queues that contradict the logs."""
    for turn_id, session_id in await store.query(lambda _: every(checks.STRAY_TURNS, MAX_ROWS)):
        detail = f"turn {turn_id} of session {session_id}"
        yield Finding(code="run_without_lane", subject=turn_id, detail=detail)
    for lane in await store.query(lambda _: checks.wrong_lanes(MAX_ROWS)):
        yield _mismatch("lane_wrong", lane)


def _mismatch(code: str, mismatch: checks.Mismatch) -> Finding:
    detail = f"session {mismatch.session_id}: {mismatch.why}"
    return Finding(code=code, subject=mismatch.session_id, detail=detail)


def _rows(statement: Statement, _: float) -> Plan[list[Row]]:
    return every(statement, MAX_ROWS)


def _page(after: str, is_deep: bool, _: float) -> Plan[checks.SessionsChecked]:
    return checks.check_sessions(after, PAGE_SIZE, with_retired=is_deep)


def _recent(pos: int, now: float) -> Plan[checks.RecentTurns]:
    return checks.recent_turns(pos, now - RECENT_SECONDS, MAX_ROWS)


async def _logs(store: SqlStore) -> AsyncIterator[Finding]:
    for code, statement, kind in (
        ("log_gap", checks.ENTRY_GAPS, "entries"),
        ("log_gap", checks.LOST_ENDS, "items"),
        ("turn_gap", checks.TURN_GAPS, "turns"),
    ):
        for session_id, expected, actual in await store.query(partial(_rows, statement)):
            detail = f"session {session_id} should have {expected} {kind} but has {actual}"
            yield Finding(code=code, subject=session_id, detail=detail)
    for session, count in await store.query(partial(_rows, checks.UNKNOWN_LOGS)):
        detail = f"{count} entries are of a session that is not there (number {session})"
        yield Finding(code="log_gap", subject=str(session), detail=detail)
    for (pos,) in await store.query(partial(_rows, checks.LOST_ENTRIES)):
        detail = f"the entry at {pos} was indexed for search but is not there"
        yield Finding(code="log_gap", subject=f"entry {pos}", detail=detail)
    for session_id, n in await store.query(partial(_rows, checks.COUNTS_BACK)):
        detail = f"entry {n} of session {session_id} counts less than the one before it"
        yield Finding(code="log_counts_wrong", subject=f"{session_id}/{n}", detail=detail)
    now, newest = await store.query(checks.latest_time)
    if newest is not None and newest > now + FUTURE_SECONDS:
        detail = f"the newest time is {newest - now:.0f} s ahead"
        yield Finding(code="clock_went_back", subject="clock", detail=detail)


async def _sessions(store: SqlStore, *, is_deep: bool) -> AsyncIterator[Finding]:
    """Yield problems of sessions that are read completely: the newest, or all."""
    after: str | None = ""
    seen = 0
    while after is not None and (is_deep or seen < SESSIONS_READ):
        checked = await store.query(partial(_page, after, is_deep))
        after = checked.last
        seen += PAGE_SIZE
        for code, rows in (
            ("log_gap", checked.logs),
            ("item_ids_wrong", checked.item_ids),
            ("lane_wrong", checked.lanes),
        ):
            for mismatch in rows:
                yield _mismatch(code, mismatch)
        for item in checked.items:
            detail = f"session {item.session_id}, item {item.seq}: {item.why}"
            subject = f"{item.tenant}/{item.session_id}/{item.seq}"
            yield Finding(code="projection_invalid", subject=subject, detail=detail)


async def _providers(store: SqlStore, *, is_deep: bool) -> AsyncIterator[Finding]:
    for state in await store.query(lambda _: checks.stale_state(MAX_ROWS)):
        reason = "is retired" if not state.is_live else f"ends at item {state.head_seq}"
        detail = (
            f"{state.provider} remembers items up to {state.covers_seq} of session "
            f"{state.session_id}, which {reason}"
        )
        subject = f"{state.tenant}/{state.session_id}"
        yield Finding(code="provider_state_stale", subject=subject, detail=detail)
    async for finding in _recent_turns(store, is_deep=is_deep):
        yield finding


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


async def _recent_turns(store: SqlStore, *, is_deep: bool) -> AsyncIterator[Finding]:
    """Yield problems of the last day, in a bounded number of entries or in all."""
    pos: int | None = checks.FIRST_POS
    seen = 0
    heals: dict[str, checks.TurnProblem] = {}
    codes: dict[str, str | None] = {}
    row = FailuresInARow()
    while pos is not None and (is_deep or seen < ENTRIES_READ):
        recent = await store.query(partial(_recent, pos))
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
