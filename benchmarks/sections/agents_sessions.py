"""The Agents SDK's own sessions and ours, in one run, at equal durability.

Every SQLite database is in WAL mode with `synchronous = FULL`; PostgreSQL runs with `fsync` and
`synchronous_commit` on. The settings of the peers are read back from a measured connection; ours
are the default of the store, which its own tests check. An item is a user message of about 220
bytes, an append is one awaited `add_items`. `peer` is the best of the SDK's sessions on the same
database in that row. Two lower bounds need no session: a commit of one row of the same size, and
one of the row that our session writes, through no code of ours. The first round is not counted: in
it the WAL of each file grows to its final size, and syncing a file that grows takes longer. Reads
of a whole session are judged by the first read of a process; later reads come from our cache.
"""

import asyncio
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
from agents import Session, SQLiteSession
from agents.extensions.memory import AsyncSQLiteSession
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from tests.postgres import private_server

from benchmarks.report import Report
from holdfast.agents_sdk import HoldfastSession
from holdfast.stores.sql import statements as sql
from holdfast.stores.sqlite.connection import DatabaseFile

SESSIONS = (1, 8, 64)
LENGTHS = (10, 1000, 10_000)
SECONDS = 2.5
ROUNDS = 5
READS = 25
ITEM: Any = {"role": "user", "content": "a message of ordinary length, as people write them. " * 4}


Open = Callable[[str, AsyncExitStack], Awaitable[Session]]
OURS, BARE, ROWS = "holdfast", "a bare commit", "SQLite alone, our rows"
BOUNDS = (BARE, ROWS)
"""What no session can be faster than."""


class Kind:
    """A kind of session: how to open one, and how to read its durability settings."""

    def __init__(
        self, name: str, database: str, make: Open, durability: Callable[[Session], Awaitable[str]]
    ) -> None:
        self.name = name
        self.database = database
        self.durability = durability
        self._make = make

    @asynccontextmanager
    async def opened(self, *names: str) -> AsyncIterator[list[Session]]:
        """Open one session per name."""
        async with AsyncExitStack() as stack:
            yield [await self._make(name, stack) for name in names]


def _sqlite_kinds(folder: Path) -> list[Kind]:
    async def ours(name: str, stack: AsyncExitStack) -> Session:
        session = HoldfastSession(name, folder / "holdfast.db")
        return await stack.enter_async_context(session)

    async def shipped(name: str, stack: AsyncExitStack) -> Session:
        session = SQLiteSession(name, folder / "sqlite.db")
        stack.callback(session.close)
        return session

    async def shipped_async(name: str, stack: AsyncExitStack) -> Session:
        session = AsyncSQLiteSession(name, folder / "async.db")
        stack.push_async_callback(session.close)
        return session

    async def alchemy(name: str, _: AsyncExitStack) -> Session:
        return SQLAlchemySession(name, engine=engine, create_tables=True)

    async def async_durability(session: Any) -> str:
        connection = await session._get_connection()
        found = [await (await connection.execute(pragma)).fetchone() for pragma in _PRAGMAS]
        return _describe([row[0] for row in found])

    async def engine_durability(_: Session) -> str:
        async with engine.connect() as connection:
            found = [await connection.scalar(text(pragma)) for pragma in _PRAGMAS]
        return _describe(found)

    async def bare(_: str, stack: AsyncExitStack) -> Any:
        return stack.enter_context(closing(Bare(folder / "bare.db")))

    async def rows(_: str, stack: AsyncExitStack) -> Any:
        path = folder / "rows.db"
        async with HoldfastSession("rows", path) as session:
            for _round in range(2):
                await session.add_items([ITEM])
        return stack.enter_context(closing(OurRows(path)))

    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'alchemy.db'}")
    event.listen(engine.sync_engine, "connect", _full)
    return [
        Kind(OURS, "SQLite", ours, _default_durability),
        Kind("SQLiteSession", "SQLite", shipped, _shipped_durability),
        Kind("AsyncSQLiteSession", "SQLite", shipped_async, async_durability),
        Kind("SQLAlchemySession", "SQLite", alchemy, engine_durability),
        Kind(BARE, "SQLite", bare, _bare_durability),
        Kind(ROWS, "SQLite", rows, _bare_durability),
    ]


class Bare:
    """A table with one column and one commit per row."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        _full(self.connection, None)
        self.connection.execute("create table if not exists items (body blob)")

    async def add_items(self, items: list[Any]) -> None:
        """Commit each item on the event loop's thread."""
        for item in items:
            self.connection.execute("insert into items values (?)", (msgspec.json.encode(item),))

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


class OurRows:
    """Appends the last row of our log again and again, with the check that guards it."""

    def __init__(self, path: Path) -> None:
        self.connection = DatabaseFile(str(path)).connect()
        self.connection.execute("pragma wal_autocheckpoint = 1000")
        columns = "session, n, kind, at, turn, seq, turns, events, record, head, body, items"
        (row,) = self.connection.execute(
            f"select {columns}, request from log order by pos desc limit 1"
        )
        self._session, self._n, *self._rest = row

    async def add_items(self, items: list[Any]) -> None:
        """Commit one row for each item on the event loop's thread."""
        execute = self.connection.execute
        for _ in items:
            self._n += 1
            execute("begin immediate")
            execute(sql.APPEND_ENTRY.text, (self._session, self._n, *self._rest))
            execute("commit")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


_PRAGMAS = ("pragma journal_mode", "pragma synchronous")


def _full(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("pragma journal_mode = wal")
    cursor.execute("pragma synchronous = full")
    cursor.close()


def _describe(found: Sequence[Any]) -> str:
    levels = {0: "off", 1: "normal", 2: "full", 3: "extra"}
    return f"{found[0]}, {levels[int(found[1])]}"


def _read_back(connection: Any) -> str:
    return _describe([connection.execute(pragma).fetchone()[0] for pragma in _PRAGMAS])


async def _bare_durability(bare: Any) -> str:
    return _read_back(bare.connection)


async def _shipped_durability(session: Any) -> str:
    return await asyncio.to_thread(lambda: _read_back(session._get_connection()))


async def _default_durability(_: Session) -> str:
    return "store default"


_POSTGRES_SETTINGS = (
    "select concat('fsync ', current_setting('fsync'), ', synchronous_commit ', "
    "current_setting('synchronous_commit'))"
)


def _postgres_kinds(url: str) -> list[Kind]:
    engine: AsyncEngine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://", 1), pool_size=16
    )

    async def ours(name: str, stack: AsyncExitStack) -> Session:
        return await stack.enter_async_context(HoldfastSession(name, url))

    async def alchemy(name: str, _: AsyncExitStack) -> Session:
        return SQLAlchemySession(name, engine=engine, create_tables=True)

    async def engine_durability(_: Session) -> str:
        async with engine.connect() as connection:
            return str(await connection.scalar(text(_POSTGRES_SETTINGS)))

    return [
        Kind(OURS, "PostgreSQL", ours, _default_durability),
        Kind("SQLAlchemySession", "PostgreSQL", alchemy, engine_durability),
    ]


class Times:
    """Durations of single operations and of a whole run."""

    def __init__(self) -> None:
        self.each: list[float] = []
        self.seconds = 0.0
        self.durability = ""

    async def take(self, work: Awaitable[Any]) -> None:
        """Time one operation."""
        began = time.perf_counter()
        await work
        self.each.append(time.perf_counter() - began)

    @property
    def rate(self) -> float:
        """Operations per second."""
        return len(self.each) / max(self.seconds, 1e-9)

    def ms(self, share: float) -> float:
        """Return a quantile in milliseconds."""
        ranked = sorted(self.each)
        return 1000 * ranked[min(int(len(ranked) * share), len(ranked) - 1)]


async def _append(sessions: list[Session], seconds: float, times: Times) -> None:
    """Append to every session repeatedly for a while."""
    began = time.perf_counter()

    async def work(session: Session) -> None:
        while time.perf_counter() - began < seconds:
            await times.take(session.add_items([ITEM]))

    await asyncio.gather(*(work(session) for session in sessions))
    times.seconds += time.perf_counter() - began


async def _appends(kinds: list[Kind], count: int, seconds: float) -> dict[str, Times]:
    """Measure all kinds alternately, so that noise of the machine affects all of them."""
    found = {kind.name: Times() for kind in kinds}
    async with AsyncExitStack() as stack:
        names = [f"{count} {n}" for n in range(count)]
        opened = [await stack.enter_async_context(kind.opened(*names)) for kind in kinds]
        for kind, sessions in zip(kinds, opened, strict=True):
            for session in sessions:
                await session.add_items([ITEM])
            found[kind.name].durability = await kind.durability(sessions[0])
        read_back = {times.durability for name, times in found.items() if name != OURS}
        assert len(read_back) == 1, read_back
        for number in range(ROUNDS + 1):
            for kind, sessions in zip(kinds, opened, strict=True):
                times = found[kind.name] if number else Times()
                await _append(sessions, seconds / ROUNDS, times)
    return found


async def _fill(session: Session, length: int) -> None:
    for begin in range(len(await session.get_items()), length, 500):
        await session.add_items([ITEM] * min(500, length - begin))


async def _reads(
    kinds: list[Kind], lengths: Sequence[int], last: int | None, reads: int
) -> dict[int, dict[str, Times]]:
    """Measure all kinds and lengths alternately, one read of each at a time.

    A slow phase of the machine then affects all of them, and the lengths can be compared as well.
    """
    found = {length: {kind.name: Times() for kind in kinds} for length in lengths}
    async with AsyncExitStack() as stack:
        opened: list[tuple[Times, Session]] = []
        for length in lengths:
            for kind in kinds:
                (session,) = await stack.enter_async_context(kind.opened(f"long {length}"))
                await _fill(session, length)
                times = found[length][kind.name]
                times.durability = await kind.durability(session)
                opened.append((times, session))
        order = random.Random(7)
        for _ in range(reads):
            # Freeing the memory of a long read slows down the next one: shuffle, so that it hits
            # all.
            order.shuffle(opened)
            for times, session in opened:
                await times.take(session.get_items(last))
    for times, _session in opened:
        times.seconds = sum(times.each)
    return found


async def _first_reads(kinds: list[Kind], length: int, reads: int) -> dict[str, Times]:
    """Measure the first read of a session after it was opened."""
    found = {kind.name: Times() for kind in kinds}
    order = random.Random(7)
    for _ in range(reads):
        for kind in order.sample(kinds, len(kinds)):
            times = found[kind.name]
            async with kind.opened(f"long {length}") as (session,):
                await session.get_items(1)
                times.durability = await kind.durability(session)
                await times.take(session.get_items())
    for times in found.values():
        times.seconds = sum(times.each)
    return found


async def _measure(report: Report, kinds: list[Kind], *, is_short: bool) -> None:
    sessions, lengths = ((1,), (10,)) if is_short else (SESSIONS, LENGTHS)
    seconds, reads = (0.05, 2) if is_short else (SECONDS, READS)
    named = [kind for kind in kinds if kind.name not in BOUNDS]
    for count in sessions:
        found = await _appends(kinds if count == 1 else named, count, seconds)
        _add(report, kinds[0].database, f"appends, {count} sessions", found, by_rate=True)
    for last, name, rounds in ((20, "last 20", 4 * reads), (None, "all", reads)):
        read = await _reads(named, lengths, last, rounds)
        for length, found in read.items():
            _add(report, kinds[0].database, f"read {name} of {length:,}", found, by_rate=False)
    found = await _first_reads(named, lengths[-1], reads)
    case = f"read all of {lengths[-1]:,} for the first time"
    _add(report, kinds[0].database, case, found, by_rate=False)


def _add(
    report: Report, database: str, case: str, found: dict[str, Times], *, by_rate: bool
) -> None:
    peers = {name: times for name, times in found.items() if name not in (OURS, *BOUNDS)}
    best = max(peers, key=lambda name: _score(peers[name], by_rate=by_rate))
    ratio = _score(found[OURS], by_rate=by_rate) / _score(peers[best], by_rate=by_rate)
    for name, times in found.items():
        report.add(
            "agents",
            case=f"{database}: {case}",
            session=name,
            per_second=times.rate,
            p50_ms=times.ms(0.5),
            p99_ms=times.ms(0.99),
            durability=times.durability,
        )
    report.add("agents ratios", case=f"{database}: {case}", ratio=ratio, peer=best)


def _score(times: Times, *, by_rate: bool) -> float:
    return times.rate if by_rate else 1 / max(statistics.median(times.each), 1e-9)


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure the SDK's sessions and ours."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        kinds = _sqlite_kinds(Path(folder))
        asyncio.run(_measure(report, kinds, is_short=is_short))
    if not is_short:
        with private_server() as server:
            kinds = _postgres_kinds(server.url())
            asyncio.run(_measure(report, kinds, is_short=is_short))


if __name__ == "__main__":
    run(Report())
