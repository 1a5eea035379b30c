"""The Agents SDK's own sessions and ours, in one run, at equal durability.

Equal durability: every SQLite database is in WAL mode with `synchronous = FULL`, which is said to
each connection where a session lets us and is SQLite's default where it does not (it is read back
and has to be 2); PostgreSQL runs with `fsync` and `synchronous_commit` on. One item is one user
message of about 220 bytes, one append is one `add_items` of it, awaited. `peer` is the shipped
session of the same database that did best in that row.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from agents import Session, SQLiteSession
from agents.extensions.memory import AsyncSQLiteSession
from agents.extensions.memory.sqlalchemy_session import SQLAlchemySession
from sqlalchemy import event
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


class Kind:
    """A kind of session: how to open so many of them on one store."""

    def __init__(
        self, name: str, database: str, make: Callable[[str, AsyncExitStack], Awaitable[Session]]
    ) -> None:
        self.name = name
        self.database = database
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
        assert session._get_connection().execute("pragma synchronous").fetchone() == (2,)
        return session

    async def shipped_async(name: str, stack: AsyncExitStack) -> Session:
        session = AsyncSQLiteSession(name, folder / "async.db")
        stack.push_async_callback(session.close)
        connection = await session._get_connection()
        cursor = await connection.execute("pragma synchronous")
        assert await cursor.fetchone() == (2,)
        return session

    async def alchemy(name: str, _: AsyncExitStack) -> Session:
        return SQLAlchemySession(name, engine=engine, create_tables=True)

    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'alchemy.db'}")
    event.listen(engine.sync_engine, "connect", _full)
    return [
        Kind("holdfast", "SQLite", ours),
        Kind("SQLiteSession", "SQLite", shipped),
        Kind("AsyncSQLiteSession", "SQLite", shipped_async),
        Kind("SQLAlchemySession", "SQLite", alchemy),
    ]


def _full(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("pragma synchronous = full")
    cursor.close()


def _postgres_kinds(url: str) -> list[Kind]:
    engine: AsyncEngine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://", 1), pool_size=16
    )

    async def ours(name: str, stack: AsyncExitStack) -> Session:
        return await stack.enter_async_context(HoldfastSession(name, url))

    async def alchemy(name: str, _: AsyncExitStack) -> Session:
        return SQLAlchemySession(name, engine=engine, create_tables=True)

    return [
        Kind("holdfast", "PostgreSQL", ours),
        Kind("SQLAlchemySession", "PostgreSQL", alchemy),
    ]


class Times:
    """How long things took, one by one, and how long all of it."""

    def __init__(self) -> None:
        self.each: list[float] = []
        self.seconds = 0.0

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
        for sessions in opened:
            for session in sessions:
                await session.add_items([ITEM])
        for _ in range(ROUNDS):
            for kind, sessions in zip(kinds, opened, strict=True):
                await _append(sessions, seconds / ROUNDS, found[kind.name])
    return found


async def _reads(kinds: list[Kind], length: int, last: int | None, reads: int) -> dict[str, Times]:
    """Measure all kinds in turns, one read of each at a time."""
    found = {kind.name: Times() for kind in kinds}
    async with AsyncExitStack() as stack:
        opened: list[tuple[str, Session]] = []
        for kind in kinds:
            (session,) = await stack.enter_async_context(kind.opened(f"long {length}"))
            for begin in range(len(await session.get_items()), length, 500):
                await session.add_items([ITEM] * min(500, length - begin))
            opened.append((kind.name, session))
        for _ in range(reads):
            for name, session in opened:
                await found[name].take(session.get_items(last))
    for times in found.values():
        times.seconds = sum(times.each)
    return found


async def _measure(report: Report, kinds: list[Kind], *, is_short: bool) -> None:
    sessions, lengths = ((1,), (10,)) if is_short else (SESSIONS, LENGTHS)
    seconds, reads = (0.05, 2) if is_short else (SECONDS, READS)
    for count in sessions:
        found = await _appends(kinds, count, seconds)
        _tell(report, kinds[0].database, f"appends, {count} sessions", found, by_rate=True)
    for last, name in ((20, "last 20"), (None, "all")):
        for length in lengths:
            found = await _reads(kinds, length, last, reads)
            _tell(report, kinds[0].database, f"read {name} of {length:,}", found, by_rate=False)


def _tell(
    report: Report, database: str, case: str, found: dict[str, Times], *, by_rate: bool
) -> None:
    peers = {name: times for name, times in found.items() if name != "holdfast"}
    best = max(peers, key=lambda name: _worth(peers[name], by_rate=by_rate))
    ratio = _worth(found["holdfast"], by_rate=by_rate) / _worth(peers[best], by_rate=by_rate)
    for name, times in found.items():
        report.add(
            "agents",
            case=f"{database}: {case}",
            session=name,
            per_second=times.rate,
            p50_ms=times.ms(0.5),
            p99_ms=times.ms(0.99),
        )
    report.add("agents", case=f"{database}: {case}", ratio=ratio, peer=best)


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
