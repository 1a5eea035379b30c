"""Followers of events: what is committed between a look and the wait behind it wakes them."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.engine.settings import StreamSettings
from holdfast.ports.store import Store
from tests.in_process import RunningGateway, open_gateway
from tests.streaming import Stream

KEEP_ALIVE = ": keep-alive"
NO_KEEP_ALIVE = StreamSettings(keep_alive_seconds=600.0)
"""What is sent is sent because of a commit."""


class _LateReader:
    """A reader whose next answer to one question is out of date when it is given."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self._name = ""
        self._meanwhile: Callable[[], Awaitable[None]] | None = None

    def delay(self, name: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Do `meanwhile` between the next read of this name and its answer."""
        self._name, self._meanwhile = name, meanwhile

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._read, name)

        async def read(*args: Any, **more: Any) -> Any:
            found = await method(*args, **more)
            if name == self._name and self._meanwhile is not None:
                meanwhile, self._meanwhile = self._meanwhile, None
                await meanwhile()
            return found

        return read


class _LateStore:
    """A store with such a reader."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read = _LateReader(store.read)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def _first_event(stream: Stream) -> str:
    """Return what comes behind the comment with which a follower is let in."""
    assert await stream.text() == KEEP_ALIVE
    return await stream.text() or ""


async def _annotate(gateway: RunningGateway, name: str) -> None:
    made = await gateway.client.post(f"/v1/sessions/{name}", json={"metadata": {"a": "b"}})
    assert made.status_code == 200, made.text


@pytest.mark.parametrize("followed", ["everything", "one session"])
async def test_a_commit_between_the_read_and_the_wait_is_delivered_first(
    followed: str,
) -> None:
    stores: list[_LateStore] = []

    def wrap(store: Store) -> Any:
        stores.append(_LateStore(store))
        return stores[0]

    async with open_gateway(streams=NO_KEEP_ALIVE, wrap=wrap) as gateway:
        name = (await gateway.respond("one")).headers["x-session-id"]
        all_events, of_session = "/v1/events", f"/v1/sessions/{name}/events"
        # Somebody who follows in the other way shows that everybody has been woken.
        paths = [all_events, of_session]
        if followed == "one session":
            paths.reverse()
        other_feed = Stream(gateway.server, "GET", paths[1])
        assert "session.created" in await _first_event(other_feed)

        async def commit() -> None:
            await _annotate(gateway, name)
            while "session.annotated" not in (await other_feed.text() or ""):
                pass

        stores[0].read.delay("feed" if followed == "everything" else "events", commit)
        follower = Stream(gateway.server, "GET", f"{paths[0]}?after=latest")
        assert "event: session.annotated" in await _first_event(follower)
        await follower.leave()
        await other_feed.leave()
