"""Ask the system how long a thread was ready without a CPU.

On a busy machine a thread waits longer for a CPU than for a fast disk. Another thread would have to
wait for a CPU as well, so that time is no reason to move work to one.
"""

import os
import threading

SCHEDSTAT = "/proc/thread-self/schedstat"
"""Linux: nanoseconds on a CPU, nanoseconds ready without one, and the number of time slices."""


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
