"""How long a thread waited for the disk: neither worked, nor was ready and had to wait for a CPU.

On a busy machine a thread waits longer for a CPU than for a fast disk. Another thread would have to
wait for a CPU as well, so that time is no reason to move work to one.
"""

import os
import threading
import time

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux: nanoseconds on a CPU, nanoseconds ready without one, and the number of time slices."""
NOTABLE_SECONDS = 0.0002
"""A shorter wait is taken as it is."""


class _File:
    """An open file; -1 where there is none."""

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
    """Return how long the current thread was ready to run without a CPU; 0 if nobody knows."""
    file = _schedstat.file.number
    if file < 0:
        return 0.0
    try:
        return int(os.pread(file, 64, 0).split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class WaitTimer:
    """Measures one wait after the other."""

    __slots__ = ("_began", "_ready", "_worked")

    def __init__(self) -> None:
        self._began = self._worked = self._ready = 0.0

    def start(self) -> None:
        """Begin to measure, in the thread that will wait."""
        self._ready = ready_seconds()
        self._worked = time.thread_time()
        self._began = time.perf_counter()

    def stop(self) -> float:
        """Return the seconds waited since `start`."""
        waited = time.perf_counter() - self._began - (time.thread_time() - self._worked)
        if waited > NOTABLE_SECONDS:
            waited -= ready_seconds() - self._ready
        return max(waited, 0.0)
