"""The event feed: committed events of this and other processes, for clients that follow them.

One poller for each followed tenant asks the store whether there is anything new. Followers read
only then, each from its own position, a bounded batch at a time.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.transaction.changes import Event
from holdfast.ports.store import FeedPlace, PlacedEvent, Reader

BATCH = 100
POLL_SECONDS = 0.1
"""How often the feed of a followed tenant is polled."""
MAX_FOLLOWERS = 512


class TooManyFollowers(HoldfastError):
    """This process has reached its limit of event followers."""

    code = "too_many_followers"
    retryable = True


class _News(asyncio.Event):
    """Set when there may be new events."""

    begins = FeedPlace()
    """A position before the new events; followers that had read everything continue there."""


class _FeedPoller:
    """Polls a tenant's feed once for all of its followers."""

    def __init__(self, read: Reader, tenant: Tenant) -> None:
        self.followers = 0
        self.reached = FeedPlace()
        """Up to where the log was read for news: other tenants' entries are not read again."""
        self._read = read
        self._tenant = tenant
        self._news = _News()
        self._task = asyncio.create_task(self._poll(), name="holdfast-feed")

    @property
    def news(self) -> _News:
        """Set when there may be new events.

        Get it before reading the feed, then wait for it: a commit between the read and the wait
        sets this same object, so no wake-up is lost.
        """
        return self._news

    def wake(self) -> None:
        """Wake all followers, and replace the event by a new one."""
        news, self._news = self._news, _News()
        news.set()

    async def stop(self) -> None:
        """Stop polling."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            with suppress(StoreUnavailable):
                if await self._has_news():
                    self.wake()
            await asyncio.sleep(POLL_SECONDS)

    async def _has_news(self) -> bool:
        """Whether the tenant may have new events; the entries since the last look are read once."""
        end, reached = await self._read.log_end(), self.reached
        if end == reached:
            return False
        is_first = reached == FeedPlace()
        found = is_first or await self._read.feed(self._tenant, after=reached, limit=1)
        self.news.begins, self.reached = reached, end
        return bool(found)


class EventFeed:
    """Admits followers and wakes them."""

    def __init__(self, read: Reader, *, max_followers: int = MAX_FOLLOWERS) -> None:
        self._read = read
        self._max_followers = max_followers
        self._pollers: dict[Tenant, _FeedPoller] = {}
        self._is_closing = False
        self.followers = 0

    def close(self) -> None:
        """Stop every follower."""
        self._is_closing = True
        for poller in self._pollers.values():
            poller.wake()

    def check_room(self) -> None:
        """Raise if the limit of followers is reached."""
        if self._is_closing or self.followers >= self._max_followers:
            raise TooManyFollowers(
                f"this process has {self.followers} event followers already; try again later"
            )

    async def follow(
        self, tenant: Tenant, after: FeedPlace, *, quiet_seconds: float
    ) -> AsyncGenerator[Sequence[PlacedEvent], None]:
        """Yield a tenant's events in batches; an empty one after `quiet_seconds` without events."""
        async with self._following(tenant) as poller:
            while not self._is_closing:
                news, reached = poller.news, poller.reached
                events = await self._read.feed(tenant, after=after, limit=BATCH)
                after = events[-1].place if events else max(after, reached)
                if events:
                    yield events
                elif await _wait_for(news, quiet_seconds):
                    after = max(after, news.begins)
                else:
                    yield ()

    async def follow_session(
        self, tenant: Tenant, session_id: SessionId, after: int, *, quiet_seconds: float
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield a session's events in batches until it is erased; empty ones during silence."""
        async with self._following(tenant) as poller:
            while not self._is_closing:
                news = poller.news
                events = await self._read.events(session_id, after=after, limit=BATCH)
                if events:
                    after = events[-1].no
                    yield events
                    continue
                if await self._read.session(tenant, session_id=session_id) is None:
                    return
                if not await _wait_for(news, quiet_seconds):
                    yield ()

    @asynccontextmanager
    async def _following(self, tenant: Tenant) -> AsyncIterator[_FeedPoller]:
        poller = self._pollers.get(tenant)
        if poller is None:
            poller = self._pollers[tenant] = _FeedPoller(self._read, tenant)
        poller.followers += 1
        self.followers += 1
        try:
            yield poller
        finally:
            self.followers -= 1
            poller.followers -= 1
            if not poller.followers:
                del self._pollers[tenant]
                await poller.stop()


async def _wait_for(news: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, at most `seconds`; return whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return False
    return True
