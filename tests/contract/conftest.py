"""Every kind of store, empty and open, for the contract tests."""

from collections.abc import AsyncIterator

import pytest

from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient


@pytest.fixture
def store_url(any_store_url: str) -> str:
    """The URL of a store of each kind."""
    return any_store_url


@pytest.fixture
def clock() -> ManualClock:
    """The only clock of the store."""
    return ManualClock()


async def _open(url: str, clock: ManualClock) -> SqlStore:
    if url.startswith("postgresql:"):
        return await open_postgres(url, clock=clock)
    return await open_store(url, clock=clock)


@pytest.fixture
async def store(store_url: str, clock: ManualClock) -> AsyncIterator[SqlStore]:
    """An open, empty store."""
    store = await _open(store_url, clock)
    yield store
    await store.close()


@pytest.fixture
async def neighbour(store: SqlStore, store_url: str, clock: ManualClock) -> AsyncIterator[SqlStore]:
    """The same store opened by another process; a memory store has no other process."""
    if store_url == "memory:":
        yield store
        return
    neighbour = await _open(store_url, clock)
    yield neighbour
    await neighbour.close()


@pytest.fixture
async def caller(store: SqlStore) -> StoreClient:
    """A worker of the store."""
    caller = StoreClient(store)
    await caller.enlist()
    return caller


@pytest.fixture
async def other(neighbour: SqlStore) -> StoreClient:
    """A worker of the neighbour."""
    other = StoreClient(neighbour, "o")
    await other.enlist()
    return other
