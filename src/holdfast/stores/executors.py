"""Where a store's blocking work runs."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

ResultT = TypeVar("ResultT")


class ThreadExecutor:
    """One thread of its own, so that the work keeps its order and the event loop stays free."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Finish what was given and stop."""
        self._pool.shutdown(wait=True)


class InlineExecutor:
    """The calling task itself: for memory stores and simulations."""

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` now, after letting others go first."""
        await asyncio.sleep(0)
        return work()

    def close(self) -> None:
        """Nothing to stop."""
