"""The feed: facts as they are committed, by this process or another, for those who follow them.

One look-out for each tenant that is followed asks the store whether there is anything new; the
followers themselves read only when there is, each from its own place, a bounded batch at a time.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.transaction.changes import Event
from holdfast.engine.logging import log
from holdfast.ports.store import Place, PlacedEvent, Reader

BATCH = 100
LOOK_SECONDS = 0.1
"""How often a followed tenant's feed is looked at."""
MAX_FOLLOWERS = 512


class TooManyFollowers(HoldfastError):
    """As many follow the events of this process as may."""

    code = "too_many_followers"
    retryable = True


class _FeedPoller:
    """Whether a tenant's feed has grown, asked once for all who follow it."""

    def __init__(self, read: Reader, tenant: Tenant) -> None:
        self.followers = 0
        self._read = read
        self._tenant = tenant
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._watch(), name="holdfast-feed")

    @property
    def news(self) -> asyncio.Event:
        """Set once there may be something new; take it before reading, then wait for it."""
        return self._news

    def wake(self) -> None:
        """Have everybody look, and wait for the next news."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def stop(self) -> None:
        """Look no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        seen: Place | None = None
        while True:
            try:
                end = await self._read.feed_end(self._tenant)
            except StoreUnavailable as exc:
                log.warning("feed.not_read", reason=exc.message)
            else:
                if end != seen:
                    seen = end
                    self.wake()
            await asyncio.sleep(LOOK_SECONDS)


class Feed:
    """Lets followers in, and wakes them."""

    def __init__(self, read: Reader, *, max_followers: int = MAX_FOLLOWERS) -> None:
        self._read = read
        self._max_followers = max_followers
        self._look_outs: dict[Tenant, _FeedPoller] = {}
        self._is_closing = False
        self.followers = 0

    def close(self) -> None:
        """Have every follower go."""
        self._is_closing = True
        for look_out in self._look_outs.values():
            look_out.wake()

    def check_room(self) -> None:
        """Refuse one follower too many."""
        if self._is_closing or self.followers >= self._max_followers:
            raise TooManyFollowers(f"{self.followers} follow the events of this process already")

    async def follow(
        self, tenant: Tenant, after: Place, *, quiet_seconds: float
    ) -> AsyncGenerator[Sequence[PlacedEvent], None]:
        """Yield a tenant's facts in batches; an empty one when it was quiet for so long."""
        async with self._watching(tenant) as look_out:
            while not self._is_closing:
                news = look_out.news
                found = await self._read.feed(tenant, after=after, limit=BATCH)
                if found:
                    after = found[-1].place
                    yield found
                elif not await _heard(news, quiet_seconds):
                    yield ()

    async def follow_session(
        self, tenant: Tenant, session_id: SessionId, after: int, *, quiet_seconds: float
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield a session's facts in batches, until it is erased; an empty one when it is quiet."""
        async with self._watching(tenant) as look_out:
            while not self._is_closing:
                news = look_out.news
                found = await self._read.events(session_id, after=after, limit=BATCH)
                if found:
                    after = found[-1].no
                    yield found
                    continue
                if await self._read.session(tenant, session_id=session_id) is None:
                    return
                if not await _heard(news, quiet_seconds):
                    yield ()

    @asynccontextmanager
    async def _watching(self, tenant: Tenant) -> AsyncIterator[_FeedPoller]:
        look_out = self._look_outs.get(tenant)
        if look_out is None:
            look_out = self._look_outs[tenant] = _FeedPoller(self._read, tenant)
        look_out.followers += 1
        self.followers += 1
        try:
            yield look_out
        finally:
            self.followers -= 1
            look_out.followers -= 1
            if not look_out.followers:
                del self._look_outs[tenant]
                await look_out.stop()


async def _heard(news: asyncio.Event, seconds: float) -> bool:
    """Wait for news, for so long at most; return whether there may be any."""
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return False
    return True
