"""One time limit for many tasks: a task that exceeds it is cancelled and can find out why.

All tasks have the same limit, so the one that started first expires first: one timer is enough.
"""

import asyncio
from typing import Any


class Deadlines:
    """Cancels tasks that take longer than `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pending: dict[asyncio.Task[Any], tuple[float, int]] = {}
        """When each task expires, and how many cancellations it had before it started."""
        self._expired: dict[asyncio.Task[Any], int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop of the last task; looking up the running loop costs a system call."""

    def start(self) -> "asyncio.Task[Any]":
        """Start the time limit of the current task; the caller must `stop` it."""
        loop = self._loop
        task = asyncio.current_task(loop) if loop is not None else None
        if loop is None or task is None:
            loop = self._loop = asyncio.get_running_loop()
            task = asyncio.current_task(loop)
            assert task is not None
        at = loop.time() + self._seconds
        self._pending[task] = at, task.cancelling()
        if self._timer is None:
            self._timer = loop.call_at(at, self._cancel_expired, loop)
        return task

    def _cancel_expired(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel every expired task, and set the timer for the next one."""
        self._timer = None
        now = loop.time()
        for task, (at, cancels_before) in list(self._pending.items()):
            if at > now:
                self._timer = loop.call_at(at, self._cancel_expired, loop)
                return
            del self._pending[task]
            self._expired[task] = cancels_before
            task.cancel()

    def stop(self, task: "asyncio.Task[Any]") -> bool:
        """Stop the limit of a task; return whether only its expiry cancelled the task.

        The cancellation of an expired task is undone, so that the caller can report a timeout.
        """
        if self._pending.pop(task, None) is not None:
            if not self._pending and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return False
        cancels_before = self._expired.pop(task, None)
        return cancels_before is not None and task.uncancel() <= cancels_before
