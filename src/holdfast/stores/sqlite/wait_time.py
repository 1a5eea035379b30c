"""Measure how long a thread waited for the disk, without the time it waited for a CPU.

On a busy machine a thread waits longer for a CPU than for a fast disk. Another thread would have to
wait for a CPU as well, so that time is no reason to move work to one. The system calls that tell
cost more than a short commit, so they are made only while waits are long.
"""

import os
import threading
import time

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux: nanoseconds on a CPU, nanoseconds ready without one, and the number of time slices."""
NOTABLE_SECONDS = 0.001
"""A shorter time counts completely: it is short enough for the event loop in any case."""
MEASURED_WAITS = 64
"""After a notable wait, this many further waits are measured exactly."""


class _File:
    """An open file; the descriptor is -1 if it cannot be opened."""

    def __init__(self, path: str) -> None:
        try:
            self.number = os.open(path, os.O_RDONLY)
        except OSError:
            self.number = -1

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class _Schedstat(threading.local):
    """The current thread's own file; it is closed when the thread ends."""

    def __init__(self) -> None:
        self.file = _File(SCHEDSTAT)


_schedstat = _Schedstat()


def _reopen() -> None:
    global _schedstat  # noqa: PLW0603 - the file of a forked process is its parent's
    _schedstat = _Schedstat()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reopen)


def ready_seconds() -> float:
    """Return how long the current thread was runnable without a CPU; 0 if unknown."""
    file = _schedstat.file.number
    if file < 0:
        return 0.0
    try:
        return int(os.pread(file, 64, 0).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class WaitTimer:
    """Measures consecutive waits."""

    __slots__ = ("_began", "_measured", "_ready", "_worked")

    def __init__(self) -> None:
        self._began = self._worked = self._ready = 0.0
        self._measured = 1
        """How many of the next waits are measured without the time spent working or ready."""

    def start(self) -> None:
        """Start measuring, in the thread that will wait."""
        if self._measured:
            self._ready, self._worked = ready_seconds(), time.thread_time()
        self._began = time.perf_counter()

    def stop(self) -> float:
        """Return the seconds waited since `start`.

        If a notable time was not measured exactly, the disk's share is unknown. It then counts as
        `NOTABLE_SECONDS`, and the next waits are measured exactly.
        """
        waited = time.perf_counter() - self._began
        is_measured = self._measured > 0
        if is_measured:
            waited -= time.thread_time() - self._worked
        if waited > NOTABLE_SECONDS:
            waited = waited - (ready_seconds() - self._ready) if is_measured else NOTABLE_SECONDS
            self._measured = MEASURED_WAITS
        elif is_measured:
            self._measured -= 1
        return waited if waited > 0.0 else 0.0
