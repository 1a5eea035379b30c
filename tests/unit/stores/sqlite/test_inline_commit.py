"""Transactions on the event loop itself: which, for how long, and never waiting for anybody."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.turn import Successor
from holdfast.core.transaction.commands import (
    Append,
    Command,
    Ended,
    MarkDelivered,
    Prune,
    Renew,
)
from holdfast.ports.store import ItemQuery, Reader
from holdfast.stores.commit.executors import ThreadExecutor
from holdfast.stores.sql.plan import Plan, Row, Statement, every
from holdfast.stores.sql.store import SHORT_ROWS, SqlStore
from holdfast.stores.sql.worker_locks import ProcessTokens
from holdfast.stores.sqlite import driver as sqlite
from holdfast.stores.sqlite import inline_commit
from holdfast.stores.sqlite.connection import INLINE_BYTES, INLINE_STEPS, DatabaseFile
from holdfast.stores.sqlite.driver import INLINE_ROWS, SqliteDriver
from holdfast.stores.sqlite.inline_commit import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    MAX_BYTES,
    MAX_ROWS,
    MEASURED_WAITS,
    NOTABLE_SECONDS,
    DiskLatencyGate,
    is_short,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient, said


class RecordingConnection(sqlite3.Connection):
    """A connection that notes what it is asked, by which thread, and can be slow."""

    asked: list[tuple[str, int]]
    before: Callable[[str], None] = staticmethod(lambda _: None)

    def cursor(self, *_: Any) -> Any:
        """Return a cursor that tells what it is asked."""
        return super().cursor(TellingCursor)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.execute(sql, *parameters)

    @classmethod
    def commits(cls) -> list[bool]:
        """Whether each commit was made in this thread, since the last call."""
        here = threading.get_ident()
        found = [thread == here for sql, thread in cls.asked if sql == "commit"]
        cls.asked.clear()
        return found


class TellingCursor(sqlite3.Cursor):
    """Tells its connection what it is asked."""

    def execute(self, sql: str, *parameters: Any) -> "TellingCursor":
        connection = self.connection
        assert isinstance(connection, RecordingConnection)
        connection.asked.append((sql, threading.get_ident()))
        type(connection).before(sql)
        super().execute(sql, *parameters)
        return self


class Unhurried(DiskLatencyGate):
    """However busy the machine is, its disk is taken for quick."""

    def is_quick(self) -> bool:
        """It is."""
        return True


@asynccontextmanager
async def a_store(
    path: Path, kind: type[RecordingConnection], pace: DiskLatencyGate | None = None
) -> AsyncIterator[SqlStore]:
    """Open a store as `open_store` does, with connections of a kind."""
    file = DatabaseFile(str(path))
    file.connect().close()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            path, timeout=30, isolation_level=None, factory=kind, check_same_thread=False
        )

    driver = SqliteDriver(
        connect, clock=ManualClock(), writer=ThreadExecutor("w"), reader=ThreadExecutor("r"),
        pace=pace or Unhurried(),
    )  # fmt: skip
    await driver.migrate()
    kind.asked.clear()
    store = SqlStore(driver, ProcessTokens())
    try:
        yield store
    finally:
        kind.before = staticmethod(lambda _: None)
        await store.close()


@pytest.fixture
def kind() -> type[RecordingConnection]:
    """A kind of connection of this test's own."""
    return type("RecordingConnection", (RecordingConnection,), {"asked": []})


def an_append(count: int = 1, *, key: str = "k", turn: str = "turn_1", text: str = "x") -> Append:
    return Append(
        tenant=DEFAULT_TENANT,
        turn_id=TurnId(turn),
        worker=WorkerId("wrk"),
        candidate_id=SessionId(f"ses_{key}"),
        key=Key(key),
        items=said(*(text for _ in range(count))),
    )


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ([an_append()], True),
        ([an_append(), MarkDelivered(steps=((TurnId("turn_1"), 1),))], True),
        ([Renew(worker=WorkerId("wrk"), lease_seconds=1.0)], True),
        ([an_append(MAX_ROWS - 1)], True),
        ([an_append(MAX_ROWS)], False),
        ([an_append()] * (MAX_ROWS // 2 + 1), False),
        ([an_append(text="x" * (MAX_BYTES // 2))], True),
        ([an_append(2, text="x" * (MAX_BYTES // 2))], False),
        ([an_append(), Prune(worker=WorkerId("wrk"), older_than_seconds=1.0)], False),
    ],
    ids=[
        "one",
        "a mark",
        "a lease",
        "many items",
        "too many",
        "too many commands",
        "large",
        "too large",
        "pruning",
    ],
)
def test_short_is_what_adds_a_few_rows(commands: list[Command[Any]], expected: bool) -> None:
    assert is_short(commands) is expected


def test_time_spent_ready_without_a_cpu_is_not_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = iter([5.0, 65.0])
    monkeypatch.setattr(inline_commit, "ready_seconds", lambda: next(ready))
    gate = DiskLatencyGate()
    gate.start()
    threading.Event().wait(0.01)
    assert gate.stop() == 0.0


def test_a_wait_is_measured_in_full_where_ready_time_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inline_commit, "SCHEDSTAT", "/does/not/exist")
    monkeypatch.setattr(inline_commit, "_schedstat", inline_commit._Schedstat())
    assert inline_commit.ready_seconds() == 0.0
    gate = DiskLatencyGate()
    began = time.perf_counter()
    gate.start()
    threading.Event().wait(0.01)
    waited = gate.stop()
    assert NOTABLE_SECONDS < waited <= time.perf_counter() - began


class _Clock:
    """The time, what of it a CPU takes, and how often the system was asked for either."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.ready = self.worked = 0.0
        self.asked = 0
        monkeypatch.setattr(inline_commit, "ready_seconds", self._ready)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "thread_time", self._worked)

    def _ready(self) -> float:
        self.asked += 1
        return self.ready

    def _worked(self) -> float:
        self.asked += 1
        return self.worked

    def wait(
        self, gate: DiskLatencyGate, seconds: float, *, ready: float = 0.0, worked: float = 0.0
    ) -> float:
        gate.start()
        self.now += seconds
        self.ready += ready
        self.worked += worked
        return gate.stop()


def test_the_system_is_not_asked_while_waits_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gate = _Clock(monkeypatch), DiskLatencyGate()
    assert clock.wait(gate, NOTABLE_SECONDS / 2) == pytest.approx(NOTABLE_SECONDS / 2)
    asked = clock.asked
    for _ in range(3):
        assert clock.wait(gate, NOTABLE_SECONDS / 2) == pytest.approx(NOTABLE_SECONDS / 2)
    assert clock.asked == asked


def test_after_an_unexpected_wait_the_next_ones_are_measured_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, gate = _Clock(monkeypatch), DiskLatencyGate()
    clock.wait(gate, 0.0)
    # How much of it was the disk is not known: by itself it must not count as slow.
    assert clock.wait(gate, 1.0, ready=0.75) == NOTABLE_SECONDS
    assert clock.wait(gate, 1.0, ready=0.75) == pytest.approx(0.25)
    for _ in range(MEASURED_WAITS - 1):
        clock.wait(gate, 0.0)
    assert clock.wait(gate, 1.0, ready=0.5) == pytest.approx(0.5)


def test_work_is_not_waited_once_waits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, gate = _Clock(monkeypatch), DiskLatencyGate()
    assert clock.wait(gate, 1.0, worked=1.0) == 0.0
    # A short time counts completely, and a long one by itself must not count as slow.
    short = NOTABLE_SECONDS / 2
    assert clock.wait(gate, short, worked=short) == pytest.approx(short)
    assert clock.wait(gate, 1.0, worked=1.0) == NOTABLE_SECONDS
    assert clock.wait(gate, 1.0, worked=0.75, ready=0.125) == pytest.approx(0.125)
    assert clock.wait(gate, 1.0, worked=1.0) == 0.0


def test_a_disk_that_is_slow_on_average_is_left_alone_for_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, now = _Clock(monkeypatch), 0.0
    pace = DiskLatencyGate(lambda: now)
    for _ in range(100):
        clock.wait(pace, 0.0005)
    clock.wait(pace, 0.003)
    assert pace.is_quick(), "once is nothing"
    clock.wait(pace, 0.1)
    assert not pace.is_quick()
    pause = FIRST_PAUSE
    for _ in range(8):
        now += pause - 0.01
        assert not pace.is_quick()
        now += 0.01
        assert pace.is_quick(), "it is tried again"
        clock.wait(pace, 0.1)
        assert not pace.is_quick()
        pause = min(pause * 2, LONGEST_PAUSE)
    now += pause
    clock.wait(pace, 0.0)
    assert pace.is_quick()
    clock.wait(pace, 1.0)
    now += FIRST_PAUSE
    assert pace.is_quick(), "a quick one begins the counting anew"


async def test_a_few_rows_are_read_in_place_once_there_is_a_connection(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    here = threading.get_ident()
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.append("a", key="k")
        found = []
        for last in (1, 1, SHORT_ROWS, SHORT_ROWS + 1, None):
            kind.asked.clear()
            found.append(await store.read.transcript(caller.tenant, key=Key("k"), last=last))
            places = {thread == here for sql, thread in kind.asked if sql == "begin"}
            # The first one has to open its connection, which may take long.
            assert places == {len(found) > 1}
        assert found == [found[0]] * 5
        assert found[0] is not None


async def test_a_read_in_place_that_is_refused_is_made_in_the_thread(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    here = threading.get_ident()

    def refuse(sql: str) -> None:
        if sql == "begin" and threading.get_ident() == here:
            raise sqlite3.OperationalError("database is locked")

    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.append("a", key="k")
        before = await store.read.transcript(caller.tenant, key=Key("k"), last=1)
        kind.before = staticmethod(refuse)
        assert await store.read.transcript(caller.tenant, key=Key("k"), last=1) == before
        assert before is not None


def count_to(number: int) -> str:
    return f"with recursive n(i) as (select 1 union all select i + 1 from n limit {number}) "


SHORT_READS = (
    "select 1",
    count_to(INLINE_ROWS - 2) + "select i from n",
    count_to(100) + "select count(*) from n",
    f"select zeroblob({INLINE_BYTES})",
)
LONG_READS = (
    count_to(INLINE_ROWS) + "select i from n",
    count_to(100_000) + "select count(*) from n",
    f"select zeroblob({INLINE_BYTES + 1})",
)


@pytest.mark.parametrize(
    ("sql", "is_inline"),
    [*((sql, True) for sql in SHORT_READS), *((sql, False) for sql in LONG_READS)],
)
async def test_a_read_that_turns_out_to_be_long_begins_again_in_the_thread(
    sql: str, is_inline: bool, tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    here = threading.get_ident()

    def query(_: float) -> Plan[list[Row]]:
        return (yield from every(Statement("test", sql)))

    async with a_store(tmp_path / "a.db", kind) as store:
        driver = store._driver
        expected = await driver.read(query)
        for _ in range(2):
            kind.asked.clear()
            assert await driver.read_inline(query) == expected
            assert (kind.asked[-1][1] == here) == is_inline
        # What only a read on the event loop may not do, the thread still may.
        assert await driver.read(query) == expected


@pytest.mark.parametrize("sql", LONG_READS)
async def test_a_read_after_one_that_was_stopped_sees_later_commits(
    sql: str, tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    def query(_: float) -> Plan[list[Row]]:
        yield from every(Statement("first", "select count(*) from log"))
        return (yield from every(Statement("test", sql)))

    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        for count in range(1, 6):
            session = (await caller.append("a", key="k")).session
            view = await store.read.session(caller.tenant, session_id=session.id)
            assert view is not None
            assert view.session.head_seq == count
            await store._driver.read_inline(query)


async def test_short_reads_are_not_interrupted_however_often_they_run(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    # SQLite counts the steps of a statement over all its runs; these take as many each.
    here, steps = threading.get_ident(), 300
    first, second = (Statement(n, count_to(steps) + f"select count(*) {n} from n") for n in "ab")

    def query(_: float) -> Plan[list[Row]]:
        yield from every(first)
        return (yield from every(second))

    async with a_store(tmp_path / "a.db", kind) as store:
        await store._driver.read(query)
        kind.asked.clear()
        for _ in range(3 * INLINE_STEPS // steps):
            assert await store._driver.read_inline(query) == [(steps,)]
        assert {thread for _, thread in kind.asked} == {here}


async def test_any_number_of_short_reads_each_sees_what_is_committed(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    def query(_: float) -> Plan[None]:
        yield from ()

    async with a_store(tmp_path / "a.db", kind) as store:
        caller, read = StoreClient(store), store._driver.read_inline
        await read(query)
        # Even the few steps of `begin` and `rollback` add up.
        for count in range(1, 5):
            session = (await caller.append("a", key="k")).session
            for _ in range(INLINE_STEPS // 4):
                await read(query)
            view = await store.read.session(caller.tenant, session_id=session.id)
            assert view is not None
            assert view.session.head_seq == count


async def test_short_transactions_are_made_in_place_and_long_ones_are_not(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.append("a", key="k")
        await caller.append("b", key="k")
        assert kind.commits() == [True, True]
        await store.submit(an_append(MAX_ROWS, key="long"))
        assert kind.commits() == [False]
        await store.submit(an_append(key="short", turn="turn_2"))
        assert kind.commits() == [True]


async def test_a_disk_that_is_slow_is_waited_for_elsewhere(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind, DiskLatencyGate(lambda: 1.0)) as store:
        caller = StoreClient(store)
        kind.before = staticmethod(lambda sql: time.sleep(0.05) if sql == "commit" else None)
        for text in "abc":
            await caller.append(text, key="k")
        assert kind.commits() == [True, False, False]


async def test_the_loop_goes_on_while_another_process_has_the_file(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.append("a", key="k")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("begin immediate")
        kind.commits()
        loop, here, is_waiting = asyncio.get_running_loop(), threading.get_ident(), asyncio.Event()

        def note(sql: str) -> None:
            if sql == "begin immediate" and threading.get_ident() != here:
                loop.call_soon_threadsafe(is_waiting.set)

        kind.before = staticmethod(note)
        waiting = asyncio.ensure_future(caller.append("b", key="k"))
        # If the loop waited for the lock, nobody would be there to give it up.
        await asyncio.wait_for(is_waiting.wait(), 20)
        other.execute("rollback")
        other.close()
        appended = await waiting
        assert kind.commits() == [False]
        assert await caller.texts(appended.session) == ["a", "b"]


async def test_a_process_that_holds_the_file_for_too_long_is_reported(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.append("a", key="k")
        connection = store._driver._write_link.connection()  # type: ignore[attr-defined]
        connection.execute("pragma busy_timeout = 20")
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("begin immediate")
        with pytest.raises(StoreUnavailable, match="locked"):
            await caller.append("b", key="k")
        other.close()
        await caller.append("b", key="k")


async def test_a_command_that_breaks_in_place_spoils_no_other_of_its_batch(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.append("first", key="k")
        kind.commits()
        broken = an_append(turn="no text: \ud800", key="c")
        results = await asyncio.gather(
            caller.append("good", key="a"), store.submit(broken), caller.append("good", key="b"),
            return_exceptions=True,
        )  # fmt: skip
        assert isinstance(results[1], StoreError)
        for result in (results[0], results[2]):
            assert not isinstance(result, BaseException), result
            assert await caller.texts(result.session) == ["good"]
        assert kind.commits() == [True, False], "the batch again, each alone, in the thread"


async def test_the_log_begins_anew_after_enough_rows(
    tmp_path: Path, kind: type[RecordingConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_ROWS", 20)
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        log = tmp_path / "a.db-wal"
        for n in range(100):
            await caller.append(str(n), key="k")
        length = log.stat().st_size
        here = threading.get_ident()
        moved = [thread for sql, thread in kind.asked if "wal_checkpoint" in sql]
        assert len(moved) >= 5
        assert here not in moved
        for n in range(400):
            await caller.append(str(n), key="k")
        assert log.stat().st_size <= 2 * length


async def test_the_first_of_a_round_goes_at_once_and_the_others_together(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await asyncio.gather(*(caller.append("x", key=f"k{n}") for n in range(9)))
        assert kind.commits() == [True, True]
        await asyncio.gather(*(caller.append("y", key=f"k{n}") for n in range(9)))
        assert kind.commits() == [True], "where many ask, all of them share"


async def test_who_writes_without_a_pause_lets_others_go_on(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller, rounds = StoreClient(store), 0

        async def others() -> None:
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        for n in range(20):
            await caller.append(str(n), key="k")
        assert rounds >= 10
        assert all(kind.commits())
        task.cancel()


async def test_short_transcripts_are_read_in_place_and_long_ones_are_not(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await store.submit(an_append(SHORT_ROWS + 1, key="long"))
        appended = await caller.append("a", key="short")
        await store.read.session(DEFAULT_TENANT, session_id=appended.session.id)

        async def readers(key: str, last: int | None) -> set[bool]:
            kind.asked.clear()
            found = await store.read.transcript(DEFAULT_TENANT, key=Key(key), last=last)
            assert found is not None
            here = threading.get_ident()
            return {thread == here for sql, thread in kind.asked if "items from log" in sql}

        assert await readers("short", None) == {True}
        assert await readers("long", SHORT_ROWS) == {True}
        assert await readers("long", None) == {False}
        assert await readers("long", SHORT_ROWS + 1) == {False}


Read = Callable[[Reader, Ended], Awaitable[object]]
OF_A_REQUEST: dict[str, Read] = {
    "session": lambda read, end: read.session(DEFAULT_TENANT, session_id=end.session.id),
    "turn": lambda read, end: read.turn(DEFAULT_TENANT, end.turn.id),
    "runs": lambda read, end: read.runs(end.turn.id),
    "response": lambda read, end: read.response(DEFAULT_TENANT, end.turn.id, 0),
    "outline": lambda read, end: read.outline(
        DEFAULT_TENANT, session_id=end.session.id, last=SHORT_ROWS
    ),
    "items": lambda read, end: read.items(end.session, ItemQuery(limit=SHORT_ROWS)),
    "listing": lambda read, end: read.listing(end.session, ItemQuery(limit=SHORT_ROWS // 2)),
    "item": lambda read, end: read.item(end.session, "item_1"),
    "provider_state": lambda read, end: read.provider_state(end.session.id),
    "find_history": lambda read, _: read.find_history(DEFAULT_TENANT, [b"a"]),
    "stop_requests": lambda read, _: read.stop_requests(),
}
"""What the requests of clients read, each with the rows that most of them need."""


@pytest.mark.parametrize("name", OF_A_REQUEST)
async def test_what_most_requests_read_is_read_in_place(
    name: str, tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        end = await StoreClient(store).converse("a", "b", key="k")
        await store.read.session(DEFAULT_TENANT, key=Key("k"))  # opens the connection
        kind.asked.clear()
        await OF_A_REQUEST[name](store.read, end)
        assert {thread for _, thread in kind.asked} == {threading.get_ident()}


async def test_short_contexts_are_read_in_place_and_long_ones_are_not(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller, places = StoreClient(store), []
        for key, count in (("short", SHORT_ROWS), ("long", SHORT_ROWS + 1)):
            await caller.append(*map(str, range(count)), key=key)
            view = await store.read.session(DEFAULT_TENANT, key=Key(key))
            assert view is not None
            store._transcripts.clear()
            kind.asked.clear()
            assert len(await store.read.context(view.session)) == count
            here = threading.get_ident()
            places.append({at == here for sql, at in kind.asked if "items from log" in sql})
        assert places == [{True}, {False}]


async def test_a_context_that_is_too_large_to_be_kept_is_read_in_the_thread(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        store.limit_cache(10_000)
        caller = StoreClient(store)
        appended = await caller.append("x" * 6_000, key="large")
        kind.asked.clear()
        assert len(await store.read.context(appended.session)) == 1
        places = {at for sql, at in kind.asked if "items from log" in sql}
        assert places
        assert threading.get_ident() not in places


async def test_a_turn_behind_a_queue_shares_the_commit_that_hands_the_lane_over(
    tmp_path: Path, kind: type[RecordingConnection]
) -> None:
    async with a_store(tmp_path / "a.db", kind) as store:
        caller = StoreClient(store)
        await caller.enlist()
        running = await caller.start("a", key="k")
        counts = store.commits
        before = sum(counts.by_commands), counts.commands

        def grown() -> tuple[int, int]:
            return sum(counts.by_commands) - before[0], counts.commands - before[1]

        first = await caller.wait("b", key="k")
        assert grown() == (1, 1), "nobody is handed the lane before it: it must be known soon"
        named = Successor(first.turn.id, RunId("run_b"))
        second, ended = await asyncio.gather(
            caller.wait("c", key="k"), caller.finish(running, "answered", successor=named)
        )
        assert grown() == (2, 3)
        assert ended.successor is not None
        assert ended.successor.turn.id == first.turn.id
        assert second.turn.position > first.turn.position
