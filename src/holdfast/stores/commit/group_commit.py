"""Group commit: one writer drains a queue of commands into one transaction after the other."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.core.errors import InvalidInput, StoreClosed, StoreUnavailable
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Command

MAX_BATCH = 256
MIN_SPLIT_BATCH = 16
"""Fewer commands than this are not worth two transactions beside each other."""

Result = Decision[Any] | BaseException


class Driver(Protocol):
    """A database that can carry out a batch."""

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Carry out the commands in one transaction; answer each, once all is durable.

        A command that cannot be carried out answers with its exception and spoils no other. With
        an attribute `lines`, a driver says how many batches it may be given at once.
        """
        ...


Settle = Callable[[list[Result] | None, BaseException | None], None]
CommitThen = Callable[[Sequence[Command[Any]], Settle], None]
"""The same for a driver whose thread can call back: no task has to be woken in between."""


_Job = tuple[Command[Any], "asyncio.Future[Decision[Any]]"]
"""A command, and who waits for the decision on it."""


class Committer:
    """Commands that arrive while transactions are under way share the next one."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._commit_then: CommitThen = getattr(driver, "commit_then", None) or self._in_a_task
        self._queue: deque[_Job] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        """Whose commands are under way; none, while there are none."""
        self._lines: int = getattr(driver, "lines", 1)
        self._under_way = 0
        self._is_called = False
        """Whether `_go_on` is about to be called."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] | None = None
        self._is_closed = False
        self._last_count = 0
        self._is_alone = self._can_be_alone = getattr(driver, "commit_then", None) is not None
        """Whether a single command that nobody came before in this round is carried out at once."""
        self.on_commit: Callable[[int, float], None] | None = None
        """Told of every transaction: how many commands, how many seconds."""

    def submit(self, command: Command[Any]) -> "asyncio.Future[Decision[Any]]":
        """Return the decision on `command`, to be waited for: there once it is durable."""
        if self._is_closed:
            raise StoreClosed("the store is closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._change_loop(loop)
        done: asyncio.Future[Decision[Any]] = loop.create_future()
        self._queue.append((command, done))
        if self._under_way < self._lines and not self._is_called:
            self._begin(loop)
        return done

    async def close(self) -> None:
        """Take no more commands; finish those that were taken."""
        self._is_closed = True
        loop = asyncio.get_running_loop()
        if self._loop is loop and (self._queue or self._under_way):
            self._idle = self._idle or loop.create_future()
            await self._idle

    def _change_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Serve another event loop; the last one must be closed, or have nothing under way."""
        if self._loop is not None and (self._queue or self._under_way):
            if not self._loop.is_closed():
                # What one loop finishes does not wake another: it would wait for ever.
                raise InvalidInput("the store is in use on another event loop; open one for each")
            self._queue.clear()  # with the loop went everybody who waited
            self._under_way = 0
            self._tasks.clear()
        # Calls that the last loop had scheduled will not come.
        self._is_called, self._is_alone = False, self._can_be_alone
        self._loop = loop

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_called = True
        if self._last_count > 1:
            # Whoever was woken by the same commit is about to ask, too, and shares the next one.
            loop.call_soon(loop.call_soon, self._go_on)
        elif self._is_alone:
            # At once, but only once in a round of the loop: whoever asks again lets others go on.
            self._is_alone = False
            loop.call_soon(self._end_round)
            self._go_on()
        else:
            loop.call_soon(self._go_on)

    def _end_round(self) -> None:
        self._is_alone = self._can_be_alone

    def _go_on(self) -> None:
        """Commit what has gathered; if nothing has, and nothing is under way, rest."""
        self._is_called = False
        while self._queue and self._under_way < self._lines:
            self._commit_some()
        if self._idle is not None and not (self._queue or self._under_way or self._idle.done()):
            self._idle.set_result(None)

    def _commit_some(self) -> None:
        queue, count = self._queue, len(self._queue)
        if count >= MIN_SPLIT_BATCH:
            count = -(-count // (self._lines - self._under_way))
        count = self._last_count = min(count, MAX_BATCH)
        commands: list[Command[Any]] = []
        waiting: list[asyncio.Future[Decision[Any]]] = []
        while len(commands) < count:
            command, done = queue.popleft()
            commands.append(command)
            waiting.append(done)
        self._under_way += 1
        began = time.monotonic()

        def settle(results: list[Result] | None, error: BaseException | None) -> None:
            self._under_way -= 1
            if results is None:
                error = error or StoreUnavailable("the store stopped during a commit")
                results = [error] * len(waiting)
            elif self.on_commit is not None:
                self.on_commit(count, time.monotonic() - began)
            _answer(waiting, results)
            if self._under_way and self._loop is not None and not self._is_called:
                # There is work meanwhile: those who were woken here may come along.
                self._begin(self._loop)
            elif self._queue or self._idle is not None:
                self._go_on()

        try:
            self._commit_then(commands, settle)
        except Exception as exc:  # noqa: BLE001 - it is raised where the commands were given
            settle(None, exc)

    def _in_a_task(self, commands: Sequence[Command[Any]], settle: Settle) -> None:
        async def commit() -> None:
            try:
                results = await self._driver.commit(commands)
            except asyncio.CancelledError:
                # The loop is being ended, and everybody who waits with it.
                while self._queue:
                    self._queue.popleft()[1].cancel()
                settle(None, None)
                raise
            except Exception as exc:  # noqa: BLE001 - it is raised where the commands were given
                settle(None, exc)
            else:
                settle(results, None)

        task = asyncio.get_running_loop().create_task(commit(), name="holdfast-committer")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _answer(waiting: Sequence["asyncio.Future[Decision[Any]]"], results: Sequence[Result]) -> None:
    for done, result in zip(waiting, results, strict=True):
        if done.done():
            continue
        if isinstance(result, BaseException):
            done.set_exception(result)
        else:
            done.set_result(result)
