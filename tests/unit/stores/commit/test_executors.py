"""The thread that a store's blocking work runs in."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.stores.commit.executors import ThreadExecutor


@pytest.fixture
def executor() -> Iterator[ThreadExecutor]:
    made = ThreadExecutor("test-executor")
    yield made
    made.close()


async def test_work_is_done_elsewhere_and_in_order(executor: ThreadExecutor) -> None:
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return threading.get_ident()

    threads = await asyncio.gather(*(executor.run(partial(work, n)) for n in range(20)))
    assert done == list(range(20))
    assert set(threads) != {threading.get_ident()}
    assert len(set(threads)) == 1


async def test_a_failure_is_raised_where_the_work_was_given(executor: ThreadExecutor) -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await executor.run(fail)
    assert await executor.run(lambda: "goes on") == "goes on"


async def test_who_leaves_before_the_work_begins_has_it_not_begun(
    executor: ThreadExecutor,
) -> None:
    gate = threading.Event()
    done: list[str] = []
    first = asyncio.ensure_future(executor.run(gate.wait))
    second = asyncio.ensure_future(executor.run(lambda: done.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    gate.set()
    await first
    assert await executor.run(lambda: list(done)) == []


async def test_a_closed_executor_takes_nothing_more_and_leaves_no_thread() -> None:
    executor = ThreadExecutor("test-closed")
    await executor.run(lambda: None)
    executor.close()
    with pytest.raises(RuntimeError):
        await executor.run(lambda: None)
    assert "test-closed" not in {thread.name for thread in threading.enumerate()}


async def test_one_works_in_the_threads_place_only_while_the_thread_does_not(
    executor: ThreadExecutor,
) -> None:
    gate, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait()

    first = asyncio.ensure_future(executor.run(work))
    await asyncio.to_thread(begun.wait)
    assert not executor.try_acquire()
    gate.set()
    await first
    assert executor.try_acquire()
    done: list[str] = []
    second = asyncio.ensure_future(executor.run(lambda: done.append("thread")))
    await asyncio.sleep(0.02)  # Time enough to do it too early.
    done.append("here")
    executor.give_back()
    await second
    assert done == ["here", "thread"]
