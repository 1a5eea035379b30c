"""Deadlines: whoever is over its time is broken off; others, and other cancellations, are not."""

import asyncio

import pytest

from holdfast.engine.model_call.deadlines import Deadlines


async def limited(deadlines: Deadlines, until: asyncio.Event) -> str:
    task = deadlines.start()
    try:
        await until.wait()
    except asyncio.CancelledError:
        if not deadlines.stop(task):
            raise
        return "over"
    finally:
        deadlines.stop(task)
    return "done"


async def test_each_is_broken_off_once_its_time_is_over() -> None:
    deadlines, never = Deadlines(0.01), asyncio.Event()
    tasks = [asyncio.create_task(limited(deadlines, never)) for _ in range(3)]
    assert await asyncio.wait_for(asyncio.gather(*tasks), timeout=30) == ["over"] * 3
    assert [task.cancelling() for task in tasks] == [0, 0, 0]


async def test_the_time_of_a_later_one_begins_later() -> None:
    deadlines, soon, never = Deadlines(0.5), asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(limited(deadlines, soon))
    await asyncio.sleep(0)
    second = asyncio.create_task(limited(deadlines, never))
    soon.set()
    assert await asyncio.wait_for(first, timeout=30) == "done"
    assert await asyncio.wait_for(second, timeout=30) == "over"


async def test_who_is_done_in_time_is_left_alone() -> None:
    deadlines, done = Deadlines(60.0), asyncio.Event()
    done.set()
    task = asyncio.create_task(limited(deadlines, done))
    assert await task == "done"
    assert task.cancelling() == 0


async def test_who_is_cancelled_by_somebody_else_stays_cancelled() -> None:
    deadlines, never = Deadlines(60.0), asyncio.Event()
    task = asyncio.create_task(limited(deadlines, never))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
