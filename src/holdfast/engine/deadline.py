"""The time that each of many tasks has: whoever is over it is broken off, and can tell why.

All of them have the same time, so the one that began first is over it first: one timer is enough.
"""

import asyncio
from typing import Any


class Deadline:
    """One task's time."""

    __slots__ = ("at", "cancels_before", "has_struck", "task")

    def __init__(self, task: "asyncio.Task[Any]", at: float) -> None:
        self.task = task
        self.at = at
        self.cancels_before = task.cancelling()
        self.has_struck = False


class Deadlines:
    """Breaks tasks off that take longer than they may."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pending: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Deadline:
        """Return the deadline of the task that asks; it is to be called off in the end."""
        task = asyncio.current_task()
        assert task is not None
        loop = task.get_loop()
        deadline = Deadline(task, loop.time() + self._seconds)
        self._pending[deadline] = None
        if self._timer is None:
            self._timer = loop.call_at(deadline.at, self._look, loop)
        return deadline

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Break off whoever is over its time, and come back for the next."""
        self._timer = None
        now = loop.time()
        for deadline in list(self._pending):
            if deadline.at > now:
                self._timer = loop.call_at(deadline.at, self._look, loop)
                return
            del self._pending[deadline]
            deadline.has_struck = True
            deadline.task.cancel()

    def call_off(self, deadline: Deadline) -> bool:
        """Return whether it struck, and nobody else cancelled the task; it strikes no more."""
        if deadline in self._pending:
            del self._pending[deadline]
            if not self._pending and self._timer is not None:
                self._timer.cancel()
                self._timer = None
        if not deadline.has_struck:
            return False
        deadline.has_struck = False
        return deadline.task.uncancel() <= deadline.cancels_before
