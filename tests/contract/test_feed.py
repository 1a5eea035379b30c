"""Feeds, on every store: in the order of commits, and nothing that commits late is passed over."""

import asyncio

import asyncpg

from holdfast.core.ids import Tenant
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.model.session import Session
from holdfast.core.transaction.changes import Event
from holdfast.core.transaction.commands import Delete
from holdfast.ports.store import FeedPlace
from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from tests.contract.foreign_entries import append_foreign_entry

BEGINNING = FeedPlace()
SECONDS = 20.0
"""How long a fact is waited for."""


async def turn(caller: StoreClient, key: str) -> Session:
    started = await caller.start("hi", key=key)
    return (await caller.finish(started, "hello")).session


async def told(
    caller: StoreClient, count: int, after: FeedPlace = BEGINNING
) -> tuple[list[str], FeedPlace]:
    """Return what is told behind a place, read in small pages, and the place reached.

    So many facts are waited for: in the same server others have transactions of their own.
    """
    kinds: list[str] = []
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SECONDS
    while True:
        page = await caller.read.feed(caller.tenant, after=after, limit=2)
        if not page:
            if len(kinds) >= count:
                return kinds, after
            assert loop.time() < deadline, f"{count} facts are expected, these were told: {kinds}"
            continue
        assert [one.place for one in page] == sorted({one.place for one in page})
        assert page[0].place > after
        kinds.extend(f"{one.event.session_id[-1]}:{one.event.kind}" for one in page)
        after = page[-1].place


async def test_facts_of_all_sessions_are_read_in_the_order_of_their_commits(
    caller: StoreClient,
) -> None:
    await turn(caller, "a")
    await turn(caller, "b")
    kinds, place = await told(caller, 6)
    expected = ["session.created", "turn.started", "turn.completed"]
    assert [kind.split(":")[1] for kind in kinds] == expected * 2
    end = await caller.read.log_end()
    assert end > place
    assert await told(caller, 0, end) == ([], end)
    await turn(caller, "a")
    for after in (place, end):
        more, _ = await told(caller, 2, after)
        assert [kind.split(":")[1] for kind in more] == expected[1:]


async def test_a_database_that_was_restored_on_another_server_goes_on_with_its_feed(
    bare_postgres_url: str,
) -> None:
    """Transactions of the other server have lower numbers than those in the log."""
    expected = ["session.created", "turn.started", "turn.completed"]
    place, count = BEGINNING, 0
    for _ in range(3):
        store = await open_postgres(bare_postgres_url)
        try:
            caller = StoreClient(store, f"after{count}")
            await caller.enlist()
            known, end = await told(caller, count)
            assert (len(known), end) == (count, place)
            await turn(caller, f"key{count}")
            more, place = await told(caller, 3, place)
            assert [kind.split(":")[1] for kind in more] == expected
            count += 3
        finally:
            await store.close()
        connection = await asyncpg.connect(bare_postgres_url)
        try:
            # What a dump of a server looks like that is a million transactions ahead.
            await connection.execute("update log set txid = txid + 1000000")
        finally:
            await connection.close()
        place = FeedPlace(place.txid + 1_000_000, place.position)


async def test_nobody_reads_another_tenants_feed_nor_what_is_hidden(caller: StoreClient) -> None:
    await turn(caller, "a")
    stranger = Tenant("stranger")
    assert await caller.read.feed(stranger, after=FeedPlace(), limit=10) == []
    _, place = await told(caller, 3)
    internal = await caller.start("plan", key="a", is_internal=True, source="internal")
    await caller.finish(internal, "done")
    assert await told(caller, 0, place) == ([], place)


async def test_an_erased_session_leaves_the_feed_and_no_place_is_given_twice(
    caller: StoreClient,
) -> None:
    await turn(caller, "a")
    _, before = await told(caller, 3)
    gone = await turn(caller, "b")
    _, place = await told(caller, 6)
    await caller.submit(Delete(tenant=caller.tenant, session_id=gone.id))
    assert await told(caller, 0, before) == ([], before)
    assert await caller.read.log_end() > place
    await turn(caller, "c")
    kinds, _ = await told(caller, 3, place)
    assert len(kinds) == 3


async def test_a_fact_that_commits_late_is_not_passed_over(postgres_url: str) -> None:
    """Another process takes its place in the feed first, and commits last."""
    store = await open_store(postgres_url, clock=ManualClock())
    slow = await asyncpg.connect(postgres_url)
    try:
        caller = StoreClient(store)
        await caller.enlist()
        session = await turn(caller, "a")
        _, place = await told(caller, 3)
        late = slow.transaction()
        await late.start()
        fact = Event(session.id, 0, caller.tenant, "late", None, b"{}", 0.0)
        await append_foreign_entry(slow, session.id, fact)
        await turn(caller, "b")
        # Visible already, and held back: the late one will stand before it.
        assert await told(caller, 0, place) == ([], place)
        assert len(await caller.read.events(session.id, after=0, limit=10)) == 3
        await late.commit()
        kinds, _ = await told(caller, 4, place)
        assert [kind.split(":")[1] for kind in kinds] == [
            "late", "session.created", "turn.started", "turn.completed",
        ]  # fmt: skip
    finally:
        await slow.close()
        await store.close()


async def test_a_soft_rollover_is_published() -> None:
    clock = ManualClock()
    store = await open_store("memory:", clock=clock)
    try:
        caller = StoreClient(store)
        await caller.enlist()
        await turn(caller, "a")
        _, place = await told(caller, 3)
        clock.advance(3600.0)
        policy = ResetPolicy(mode="idle", idle_seconds=60.0)
        started = await caller.start("yes", key="a", reset=policy)
        assert started.is_rolled_over
        kinds, _ = await told(caller, 2, place)
        assert [kind.split(":")[1] for kind in kinds] == ["session.rolled_over", "turn.started"]
    finally:
        await store.close()
