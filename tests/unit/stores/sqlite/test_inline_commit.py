"""Transactions on the event loop itself: which, for how long, and never waiting for anybody."""

import asyncio
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.ids import RunId, TurnId, WorkerId
from holdfast.core.model.turn import Successor
from holdfast.core.transaction.commands import (
    Command,
    MarkDelivered,
    Prune,
    Renew,
)
from holdfast.stores.sqlite import driver as sqlite
from holdfast.stores.sqlite import inline_commit
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
from holdfast.testing.store_client import StoreClient
from tests.unit.stores.sqlite.recording import RecordingConnection, a_store, an_append


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
