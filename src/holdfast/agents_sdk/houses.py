"""Open stores, shared by all sessions of an event loop: one committer groups what they write."""

import asyncio
import gc
import os
from typing import Self
from urllib.parse import quote

from holdfast.core.errors import InvalidInput
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.sessions.gateway import Gateway
from holdfast.stores.open import MEMORY, check_known, open_store, sqlite_path
from holdfast.stores.sql.store import SqlStore

StoreName = str | os.PathLike[str] | Holdfast
_SCHEMES = ("memory:", "postgres:", "postgresql:", "postgresql+")


def store_url(name: str | os.PathLike[str]) -> str:
    """Return the URL of a store; a path, as the SDK's sessions take one, names a SQLite file.

    A file has one URL, however it is spelled: by it two sessions know that they share a store.
    """
    text = os.fspath(name)
    if not isinstance(text, str) or not text:
        raise InvalidInput("a store is a URL, the path of a file, or what holdfast.open gave")
    if text == ":memory:":
        return MEMORY
    if text.startswith("sqlite:"):
        return _file_url(sqlite_path(text))
    if text.startswith(_SCHEMES):
        return text
    if "://" in text or text.endswith(":"):
        check_known(text)  # a URL of another kind is no file's name
    return _file_url(text)


def _file_url(path: str | os.PathLike[str]) -> str:
    return f"sqlite:///{quote(os.path.realpath(path))}"


class House:
    """One open store and its engine, for as long as a session uses it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.guests = 0
        self._store: SqlStore | None = None
        self._gateway: Gateway | None = None
        self._is_started = False
        self._opening = asyncio.Lock()

    async def gateway(self) -> Gateway:
        """Return the engine, the store open; it holds no lease yet, and needs none to append."""
        if self._gateway is None:
            async with self._opening:
                if self._gateway is None:
                    clock = SystemClock()
                    self._store = await open_store(self.url, clock=clock)
                    self._gateway = Gateway(self._store, clock=clock, ids=RandomIds())
        return self._gateway

    async def started(self) -> Gateway:
        """Return the engine as one that may hold lanes: it has a lease, and keeps it."""
        gateway = await self.gateway()
        async with self._opening:
            if not self._is_started:
                await gateway.start()
                self._is_started = True
        return gateway

    def abandon(self) -> None:
        """Let go of what needs no event loop to be let go of."""
        store, self._store, self._gateway = self._store, None, None
        if store is not None:
            store.abandon()

    async def close(self) -> None:
        """Let go of the store."""
        async with self._opening:
            gateway, self._gateway = self._gateway, None
            if gateway is None:
                return
            try:
                if self._is_started:
                    self._is_started = False
                    await gateway.stop()
            finally:
                await gateway.store.close()


_HOUSES: dict[asyncio.AbstractEventLoop, dict[str, House]] = {}


def _leave_dead_loops() -> None:
    """Give up the houses of event loops that were closed before them: nobody comes back there."""
    dead = [loop for loop in list(_HOUSES) if loop.is_closed()]
    for loop in dead:
        for house in _HOUSES.pop(loop, {}).values():
            house.abandon()
    if dead:
        gc.collect()  # what still hangs on such a loop, connections above all, is in circles


class Lodging:
    """A session's place in a house; it moves when its event loop is another one than before."""

    def __init__(self, store: StoreName) -> None:
        self._open = store if isinstance(store, Holdfast) else None
        self._url = "" if isinstance(store, Holdfast) else store_url(store)
        is_shared = self._open is None and self._url != MEMORY
        self.name = self._url if is_shared else f"{id(self._open or self)}"
        """Two sessions of one store have one name for it."""
        self._house: House | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def gateway(self, *, started: bool = False) -> Gateway:
        """Return the engine of this event loop."""
        if self._open is not None:
            return self._open.gateway
        loop = asyncio.get_running_loop()
        if self._house is None or self._loop is not loop:
            self._house = self._house_on(loop)
            self._loop = loop
        return await (self._house.started() if started else self._house.gateway())

    def _house_on(self, loop: asyncio.AbstractEventLoop) -> House:
        if self._url == MEMORY:
            if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
                raise InvalidInput("a session in memory is used by one event loop at a time")
            # Of its own, like the SDK's sessions in memory.
            return self._house or House(self._url)
        _leave_dead_loops()
        houses = _HOUSES.setdefault(loop, {})
        house = houses.setdefault(self._url, House(self._url))
        house.guests += 1
        return house

    async def leave(self) -> None:
        """Give the place up; the last one to leave closes the house."""
        house, self._house = self._house, None
        if house is None:
            return
        if self._url != MEMORY:
            house.guests -= 1
            if house.guests:
                return
            if self._loop is not None and self._loop in _HOUSES:
                _HOUSES[self._loop].pop(self._url, None)
                if not _HOUSES[self._loop]:
                    del _HOUSES[self._loop]
        await house.close()

    def __copy__(self) -> Self:
        raise TypeError("a session's place in its store is not copied")
