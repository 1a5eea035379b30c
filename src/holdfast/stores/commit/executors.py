"""Executors for a store's blocking work."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


Settle = Callable[[Any, BaseException | None], None]
"""Called with the result of a job, on the event loop that submitted it."""
_Job = tuple[Callable[[], Any], Settle, asyncio.AbstractEventLoop, "asyncio.Future[Any] | None"]
"""A job, its callback, the callback's loop, and the future that may be cancelled."""


class ThreadExecutor:
    """A dedicated thread, so that jobs keep their order and the event loop stays free.

    The standard library's thread pool does the same with two futures, three locks and a semaphore
    per job.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._at_work = threading.Lock()
        """Held while a job runs, on the thread or inline."""
        self.try_acquire: Callable[[], bool] = partial(self._at_work.acquire, blocking=False)
        """Try to reserve the executor for inline work; on success, call `give_back` afterwards.

        Inline work may overtake a job that waits for the thread.
        """
        self.give_back: Callable[[], None] = self._at_work.release
        """Release what `try_acquire` acquired."""

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in the thread; a job cancelled before it starts is not run."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[ResultT] = loop.create_future()
        self._put((work, partial(_settle, done), loop, done))
        return await done

    def post(self, work: Callable[[], Any], settle: Settle) -> None:
        """Run `work` in the thread, then call `settle` on the event loop, without a task."""
        self._put((work, settle, asyncio.get_running_loop(), None))

    def _put(self, job: _Job) -> None:
        if self._is_closed:
            raise RuntimeError("the executor is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """Finish the submitted jobs and stop the thread; nothing runs inline afterwards."""
        self._is_closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self.try_acquire()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, settle, loop, done = job
            if done is not None and done.cancelled():
                continue
            try:
                with self._at_work:
                    result, error = work(), None
            except BaseException as exc:  # noqa: BLE001 - it is raised where the work was given
                result, error = None, exc
            # The loop is closed: nobody waits for the result.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result, error)
            del job, work, settle, done, loop, result, error


def _settle(done: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class InlineExecutor:
    """Runs jobs in the calling task: for memory stores and simulations."""

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` after other ready tasks."""
        await asyncio.sleep(0)
        return work()

    def close(self) -> None:
        """Nothing to stop."""
