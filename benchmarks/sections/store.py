"""Durable appends per second, compared with bare databases with one commit per row.

Ours is a whole append through the Python API: fenced, with a turn and an event. The bare one is a
single insert. In between, the rows of our own log are written again by SQLite alone, which is the
upper limit for any code above it. Compare the ratios; the absolute values depend on the disk.
"""

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
from tests.postgres import private_server

import holdfast
from benchmarks.report import Report
from holdfast.stores.sql import statements as sql
from holdfast.stores.sqlite.connection import DatabaseFile

WRITERS = (1, 8, 64)
HOT = 0
"""Stands for the largest number of writers, all on one session."""
SECONDS = 1.5
ROUNDS = 5
TEXT = "a message of ordinary length, as people write them to their agents all day long"
_TABLE = "create table bare (id text, seq bigint, body {blob}, primary key (id, seq))"


async def _rate(
    seconds: float, writers: int, write: Callable[[int, int], Awaitable[object]]
) -> float:
    """Return the writes per second of this many writers, each waiting for its own commit."""
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


def _bare_sqlite(path: Path, seconds: float, name: str) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute(_TABLE.format(blob="blob").replace("table", "table if not exists"))
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        connection.execute("insert into bare values (?, ?, ?)", (name, done, TEXT.encode()))
        done += 1
    duration = time.perf_counter() - began
    connection.close()
    return done / duration


def _log_rows(path: Path) -> list[tuple[Any, ...]]:
    """Return the rows that each append to one session has written: its entry."""
    with closing(sqlite3.connect(path)) as connection:
        (session,) = connection.execute(
            "select session from log group by session order by count(*) desc limit 1"
        ).fetchone()
        return connection.execute(
            "select session, n, kind, at, turn, seq, turns, events, record, head, body, items, "
            "request from log where session = ? and items is not null order by n",
            (session,),
        ).fetchall()


def _replay(path: Path, rows: Sequence[tuple[Any, ...]], group: int, seconds: float) -> float:
    """Return the appends per second of SQLite alone, with `group` of our appends per commit."""
    done = 0
    with closing(DatabaseFile(str(path)).connect()) as connection:
        connection.execute("pragma wal_autocheckpoint = 1000")
        connection.execute("delete from log")
        began = time.perf_counter()
        while time.perf_counter() - began < seconds and done + group <= len(rows):
            connection.execute("begin immediate")
            for entry in rows[done : done + group]:
                connection.execute(sql.ADD_ENTRY.text, entry)
            connection.execute("commit")
            done += group
        return done / (time.perf_counter() - began)


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
    """Measure all cases alternately, so that noise of the machine and its disk affects all."""
    found: dict[str, list[float]] = {}
    bare: list[float] = []
    rows: list[tuple[Any, ...]] = []
    async with holdfast.open(f"sqlite:///{folder / 'replay.db'}"):
        pass  # the file has our schema now
    async with holdfast.open(f"sqlite:///{folder / 'ours.db'}") as engine:
        for turn in range(ROUNDS):
            slice_seconds = seconds / ROUNDS
            bare.append(
                await asyncio.to_thread(_bare_sqlite, folder / "bare.db", slice_seconds, f"{turn}")
            )
            for writers in (*WRITERS, HOT):
                name = f"{writers} writers" if writers != HOT else f"{WRITERS[-1]} on one session"
                count = WRITERS[-1] if writers == HOT else writers
                rate = await _ours(engine, count, slice_seconds, is_hot=writers == HOT)
                found.setdefault(f"SQLite, {name}", []).append(rate)
            rows = rows or await asyncio.to_thread(_log_rows, folder / "ours.db")
            for group in WRITERS:
                rate = await asyncio.to_thread(
                    _replay, folder / "replay.db", rows, group, slice_seconds
                )
                name = f"SQLite alone, our rows, {group} in a commit"
                found.setdefault(name, []).append(rate)
    for name, rates in found.items():
        _add(report, name, statistics.fmean(rates), statistics.fmean(bare))


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
    """Measure each case and the bare database."""
    seconds = 0.1 if is_short else SECONDS
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        asyncio.run(_measure_sqlite(report, Path(folder), seconds))
    if is_short:
        return
    with private_server() as server:
        asyncio.run(_measure_postgres(report, server.url(), seconds))
