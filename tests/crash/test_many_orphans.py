"""A process that dies with ten thousand turns: all are settled, for a price that only adds up."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from holdfast.core.ids import RunId
from holdfast.core.model.turn import Source
from holdfast.core.transaction.commands import Command, Finish, LaneLimits
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import RECOVERED_AT_ONCE, Gateway
from holdfast.stores.commit.executors import InlineExecutor
from holdfast.stores.commit.group_commit import Result
from holdfast.stores.sql.entries import pack, read_body, session_no
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import ProcessTokens
from holdfast.stores.sqlite.driver import SqliteDriver
from holdfast.testing.clock import ManualClock
from holdfast.testing.ids import SequentialIds
from holdfast.testing.store_client import StoreClient
from tests.store_tables import read_tables

MANY = 10_000
FEWER = 1_000
STEP = 1000
"""Steps of SQLite's machine between two counts."""


class Counts(SqliteDriver):
    """A store in memory that counts what it is asked to do."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(self._open, clock=clock, writer=InlineExecutor())
        self.commits = 0
        self.statements = 0
        self.steps = 0

    def _open(self) -> sqlite3.Connection:
        self.connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, cached_statements=256
        )
        self.connection.execute("pragma foreign_keys = on")
        return self.connection

    def begin(self) -> None:
        """Count from now on."""
        self.commits = self.statements = self.steps = 0
        self.connection.set_trace_callback(self._count_statement)
        self.connection.set_progress_handler(self._count_step, STEP)

    def _count_statement(self, _: str) -> None:
        self.statements += 1

    def _count_step(self) -> int:
        self.steps += 1
        return 0

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        self.commits += 1
        return await super().commit(commands)


def _clone(connection: sqlite3.Connection, count: int) -> None:
    """Multiply the one session, with its log and its lane, each with names of its own."""
    (session,) = _every(connection, "sessions")
    log = _every(connection, "log")
    (lane,) = _every(connection, "lanes")
    sessions, entries, lanes = [], [], []
    for n in range(1, count + 1):
        session_id = f"{session['id']}_{n}"
        named = {"no": session_no(session_id), "id": session_id, "key": f"{session['key']}_{n}"}
        sessions.append(session | named)
        turn, run = f"{lane['turn']}_{n}", f"{lane['run']}_{n}"
        for entry in log:
            head = msgspec.msgpack.decode(entry["head"])
            head[3:5] = turn, run
            body = read_body(entry["body"])
            for state in body.runs:
                state.id = RunId(run)
            changed = {
                "session": named["no"], "turn": turn, "head": msgspec.msgpack.encode(head),
                "body": pack(body),
            }  # fmt: skip
            entries.append(
                {name: value for name, value in entry.items() if name != "pos"} | changed
            )
        lanes.append(lane | {"session": named["no"], "turn": turn, "run": run})
    for table, rows in (("sessions", sessions), ("log", entries), ("lanes", lanes)):
        names = list(rows[0])
        marks = ", ".join(f":{name}" for name in names)
        connection.executemany(f"insert into {table} ({', '.join(names)}) values ({marks})", rows)


def _every(connection: sqlite3.Connection, table: str) -> list[dict[str, Any]]:
    cursor = connection.execute(f"select * from {table}")
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@asynccontextmanager
async def orphans(
    count: int, source: Source, clock: ManualClock
) -> AsyncIterator[tuple[SqlStore, Counts]]:
    """Have a worker die in the middle of so many turns, each of a session of its own."""
    driver = Counts(clock)
    await driver.migrate()
    store = SqlStore(driver, ProcessTokens())
    doomed = StoreClient(store, "d")
    await doomed.start("hello", key="k", source=source)
    connection = driver.connection
    _clone(connection, count - 1)
    try:
        yield store, driver
    finally:
        await store.close()


async def _recover(count: int) -> Counts:
    """Start a worker after so many were left, and return what it cost."""
    clock = ManualClock()
    async with orphans(count, "user", clock) as (store, driver):
        driver.begin()
        gateway = Gateway(store, clock=clock, ids=SequentialIds("h"))
        await gateway.start()
        tables = read_tables(driver.connection)
        ends = Counter((turn.outcome, turn.is_retryable) for turn in tables.turns.values())
        assert ends == {("interrupted", True): count}
        assert Counter(run.outcome for run in tables.runs.values()) == {"interrupted": count}
        assert not tables.lanes
        ended = await StoreClient(store, "n").converse("next", "here", key=f"k_{count - 1}")
        assert ended.turn.outcome == "completed"
        await gateway.stop()
        return driver


@pytest.mark.timeout(300)
async def test_ten_thousand_orphans_are_settled_at_a_cost_that_grows_with_their_number() -> None:
    fewer, many = await _recover(FEWER), await _recover(MANY)
    more = MANY / FEWER
    assert many.statements < fewer.statements * more * 1.1
    assert many.steps < fewer.steps * more * 1.1, "also inside the statements"
    assert many.commits < MANY / 100, "in batches"


async def test_many_adopted_turns_run_a_few_at_a_time() -> None:
    count = 8 * RECOVERED_AT_ONCE
    clock = ManualClock()
    inside, most, done = 0, 0, asyncio.Event()
    handled: list[str] = []

    async def handler(run: ActiveRun) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(5):
            await asyncio.sleep(0)
        await run.finish(Finish(fence=run.fence, outcome="completed"))
        inside -= 1
        handled.append(run.turn.id)
        if len(handled) == count:
            done.set()

    async with orphans(count, "cron", clock) as (store, driver):
        gateway = Gateway(
            store, clock=clock, ids=SequentialIds("h"), limits=LaneLimits(can_run_again=True)
        )
        await gateway.start(handler)
        async with asyncio.timeout(60):
            await done.wait()
        await gateway.stop()
        turns = read_tables(driver.connection).turns.values()
        assert Counter(turn.outcome for turn in turns) == {"completed": count}
    assert len(set(handled)) == count
    assert most == RECOVERED_AT_ONCE
