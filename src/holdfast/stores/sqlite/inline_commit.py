"""Decide whether a transaction runs on the event loop or in the writer's thread.

A hop to the thread and back costs about as much as a commit on a fast disk, so on such a disk all
callers are served faster without it. Transactions that may take long run in the thread, and so do
all while the disk is slow.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.model.items import NewItem
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Command

MAX_ROWS = 512
"""A transaction with more rows is slow on every disk."""
MAX_BYTES = 1024 * 1024
"""A transaction with more bytes is slow too: 30 MB take a tenth of a second."""
QUICK_SECONDS = 0.001
"""The longest average wait for the disk on the event loop."""
NOTABLE_SECONDS = 0.001
"""A shorter time is not examined: it is short enough for the event loop in any case."""
MEASURED_WAITS = 64
"""After a notable wait, this many further waits are measured exactly."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 16.0
_WEIGHT = 0.125

_SHORT = frozenset({cmd.Accept, cmd.Append, cmd.AppendBatch, cmd.Extend, cmd.Finish})
"""Commands that append to one session and need only its lane."""
_MARKS = frozenset({cmd.MarkDelivered, cmd.Renew})


def is_short(commands: Sequence[Command[Any]]) -> bool:
    """Whether the commands write few rows and few bytes."""
    rows = size = 0
    for command in commands:
        kind = type(command)
        if kind in _SHORT:
            items: Sequence[NewItem] = command.items  # type: ignore[attr-defined]
            rows += 1 + len(items)
            if rows > MAX_ROWS:
                return False
            for item in items:
                size += len(item.body)
        elif kind in _MARKS:
            rows += 1
        else:
            return False
    return rows <= MAX_ROWS and size <= MAX_BYTES


class DiskLatencyGate:
    """Measures how long inline transactions wait for the disk; pauses them while it is slow.

    Only time spent waiting counts: the CPU time is needed in any case, and another thread would
    have to wait for a CPU as well. The system knows both, but to ask it costs more than a short
    commit, so it is asked only after a notable wait. Until then a caller need not `stop` after a
    shorter time, which would only lower the average.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.began = self._worked = self._ready = 0.0
        """When the transaction began, and the system's times at that moment."""
        self.measured = 1
        """How many of the next waits are measured without the time spent working or ready."""
        self._waited = 0.0
        self._pause = FIRST_PAUSE
        self.paused_until = 0.0
        """When inline transactions are allowed again; 0 while the disk is fast."""

    def is_quick(self) -> bool:
        """Whether transactions may run on the event loop."""
        return self.paused_until == 0.0 or self._now() >= self.paused_until

    def start(self) -> float:
        """Start measuring a transaction, in the thread that runs it; return when it began.

        Setting `began` is enough as long as `measured` is 0.
        """
        if self.measured:
            self._ready, self._worked = ready_seconds(), time.thread_time()
        self.began = time.perf_counter()
        return self.began

    def stop(self) -> float:
        """Record and return the seconds that the transaction has waited since `start`.

        If a notable time was not measured exactly, the disk's share is unknown. It then counts as
        `NOTABLE_SECONDS`, and the next waits are measured exactly.
        """
        waited = time.perf_counter() - self.began
        is_measured = self.measured > 0
        if is_measured:
            waited -= time.thread_time() - self._worked
        if waited > NOTABLE_SECONDS:
            waited = waited - (ready_seconds() - self._ready) if is_measured else NOTABLE_SECONDS
            self.measured = MEASURED_WAITS
        elif is_measured:
            self.measured -= 1
        waited = waited if waited > 0.0 else 0.0
        self._waited += (waited - self._waited) * _WEIGHT
        if self._waited > QUICK_SECONDS:
            # After a pause, the first transaction alone decides whether it is over.
            self._waited = QUICK_SECONDS
            self.paused_until = self._now() + self._pause
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        elif self.paused_until != 0.0:
            self.paused_until, self._pause = 0.0, FIRST_PAUSE
        return waited


# ── time without a CPU ────────────────────────────────────────────────────────────────────────

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
