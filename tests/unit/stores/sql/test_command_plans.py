"""Leases as commands: who is alive, who was declared dead, and who stays dead."""

from collections.abc import AsyncIterator

import pytest

from holdfast.core.errors import RunFenced
from holdfast.core.ids import WorkerId
from holdfast.core.transaction.commands import ExpireWorker, Renew
from holdfast.stores.open import open_store
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock

MINE, OTHER = WorkerId("wrk_a"), WorkerId("wrk_b")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[SqlStore]:
    opened = await open_store("memory:", clock=clock)
    yield opened
    await opened.close()


async def gone(store: SqlStore) -> list[WorkerId]:
    return [worker.id for worker in await store.workers() if worker.is_gone]


async def test_a_worker_is_gone_when_its_lease_ran_out(store: SqlStore, clock: ManualClock) -> None:
    await store.enlist(MINE, 10)
    clock.advance(9.9)
    assert await gone(store) == []
    clock.advance(0.1)
    assert await gone(store) == [MINE]


async def test_a_late_renewal_counts_if_nobody_took_over(
    store: SqlStore, clock: ManualClock
) -> None:
    await store.enlist(MINE, 10)
    clock.advance(60)
    assert await store.submit(Renew(worker=MINE, lease_seconds=10)) == clock.now() + 10
    assert await gone(store) == []


async def test_a_worker_that_renewed_after_it_was_judged_is_not_expired(
    store: SqlStore, clock: ManualClock
) -> None:
    await store.enlist(MINE, 10)
    clock.advance(11)
    (judged,) = await store.workers()
    await store.submit(Renew(worker=MINE, lease_seconds=10))
    assert not await store.submit(ExpireWorker(worker=judged.id, alive_until=judged.alive_until))
    assert await gone(store) == []


async def test_a_worker_that_was_taken_for_dead_does_not_come_back_under_its_name(
    store: SqlStore, clock: ManualClock
) -> None:
    await store.enlist(MINE, 10)
    clock.advance(11)
    (judged,) = await store.workers()
    assert await store.submit(ExpireWorker(worker=judged.id, alive_until=judged.alive_until))
    with pytest.raises(RunFenced, match="declared dead"):
        await store.submit(Renew(worker=MINE, lease_seconds=10))
    await store.dismiss(MINE)
    with pytest.raises(RunFenced, match="declared dead"):
        await store.submit(Renew(worker=MINE, lease_seconds=10))


async def test_expiring_a_worker_twice_or_an_unknown_one_is_harmless(
    store: SqlStore, clock: ManualClock
) -> None:
    await store.enlist(MINE, 10)
    assert await store.submit(ExpireWorker(worker=MINE))
    assert await store.submit(ExpireWorker(worker=MINE, alive_until=0.0))
    assert await store.submit(ExpireWorker(worker=OTHER))
    await store.dismiss(MINE)
    assert await gone(store) == []


async def test_enlisting_twice_is_one_worker(store: SqlStore, clock: ManualClock) -> None:
    await store.submit(Renew(worker=MINE, lease_seconds=10, is_new=True))
    clock.advance(5)
    await store.submit(Renew(worker=MINE, lease_seconds=10, is_new=True, again=True))
    clock.advance(9)
    assert MINE not in [w.id for w in await store.workers() if w.is_late]
