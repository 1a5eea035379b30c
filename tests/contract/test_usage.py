"""Sums of usage: every turn is counted once, also by several followers, and erasing keeps them."""

import asyncio
from typing import Any

from holdfast.core.ids import SessionId
from holdfast.core.model.session import Usage
from holdfast.core.transaction.commands import Delete
from holdfast.ports.reports import Interval, UsageReport
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.usage import MAX_TAIL, SqlUsage
from holdfast.testing.clock import ManualClock
from holdfast.testing.search_contract import next_usage
from holdfast.testing.store_client import StoreClient
from tests.contract.counted_store import CountedStore

HOUR, DAY = 3600, 86400
REQUEST = b'{"model":"m"}'


async def spend(caller: StoreClient, key: str, *, model: str = "m", tokens: int = 3) -> SessionId:
    """Have a turn with a known use; return its session."""
    run = await caller.start("hi", key=key, request=b'{"model":"%b"}' % model.encode())
    used = Usage(input_tokens=tokens, cached_tokens=1, output_tokens=2, reasoning_tokens=1)
    await caller.finish(run, "hello", usage=used)
    return run.session.id


async def count(caller: StoreClient) -> None:
    """Add up all committed entries."""
    while await caller.store.usage.backlog():
        await caller.submit(await next_usage(caller))


async def used(caller: StoreClient, interval: Interval = "day", since: float = 0) -> UsageReport:
    return await caller.store.usage.report(since, 4e9, interval)


async def test_a_report_is_the_same_before_and_after_its_turns_are_added_up(
    caller: StoreClient, clock: ManualClock
) -> None:
    for _ in range(3):
        await spend(caller, "a")
        await spend(caller, "b", model="larger", tokens=5)
        clock.advance(HOUR)
    run = await caller.start("hi", key="c", request=REQUEST)
    await caller.finish(run, outcome="failed")
    before = [await used(caller, "day"), await used(caller, "hour")]
    await count(caller)
    after = [await used(caller, "day"), await used(caller, "hour")]
    assert before == after
    by_day, by_hour = after
    sums: dict[str, int] = {}
    for row in by_day.rows:
        sums[row.model] = sums.get(row.model, 0) + row.input_tokens
    assert sums == {"m": 9, "larger": 15}
    assert by_day.is_complete
    assert sum(row.turns for row in by_day.rows) == 7
    assert sum(row.failed for row in by_day.rows) == 1
    assert sum(row.runs for row in by_hour.rows) == 7
    assert sum(sum(row.latencies.values()) for row in by_day.rows) == 6
    assert {row.start % HOUR for row in by_hour.rows} == {0}
    assert {row.start % DAY for row in by_day.rows} == {0}
    assert len(by_hour.rows) == 7


async def test_a_range_begins_and_ends_with_an_hour(
    caller: StoreClient, clock: ManualClock
) -> None:
    begin = clock.now() // HOUR * HOUR
    for _ in range(50):
        await spend(caller, "a")
        clock.advance(HOUR)
    await count(caller)
    for since, until, turns in ((0, 50, 50), (1, 49, 48), (30, 31, 1), (2.5, 47.5, 46)):
        report = await caller.store.usage.report(begin + since * HOUR, begin + until * HOUR, "day")
        assert sum(row.turns for row in report.rows) == turns
        assert (report.since, report.until) == (
            begin + int(since) * HOUR, begin - int(-until // 1) * HOUR,
        )  # fmt: skip


async def test_erasing_a_session_keeps_what_it_used(caller: StoreClient) -> None:
    session_id = await spend(caller, "a")
    await count(caller)
    before = await used(caller)
    await caller.submit(Delete(tenant=caller.tenant, session_id=session_id))
    await count(caller)
    assert await used(caller) == before


async def test_tenants_are_counted_apart(caller: StoreClient, store: SqlStore) -> None:
    neighbour = StoreClient(store, "n", tenant="other")
    await neighbour.enlist()
    await spend(caller, "a")
    await spend(neighbour, "a", tokens=7)
    await count(caller)
    rows = {row.tenant: row.input_tokens for row in (await used(caller)).rows}
    assert rows == {caller.tenant: 3, neighbour.tenant: 7}


async def test_a_turn_that_was_sent_again_is_counted_by_its_last_end(
    caller: StoreClient, clock: ManualClock
) -> None:
    once: dict[str, Any] = {
        "key": "a", "request": REQUEST, "idempotency_key": "once", "body_hash": b"x",
    }  # fmt: skip
    run = await caller.start("hi", **once)
    await caller.finish(run, outcome="interrupted")
    await count(caller)
    (row,) = (await used(caller, "hour")).rows
    assert (row.turns, row.interrupted, row.runs) == (1, 1, 1)
    clock.advance(HOUR)
    again = await caller.start("hi", **once)
    assert again.turn.id == run.turn.id
    await caller.finish(again, "hello")
    for _ in range(2):
        first, second = (await used(caller, "hour")).rows
        assert (first.turns, first.interrupted, first.runs) == (0, 0, 1)
        assert (second.turns, second.completed, second.runs) == (1, 1, 1)
        await count(caller)


async def test_of_two_followers_one_adds_up(caller: StoreClient, other: StoreClient) -> None:
    for number in range(5):
        await spend(caller, f"k{number}")
    mine, theirs = await next_usage(caller), await next_usage(other)
    outcomes = await asyncio.gather(
        caller.submit(mine), other.submit(theirs), caller.submit(mine), return_exceptions=True
    )
    assert True in outcomes
    await count(other)
    (row,) = (await used(caller)).rows
    assert (row.turns, row.input_tokens) == (5, 15)


async def test_a_report_reads_no_more_as_the_store_grows(
    store: SqlStore, caller: StoreClient
) -> None:
    counted = CountedStore(store)
    store.usage = SqlUsage(store.query, store.query)
    read: list[tuple[int, int]] = []
    for turns in (20, 200):
        for _ in range(turns):
            await spend(caller, "k")
        await count(caller)
        before = counted.statements, counted.rows
        report = await used(caller)
        assert report.rows[0].turns == turns + (20 if turns > 20 else 0)
        read.append((counted.statements - before[0], counted.rows - before[1]))
    assert read[0] == read[1]


async def test_a_report_that_lacks_turns_says_until_when_it_is_complete(
    caller: StoreClient, clock: ManualClock
) -> None:
    for _ in range(MAX_TAIL // 2 + 40):
        await spend(caller, "k")
        clock.advance(1)
    report = await used(caller)
    assert not report.is_complete
    assert report.complete_until is not None
    assert 20 <= clock.now() - report.complete_until <= 41
    await count(caller)
    assert (await used(caller)).complete_until is None
