"""A repeat in the process whose own lease is over: it waits for the run, and asks no more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.reset_policy import NEVER
from holdfast.core.transaction.commands import ExpireWorker
from holdfast.engine.clock import RandomIds
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.ports.meter import Meter
from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.testing.clock import ManualClock

IN_TIME = 60.0
LONG = LaneSettings(lease_seconds=3600.0)
"""Nothing that is only done when a lease is renewed happens in a test."""


class Admissions(Meter):
    """Records how the gateway's requests were accepted."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def turn_accepted(self, source: str, admission: str, *, is_new: bool = True) -> None:
        self.seen.append(admission)


@pytest.fixture
def clock() -> ManualClock:
    """The store's clock."""
    return ManualClock()


@pytest.fixture
async def gateway(store_url: str, clock: ManualClock) -> AsyncIterator[Gateway]:
    """A gateway that counts admissions."""
    if store_url.startswith("postgresql:"):
        store = await open_postgres(store_url, clock=clock)
    else:
        store = await open_store(store_url, clock=clock)
    gateway = Gateway(store, clock=clock, ids=RandomIds(), settings=LONG, meter=Admissions())
    await gateway.start()
    yield gateway
    await gateway.stop()
    await store.close()


async def pass_its_time(gateway: Gateway, clock: ManualClock) -> None:
    """As after a pause of the process, or of its store."""
    clock.advance(2 * LONG.lease_seconds)


async def be_taken_for_dead(gateway: Gateway, clock: ManualClock) -> None:
    """Another process ended the lease; it has not recovered the lane yet."""
    await gateway.submit(ExpireWorker(worker=gateway.worker.id))


@pytest.mark.parametrize("end_lease", [pass_its_time, be_taken_for_dead])
async def test_a_repeat_waits_for_the_run_of_its_own_process(
    gateway: Gateway,
    clock: ManualClock,
    end_lease: Callable[[Gateway, ManualClock], Awaitable[None]],
) -> None:
    session = await Holdfast(gateway, DEFAULT_TENANT, NEVER).session("k")
    admissions = gateway.meter
    assert isinstance(admissions, Admissions)
    async with asyncio.timeout(IN_TIME):
        async with session.turn("one", idempotency_key="i") as first:
            await end_lease(gateway, clock)
            again = asyncio.create_task(session.turn("one", idempotency_key="i").__aenter__())
            while "repeated" not in admissions.seen:  # noqa: ASYNC110 - the meter has no event
                await asyncio.sleep(0)
            for _ in range(20):
                await session.view()  # time for a repeat that would ask again and again
            assert not again.done()
            first.add("once")
        repeated = await again
    assert repeated.is_done
    assert repeated.id == first.id
    assert admissions.seen == ["started", "repeated"]


async def test_a_caller_that_watches_a_turn_of_its_own_process_waits_for_its_end(
    gateway: Gateway, clock: ManualClock
) -> None:
    session = await Holdfast(gateway, DEFAULT_TENANT, NEVER).session("k")
    async with asyncio.timeout(IN_TIME):
        async with session.turn("one") as turn:
            (view,) = await session.turns()
            await be_taken_for_dead(gateway, clock)
            watching = asyncio.create_task(gateway.wait_until_ended(DEFAULT_TENANT, view.turn.id))
            for _ in range(20):
                await session.view()
            assert not watching.done()
            turn.add("here")
        assert (await watching).status == "completed"
