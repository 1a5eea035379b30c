"""Open stores, shared by all sessions of an event loop so that their writes share commits."""

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
    """Return the URL of a store; a plain path names a SQLite file, as in the SDK's sessions.

    Every spelling of a file's path gives one URL, so two sessions detect that they share a store.
    """
    text = os.fspath(name)
    if not isinstance(text, str) or not text:
        raise InvalidInput("store must be a URL, a file path, or the result of holdfast.open")
    if text == ":memory:":
        return MEMORY
    if text.startswith("sqlite:"):
        return _file_url(sqlite_path(text))
    if text.startswith(_SCHEMES):
        return text
    if "://" in text or text.endswith(":"):
        check_known(text)  # raises: a URL with another scheme is not a file name
    return _file_url(text)


def _file_url(path: str | os.PathLike[str]) -> str:
    return f"sqlite:///{quote(os.path.realpath(path))}"


class SharedStore:
    """One open store and its engine; `refcount` sessions use it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.refcount = 0
        self._store: SqlStore | None = None
        self.opened: Gateway | None = None
        """The engine, once its store is open."""
        self._is_started = False
        self._open_lock = asyncio.Lock()

    async def gateway(self) -> Gateway:
        """Return the engine with its store open; appending needs no worker lease."""
        if self.opened is None:
            async with self._open_lock:
                if self.opened is None:
                    store = self._store = await open_store(self.url, clock=SystemClock())
                    self.opened = Gateway(store, clock=store.clock, ids=RandomIds())
        return self.opened

    async def started(self) -> Gateway:
        """Return the engine with a worker lease, which holding lanes needs."""
        gateway = await self.gateway()
        async with self._open_lock:
            if not self._is_started:
                await gateway.start()
                self._is_started = True
        return gateway

    def abandon(self) -> None:
        """Release what does not need an event loop."""
        store, self._store, self.opened = self._store, None, None
        if store is not None:
            store.abandon()

    async def close(self) -> None:
        """Stop the engine and close the store."""
        async with self._open_lock:
            gateway, self.opened = self.opened, None
            if gateway is None:
                return
            try:
                if self._is_started:
                    self._is_started = False
                    await gateway.stop()
            finally:
                await gateway.store.close()


_SHARED_STORES: dict[asyncio.AbstractEventLoop, dict[str, SharedStore]] = {}


def _abandon_closed_loops() -> None:
    """Abandon the stores of event loops that were closed first: they cannot be closed any more."""
    closed = [loop for loop in list(_SHARED_STORES) if loop.is_closed()]
    for loop in closed:
        for shared in _SHARED_STORES.pop(loop, {}).values():
            shared.abandon()
    if closed:
        gc.collect()  # connections of a closed loop are only reachable through cycles


class StoreHandle:
    """A session's reference to a shared store; it follows the session to another event loop."""

    def __init__(self, store: StoreName) -> None:
        self._open = store if isinstance(store, Holdfast) else None
        self._url = "" if isinstance(store, Holdfast) else store_url(store)
        is_shared = self._open is None and self._url != MEMORY
        self.name = self._url if is_shared else f"{id(self._open or self)}"
        """Equal for two sessions that use the same store."""
        self._shared: SharedStore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def gateway(self, *, started: bool = False) -> Gateway:
        """Return the engine of the running event loop."""
        if self._open is not None:
            return self._open.gateway
        loop, shared = asyncio.get_running_loop(), self._shared
        if shared is None or self._loop is not loop:
            shared = self._shared = self._acquire(loop)
            self._loop = loop
        if started:
            return await shared.started()
        return shared.opened or await shared.gateway()

    def _acquire(self, loop: asyncio.AbstractEventLoop) -> SharedStore:
        if self._url == MEMORY:
            if self._loop is not None and self._loop is not loop and not self._loop.is_closed():
                raise InvalidInput("an in-memory session works on one event loop at a time")
            # Not shared, like the SDK's in-memory sessions.
            return self._shared or SharedStore(self._url)
        _abandon_closed_loops()
        stores = _SHARED_STORES.setdefault(loop, {})
        shared = stores.setdefault(self._url, SharedStore(self._url))
        shared.refcount += 1
        return shared

    async def release(self) -> None:
        """Drop the reference; the last one closes the store."""
        shared, self._shared = self._shared, None
        if shared is None:
            return
        if self._url != MEMORY:
            shared.refcount -= 1
            if shared.refcount:
                return
            if self._loop is not None and self._loop in _SHARED_STORES:
                _SHARED_STORES[self._loop].pop(self._url, None)
                if not _SHARED_STORES[self._loop]:
                    del _SHARED_STORES[self._loop]
        await shared.close()

    def __copy__(self) -> Self:
        raise TypeError("a session's store handle cannot be copied")
