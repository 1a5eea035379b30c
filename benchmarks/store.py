"""Durable appends a second, beside the bare databases with a commit for each row.

Ours is a whole `Append`: the fenced session row, a turn, an item and an event. The bare one is a
single insert. Ratios are what to look at; the machine's disk decides the rest.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
from tests.postgres import private_server

from benchmarks.report import Report
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.store import Store
from holdfast.stores.open import open_store
from holdfast.testing.caller import Caller

WRITERS = (1, 8, 64)
SECONDS = 1.5
ORPHANS = 10_000
TEXT = "a message of ordinary length, as people write them to their agents all day long"
BARE_TABLE = "create table bare (id text, seq bigint, body {blob}, primary key (id, seq))"


async def _rate(
    seconds: float, writers: int, write: Callable[[int, int], Awaitable[object]]
) -> float:
    """Return how many writes a second so many writers get done, each waiting for its own."""
    done = 0
    until = time.perf_counter() + seconds

    async def work(writer: int) -> None:
        nonlocal done
        count = 0
        while time.perf_counter() < until:
            await write(writer, count)
            count += 1
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(work(writer) for writer in range(writers)))
    return done / (time.perf_counter() - began)


async def _ours(store: Store, writers: int, seconds: float, *, is_hot: bool = False) -> float:
    callers = [Caller(store, f"{writers}_{n}_{is_hot}_") for n in range(writers)]

    def key(writer: int) -> str:
        return f"hot {writers}" if is_hot else f"{writers} {writer}"

    await asyncio.gather(*(caller.reserve(key(n)) for n, caller in enumerate(callers)))
    return await _rate(
        seconds, writers, lambda writer, _: callers[writer].append(TEXT, key=key(writer))
    )


def _bare_sqlite(path: Path, seconds: float) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute(BARE_TABLE.format(blob="blob"))
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        connection.execute("insert into bare values (?, ?, ?)", ("a", done, TEXT.encode()))
        done += 1
    took = time.perf_counter() - began
    connection.close()
    return done / took


async def _bare_postgres(url: str, writers: int, seconds: float) -> float:
    connections = await asyncio.gather(*(asyncpg.connect(url) for _ in range(writers)))
    body = TEXT.encode()
    name = f"bare {writers}"
    try:
        return await _rate(
            seconds,
            writers,
            lambda writer, count: connections[writer].execute(
                "insert into bare values ($1, $2, $3)", f"{name} {writer}", count, body
            ),
        )
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


def _line(report: Report, name: str, ours: float, bare: float) -> None:
    report.add("store", case=name, appends_per_second=ours, bare_per_second=bare, ratio=ours / bare)


async def _measure_sqlite(report: Report, folder: Path, seconds: float) -> None:
    bare = await asyncio.to_thread(_bare_sqlite, folder / "bare.db", seconds)
    store = await open_store(f"sqlite:///{folder / 'ours.db'}", clock=SystemClock())
    try:
        for writers in WRITERS:
            ours = await _ours(store, writers, seconds)
            _line(report, f"SQLite, {writers} writers", ours, bare)
        hot = await _ours(store, WRITERS[-1], seconds, is_hot=True)
        _line(report, f"SQLite, {WRITERS[-1]} on one session", hot, bare)
    finally:
        await store.close()


async def _measure_postgres(report: Report, url: str, seconds: float) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(BARE_TABLE.format(blob="bytea"))
    await connection.close()
    store = await open_store(url, clock=SystemClock())
    try:
        # One connection that commits each row is what grouping is held against.
        bare = await _bare_postgres(url, 1, seconds)
        for writers in WRITERS:
            many = await _bare_postgres(url, writers, seconds) if writers > 1 else bare
            ours = await _ours(store, writers, seconds)
            _line(report, f"PostgreSQL, {writers} writers", ours, bare)
            report.add("store", case=f"bare PostgreSQL, {writers} connections",
                       commits_per_second=many)  # fmt: skip
        hot = await _ours(store, WRITERS[-1], seconds, is_hot=True)
        _line(report, f"PostgreSQL, {WRITERS[-1]} on one session", hot, bare)
    finally:
        await store.close()


async def _leave_orphans(url: str, count: int) -> None:
    """Have a worker begin so many turns, each in a session of its own, and never end them."""
    store = await open_store(url, clock=SystemClock())
    try:
        numbers = iter(range(count))
        doomed = Caller(store, "doomed")
        await doomed.enlist(0.001)

        async def leave(name: int) -> None:
            caller = Caller(store, f"doomed{name}_")
            caller.worker = doomed.worker
            for number in numbers:
                await caller.start(TEXT, key=f"orphan {number}")

        await asyncio.gather(*(leave(name) for name in range(WRITERS[-1])))
    finally:
        await store.close()


async def _recover(report: Report, folder: Path, count: int) -> None:
    url = f"sqlite:///{folder / 'orphans.db'}"
    await _leave_orphans(url, count)
    store = await open_store(url, clock=SystemClock())
    gateway = Gateway(store, clock=SystemClock(), ids=RandomIds())
    try:
        began = time.perf_counter()
        await gateway.start()
        took = time.perf_counter() - began
        left = await store.orphaned_sessions(10)
        assert not left, left
        await gateway.stop()
    finally:
        await store.close()
    report.add("store", case=f"recovery of {count:,} orphaned turns", seconds=took)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        yield Path(folder)


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure each case beside the bare database."""
    seconds = 0.1 if is_short else SECONDS
    with _folder() as folder:
        asyncio.run(_measure_sqlite(report, folder, seconds))
        asyncio.run(_recover(report, folder, 20 if is_short else ORPHANS))
    if is_short:
        return
    with private_server() as server:
        asyncio.run(_measure_postgres(report, server.url(), seconds))
