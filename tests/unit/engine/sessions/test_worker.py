"""A worker's life: a lease that is kept whatever happens, and eyes on those who are gone."""

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.core.errors import StoreUnavailable, TurnCancelled
from holdfast.core.ids import DEFAULT_TENANT, WorkerId
from holdfast.core.model.reset_policy import NEVER
from holdfast.core.transaction.commands import Command, ExpireWorker, Renew
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.sessions.worker import LeaseWatch
from holdfast.engine.settings import LaneSettings
from holdfast.ports.store import WorkerState
from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient

OutcomeT = TypeVar("OutcomeT")
IN_TIME = 60.0
SHORT = LaneSettings(lease_seconds=0.03)
LONG = LaneSettings(lease_seconds=3600.0)
"""Nothing that is only done when a lease is renewed happens in a test."""


class WatchedStore(SqlStore):
    """A store whose renewals are counted, and in which looking for the gone can break."""

    breaks: int = 0
    looks: int = 0
    renewals: int = 0

    def prepare(self) -> None:
        self.is_renewed_twice = asyncio.Event()
        self.has_looked_again = asyncio.Event()
        self.may_look = asyncio.Event()
        self.may_look.set()

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        outcome = await super().submit(command)
        if isinstance(command, Renew) and not command.is_new:
            self.renewals += 1
            if self.renewals == 2:
                self.is_renewed_twice.set()
        return outcome

    async def workers(self) -> list[WorkerState]:
        self.looks += 1
        await self.may_look.wait()
        if self.breaks:
            self.breaks -= 1
            raise OSError("the folder of tokens is gone")
        if self.looks > 3:
            self.has_looked_again.set()
        return await super().workers()


async def a_watched_store() -> WatchedStore:
    store = await open_store("memory:", clock=SystemClock())
    store.__class__ = WatchedStore
    assert isinstance(store, WatchedStore)
    store.prepare()
    return store


async def test_a_worker_that_settles_for_long_when_it_starts_stays_alive() -> None:
    store = await a_watched_store()
    gateway = Gateway(store, clock=SystemClock(), ids=RandomIds(), settings=SHORT)
    store.may_look.clear()
    starting = asyncio.create_task(gateway.start())
    async with asyncio.timeout(IN_TIME):
        await store.is_renewed_twice.wait()
    assert not starting.done()
    store.may_look.set()
    await starting
    await gateway.stop()
    await store.close()


async def test_a_sweep_that_breaks_ends_neither_the_lease_nor_the_sweeping() -> None:
    store = await a_watched_store()
    gateway = Gateway(store, clock=SystemClock(), ids=RandomIds(), settings=SHORT)
    await gateway.start()
    store.breaks = 2
    async with asyncio.timeout(IN_TIME):
        await store.has_looked_again.wait()
        await store.is_renewed_twice.wait()
    await gateway.stop()
    await store.close()


async def test_a_start_that_fails_leaves_no_task_behind() -> None:
    store = await a_watched_store()
    gateway = Gateway(store, clock=SystemClock(), ids=RandomIds(), settings=SHORT)
    store.breaks = 1
    with pytest.raises(OSError, match="tokens"):
        await gateway.start()
    assert [task.get_name() for task in asyncio.all_tasks() if "holdfast" in task.get_name()] == []
    await store.close()


async def test_a_start_that_failed_can_be_tried_again_and_turns_wait_as_ever() -> None:
    store = await a_watched_store()
    gateway = Gateway(store, clock=SystemClock(), ids=RandomIds(), settings=LONG)
    store.breaks = 1
    with pytest.raises(OSError, match="tokens"):
        await gateway.start()
    await gateway.start()
    session = await Holdfast(gateway, DEFAULT_TENANT, NEVER).session("k")

    async def ask(text: str) -> None:
        async with session.turn(text) as turn:
            turn.add(f"re: {text}")

    async with asyncio.timeout(IN_TIME), session.turn("first") as turn:
        waiting = asyncio.create_task(ask("second"))
        while not await store.owned_turns(gateway.worker.id):
            pass  # each look goes through the store's thread
        turn.add("re: first")
    async with asyncio.timeout(IN_TIME):
        await waiting
    said = [item["content"][0]["text"] for item in await session.items()]
    assert said == ["first", "re: first", "second", "re: second"]
    await gateway.stop()
    await store.close()


async def _open(path: Path, settings: LaneSettings, **more: Any) -> tuple[Gateway, Holdfast]:
    store = await open_store(f"sqlite:///{path}", clock=SystemClock())
    gateway = Gateway(store, clock=SystemClock(), ids=RandomIds(), settings=settings, **more)
    await gateway.start()
    return gateway, Holdfast(gateway, DEFAULT_TENANT, NEVER)


async def test_a_reset_by_another_process_stops_the_run_here_before_any_renewal(
    tmp_path: Path,
) -> None:
    here, hf = await _open(tmp_path / "a.db", LONG)
    there, other = await _open(tmp_path / "a.db", LONG)
    session = await hf.session("k")

    async def be_reset() -> None:
        async with asyncio.timeout(IN_TIME), session.turn("one"):
            await (await other.session("k")).reset()
            await asyncio.Event().wait()

    with pytest.raises(TurnCancelled) as caught:
        await be_reset()
    assert caught.value.reason == "session_reset"
    for gateway in (here, there):
        await gateway.stop()
        await gateway.store.close()


async def test_a_waiter_behind_a_dead_process_gets_the_lane_long_before_its_lease_ends(
    tmp_path: Path,
) -> None:
    gateway, hf = await _open(tmp_path / "a.db", LONG)
    doomed_store = await open_store(f"sqlite:///{tmp_path / 'a.db'}", clock=SystemClock())
    doomed = StoreClient(doomed_store, "doomed")
    await doomed.enlist(lease_seconds=3600)
    await doomed.start("one", key="k")
    session = await hf.session("k")
    waiting = asyncio.create_task(session.turn("two").__aenter__())
    await doomed_store.close()  # as the system does for a process that dies
    async with asyncio.timeout(IN_TIME):
        turn = await waiting
        turn.add("here")
        await turn.__aexit__(None, None, None)
    ends = [(view.turn.outcome, view.turn.error_code) for view in await session.turns()]
    assert ends == [("completed", None), ("interrupted", "worker_lost")]
    await gateway.stop()
    await gateway.store.close()


async def test_a_worker_taken_for_dead_starts_over_under_a_new_name() -> None:
    store = await a_watched_store()
    gateway = Gateway(store, clock=SystemClock(), ids=RandomIds(), settings=SHORT)
    await gateway.start()
    first = gateway.worker.id
    await store.dismiss(first)
    store.renewals = 0
    store.is_renewed_twice.clear()
    async with asyncio.timeout(IN_TIME):
        await store.is_renewed_twice.wait()
    assert gateway.worker.id != first
    session = await Holdfast(gateway, DEFAULT_TENANT, NEVER).session("k")
    async with session.turn("one") as turn:
        turn.add("here")
    (view,) = await session.turns()
    assert (view.turn.outcome, view.turn.owner) == ("completed", gateway.worker.id)
    await gateway.stop()
    await store.close()


# ── who is gone ─────────────────────────────────────────────────────────────────────────────

LEASE = 9.0
NEIGHBOUR = WorkerId("wrk_neighbour")


def late(alive_until: float = 10.0) -> WorkerState:
    """Return a neighbour whose lease is over, and whose process may be alive."""
    return WorkerState(NEIGHBOUR, alive_until, is_late=True, is_dead=False)


def look(watch: LeaseWatch, at: float, worker: WorkerState) -> bool:
    """Return whether a worker is gone at a look at this moment."""
    return watch.observe([worker], began=at, ended=at) == [worker]


def test_a_dead_process_is_gone_at_the_first_look() -> None:
    dead = WorkerState(NEIGHBOUR, 1e12, is_late=False, is_dead=True)
    assert look(LeaseWatch(LEASE), 100.0, dead)


def test_a_lease_that_is_over_must_stay_unchanged_for_a_whole_lease() -> None:
    watch = LeaseWatch(LEASE)
    assert [look(watch, at, late()) for at in (100.0, 103.0, 106.0, 109.0)] == [
        False, False, False, True,
    ]  # fmt: skip


def test_silence_before_the_end_of_the_lease_counts() -> None:
    watch = LeaseWatch(LEASE)
    in_time = WorkerState(NEIGHBOUR, 10.0, is_late=False, is_dead=False)
    assert not any(look(watch, at, in_time) for at in (100.0, 103.0, 106.0, 109.0))
    assert not watch.has_suspects
    assert look(watch, 110.0, late())


def test_every_renewal_starts_the_silence_again() -> None:
    watch = LeaseWatch(LEASE)
    for number in range(20):
        assert not look(watch, 100.0 + 3 * number, late(alive_until=10.0 + number // 3))
        assert watch.has_suspects


def test_time_in_which_nobody_looked_does_not_count() -> None:
    watch = LeaseWatch(LEASE)
    assert not look(watch, 100.0, late())
    assert not look(watch, 5000.0, late())
    assert look(watch, 9000.0, late())
    slow = LeaseWatch(LEASE)
    slow.observe([late()], began=100.0, ended=150.0)
    assert slow.observe([late()], began=151.0, ended=200.0) == []


def test_an_outage_of_the_store_starts_the_silence_again() -> None:
    watch = LeaseWatch(LEASE)
    assert not any(look(watch, at, late()) for at in (100.0, 103.0, 106.0))
    watch.start_over()
    assert not any(look(watch, at, late()) for at in (109.0, 112.0, 115.0))
    assert look(watch, 118.0, late())


class FailingStore(SqlStore):
    """A store of which every second look at the workers, or every renewal, fails for a while."""

    failing: str = ""
    failures: int = 0
    looks: int = 0

    def prepare(self, failing: str) -> None:
        self.failing = failing
        self.has_failed_often, self.has_expired = asyncio.Event(), asyncio.Event()

    def _fail(self) -> None:
        self.failures += 1
        if self.failures >= 12:
            self.has_failed_often.set()
        raise StoreUnavailable("the server is gone, or read-only")

    async def workers(self) -> list[WorkerState]:
        self.looks += 1
        if self.failing == "looks" and self.looks % 2:
            self._fail()
        return await super().workers()

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        if isinstance(command, Renew) and not command.is_new and self.failing == "renewals":
            self._fail()
        outcome = await super().submit(command)
        if isinstance(command, ExpireWorker):
            self.has_expired.set()
        return outcome


@pytest.mark.parametrize("failing", ["looks", "renewals"])
async def test_an_outage_of_the_store_takes_no_run_from_a_neighbour(failing: str) -> None:
    store = await open_store("memory:", clock=SystemClock())
    store.__class__ = FailingStore
    assert isinstance(store, FailingStore)
    neighbour = StoreClient(store, "neighbour")
    await neighbour.enlist(lease_seconds=0.001)
    await neighbour.start("one", key="k")
    store.prepare("")
    settings = LaneSettings(lease_seconds=0.3)
    gateway = Gateway(store, clock=SystemClock(), ids=RandomIds(), settings=settings)
    await gateway.start()
    store.prepare(failing)
    async with asyncio.timeout(IN_TIME):
        await store.has_failed_often.wait()
        assert not store.has_expired.is_set()
        store.failing = ""
        await store.has_expired.wait()
    await gateway.stop()
    await store.close()


@pytest.mark.parametrize("step", [86_400.0, -86_400.0])
async def test_a_step_of_the_clock_takes_no_run_from_a_living_neighbour(
    store_url: str, step: float
) -> None:
    clock = ManualClock()
    here, hf = await _open_at(store_url, clock)
    there, other = await _open_at(store_url, clock)
    session = await hf.session("k")
    async with asyncio.timeout(IN_TIME):
        async with session.turn("one") as turn:
            clock.set(clock.now() + step)
            for _ in range(3):
                await there.worker.sweep()
            waiting = asyncio.create_task((await other.session("k")).turn("two").__aenter__())
            while (await session.view()).queued_turns < 1:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0)
            await there.worker.sweep()
            turn.add("re: one")
        second = await waiting
        second.add("re: two")
        await second.__aexit__(None, None, None)
    ends = [(view.turn.outcome, view.turn.attempts) for view in await session.turns()]
    assert ends == [("completed", 1), ("completed", 1)]
    for gateway in (here, there):
        await gateway.stop()
        await gateway.store.close()


async def test_a_neighbour_that_hangs_loses_its_lane(store_url: str) -> None:
    store = await open_store(store_url, clock=SystemClock())
    hanging = StoreClient(store, "hanging")
    await hanging.enlist(lease_seconds=0.3)
    await hanging.start("one", key="k")
    alive = await open_store(store_url, clock=SystemClock())
    gateway = Gateway(
        alive, clock=SystemClock(), ids=RandomIds(), settings=LaneSettings(lease_seconds=0.3)
    )
    await gateway.start()
    session = await Holdfast(gateway, DEFAULT_TENANT, NEVER).session("k")
    async with asyncio.timeout(IN_TIME), session.turn("two") as turn:
        turn.add("here")
    ends = [(view.turn.outcome, view.turn.error_code) for view in await session.turns()]
    assert ends == [("completed", None), ("interrupted", "worker_lost")]
    await gateway.stop()
    await alive.close()
    await store.close()


async def _open_at(url: str, clock: ManualClock) -> tuple[Gateway, Holdfast]:
    if url.startswith("postgresql:"):
        store = await open_postgres(url, clock=clock)
    else:
        store = await open_store(url, clock=clock)
    gateway = Gateway(store, clock=clock, ids=RandomIds(), settings=LONG)
    await gateway.start()
    return gateway, Holdfast(gateway, DEFAULT_TENANT, NEVER)
