"""Who may write now: batches that know their lanes, side by side, or one that has to look, alone.

A lane that is under way is known to nobody, so two that go side by side are about different
sessions. What is read in a look is noted before it is committed; nobody may decide on that.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class ReadWriteGate:
    """A way in, for many at once or for one alone."""

    def __init__(self) -> None:
        self._inside = 0
        self._is_taken = False
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_taken(self) -> bool:
        """Whether somebody is in alone."""
        return self._is_taken

    @property
    def is_empty(self) -> bool:
        """Whether nobody is in."""
        return not self._inside and not self._is_taken

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be in beside others; nobody may be in alone."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._tell()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Wait until nobody is in, and be in alone."""
        while not self.is_empty:
            await self.change()
        self._is_taken = True
        try:
            yield
        finally:
            self._is_taken = False
            self._tell()

    async def change(self) -> None:
        """Wait until somebody has gone out."""
        changed = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
