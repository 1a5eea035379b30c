"""Journals, on every store: batches ride in a run's own writes, and go with their session."""

from typing import Any

import pytest

from holdfast.core.errors import RunFenced, TurnNotFound
from holdfast.core.ids import Tenant
from holdfast.core.openai.stream_events import JournalEvent, pack_events, unpack_events
from holdfast.core.transaction.commands import Delete, DropResponse, Hide, JournalEntry, Started
from holdfast.testing.store_client import StoreClient


def batch(first: int, *texts: str) -> JournalEntry:
    return pack_events(first, [JournalEvent("t", text.encode()) for text in texts])


async def kept(caller: StoreClient, run: Started, **query: Any) -> list[str]:
    query = {"after": -1, "limit": 100, **query}
    rows = await caller.read.journal(run.turn.id, run.turn.step, **query)
    return [event.body.decode() for row in rows for event in unpack_events(row)]


async def test_batches_are_read_back_in_order_from_any_number(caller: StoreClient) -> None:
    run = await caller.start("hi", key="k")
    await caller.extend(run, journal=batch(0, "a", "b"))
    await caller.extend(run, journal=batch(2, "c"))
    await caller.finish(run, "hello", journal=batch(3, "d", "e"))
    assert await kept(caller, run) == ["a", "b", "c", "d", "e"]
    assert await kept(caller, run, after=1) == ["c", "d", "e"]
    assert await kept(caller, run, after=3) == ["d", "e"]
    assert await kept(caller, run, after=4) == []
    assert await kept(caller, run, limit=1) == ["a", "b"]


async def test_a_batch_that_is_sent_twice_is_kept_once(caller: StoreClient) -> None:
    run = await caller.start("hi", key="k")
    for _ in range(2):
        await caller.extend(run, journal=batch(0, "a", "b"))
        await caller.extend(run, journal=batch(2, "c"))
    assert await kept(caller, run) == ["a", "b", "c"]


async def test_a_journal_that_begins_again_takes_the_place_of_the_old_one(
    caller: StoreClient,
) -> None:
    run = await caller.start("hi", key="k")
    await caller.extend(run, journal=batch(0, "a"))
    await caller.extend(run, journal=batch(1, "b"))
    await caller.extend(run, journal=batch(0, "c", "d"))
    assert await kept(caller, run) == ["c", "d"]


async def test_a_run_that_lost_its_session_adds_nothing_to_its_journal(caller: StoreClient) -> None:
    run = await caller.start("hi", key="k")
    await caller.extend(run, journal=batch(0, "a"))
    await caller.reset(run.session)
    with pytest.raises(RunFenced):
        await caller.extend(run, journal=batch(1, "late"))
    with pytest.raises(RunFenced):
        await caller.finish(run, "late", journal=batch(1, "late"))
    assert await kept(caller, run) == ["a"]


async def test_erasing_a_session_erases_its_journals(caller: StoreClient) -> None:
    run = await caller.start("hi", key="k")
    await caller.finish(run, "hello", journal=batch(0, "a"))
    await caller.submit(Delete(tenant=caller.tenant, session_id=run.session.id))
    assert await kept(caller, run) == []


async def test_a_dropped_response_is_gone_and_its_history_is_not(caller: StoreClient) -> None:
    run = await caller.start("hi", key="k")
    await caller.finish(run, "hello", journal=batch(0, "a"))
    drop = DropResponse(tenant=caller.tenant, turn_id=run.turn.id, step=0)
    found = await caller.read.response(caller.tenant, run.turn.id, 0)
    assert found is not None
    assert found.run is not None
    assert found.run.outcome == "completed"
    await caller.submit(drop)
    await caller.submit(drop)
    assert await caller.read.response(caller.tenant, run.turn.id, 0) is None
    assert await kept(caller, run) == []
    assert await caller.texts(run.session) == ["hi", "hello"]


async def test_only_the_tenant_that_has_a_response_sees_or_drops_it(caller: StoreClient) -> None:
    run = await caller.start("hi", key="k")
    await caller.finish(run, "hello")
    other = Tenant("other")
    assert await caller.read.response(other, run.turn.id, 0) is None
    assert await caller.read.response(caller.tenant, run.turn.id, 1) is None
    with pytest.raises(TurnNotFound):
        await caller.submit(DropResponse(tenant=other, turn_id=run.turn.id, step=0))
    with pytest.raises(TurnNotFound):
        await caller.submit(DropResponse(tenant=caller.tenant, turn_id=run.turn.id, step=1))
    assert await caller.read.response(caller.tenant, run.turn.id, 0) is not None


@pytest.mark.parametrize("is_erased", [False, True])
async def test_an_item_that_is_erased_leaves_the_journal_of_its_turn_and_no_other(
    caller: StoreClient, is_erased: bool
) -> None:
    runs = []
    for number in range(2):
        run = await caller.start("who are you?", key="k")
        await caller.finish(run, "a secret", journal=batch(0, f"a secret {number}"))
        runs.append(run)
    session = runs[0].session
    await caller.submit(
        Hide(tenant=session.tenant, session_id=session.id, from_seq=2, to_seq=2, erase=is_erased)
    )
    assert await kept(caller, runs[0]) == ([] if is_erased else ["a secret 0"])
    assert await kept(caller, runs[1]) == ["a secret 1"]
