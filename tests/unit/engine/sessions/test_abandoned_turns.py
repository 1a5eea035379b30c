"""Abandoned turns: the lane is freed, and what was written is there once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import DEFAULT_TENANT, TurnId, WorkerId
from holdfast.core.model.reset_policy import NEVER
from holdfast.core.transaction.commands import (
    Accept,
    Claim,
    Command,
    ExpireWorker,
    Extend,
    Finish,
    Renew,
)
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.sessions import submission
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway, Handler
from holdfast.engine.settings import LaneSettings
from holdfast.stores.open import open_store
from holdfast.stores.sql.store import SqlStore

OutcomeT = TypeVar("OutcomeT")
IN_TIME = 60.0


class FaultyStore(SqlStore):
    """A store whose commands can be made to fail, or to be answered late."""

    is_down: Callable[[Command[Any]], bool] = staticmethod(lambda _: False)
    before_answer: Callable[[Command[Any]], Any] | None = None

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        if self.is_down(command):
            raise StoreUnavailable("the disk is full")
        outcome = await super().submit(command)
        if self.before_answer is not None:
            await self.before_answer(command)
        return outcome


@asynccontextmanager
async def faulty_holdfast(
    handler: Handler | None = None,
) -> AsyncIterator[tuple[Holdfast, FaultyStore]]:
    clock = SystemClock()
    store = await open_store("memory:", clock=clock)
    store.__class__ = FaultyStore
    assert isinstance(store, FaultyStore)
    settings = LaneSettings(lease_seconds=0.3)
    limits = settings.limits(can_run_again=handler is not None)
    gateway = Gateway(store, clock=clock, ids=RandomIds(), settings=settings, limits=limits)
    await gateway.start(handler)
    try:
        yield Holdfast(gateway, DEFAULT_TENANT, NEVER), store
    finally:
        await gateway.stop()
        await store.close()


async def _next_turn_runs(hf: Holdfast) -> None:
    session = await hf.session("k")
    async with asyncio.timeout(IN_TIME), session.turn("next") as turn:
        turn.add("answered")
    assert (await session.view()).status == "idle"


async def test_a_waiter_that_leaves_does_not_hold_up_those_behind_it() -> None:
    async with faulty_holdfast() as (hf, store):
        session = await hf.session("k")
        is_waiting = asyncio.Event()

        async def notice(command: Command[Any]) -> None:
            if isinstance(command, Claim):
                is_waiting.set()

        async with session.turn("first"):
            store.before_answer = notice
            waiting = asyncio.create_task(session.turn("second").__aenter__())
            await is_waiting.wait()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await _next_turn_runs(hf)
        statuses = [view.status for view in await session.turns()]
        assert statuses == ["completed", "interrupted", "completed"]


async def test_a_background_turn_whose_waiter_leaves_is_run_by_the_handler() -> None:
    async def handler(run: ActiveRun) -> None:
        await run.finish(Finish(fence=run.fence, outcome="completed"))

    async with faulty_holdfast(handler=handler) as (hf, store):
        session = await hf.session("k")
        is_waiting = asyncio.Event()

        async def notice(command: Command[Any]) -> None:
            if isinstance(command, Claim):
                is_waiting.set()

        async with session.turn("first"):
            store.before_answer = notice
            job = session.turn("job", source="background")
            waiting = asyncio.create_task(job.__aenter__())
            await is_waiting.wait()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(IN_TIME):
            view = await hf.gateway.wait_until_ended(DEFAULT_TENANT, TurnId(job.id))
        assert view.status == "completed"


@pytest.mark.parametrize("kind", [Accept, Claim])
async def test_a_caller_that_leaves_while_its_turn_is_being_started_frees_the_lane(
    kind: type[Command[Any]],
) -> None:
    async with faulty_holdfast() as (hf, store):
        session = await hf.session("k")
        is_committed, may_answer = asyncio.Event(), asyncio.Event()

        async def hold_the_answer(command: Command[Any]) -> None:
            if isinstance(command, kind):
                is_committed.set()
                await may_answer.wait()

        first = session.turn("first")
        if kind is Claim:
            await first.__aenter__()
        store.before_answer = hold_the_answer
        leaving = asyncio.create_task(session.turn("leaving").__aenter__())
        await is_committed.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        may_answer.set()
        store.before_answer = None
        if kind is Claim:
            await first.__aexit__(None, None, None)
        await _next_turn_runs(hf)


async def test_a_caller_that_leaves_while_its_lane_is_being_handed_to_it_frees_it() -> None:
    async with faulty_holdfast() as (hf, store):
        session = await hf.session("k")
        is_waiting, is_committed, may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def hold_the_answer(command: Command[Any]) -> None:
            if isinstance(command, Claim):
                is_waiting.set()
            if isinstance(command, Finish) and not is_committed.is_set():
                is_committed.set()
                await may_answer.wait()

        first = session.turn("first")
        await first.__aenter__()
        store.before_answer = hold_the_answer
        leaving = asyncio.create_task(session.turn("leaving").__aenter__())
        await is_waiting.wait()
        ending = asyncio.create_task(first.__aexit__(None, None, None))
        await is_committed.wait()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        may_answer.set()
        await ending
        await _next_turn_runs(hf)
        turns = [view.turn for view in await session.turns()]
        assert [turn.outcome for turn in turns] == ["completed", "interrupted", "completed"]
        assert turns[1].error_code == "caller_left"


async def test_an_end_that_could_not_be_written_is_written_when_the_store_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "FIRST_PAUSE_SECONDS", 0.0001)
    async with faulty_holdfast() as (hf, store):
        session = await hf.session("k")
        store.is_down = lambda command: isinstance(command, Finish)
        with pytest.raises(StoreUnavailable):
            async with session.turn("first", idempotency_key="one") as turn:
                turn.add("the answer")
        for _ in range(3):
            await hf.gateway.worker.sweep()  # the run is not taken for lost meanwhile
        store.is_down = lambda _: False
        await _next_turn_runs(hf)
        async with session.turn("first", idempotency_key="one") as again:
            assert again.is_done
        assert [item["content"][0]["text"] for item in await again.output()] == ["the answer"]


async def test_a_turn_whose_handler_keeps_breaking_is_given_up() -> None:
    async def handler(run: ActiveRun) -> None:
        raise ValueError("a bug in the handler")

    async with faulty_holdfast(handler=handler) as (hf, store):
        session = await hf.session("k")
        dead = WorkerId("wrk_dead")
        await store.submit(Renew(worker=dead, lease_seconds=60, is_new=True))
        accept = session.turn("job", source="background")._accept
        accepted = await store.submit(replace(accept, worker=dead))
        await store.submit(ExpireWorker(worker=dead))
        await hf.gateway.worker.sweep()
        async with asyncio.timeout(IN_TIME):
            view = await hf.gateway.wait_until_ended(DEFAULT_TENANT, accepted.turn.id)
        assert (view.status, view.turn.error_code) == ("failed", "turn_abandoned")
        await _next_turn_runs(hf)


@pytest.mark.parametrize("is_heard_of", [True, False], ids=["not committed", "committed"])
async def test_a_checkpoint_whose_outcome_is_unknown_neither_loses_nor_doubles_its_items(
    is_heard_of: bool,
) -> None:
    async with faulty_holdfast() as (hf, store):
        session = await hf.session("k")

        async def go_unheard(command: Command[Any]) -> None:
            if isinstance(command, Extend):
                raise StoreUnavailable("the answer was lost")

        async with session.turn("question") as turn:
            turn.add("one")
            if is_heard_of:
                store.is_down = lambda command: isinstance(command, Extend)
            else:
                store.before_answer = go_unheard
            with pytest.raises(StoreUnavailable):
                await turn.checkpoint()
            store.is_down, store.before_answer = (lambda _: False), None
            turn.add("two")
            await turn.checkpoint()
            turn.add("three")
        said = [item["content"][0]["text"] for item in await session.items()]
        assert said == ["question", "one", "two", "three"]


async def test_a_caller_that_leaves_during_a_checkpoint_keeps_its_items_once() -> None:
    async with faulty_holdfast() as (hf, store):
        session = await hf.session("k")
        is_committed = asyncio.Event()

        async def hold_the_answer(command: Command[Any]) -> None:
            if isinstance(command, Extend):
                is_committed.set()
                await asyncio.Event().wait()

        async def work() -> None:
            async with session.turn("question") as turn:
                turn.add("one")
                store.before_answer = hold_the_answer
                await turn.checkpoint()

        working = asyncio.create_task(work())
        await is_committed.wait()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        said = [item["content"][0]["text"] for item in await session.items()]
        assert said == ["question", "one"]
