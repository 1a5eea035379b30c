"""Searches over many blocks of items, which are read from the newest on."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from holdfast.stores.sql.search import index as index_module
from holdfast.stores.sql.search.index import BLOCKS_PER_STAGE
from holdfast.stores.sql.search.terms import BLOCK_BITS
from holdfast.testing.clock import ManualClock
from holdfast.testing.search_contract import found, index, search
from holdfast.testing.store_client import StoreClient

BLOCKS = sum(BLOCKS_PER_STAGE) + 4
SKIP = f"update cursors set last_id = (last_id >> {BLOCK_BITS} << {BLOCK_BITS}) + {1 << BLOCK_BITS}"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that the test can reach beside the store's own code."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'holdfast.db'}"
    return str(request.getfixturevalue("postgres_url"))


@asynccontextmanager
async def _second_connection(url: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Yield what lets the next item be the first of a block, as if the last one were full."""
    if url.startswith("sqlite:"):
        database = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)

        async def skip() -> object:
            return database.execute(SKIP)

        yield skip
        database.close()
    else:
        connection = await asyncpg.connect(url)
        yield lambda: connection.execute(SKIP)
        await connection.close()


@pytest.fixture
async def begun_at(caller: StoreClient, clock: ManualClock, store_url: str) -> list[float]:
    """The times at which blocks begin; each has two items, one minute after the last one."""
    times: list[float] = []
    async with _second_connection(store_url) as begin_block:
        for number in range(BLOCKS):
            clock.advance(60)
            times.append(clock.now())
            key = f"agent:{number % 2}:k"
            await caller.append(f"item {number} first", f"item {number} second", key=key)
            await index(caller)
            await begin_block()
    return times


async def test_pages_go_on_from_block_to_block(caller: StoreClient, begun_at: list[float]) -> None:
    texts: list[str] = []
    after: int | None = None
    while True:
        page = await search(caller, "item", limit=7, after=after)
        texts += [hit.snippet for hit in page.hits]
        if not page.has_more:
            break
        after = page.hits[-1].place
    assert texts == [
        f"item {number} {which}"
        for number in reversed(range(BLOCKS))
        for which in ("second", "first")
    ]


async def test_a_word_of_the_oldest_block_is_found(
    caller: StoreClient, begun_at: list[float]
) -> None:
    assert await found(caller, "0 second") == ["item 0 second"]
    page = await search(caller, "0 nowhere")
    assert not page.matches_all
    assert [hit.snippet for hit in page.hits] == ["item 0 second", "item 0 first"]


async def test_only_blocks_of_the_wanted_time_are_searched(
    caller: StoreClient, begun_at: list[float]
) -> None:
    early = await found(caller, "second", until=begun_at[2])
    assert early == ["item 1 second", "item 0 second"]
    middle = await found(caller, "second", since=begun_at[5], until=begun_at[7])
    assert middle == ["item 6 second", "item 5 second"]
    assert await found(caller, "second", until=begun_at[0]) == []
    assert await found(caller, "second", since=begun_at[-1] + 1) == []


async def test_filters_hold_in_every_block(caller: StoreClient, begun_at: list[float]) -> None:
    page = await search(caller, "first", key_prefix="agent:1:", limit=100)
    assert {hit.key for hit in page.hits} == {"agent:1:k"}
    assert len(page.hits) == BLOCKS // 2
    session = page.hits[0].session_id
    assert len(await found(caller, "first", session_id=session, limit=100)) == BLOCKS // 2
    assert await found(caller, "first", roles=("assistant",)) == []


async def test_common_words_are_listed_only_where_there_is_no_rarer_one(
    caller: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "COMMON", 1)
    await caller.append("red one", "red two", "blue one", "blue two", "green", key="k")
    await index(caller)
    assert set(await found(caller, "red blue")) == {"red one", "red two", "blue one", "blue two"}
    assert await found(caller, "red green") == ["green"]
