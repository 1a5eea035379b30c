"""Limits on the bytes that the process holds for its clients: bodies, messages and replies.

A party, which is a tenant or an address, has a quarter of a budget. It gets more only while a
quarter stays free for others, so that no party can take the whole budget.
"""

import asyncio
from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from holdfast.core.errors import HoldfastError

UNCOUNTED_BYTES = 64 * 1024
"""Smaller bodies and replies are not counted: the number of connections bounds them."""
WAIT_SECONDS = 30.0
"""How long a request waits for others to return bytes before it is refused."""
SHARES = 4
"""A party has this part of a budget."""


class ServerBusy(HoldfastError):
    """The process already holds as much as it may; the request can be retried."""

    code = "server_busy"
    retryable = True


class ShareExceeded(HoldfastError):
    """The tenant or address already holds its part of a budget; the request can be retried."""

    code = "too_many_bytes"
    retryable = True


class _Party:
    """What one party holds."""

    def __init__(self) -> None:
        self.bytes = 0
        self.holdings = 0
        self.unfinished: dict[Holding, None] = {}
        """Holdings that may still grow, the oldest first."""


class MemoryBudget:
    """A number of bytes, held for requests of several parties."""

    def __init__(self, limit: int, content: str = "request bodies") -> None:
        self.limit = limit
        self.held_bytes = 0
        self._share = limit // SHARES
        self._content = content
        self._parties: dict[str, _Party] = {}
        self._opened = 0
        self._waiting: list[Holding] = []

    def open(self, party: str) -> "Holding":
        """Return a holding of no bytes; close it in the end."""
        self._opened += 1
        owner = self._parties.setdefault(party, _Party())
        owner.holdings += 1
        return Holding(self, party, owner, self._opened)

    @property
    def waits(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._waiting)

    @property
    def largest(self) -> int:
        """What one holding counts at most: others keep their part whatever its size."""
        return self.limit - self._share

    def fits(self, holding: "Holding", extra: int) -> bool:
        """Whether a holding may grow now.

        Beyond the share only the oldest holding of a party grows, so that bodies which arrive
        together do not wait for each other.
        """
        free = self.limit - self.held_bytes - extra
        owner = holding.owner
        if free < 0 or owner.bytes + extra <= self._share:
            return free >= 0
        return free >= self._share and next(iter(owner.unfinished), None) is holding

    async def wait(self, holding: "Holding", extra: int) -> None:
        """Wait until a holding has grown, the oldest first."""
        holding.wanted = extra
        granted = holding.granted = asyncio.get_running_loop().create_future()
        insort(self._waiting, holding, key=attrgetter("number"))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await granted
        except TimeoutError as exc:
            if self.limit - self.held_bytes >= extra:
                message = f"a tenant or an address holds at most its part of all {self._content}"
                raise ShareExceeded(f"{message}; retry later") from exc
            raise ServerBusy(f"the server holds too many {self._content}; retry later") from exc
        finally:
            if holding in self._waiting:
                self._waiting.remove(holding)
            holding.granted = None

    def grant(self) -> None:
        """Let those grow who fit now."""
        for holding in list(self._waiting):
            granted = holding.granted
            if granted is not None and not granted.done() and self.fits(holding, holding.wanted):
                self._waiting.remove(holding)
                holding.add(holding.wanted)
                granted.set_result(None)

    def forget(self, party: str) -> None:
        """Drop a party without holdings."""
        if not self._parties[party].holdings:
            del self._parties[party]


class Holding:
    """The bytes that one request holds of a budget."""

    __slots__ = ("_budget", "_party", "granted", "is_closed", "number", "owner", "size", "wanted")

    def __init__(self, budget: MemoryBudget, party: str, owner: _Party, number: int) -> None:
        self._budget = budget
        self._party = party
        self.owner = owner
        self.number = number
        self.size = 0
        self.wanted = 0
        self.granted: asyncio.Future[None] | None = None
        self.is_closed = False
        owner.unfinished[self] = None

    def try_grow(self, size: int) -> bool:
        """Hold `size` bytes in total if they are free."""
        extra = min(size, self._budget.largest) - self.size
        if extra > 0:
            if not self._budget.fits(self, extra):
                return False
            self.add(extra)
        return True

    async def grow(self, size: int) -> None:
        """Hold `size` bytes in total; wait for them for a while, then raise."""
        if not self.try_grow(size):
            await self._budget.wait(self, min(size, self._budget.largest) - self.size)

    def force(self, size: int) -> None:
        """Hold `size` bytes in total, whether they are free or not: they are needed already."""
        self.add(max(min(size, self._budget.largest) - self.size, 0))

    def add(self, extra: int) -> None:
        """Count more bytes, or fewer."""
        self.size += extra
        self.owner.bytes += extra
        self._budget.held_bytes += extra

    def abandon(self, error: Callable[[], Exception]) -> None:
        """End a wait with an error: the client is gone."""
        if self.granted is not None and not self.granted.done():
            self.granted.set_exception(error())

    def finish(self, size: int) -> None:
        """Hold at most `size` bytes from now on: no more will come."""
        self.owner.unfinished.pop(self, None)
        self.add(min(size - self.size, 0))
        self._budget.grant()

    def close(self) -> None:
        """Return all bytes."""
        if not self.is_closed:
            self.is_closed = True
            self.owner.holdings -= 1
            self._budget.forget(self._party)
            self.finish(0)
