"""A gate for writers: many batches decided from the cache, or one batch that reads first.

A lane whose write is in flight is not in the cache, so concurrent batches are about different
sessions. A batch that reads caches lanes before it commits; no other batch may decide on those.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class ReadWriteGate:
    """A lock that many holders share or one holds exclusively."""

    def __init__(self) -> None:
        self._holders = 0
        self._is_taken = False
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def is_taken(self) -> bool:
        """Whether the gate is held exclusively."""
        return self._is_taken

    @property
    def is_empty(self) -> bool:
        """Whether nobody holds the gate."""
        return not self._holders and not self._is_taken

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the gate with others. The caller has checked that it is not held exclusively."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self._wake()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Wait until nobody holds the gate, then hold it exclusively."""
        while not self.is_empty:
            await self.change()
        self._is_taken = True
        try:
            yield
        finally:
            self._is_taken = False
            self._wake()

    async def change(self) -> None:
        """Wait until a holder releases the gate."""
        changed = asyncio.get_running_loop().create_future()
        self._waiting.append(changed)
        await changed

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
