"""The rows of the search index: how they are written, and that erasing leaves none."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.core.transaction.commands import Delete, Hide
from holdfast.stores.sql.search import follower
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.search_contract import found, index, next_backlog, whole_backlog
from holdfast.testing.store_client import StoreClient


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that the test can reach beside the store's own code."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'holdfast.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def _rows(url: str, query: str) -> list[tuple[Any, ...]]:
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            return database.execute(query).fetchall()
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def _indexed(url: str) -> int:
    """Return how many items are in the index; on SQLite, check that FTS5 has the same ones."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            database.execute("insert into search_text (search_text) values ('integrity-check')")
    ((count,),) = await _rows(url, "select count(*) from search_items where back >= 0")
    return int(count)


async def _hide(caller: StoreClient, session_id: Any, seqs: Sequence[int]) -> None:
    await caller.submit(
        Hide(
            tenant=caller.tenant,
            session_id=session_id,
            from_seq=seqs[0],
            to_seq=seqs[-1],
            erase=True,
        )
    )


@pytest.mark.parametrize("seqs", [(1, 1), (2, 2), (3, 5), (6, 7), (1, 8)])
async def test_erased_items_leave_no_row_also_if_they_were_being_indexed(
    caller: StoreClient, store_url: str, seqs: tuple[int, int]
) -> None:
    for texts in (["w1"], ["w2", "w3", "w4"], ["w5"], ["w6", "w7"], ["w8"]):
        session = (await caller.append(*texts, key="k")).session
    await caller.append("another session", key="other")
    late = await whole_backlog(caller)
    await _hide(caller, session.id, seqs)
    assert await caller.submit(late)
    assert await _indexed(store_url) == 9
    await index(caller)
    assert await _indexed(store_url) == 9 - (seqs[1] - seqs[0] + 1)
    assert await _rows(store_url, "select count(*) from search_items where back < 0") == [(2,)]
    for seq in range(1, 9):
        is_left = not seqs[0] <= seq <= seqs[1]
        assert await found(caller, f"w{seq}") == ([f"w{seq}"] if is_left else [])


async def test_erasing_deletes_rows_in_its_own_transaction(
    caller: StoreClient, store_url: str
) -> None:
    session = (await caller.append("w1", "w2", "w3", key="k")).session
    await caller.append("w4", key="k")
    await caller.append("another session", key="other")
    await index(caller)
    await _hide(caller, session.id, (2, 2))
    assert await _indexed(store_url) == 4
    await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
    assert await _indexed(store_url) == 1
    assert await _rows(store_url, "select count(*) from activity") == [(1,)]
    # The row of its key is gone too.
    assert await _rows(store_url, "select count(*) from search_items where back < 0") == [(1,)]


async def test_a_session_that_was_deleted_while_it_was_indexed_leaves_no_row(
    caller: StoreClient, store_url: str
) -> None:
    session = (await caller.append("w1", "w2", key="k")).session
    late = await whole_backlog(caller)
    await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
    assert await caller.submit(late)
    await index(caller)
    assert await _indexed(store_url) == 0
    assert await _rows(store_url, "select count(*) from activity") == [(0,)]


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_what_is_erased_between_two_reads_of_a_batch_leaves_no_row(
    caller: StoreClient, store_url: str, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    monkeypatch.setattr(follower, "READ_ROWS", 2)
    store, batch = caller.store, follower.BacklogBatch(limit=100)
    assert isinstance(store, SqlStore)
    await caller.append("another session", key="other")
    session = (await caller.append("secret", key="k")).session
    await whole_backlog(caller)  # Other transactions of the server no longer hold the feed back.
    batch.add(await store.query(lambda _: follower.read_slice(None, 2)))
    if is_deleted:
        await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
    else:
        await _hide(caller, session.id, (1, 1))
    while batch.wanted():
        batch.add(await store.query(lambda _: follower.read_slice(batch.upto, 2)))
    command = batch.command(caller.worker)
    assert command is not None
    assert await caller.submit(command)
    assert await _indexed(store_url) == 1


async def test_a_batch_ends_where_its_items_are_many_bytes(
    caller: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        await caller.append("x" * 600, key=f"k{number}")
    await whole_backlog(caller)
    monkeypatch.setattr(follower, "READ_ROWS", 2)
    monkeypatch.setattr(follower, "MAX_READ_BYTES", 1000)
    sizes = []
    while await caller.store.search.backlog():
        batch = await next_backlog(caller)
        items = [item for item in batch.items if item.back >= 0]
        sizes.append((len(items), batch.has_more))
        await caller.submit(batch)
    assert sizes[:2] == [(2, True), (2, True)]
    assert sum(size for size, _ in sizes) == 6


async def test_short_and_long_entries_of_a_batch_are_indexed_in_order(
    caller: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (1, 1, 1, 90, 90, 1, 90, 1)
    for number, size in enumerate(sizes):
        await caller.append(f"w{number} " * size, key=f"k{number}")
    whole = await whole_backlog(caller)
    monkeypatch.setattr(follower, "READ_ROWS", 2)
    monkeypatch.setattr(follower, "MAX_INLINE_BYTES", 200)
    assert await whole_backlog(caller) == whole
    assert await caller.submit(whole)
    for number in range(len(sizes)):
        assert len(await found(caller, f"w{number}")) == 1


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_all_items_of_a_batch_are_one_segment_of_fts5(
    caller: StoreClient, store_url: str
) -> None:
    await caller.append(*(f"word{number}" for number in range(40)), key="k")
    await index(caller)
    segments = "select count(distinct segid) from search_text_idx"
    assert await _rows(store_url, segments) == [(1,)]
