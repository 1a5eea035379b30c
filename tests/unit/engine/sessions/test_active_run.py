"""A run's view of its session, whatever order its answers arrive in."""

import asyncio
from typing import Any, cast

import pytest

from holdfast.core.compaction.records import CompactionRecord
from holdfast.core.errors import RunFenced
from holdfast.core.model.items import message
from holdfast.core.transaction.commands import Command, Compact, Delete, Extend, Hide
from holdfast.engine.clock import SystemClock
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.waiters import WaiterRegistry
from holdfast.ports.meter import Meter
from holdfast.ports.store import Store
from holdfast.stores.open import open_store
from holdfast.testing.store_client import StoreClient


class LateAnswers:
    """A store whose answers to checkpoints are heard late."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.may_be_heard = asyncio.Event()
        self.is_done = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[Any]) -> Any:
        """Carry out, and keep the answer back."""
        outcome = await self._store.submit(command)
        if isinstance(command, Extend):
            self.is_done.set()
            await self.may_be_heard.wait()
        return outcome


async def test_an_answer_that_arrives_late_does_not_undo_a_run() -> None:
    store = await open_store("memory:", clock=SystemClock())
    try:
        caller = StoreClient(store)
        await caller.enlist()
        await caller.converse("a", "b", key="k")
        started = await caller.start("c", key="k")
        late = LateAnswers(store)
        run = ActiveRun(cast(Store, late), WaiterRegistry(), Meter(), started)
        extending = asyncio.create_task(run.extend(partial=[message("assistant", "half")]))
        await late.is_done.wait()
        made = CompactionRecord(
            id="x", mode="elide", reason="budget", text="ab", tokens_before=9, tokens_after=1
        )
        await run.compact(Compact(fence=run.fence, to_seq=2, compaction=made))
        late.may_be_heard.set()
        await extending
        assert run.session.record_no == 1
        assert len(await run.items()) == 2
    finally:
        await store.close()


async def test_a_run_notices_that_items_of_its_context_are_gone_or_its_session_is() -> None:
    store = await open_store("memory:", clock=SystemClock())
    try:
        caller = StoreClient(store)
        await caller.enlist()
        session = (await caller.converse("a", "b", key="k")).session
        started = await caller.start("c", key="k")
        run = ActiveRun(store, WaiterRegistry(), Meter(), started)
        assert len(await run.items()) == 3
        assert not await run.is_context_outdated()
        made = CompactionRecord(
            id="x", mode="elide", reason="budget", text="ab", tokens_before=9, tokens_after=1
        )
        await run.compact(Compact(fence=run.fence, to_seq=2, compaction=made))
        assert not await run.is_context_outdated(), "nothing was hidden"
        gone = Hide(tenant=caller.tenant, session_id=session.id, from_seq=1, to_seq=1, erase=True)
        await caller.submit(gone)
        assert await run.is_context_outdated()
        assert [item.seq for item in await run.items()] == [2, 3]
        assert not await run.is_context_outdated()
        await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
        with pytest.raises(RunFenced):
            await run.is_context_outdated()
        assert run.is_lost
    finally:
        await store.close()


async def test_a_run_whose_loss_another_task_noticed_stops_its_own_task() -> None:
    store = await open_store("memory:", clock=SystemClock())
    try:
        caller = StoreClient(store)
        await caller.enlist()
        run = ActiveRun(store, WaiterRegistry(), Meter(), await caller.start("a", key="k"))
        task = asyncio.create_task(asyncio.Event().wait())  # a model that does not answer
        run.on_lost(task.cancel)
        run.abort()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert run.is_lost
    finally:
        await store.close()
