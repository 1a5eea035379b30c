"""The time that each of many tasks has: whoever is over it is broken off, and can tell why.

All of them have the same time, so the one that began first is over it first: one timer is enough.
"""

import asyncio
from typing import Any


class Deadlines:
    """Breaks tasks off that take longer than they may."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pending: dict[asyncio.Task[Any], tuple[float, int]] = {}
        """When each is over its time, and how often it had been cancelled before it began."""
        self._struck: dict[asyncio.Task[Any], int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> "asyncio.Task[Any]":
        """Return the task that asks: its time runs from now on, and is to be called off."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        at = loop.time() + self._seconds
        self._pending[task] = at, task.cancelling()
        if self._timer is None:
            self._timer = loop.call_at(at, self._look, loop)
        return task

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Break off whoever is over its time, and come back for the next."""
        self._timer = None
        now = loop.time()
        for task, (at, cancels_before) in list(self._pending.items()):
            if at > now:
                self._timer = loop.call_at(at, self._look, loop)
                return
            del self._pending[task]
            self._struck[task] = cancels_before
            task.cancel()

    def call_off(self, task: "asyncio.Task[Any]") -> bool:
        """Return whether its time was over, and nobody else cancelled it; it runs no more."""
        if self._pending.pop(task, None) is not None:
            if not self._pending and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return False
        cancels_before = self._struck.pop(task, None)
        return cancels_before is not None and task.uncancel() <= cancels_before
