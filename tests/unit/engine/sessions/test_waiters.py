"""Wake-ups: none is lost, and none is wasted."""

import asyncio

import pytest

from holdfast.core.ids import RunId, SessionId, TurnId
from holdfast.core.transaction.commands import Queued, Reset
from holdfast.engine.sessions import waiters
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.waiters import WaiterRegistry
from tests.unit.engine.harness import open_engine

HERE, THERE = SessionId("ses_here"), SessionId("ses_there")
TURN = TurnId("turn_1")


def test_a_wake_before_the_waiter_came_is_not_lost() -> None:
    registry = WaiterRegistry()
    since = registry.tick
    assert not registry.join_lane(HERE, 1, since=since).is_woken
    registry.wake(THERE)
    assert not registry.join_lane(HERE, 1, since=since).is_woken
    registry.wake(HERE)
    assert registry.join_lane(HERE, 2, since=since).is_woken
    assert not registry.join_lane(HERE, 2, since=registry.tick).is_woken


def test_news_that_may_be_of_any_session_is_news_of_each() -> None:
    registry = WaiterRegistry()
    since = registry.tick
    registry.wake_all()
    assert registry.join_lane(HERE, 1, since=since).is_woken


def test_wakes_too_many_to_remember_are_taken_for_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "REMEMBERED", 2)
    registry = WaiterRegistry()
    since = registry.tick
    registry.wake(HERE)
    for number in range(3):
        registry.wake(SessionId(f"ses_{number}"))
    assert registry.join_lane(HERE, 1, since=since).is_woken


def test_a_waiter_that_leaves_unserved_wakes_the_next_one_and_a_served_one_does_not() -> None:
    registry = WaiterRegistry()
    first, second, third = (registry.join_lane(HERE, place, since=0) for place in (1, 2, 3))
    registry.leave_lane(first, is_served=True)
    assert not second.is_woken
    registry.leave_lane(second, is_served=False)
    assert third.is_woken


async def test_a_waiter_continues_when_woken_or_when_its_time_is_over() -> None:
    waiter = WaiterRegistry().join_lane(HERE, 1, since=0)
    waiting = asyncio.create_task(waiter.wait(3600.0))
    await asyncio.sleep(0)
    waiter.wake()
    waiter.wake()
    async with asyncio.timeout(30):
        assert await waiting
        assert not await waiter.wait(0.0)
        waiter.wake()
        assert await waiter.wait(3600.0)


async def test_a_waiter_that_left_is_not_woken_by_its_timer() -> None:
    registry = WaiterRegistry()
    waiter = registry.join_lane(HERE, 1, since=0)
    done = waiter.alarm(0.0)
    registry.leave_lane(waiter, is_served=False)
    ticking = WaiterRegistry().join_lane(HERE, 1, since=0)
    async with asyncio.timeout(30):
        assert not await ticking.wait(0.01)
    assert not done.done()


async def test_waiters_are_kept_in_the_order_of_their_turns() -> None:
    registry = WaiterRegistry()
    joined = {place: registry.join_lane(HERE, place, since=0) for place in (5, 7, 6, -1)}
    for place in (-1, 5, 6, 7):
        registry.wake(HERE)
        assert joined[place].is_woken
        registry.leave_lane(joined[place], is_served=True)


async def test_a_turn_that_waited_is_told_when_it_loses_its_lane() -> None:
    async with open_engine() as engine:
        first = await engine.enter("first")
        admission, lost = await engine.accept("second"), asyncio.Event()
        assert isinstance(admission, Queued)
        entering = asyncio.create_task(engine.gateway.enter(admission, lost.set))
        await engine.finish(first, "done")
        async with asyncio.timeout(30):
            run = await entering
            assert not lost.is_set()
            await engine.gateway.submit(
                Reset(
                    tenant=run.turn.tenant, session_id=run.session.id,
                    new_id=engine.gateway.new_session_id(),
                )
            )  # fmt: skip
            await lost.wait()
        assert run.is_lost
        engine.gateway.leave(run)


def test_a_stop_that_comes_before_its_run_is_not_lost() -> None:
    registry, stopped = WaiterRegistry(), []
    registry.notify((), (RunId("run_1"),))
    assert RunId("run_1") in registry.stopped_early
    registry.running[RunId("run_1")] = lambda: stopped.append(1)
    registry.running[RunId("run_2")] = lambda: stopped.append(2)
    registry.notify((), list(registry.stopped_early))
    assert stopped == [1]
    assert not registry.stopped_early
    assert list(registry.running) == [RunId("run_2")]


async def test_a_lane_that_came_free_before_anybody_waited_is_claimed_at_once() -> None:
    async with open_engine() as engine:
        run = await engine.enter("first")
        admission = await engine.accept("second")
        await engine.finish(run)
        async with asyncio.timeout(30):
            second = await engine.gateway.enter(admission)  # type: ignore[arg-type]
        assert isinstance(second, ActiveRun)
        await engine.finish(second)


async def test_a_run_that_lost_its_lane_before_it_was_entered_knows_it_at_once() -> None:
    async with open_engine() as engine:
        admission = await engine.accept("first")
        command = Reset(
            tenant=engine.caller.tenant,
            session_id=admission.session.id,
            new_id=SessionId("ses_next"),
        )
        await engine.gateway.submit(command)
        run = await engine.gateway.enter(admission)  # type: ignore[arg-type]
        assert run.is_lost
        engine.gateway.leave(run)
