"""The SQLite driver: batches that fail, commits nobody heard of, news from other processes."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.errors import RunFenced, StoreClosed, StoreError, StoreUnavailable
from holdfast.core.ids import DEFAULT_TENANT, Key, SessionId, TurnId, WorkerId
from holdfast.core.transaction.commands import (
    AddApiKey,
    Append,
    Appended,
    Queued,
    Renew,
    Started,
)
from holdfast.stores.commit.executors import InlineExecutor, ThreadExecutor
from holdfast.stores.open import open_store
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import ProcessTokens
from holdfast.stores.sqlite.connection import DatabaseFile
from holdfast.stores.sqlite.driver import SqliteDriver
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient, said


class RecordingConnection(sqlite3.Connection):
    """A connection that notes what it is asked, and can break."""

    asked: list[str]
    after: Callable[[str], None] = staticmethod(lambda _: None)

    def cursor(self, *_: Any) -> Any:
        """Return a cursor that tells what it is asked."""
        return super().cursor(TellingCursor)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.execute(sql, *parameters)


class TellingCursor(sqlite3.Cursor):
    """Tells its connection what it is asked."""

    def execute(self, sql: str, *parameters: Any) -> "TellingCursor":
        connection = self.connection
        assert isinstance(connection, RecordingConnection)
        connection.asked.append(sql)
        super().execute(sql, *parameters)
        connection.after(sql)
        return self


@asynccontextmanager
async def a_store(
    path: Path, kind: type[RecordingConnection] = RecordingConnection, *, busy_seconds: float = 0.0
) -> AsyncIterator[SqlStore]:
    """Open a store whose connections are of a kind."""
    DatabaseFile(str(path)).connect().close()
    clock = ManualClock()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            path, timeout=busy_seconds, isolation_level=None, factory=kind,
            check_same_thread=False,
        )  # fmt: skip

    driver = SqliteDriver(connect, clock=clock, writer=InlineExecutor())
    await driver.migrate()
    store = SqlStore(driver, ProcessTokens())
    try:
        yield store
    finally:
        kind.after = staticmethod(lambda _: None)
        await store.close()


def a_batch(caller: StoreClient, text: str, *, key: str) -> Append:
    return Append(
        tenant=caller.tenant,
        turn_id=TurnId(caller.ids.new("turn")),
        worker=caller.worker,
        candidate_id=SessionId(caller.ids.new("ses")),
        key=Key(key),
        items=said(text),
    )


def recording() -> type[RecordingConnection]:
    """Return a kind of connection of this test's own."""
    return type("RecordingConnection", (RecordingConnection,), {"asked": []})


async def test_a_command_that_breaks_spoils_no_other_of_its_batch(tmp_path: Path) -> None:
    kind = recording()
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        broken = replace(a_batch(caller, "x", key="b"), items=None)
        results = await asyncio.gather(
            store.submit(a_batch(caller, "one", key="a")),
            store.submit(broken),
            store.submit(a_batch(caller, "two", key="c")),
            return_exceptions=True,
        )
        first, second, third = results
        assert isinstance(first, Appended)
        assert isinstance(second, TypeError)
        assert isinstance(third, Appended)
        assert await caller.texts(first.session) == ["one"]
        assert await caller.texts(third.session) == ["two"]


async def test_a_batch_is_one_transaction(tmp_path: Path) -> None:
    kind = recording()
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        kind.asked.clear()
        commands = [a_batch(caller, "x", key=f"k{n}") for n in range(20)]
        await asyncio.gather(*(store.submit(command) for command in commands))
        assert kind.asked.count("begin immediate") == 1
        assert kind.asked.count("commit") == 1


async def test_a_batch_that_cannot_begin_waits_once_and_is_refused_whole(tmp_path: Path) -> None:
    kind = recording()
    path = tmp_path / "a.db"
    async with a_store(path, kind) as store:
        caller = StoreClient(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("begin immediate")
        kind.asked.clear()
        commands = [a_batch(caller, "x", key=f"k{n}") for n in range(20)]
        results = await asyncio.gather(
            *(store.submit(command) for command in commands), return_exceptions=True
        )
        assert [type(result) for result in results] == [StoreUnavailable] * 20
        assert len({id(result) for result in results}) == 20, "each has an error of its own"
        assert kind.asked.count("begin immediate") == 1
        other.execute("rollback")
        other.close()
        again = [store.submit(replace(command, again=True)) for command in commands]
        assert len({done.session.id for done in await asyncio.gather(*again)}) == 20


async def test_a_lock_taken_in_the_middle_of_a_batch_is_waited_for_once(tmp_path: Path) -> None:
    kind = recording()
    path = tmp_path / "a.db"
    async with a_store(path, kind) as store:
        caller = StoreClient(store)
        other = sqlite3.connect(path, isolation_level=None)

        def break_and_lock(sql: str) -> None:
            if sql == "commit":
                kind.after = staticmethod(lambda _: None)
                other.execute("begin immediate")
                raise sqlite3.OperationalError("disk I/O error")

        kind.after = staticmethod(break_and_lock)
        kind.asked.clear()
        commands = [a_batch(caller, "x", key=f"k{n}") for n in range(20)]
        results = await asyncio.gather(
            *(store.submit(command) for command in commands), return_exceptions=True
        )
        assert [type(result) for result in results] == [StoreUnavailable] * 20
        assert kind.asked.count("begin immediate") == 2
        other.close()


@pytest.mark.parametrize("count", [1, 3])
async def test_a_commit_whose_answer_was_lost_is_found_when_it_is_sent_again(
    tmp_path: Path, count: int
) -> None:
    kind = recording()
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)

        def lose_the_answer(sql: str) -> None:
            if sql == "commit":
                kind.after = staticmethod(lambda _: None)
                raise sqlite3.OperationalError("disk I/O error")

        kind.after = staticmethod(lose_the_answer)
        commands = [caller.arrival("x", key=f"k{n}") for n in range(count)]
        results = await asyncio.gather(
            *(store.submit(command) for command in commands), return_exceptions=True
        )
        if count == 1:
            assert [type(result) for result in results] == [StoreUnavailable]
            results = [await store.submit(replace(commands[0], again=True))]
        for command, result in zip(commands, results, strict=True):
            assert isinstance(result, Started)
            assert result.run.id == command.run_id
            assert await caller.texts(result.session) == ["x"]


async def test_the_first_look_and_a_fresh_connection_count_as_news(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    kind = recording()
    async with a_store(path, kind) as here:
        assert await here.has_news(), "what was written before the first look is not known"
        assert not await here.has_news()
        await StoreClient(here).append("mine", key="k")
        assert not await here.has_news(), "our own writes are no news"
        there = await open_store(f"sqlite:///{path}", clock=ManualClock())
        await StoreClient(there, "b").append("theirs", key="j")
        await there.close()
        assert await here.has_news()
        assert not await here.has_news()

        def break_once(sql: str) -> None:
            if sql == "commit":
                kind.after = staticmethod(lambda _: None)
                raise sqlite3.OperationalError("disk I/O error")

        kind.after = staticmethod(break_once)
        with pytest.raises(StoreUnavailable):
            await StoreClient(here, "c").append("lost", key="l")
        assert await here.has_news(), "a fresh connection cannot know"


async def test_a_broken_rule_of_the_schema_is_not_called_a_fault_of_the_store(
    tmp_path: Path,
) -> None:
    async with a_store(tmp_path / "a.db", recording()) as store:
        caller = StoreClient(store)
        command = a_batch(caller, "x", key="k")
        await store.submit(command)
        with pytest.raises(StoreError, match="refused") as caught:
            await store.submit(replace(command, key="other"))
        assert not caught.value.retryable


async def test_what_the_reader_sees_is_everything_that_was_acknowledged(tmp_path: Path) -> None:
    file = DatabaseFile(str(tmp_path / "a.db"))
    driver = SqliteDriver(
        file.connect, clock=ManualClock(), writer=ThreadExecutor("w"), reader=ThreadExecutor("r")
    )
    await driver.migrate()
    store = SqlStore(driver, ProcessTokens())
    caller = StoreClient(store)
    for n in range(20):
        appended = await caller.append(str(n), key="k")
        view = await store.read.session(DEFAULT_TENANT, session_id=appended.session.id)
        assert view is not None
        assert view.session.head_seq == n + 1
    await store.close()


async def test_a_closed_store_raises_store_closed() -> None:
    store = await open_store("memory:", clock=ManualClock())
    await store.close()
    with pytest.raises(StoreClosed, match="closed"):
        await StoreClient(store).append("x", key="k")


# ── lanes in memory ─────────────────────────────────────────────────────────────────────────


async def test_the_turns_of_a_session_are_taken_in_and_ended_without_reading(
    tmp_path: Path,
) -> None:
    kind = recording()
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.finish(await caller.start("a", key="k"), "A")
        kind.asked.clear()
        run = await caller.start("b", key="k")
        await caller.finish(run, "B")
        await caller.append("c", key="k")
        assert [sql for sql in kind.asked if sql.startswith("select")] == []
        assert await caller.texts(run.session) == ["a", "A", "b", "B", "c"]


async def test_a_lane_that_another_process_changed_is_the_only_one_that_is_read_again(
    tmp_path: Path,
) -> None:
    kind = recording()
    path = tmp_path / "a.db"
    async with a_store(path, kind) as ours, a_store(path, recording()) as theirs:
        caller = StoreClient(ours)
        keys = [f"k{number}" for number in range(8)]
        for key in keys:
            await caller.converse("a", "A", key=key)
        kind.asked.clear()
        await StoreClient(theirs, "two").append("b", key="k0")
        runs = [await caller.start("c", key=key) for key in keys]
        assert len([sql for sql in kind.asked if sql.startswith("select")]) == 1
        shown = [await caller.texts(run.session) for run in runs]
        assert shown == [["a", "A", "b", "c"], *[["a", "A", "c"]] * 7]


async def test_what_another_process_did_to_a_lane_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with a_store(path, recording()) as ours, a_store(path, recording()) as theirs:
        one, two = StoreClient(ours, "one"), StoreClient(theirs, "two")
        await one.enlist()
        await two.enlist()
        first = await one.start("a", key="k")
        await one.finish(first, "A")
        await two.append("b", key="k")
        second = await one.start("c", key="k")
        assert await one.texts(second.session) == ["a", "A", "b", "c"]
        waiting = await two.wait("d", key="k")
        await one.finish(second, "C")
        assert isinstance(await one.accept("e", key="k"), Queued), "somebody waits before it"
        claimed = await two.claim(waiting.turn)
        assert isinstance(claimed, Started)
        new = await one.reset(claimed.session)
        with pytest.raises(RunFenced):
            await two.finish(claimed, "D")
        third = await two.start("f", key="k")
        assert third.session.id == new.id


async def test_a_transaction_that_failed_leaves_no_lane_in_memory(tmp_path: Path) -> None:
    kind = recording()
    path = tmp_path / "a.db"
    async with a_store(path, kind) as store, a_store(path, recording()) as other:
        caller = StoreClient(store)
        await caller.finish(await caller.start("a", key="k"), "A")

        def break_before_commit(sql: str) -> None:
            if sql.startswith("insert into lanes"):
                kind.after = staticmethod(lambda _: None)
                raise sqlite3.OperationalError("disk I/O error")

        kind.after = staticmethod(break_before_commit)
        with pytest.raises(StoreUnavailable):
            await caller.start("lost", key="k")
        # The version that was never committed is now made by somebody else.
        await StoreClient(other, "other").append("b", key="k")
        run = await caller.start("c", key="k")
        assert await caller.texts(run.session) == ["a", "A", "b", "c"]


async def test_a_full_disk_empties_the_log_so_that_the_next_write_has_room(tmp_path: Path) -> None:
    path, log = tmp_path / "store.db", tmp_path / "store.db-wal"
    limit: list[int] = []

    def connect() -> sqlite3.Connection:
        connection = DatabaseFile(str(path)).connect()
        if limit:
            connection.execute(f"pragma max_page_count = {limit[0]}")
        return connection

    driver = SqliteDriver(connect, clock=ManualClock(), writer=InlineExecutor())
    await driver.migrate()
    worker = WorkerId("wrk_1")
    assert await driver.commit([Renew(worker=worker, lease_seconds=10, is_new=True)])
    # Whoever closes the last connection empties the log, too; a store has a second one to read.
    reader = connect()
    assert reader.execute("select count(*) from workers").fetchone() == (1,)
    assert log.stat().st_size > 0
    # No page may be added from now on: SQLite reports a full disk.
    pages = driver._write_link.connection().execute("pragma page_count").fetchone()[0]
    limit.append(pages)
    driver._forget_writer()
    key = AddApiKey(id="key", tenant=DEFAULT_TENANT, hash=b"x", name="n" * 1_000_000)
    (failed,) = await driver.commit([key])
    assert isinstance(failed, StoreUnavailable)
    assert log.stat().st_size == 0
    limit.clear()
    driver._forget_writer()
    (done,) = await driver.commit([key])
    assert not isinstance(done, Exception)
    driver._forget_writer()
    reader.close()


async def test_a_log_that_was_left_behind_is_emptied_at_the_start(tmp_path: Path) -> None:
    path, log = tmp_path / "store.db", tmp_path / "store.db-wal"
    file = DatabaseFile(str(path))
    first = SqliteDriver(file.connect, clock=ManualClock(), writer=InlineExecutor())
    await first.migrate()
    worker = WorkerId("wrk_1")
    await first.commit([Renew(worker=worker, lease_seconds=10, is_new=True)])
    assert log.stat().st_size > 0
    second = SqliteDriver(file.connect, clock=ManualClock(), writer=InlineExecutor())
    await second.migrate()
    assert log.stat().st_size == 0
    for driver in (first, second):
        driver._forget_writer()


_FILE_LIMIT = """
import asyncio, os, resource, sys
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import DEFAULT_TENANT, WorkerId
from holdfast.core.transaction.commands import AddApiKey, Renew
from holdfast.stores.commit.executors import InlineExecutor
from holdfast.stores.sqlite.connection import DatabaseFile
from holdfast.stores.sqlite.driver import SqliteDriver
from holdfast.testing.clock import ManualClock

async def main(path):
    file = DatabaseFile(path)
    driver = SqliteDriver(file.connect, clock=ManualClock(), writer=InlineExecutor())
    await driver.migrate()
    await driver.commit([Renew(worker=WorkerId("wrk_1"), lease_seconds=10, is_new=True)])
    reader = file.connect()
    reader.execute("select count(*) from workers").fetchone()
    sizes = [os.path.getsize(name) for name in (path, path + "-wal")]
    limit = max(sizes) + 65536
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    key = AddApiKey(id="key", tenant=DEFAULT_TENANT, hash=b"x", name="n" * 1_000_000)
    (failed,) = await driver.commit([key])
    assert isinstance(failed, StoreUnavailable), failed
    assert os.path.getsize(path + "-wal") == 0
    (done,) = await driver.commit([AddApiKey(id="key", tenant=DEFAULT_TENANT, hash=b"x", name="n")])
    assert not isinstance(done, Exception), done

asyncio.run(main(sys.argv[1]))
"""


def test_a_limit_on_the_size_of_files_counts_as_a_full_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FILE_LIMIT, str(tmp_path / "store.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
