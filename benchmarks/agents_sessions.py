"""The Agents SDK's own sessions and ours, in one run, at equal durability.

Equal durability: every SQLite database is in WAL mode with `synchronous = FULL`, PostgreSQL runs
with `fsync` and `synchronous_commit` on; each is read back from a connection that is measured,
shown in the table, and has to be the same for all. One item is one user message of about 220 bytes,
one append is one `add_items` of it, awaited. `peer` is the shipped session of the same database
that did best in that row. Beside one session stands a bare commit of one row of the same size, in
place, with no session around it: nobody who waits for the disk is faster. A session is read over
and over by a process that has read it before, as agents do; the first time stands beside that.
"""

import asyncio
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

SESSIONS = (1, 8, 64)
LENGTHS = (10, 1000, 10_000)
SECONDS = 1.5
ROUNDS = 5
READS = 25
ITEM: Any = {"role": "user", "content": "a message of ordinary length, as people write them. " * 4}


Make = Callable[[str, AsyncExitStack], Awaitable[Session]]
OURS, BARE = "holdfast", "a bare commit"


class Kind:
    """A kind of session: how to open so many of them on one store, and how durable they are."""

    def __init__(
        self, name: str, database: str, make: Make, told: Callable[[Session], Awaitable[str]]
    ) -> None:
        self.name = name
        self.database = database
        self.told = told
        self._make = make

    @asynccontextmanager
    async def opened(self, *names: str) -> AsyncIterator[list[Session]]:
        """Open a session of each name."""
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

    async def told_by_async(session: Any) -> str:
        connection = await session._get_connection()
        found = [await (await connection.execute(asked)).fetchone() for asked in _ASKED]
        return _in_words([row[0] for row in found])

    async def told_by_engine(_: Session) -> str:
        async with engine.connect() as connection:
            found = [await connection.scalar(text(asked)) for asked in _ASKED]
        return _in_words(found)

    async def bare(_: str, stack: AsyncExitStack) -> Any:
        return stack.enter_context(closing(Bare(folder / "bare.db")))

    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'alchemy.db'}")
    event.listen(engine.sync_engine, "connect", _full)
    return [
        Kind(OURS, "SQLite", ours, _told_by_ours),
        Kind("SQLiteSession", "SQLite", shipped, _told_by_shipped),
        Kind("AsyncSQLiteSession", "SQLite", shipped_async, told_by_async),
        Kind("SQLAlchemySession", "SQLite", alchemy, told_by_engine),
        Kind(BARE, "SQLite", bare, _told_by_bare),
    ]


class Bare:
    """A table with one column, and a commit for each row."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        _full(self.connection, None)
        self.connection.execute("create table if not exists items (body blob)")

    async def add_items(self, items: list[Any]) -> None:
        """Add items, as they come, in the event loop's own thread."""
        for item in items:
            self.connection.execute("insert into items values (?)", (msgspec.json.encode(item),))

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


_ASKED = ("pragma journal_mode", "pragma synchronous")


def _full(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("pragma journal_mode = wal")
    cursor.execute("pragma synchronous = full")
    cursor.close()


def _in_words(found: Sequence[Any]) -> str:
    levels = {0: "off", 1: "normal", 2: "full", 3: "extra"}
    return f"{found[0]}, {levels[int(found[1])]}"


def _read_back(connection: Any) -> str:
    return _in_words([connection.execute(asked).fetchone()[0] for asked in _ASKED])


async def _told_by_bare(bare: Any) -> str:
    return _read_back(bare.connection)


async def _told_by_shipped(session: Any) -> str:
    return await asyncio.to_thread(lambda: _read_back(session._get_connection()))


async def _told_by_ours(session: Any) -> str:
    driver = (await session._backend.lodging.gateway()).store._driver
    told: str = await driver._writer.run(lambda: _read_back(driver._write_link.connection()))
    return told


_ASKED_POSTGRES = (
    "select concat('fsync ', current_setting('fsync'), ', synchronous_commit ', "
    "current_setting('synchronous_commit'))"
)


async def _told_by_ours_on_postgres(session: Any) -> str:
    driver = (await session._backend.lodging.gateway()).store._driver
    return str(await (await driver._writing()).fetchval(_ASKED_POSTGRES))


def _postgres_kinds(url: str) -> list[Kind]:
    engine: AsyncEngine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://", 1), pool_size=16
    )

    async def ours(name: str, stack: AsyncExitStack) -> Session:
        return await stack.enter_async_context(HoldfastSession(name, url))

    async def alchemy(name: str, _: AsyncExitStack) -> Session:
        return SQLAlchemySession(name, engine=engine, create_tables=True)

    async def told_by_engine(_: Session) -> str:
        async with engine.connect() as connection:
            return str(await connection.scalar(text(_ASKED_POSTGRES)))

    return [
        Kind(OURS, "PostgreSQL", ours, _told_by_ours_on_postgres),
        Kind("SQLAlchemySession", "PostgreSQL", alchemy, told_by_engine),
    ]


class Times:
    """How long things took, one by one, and how long all of it."""

    def __init__(self) -> None:
        self.each: list[float] = []
        self.seconds = 0.0
        self.durability = ""

    async def take(self, work: Awaitable[Any]) -> None:
        """Do one thing."""
        began = time.perf_counter()
        await work
        self.each.append(time.perf_counter() - began)

    @property
    def rate(self) -> float:
        """Things a second, all together."""
        return len(self.each) / max(self.seconds, 1e-9)

    def ms(self, share: float) -> float:
        """A quantile, in milliseconds."""
        ranked = sorted(self.each)
        return 1000 * ranked[min(int(len(ranked) * share), len(ranked) - 1)]


async def _append(sessions: list[Session], seconds: float, times: Times) -> None:
    """Have every session appended to, over and over, for a while."""
    began = time.perf_counter()

    async def work(session: Session) -> None:
        while time.perf_counter() - began < seconds:
            await times.take(session.add_items([ITEM]))

    await asyncio.gather(*(work(session) for session in sessions))
    times.seconds += time.perf_counter() - began


async def _appends(kinds: list[Kind], count: int, seconds: float) -> dict[str, Times]:
    """Measure all kinds in turns, so that what else the machine does falls on each of them."""
    found = {kind.name: Times() for kind in kinds}
    async with AsyncExitStack() as stack:
        names = [f"{count} {n}" for n in range(count)]
        opened = [await stack.enter_async_context(kind.opened(*names)) for kind in kinds]
        for kind, sessions in zip(kinds, opened, strict=True):
            for session in sessions:
                await session.add_items([ITEM])
            found[kind.name].durability = await kind.told(sessions[0])
        assert len({times.durability for times in found.values()}) == 1, found
        for _ in range(ROUNDS):
            for kind, sessions in zip(kinds, opened, strict=True):
                await _append(sessions, seconds / ROUNDS, found[kind.name])
    return found


async def _fill(session: Session, length: int) -> None:
    for begin in range(len(await session.get_items()), length, 500):
        await session.add_items([ITEM] * min(500, length - begin))


async def _reads(
    kinds: list[Kind], lengths: Sequence[int], last: int | None, reads: int
) -> dict[int, dict[str, Times]]:
    """Measure all kinds and lengths in turns, one read of each at a time.

    So what is slow for a while is slow for all, and the lengths may be compared as well.
    """
    found = {length: {kind.name: Times() for kind in kinds} for length in lengths}
    async with AsyncExitStack() as stack:
        opened: list[tuple[Times, Session]] = []
        for length in lengths:
            for kind in kinds:
                (session,) = await stack.enter_async_context(kind.opened(f"long {length}"))
                await _fill(session, length)
                times = found[length][kind.name]
                times.durability = await kind.told(session)
                opened.append((times, session))
        for _ in range(reads):
            for times, session in opened:
                await times.take(session.get_items(last))
    for times, _session in opened:
        times.seconds = sum(times.each)
    return found


async def _first_reads(kinds: list[Kind], length: int, reads: int) -> dict[str, Times]:
    """Measure what a process pays that has not read the session yet, but for opening it."""
    found = {kind.name: Times() for kind in kinds}
    for _ in range(reads):
        for kind in kinds:
            times = found[kind.name]
            async with kind.opened(f"long {length}") as (session,):
                await session.get_items(1)
                times.durability = await kind.told(session)
                await times.take(session.get_items())
    for times in found.values():
        times.seconds = sum(times.each)
    return found


async def _measure(report: Report, kinds: list[Kind], *, is_short: bool) -> None:
    sessions, lengths = ((1,), (10,)) if is_short else (SESSIONS, LENGTHS)
    seconds, reads = (0.05, 2) if is_short else (SECONDS, READS)
    named = [kind for kind in kinds if kind.name != BARE]
    for count in sessions:
        found = await _appends(kinds if count == 1 else named, count, seconds)
        _tell(report, kinds[0].database, f"appends, {count} sessions", found, by_rate=True)
    for last, name, rounds in ((20, "last 20", 4 * reads), (None, "all", reads)):
        read = await _reads(named, lengths, last, rounds)
        for length, found in read.items():
            _tell(report, kinds[0].database, f"read {name} of {length:,}", found, by_rate=False)
    found = await _first_reads(named, lengths[-1], reads)
    case = f"read all of {lengths[-1]:,} for the first time"
    _tell(report, kinds[0].database, case, found, by_rate=False)


def _tell(
    report: Report, database: str, case: str, found: dict[str, Times], *, by_rate: bool
) -> None:
    peers = {name: times for name, times in found.items() if name not in (OURS, BARE)}
    best = max(peers, key=lambda name: _worth(peers[name], by_rate=by_rate))
    ratio = _worth(found[OURS], by_rate=by_rate) / _worth(peers[best], by_rate=by_rate)
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


def _worth(times: Times, *, by_rate: bool) -> float:
    return times.rate if by_rate else 1 / max(statistics.median(times.each), 1e-9)


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure the sessions of the SDK beside ours."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        kinds = _sqlite_kinds(Path(folder))
        asyncio.run(_measure(report, kinds, is_short=is_short))
    if not is_short:
        with private_server() as server:
            kinds = _postgres_kinds(server.url())
            asyncio.run(_measure(report, kinds, is_short=is_short))


if __name__ == "__main__":
    run(Report())
