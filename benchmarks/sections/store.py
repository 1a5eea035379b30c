"""Durable appends per second beside bare databases with one commit per row.

Ours is a whole append through the Python API: fenced, with a turn and an event. The bare one is a
single insert. Compare the ratios; the absolute values depend on the disk.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncpg
from tests.postgres import private_server

import holdfast
from benchmarks.report import Report

WRITERS = (1, 8, 64)
SECONDS = 1.5
TEXT = "a message of ordinary length, as people write them to their agents all day long"
_TABLE = "create table bare (id text, seq bigint, body {blob}, primary key (id, seq))"


async def _rate(
    seconds: float, writers: int, write: Callable[[int, int], Awaitable[object]]
) -> float:
    """Return the writes per second of so many writers, each waiting for its own commit."""
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


async def _ours(
    engine: holdfast.Holdfast, writers: int, seconds: float, *, is_hot: bool = False
) -> float:
    keys = [f"hot {writers}" if is_hot else f"{writers} {n}" for n in range(writers)]
    sessions = [await engine.session(key) for key in keys]
    return await _rate(seconds, writers, lambda writer, _: sessions[writer].append(TEXT))


def _bare_sqlite(path: Path, seconds: float) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute(_TABLE.format(blob="blob"))
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        connection.execute("insert into bare values (?, ?, ?)", ("a", done, TEXT.encode()))
        done += 1
    duration = time.perf_counter() - began
    connection.close()
    return done / duration


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


def _add(report: Report, name: str, ours: float, bare: float) -> None:
    report.add("store", case=name, appends_per_second=ours, bare_per_second=bare, ratio=ours / bare)


async def _measure_sqlite(report: Report, folder: Path, seconds: float) -> None:
    bare = await asyncio.to_thread(_bare_sqlite, folder / "bare.db", seconds)
    async with holdfast.open(f"sqlite:///{folder / 'ours.db'}") as engine:
        for writers in WRITERS:
            ours = await _ours(engine, writers, seconds)
            _add(report, f"SQLite, {writers} writers", ours, bare)
        hot = await _ours(engine, WRITERS[-1], seconds, is_hot=True)
        _add(report, f"SQLite, {WRITERS[-1]} on one session", hot, bare)


async def _measure_postgres(report: Report, url: str, seconds: float) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(_TABLE.format(blob="bytea"))
    await connection.close()
    async with holdfast.open(url) as engine:
        # Group commit is compared with one connection that commits each row.
        bare = await _bare_postgres(url, 1, seconds)
        for writers in WRITERS:
            many = await _bare_postgres(url, writers, seconds) if writers > 1 else bare
            ours = await _ours(engine, writers, seconds)
            _add(report, f"PostgreSQL, {writers} writers", ours, bare)
            report.add("store", case=f"bare PostgreSQL, {writers} connections",
                       commits_per_second=many)  # fmt: skip
        hot = await _ours(engine, WRITERS[-1], seconds, is_hot=True)
        _add(report, f"PostgreSQL, {WRITERS[-1]} on one session", hot, bare)


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure each case beside the bare database."""
    seconds = 0.1 if is_short else SECONDS
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        asyncio.run(_measure_sqlite(report, Path(folder), seconds))
    if is_short:
        return
    with private_server() as server:
        asyncio.run(_measure_postgres(report, server.url(), seconds))
