"""Batches of turns that run elsewhere, through the engine: sent twice they count once."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.core.errors import TurnNotFound
from holdfast.engine.sessions.appending import append_batch
from holdfast.engine.sessions.gateway import Gateway
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.ids import SequentialIds
from holdfast.testing.store_client import StoreClient


@pytest.fixture
async def gateway(store: SqlStore, clock: ManualClock) -> AsyncIterator[Gateway]:
    gateway = Gateway(store, clock=clock, ids=SequentialIds("g"))
    await gateway.start()
    yield gateway
    await gateway.stop()


async def test_a_first_batch_that_comes_again_unmarked_counts_once(
    gateway: Gateway, caller: StoreClient
) -> None:
    first = await append_batch(gateway, caller.part("A", 0, "a"))
    again = await append_batch(gateway, caller.part("A", 0, "a"))
    assert (again.turn.id, again.is_repeat) == (first.turn.id, True)
    assert await caller.texts(first.session) == ["a"]


async def test_a_first_batch_that_waits_finds_itself_begun_by_its_own_repeat(
    gateway: Gateway, caller: StoreClient
) -> None:
    run = await caller.start("busy", key="k")
    waiting = asyncio.create_task(append_batch(gateway, caller.part("A", 0, "a")))
    for _ in range(3):
        await asyncio.sleep(0)
    ended = await caller.finish(run, "done")
    await caller.submit(caller.part("A", 0, "a", again=True))
    async with asyncio.timeout(20):
        await waiting
    assert await caller.texts(ended.session) == ["busy", "done", "a"]


async def test_the_id_of_somebody_elses_turn_is_refused(
    gateway: Gateway, caller: StoreClient
) -> None:
    mine = await append_batch(gateway, caller.part("A", 0, "a"))
    stranger = StoreClient(caller.store, "s", tenant="stranger")
    with pytest.raises(TurnNotFound):
        await append_batch(gateway, stranger.part("A", 0, "b"))
    assert await caller.texts(mine.session) == ["a"]
