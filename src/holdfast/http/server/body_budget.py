"""A limit on the bytes of request bodies in memory at a time."""

import asyncio
from collections import deque

from holdfast.core.errors import HoldfastError

UNCOUNTED_BYTES = 64 * 1024
"""Smaller bodies are not counted: the number of connections bounds them."""
RESERVE_SECONDS = 30.0
"""How long a request waits for others to release their bytes before it gets 503."""


class ServerBusy(HoldfastError):
    """The process already holds the maximum of body bytes; the request can be retried."""

    code = "server_busy"
    retryable = True


class BodyBudget:
    """Reserve bytes for bodies; first come, first served."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def reserve(self, size: int, *, may_wait: bool = True) -> None:
        """Take bytes from the budget; wait for them for a while, then raise `ServerBusy`.

        A body of unknown length must not wait: several of them, each holding a part, would
        deadlock.
        """
        if size <= self._free and not self._waiting:
            self._free -= size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, granted)
        try:
            if may_wait:
                self._waiting.append(entry)
                async with asyncio.timeout(RESERVE_SECONDS):
                    await granted
                return
        except TimeoutError:
            pass
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._grant()
        raise ServerBusy("the server holds too many large request bodies; retry later")

    def release(self, size: int) -> None:
        """Return bytes to the budget."""
        self._free += size
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, granted = self._waiting.popleft()
            if not granted.done():
                self._free -= size
                granted.set_result(None)
