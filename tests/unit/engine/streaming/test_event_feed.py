"""The event feed: what other tenants do is read once, not again at every look."""

import asyncio
from typing import Any

from holdfast.core.ids import Tenant
from holdfast.engine.streaming.event_feed import EventFeed
from holdfast.ports.store import FeedPlace, PlacedEvent
from holdfast.stores.open import open_store
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient

SECONDS = 60.0
IDLE = Tenant("idle")


class NotedReader:
    """A reader that notes from where a feed is read, and whether the end of the log was seen."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self.read_from: list[FeedPlace] = []
        self.ends: asyncio.Queue[FeedPlace] = asyncio.Queue()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read, name)

    async def feed(self, tenant: Tenant, *, after: FeedPlace, limit: int) -> list[PlacedEvent]:
        self.read_from.append(after)
        found: list[PlacedEvent] = await self._read.feed(tenant, after=after, limit=limit)
        return found

    async def log_end(self) -> FeedPlace:
        end: FeedPlace = await self._read.log_end()
        self.ends.put_nowait(end)
        return end

    async def until_reached(self, end: FeedPlace) -> None:
        """Wait until what is before this place was looked at."""
        for _ in range(2):  # the second look comes after everything that the first one led to
            while await self.ends.get() != end:
                pass


async def test_an_idle_tenant_does_not_read_what_others_do_again_and_again() -> None:
    store = await open_store("memory:", clock=ManualClock())
    busy, idle = StoreClient(store, "busy"), StoreClient(store, "idle", tenant=IDLE)
    read = NotedReader(store.read)
    feed = EventFeed(read)
    following = feed.follow(IDLE, FeedPlace(), quiet_seconds=SECONDS)
    try:
        async with asyncio.timeout(SECONDS):
            first = asyncio.ensure_future(anext(following))
            for number in range(3):
                await busy.finish(await busy.start("hello", key=f"k{number}"), "hello")
                await read.until_reached(await store.read.log_end())
            end = await store.read.log_end()
            read.read_from.clear()
            await idle.start("hello", key="mine")
            events = await first
        assert [one.event.kind for one in events] == ["session.created", "turn.started"]
        assert read.read_from
        assert min(read.read_from) >= end
    finally:
        await following.aclose()
        await store.close()
