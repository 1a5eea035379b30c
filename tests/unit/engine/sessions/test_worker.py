"""A worker's life: a lease that is kept whatever happens, and eyes on those who are gone."""

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.core.errors import TurnCancelled
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.reset_policy import NEVER
from holdfast.core.transaction.commands import Command, Renew
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.ports.store import GoneWorker
from holdfast.stores.open import open_store
from holdfast.stores.sql.store import SqlStore
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

    async def gone_workers(self) -> list[GoneWorker]:
        self.looks += 1
        await self.may_look.wait()
        if self.breaks:
            self.breaks -= 1
            raise OSError("the folder of tokens is gone")
        if self.looks > 3:
            self.has_looked_again.set()
        return await super().gone_workers()


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
