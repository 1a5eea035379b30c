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

from holdfast.engine.clock import SystemClock
from holdfast.ports.store import Store
from holdfast.stores.opening import open_store
from holdfast.testing.caller import Caller

WRITERS = (1, 8, 64)
SECONDS = 0.7
TEXT = "a message of ordinary length, as people write them to their agents all day long"
BARE_TABLE = "create table bare (id text, seq bigint, body {blob}, primary key (id, seq))"


async def _rate(writers: int, write: Callable[[int, int], Awaitable[object]]) -> float:
    """Return how many writes a second so many writers get done, each waiting for its own."""
    done = 0
    until = time.perf_counter() + SECONDS

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


async def _ours(store: Store, writers: int, *, is_hot: bool = False) -> float:
    callers = [Caller(store, f"{writers}_{n}_{is_hot}_") for n in range(writers)]

    def key(writer: int) -> str:
        return f"hot {writers}" if is_hot else f"{writers} {writer}"

    await asyncio.gather(*(caller.reserve(key(n)) for n, caller in enumerate(callers)))
    return await _rate(writers, lambda writer, _: callers[writer].append(TEXT, key=key(writer)))


def _bare_sqlite(path: Path) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute(BARE_TABLE.format(blob="blob"))
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        connection.execute("insert into bare values (?, ?, ?)", ("a", done, TEXT.encode()))
        done += 1
    took = time.perf_counter() - began
    connection.close()
    return done / took


async def _bare_postgres(url: str, writers: int) -> float:
    connections = await asyncio.gather(*(asyncpg.connect(url) for _ in range(writers)))
    body = TEXT.encode()
    name = f"bare {writers}"
    try:
        return await _rate(
            writers,
            lambda writer, count: connections[writer].execute(
                "insert into bare values ($1, $2, $3)", f"{name} {writer}", count, body
            ),
        )
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))


def _line(name: str, ours: float, bare: float) -> None:
    print(f"{name:32} {ours:9.0f}/s   bare {bare:8.0f}/s   {ours / bare:6.2f} x")


async def _measure_sqlite(folder: Path) -> None:
    bare = await asyncio.to_thread(_bare_sqlite, folder / "bare.db")
    store = await open_store(f"sqlite:///{folder / 'ours.db'}", clock=SystemClock())
    try:
        for writers in WRITERS:
            _line(f"SQLite, {writers} writers", await _ours(store, writers), bare)
        hot = await _ours(store, WRITERS[-1], is_hot=True)
        _line(f"SQLite, {WRITERS[-1]} on one session", hot, bare)
    finally:
        await store.close()


async def _measure_postgres(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(BARE_TABLE.format(blob="bytea"))
    await connection.close()
    store = await open_store(url, clock=SystemClock())
    try:
        for writers in WRITERS:
            bare = await _bare_postgres(url, writers)
            _line(f"PostgreSQL, {writers} writers", await _ours(store, writers), bare)
        hot = await _ours(store, WRITERS[-1], is_hot=True)
        _line(f"PostgreSQL, {WRITERS[-1]} on one session", hot, bare)
    finally:
        await store.close()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        yield Path(folder)


def main() -> None:
    """Print each case and its ratio to the bare database."""
    with _folder() as folder:
        asyncio.run(_measure_sqlite(folder))
    with private_server() as server:
        asyncio.run(_measure_postgres(server.url()))


if __name__ == "__main__":
    main()
