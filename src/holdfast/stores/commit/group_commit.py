"""Group commit: a single writer drains the queue of commands, one transaction after the other.

A command that only queues a turn behind others waits up to `MAX_DELAY` for a commit that it can
join: its turn could not start sooner. With 32 clients on one key, turn after turn, the end of a
turn and the arrival of the next one then share a commit.
"""

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Protocol

import msgspec

from holdfast.core.errors import InvalidInput, StoreClosed, StoreUnavailable
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Accept, Command
from holdfast.stores.commit.availability import Availability

MAX_BATCH = 256
MAX_DELAY = 0.002
"""Seconds that a command may wait for others if the wait delays nothing."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
COMMANDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The upper bounds by which transactions are counted."""

Result = Decision[Any] | BaseException


class CommitCounts(msgspec.Struct):
    """The transactions so far, by their duration and by the number of commands in them."""

    by_seconds: list[int] = msgspec.field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    by_commands: list[int] = msgspec.field(default_factory=lambda: [0] * (len(COMMANDS) + 1))
    seconds: float = 0.0
    commands: int = 0


Settle = Callable[[list[Result] | None, BaseException | None], None]
CommitThen = Callable[[Sequence[Command[Any]], Settle], None]
"""Commit a batch, then call `Settle` on the event loop, without waking a task in between."""


class BatchDriver(Protocol):
    """A database that can commit a batch of commands."""

    commit_then: CommitThen | None = None
    """Commit with a callback instead of a task; None if the driver cannot."""
    can_wait: Callable[[Accept], bool] | None = None
    """Whether a turn's acceptance may wait for other commands without delaying its start."""

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Run the commands in one transaction; return the results once all of them are durable.

        The result of a command that fails is its exception; it does not affect the others.
        """
        ...


_Job = tuple[Command[Any], "asyncio.Future[Decision[Any]]"]
"""A command, and the future of its decision."""


class GroupCommitter:
    """Commit commands that arrive during a transaction together in the next one."""

    def __init__(self, driver: BatchDriver, availability: Availability | None = None) -> None:
        self._driver = driver
        self._availability = availability or Availability()
        self._commit_then: CommitThen = driver.commit_then or self._commit_in_task
        self._queue: deque[_Job] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that the last command came from."""
        self._thread = 0
        """The thread that runs the event loop."""
        self._is_committing = False
        self._is_scheduled = False
        """Whether `_drain` is about to be called."""
        self._can_wait = driver.can_wait
        self._is_urgent = False
        """Whether a queued command must be committed without delay."""
        self._patient = 0
        """How many queued commands may wait for others."""
        self._delay: asyncio.TimerHandle | None = None
        """Ends the wait of the commands that may wait."""
        self._delay_ends_at = 0.0
        """When the first of the queued commands that may wait has waited long enough."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = False
        self._last_count = 0
        self._commits_at_once = driver.commit_then is not None
        """Whether the first command of each event loop iteration is committed without waiting."""
        self._committed: list[Command[Any]] = []
        """The command that was committed this way in this iteration."""
        self.commits = CommitCounts()

    def submit(self, command: Command[Any]) -> "asyncio.Future[Decision[Any]]":
        """Return a future of the decision on `command`, done once it is durable."""
        if self._is_closed:
            raise StoreClosed("the store is closed")
        loop = self._loop
        if loop is None or get_ident() != self._thread or not loop.is_running():
            # Looked up only if the loop may have changed, because that costs a system call.
            loop = asyncio.get_running_loop()
            if self._loop is not loop:
                self._bind(loop)
        done: asyncio.Future[Decision[Any]] = loop.create_future()
        self._queue.append((command, done))
        if type(command) is Accept and self._can_wait is not None and self._can_wait(command):
            if not self._patient:
                self._delay_ends_at = loop.time() + MAX_DELAY
            self._patient += 1
            if self._delay is None:
                self._delay = loop.call_later(MAX_DELAY, self._end_delay)
            return done
        self._is_urgent = True
        if self._is_scheduled or self._is_committing:
            return done
        if self._commits_at_once and self._last_count <= 1 and not self._committed:
            # Once per loop iteration, so that a caller in a tight loop does not starve others.
            self._committed.append(command)
            loop.call_soon(self._committed.clear)
            self._commit_batch()
        else:
            self._schedule(loop)
        return done

    def _end_delay(self) -> None:
        """Commit the commands that have waited for others as soon as possible."""
        self._delay = None
        if not self._queue:
            return
        loop = self._loop
        if loop is not None and self._patient and not self._is_urgent:
            seconds = self._delay_ends_at - loop.time()
            if seconds > 0:
                # The timer was set for commands that have joined a commit since: a commit now would
                # take from these the one that they can join.
                self._delay = loop.call_later(seconds, self._end_delay)
                return
        self._is_urgent = True
        if not self._is_scheduled:
            self._drain()

    async def close(self) -> None:
        """Accept no more commands; finish the accepted ones."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        if self._loop is loop and (self._queue or self._is_committing):
            self._idle = self._idle or loop.create_future()
            await self._idle

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve another event loop; the last one must be closed, or have nothing in flight."""
        if self._loop is not None and (self._queue or self._is_committing):
            if not self._loop.is_closed():
                # A future of one loop is not woken by another: the caller would wait forever.
                raise InvalidInput("the store is in use on another event loop; open one for each")
            self._queue.clear()  # their loop is closed, so nobody waits for them
            self._is_committing = False
            self._tasks.clear()
        # The calls that the last loop had scheduled will never run.
        self._is_scheduled = False
        self._committed.clear()
        self._delay, self._patient = None, 0
        self._loop, self._thread = loop, get_ident()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = True
        if self._last_count > 1:
            # Callers woken by the same commit submit their next command in this iteration: batch
            # them.
            loop.call_soon(loop.call_soon, self._drain)
        else:
            loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Commit the queued commands."""
        self._is_scheduled = False
        while self._queue and not self._is_committing:
            self._commit_batch()
        is_busy = self._queue or self._is_committing
        if self._idle is not None and not is_busy and not self._idle.done():
            self._idle.set_result(None)

    def _commit_batch(self) -> None:
        queue, count = self._queue, min(len(self._queue), MAX_BATCH)
        # The callers whose commands could wait have nothing to submit once they are woken.
        self._last_count, self._patient = max(count - self._patient, 0), 0
        commands: list[Command[Any]] = []
        waiting: list[asyncio.Future[Decision[Any]]] = []
        while len(commands) < count:
            command, done = queue.popleft()
            commands.append(command)
            waiting.append(done)
        if not queue:
            self._is_urgent = False
        self._is_committing = True
        settle = partial(self._settle, waiting, time.monotonic())
        try:
            self._commit_then(commands, settle)
        except Exception as exc:  # noqa: BLE001 - raised to the callers
            settle(None, exc)

    def _settle(
        self,
        waiting: Sequence["asyncio.Future[Decision[Any]]"],
        began: float,
        results: list[Result] | None,
        error: BaseException | None,
    ) -> None:
        """Resolve the callers' futures, then commit the commands that arrived meanwhile."""
        self._is_committing = False
        unavailable: StoreUnavailable | None = None
        if results is None:
            error = error or StoreUnavailable("the store stopped during a commit")
            results = [error] * len(waiting)
        else:
            commits, count, seconds = self.commits, len(waiting), time.monotonic() - began
            commits.by_seconds[bisect_left(SECONDS, seconds)] += 1
            commits.by_commands[bisect_left(COMMANDS, count)] += 1
            commits.seconds += seconds
            commits.commands += count
        for done, result in zip(waiting, results, strict=True):
            if isinstance(result, BaseException):
                if isinstance(result, StoreUnavailable):
                    unavailable = result
                if not done.done():
                    done.set_exception(result)
            elif not done.done():
                done.set_result(result)
        if unavailable is not None:
            self._availability.failed(unavailable, began)
        elif self._availability.is_in_doubt:
            self._availability.committed()
        if self._is_urgent or self._idle is not None:
            self._drain()

    def _commit_in_task(self, commands: Sequence[Command[Any]], settle: Settle) -> None:
        async def commit() -> None:
            try:
                results = await self._driver.commit(commands)
            except asyncio.CancelledError:
                # The loop is shutting down, and all callers with it.
                while self._queue:
                    self._queue.popleft()[1].cancel()
                settle(None, None)
                raise
            except Exception as exc:  # noqa: BLE001 - raised to the callers
                settle(None, exc)
            else:
                settle(results, None)

        task = asyncio.get_running_loop().create_task(commit(), name="holdfast-committer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
