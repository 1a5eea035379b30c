"""Group commit: one writer drains a queue of commands into one transaction after the other."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.core.changes import Decision
from holdfast.core.commands import Command
from holdfast.core.errors import InvalidInput, StoreClosed, StoreUnavailable

MAX_BATCH = 256

Result = Decision[Any] | BaseException


class Driver(Protocol):
    """A database that can carry out a batch."""

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Carry out the commands in one transaction; answer each, once all is durable.

        A command that cannot be carried out answers with its exception and spoils no other.
        """
        ...


_Job = tuple[Command[Any], "asyncio.Future[Decision[Any]]"]
"""A command, and who waits for the decision on it."""


class Committer:
    """Commands that arrive while a transaction is under way share the next one."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._queue: deque[_Job] = deque()
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._last_count = 0
        self.on_commit: Callable[[int, float], None] | None = None
        """Told of every transaction: how many commands, how many seconds."""

    def submit(self, command: Command[Any]) -> "asyncio.Future[Decision[Any]]":
        """Return the decision on `command`, to be waited for: there once it is durable."""
        if self._is_closed:
            raise StoreClosed("the store is closed")
        loop = asyncio.get_running_loop()
        if self._drain is not None and self._loop is not loop:
            # What one loop finishes does not wake another: it would wait for ever.
            raise InvalidInput("the store is in use on another event loop; open one for each")
        done: asyncio.Future[Decision[Any]] = loop.create_future()
        self._queue.append((command, done))
        if self._drain is None:
            self._loop = loop
            self._drain = loop.create_task(self._run(), name="holdfast-committer")
        return done

    async def close(self) -> None:
        """Take no more commands; finish those that were taken."""
        self._is_closed = True
        if self._drain is not None:
            await asyncio.gather(self._drain, return_exceptions=True)

    async def _run(self) -> None:
        try:
            if self._last_count > 1:
                # Whoever was woken by the same commit is about to ask, too, and shares the next.
                await asyncio.sleep(0)
            while self._queue:
                count = self._last_count = min(len(self._queue), MAX_BATCH)
                await self._commit([self._queue.popleft() for _ in range(count)])
        finally:
            self._drain = None
            for _, done in self._queue:
                done.cancel()

    async def _commit(self, jobs: list[_Job]) -> None:
        results: Sequence[Result]
        began = time.monotonic()
        try:
            results = await self._driver.commit([command for command, _ in jobs])
        except BaseException as exc:
            for _, done in jobs:
                if not done.done():
                    done.set_exception(
                        StoreUnavailable("the store stopped during a commit")
                        if isinstance(exc, asyncio.CancelledError)
                        else exc
                    )
            if not isinstance(exc, Exception):
                raise
            return
        if self.on_commit is not None:
            self.on_commit(len(jobs), time.monotonic() - began)
        for (_, done), result in zip(jobs, results, strict=True):
            if done.done():
                continue
            if isinstance(result, BaseException):
                done.set_exception(result)
            else:
                done.set_result(result)
