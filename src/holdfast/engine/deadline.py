"""A task's time: when it is over the task is broken off, and can tell that from being cancelled.

What `asyncio.timeout` does, without an object entered and left for each use.
"""

import asyncio


class Deadline:
    """Breaks the task that made it off after a while, unless it is called off before."""

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels_before = task.cancelling()
        self._has_struck = False
        self._timer = task.get_loop().call_later(seconds, self._strike)

    def _strike(self) -> None:
        self._has_struck = True
        self._task.cancel()

    def call_off(self) -> bool:
        """Strike no more; return whether it struck, and nobody else cancelled the task as well."""
        self._timer.cancel()
        if not self._has_struck:
            return False
        self._has_struck = False
        return self._task.uncancel() <= self._cancels_before
