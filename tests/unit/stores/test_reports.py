"""Reports that are bounded, and say where they end."""

from holdfast.stores.open import open_store
from holdfast.stores.reports import MAX_LATENCIES, PAGE_ROWS, SqlReports, _Latencies
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient

DAY = 86400
START = 20_000 * DAY


async def test_usage_that_is_too_much_for_one_report_is_counted_by_the_next() -> None:
    clock = ManualClock(float(START))
    store = await open_store("memory:", clock=clock)
    assert isinstance(store, SqlStore)
    caller = StoreClient(store)
    await caller.enlist(lease_seconds=10 * DAY)
    for count in (10, PAGE_ROWS, 7):
        for _ in range(count):
            await caller.converse("hi", "hello", key="k")
        clock.advance(DAY)
    until = float(START + 3 * DAY)
    whole = await SqlReports(store).usage(START, until, "day")
    assert [row.turns for row in whole.rows] == [10, PAGE_ROWS, 7]
    assert (whole.is_complete, whole.next_since) == (True, None)
    # One page ends within the second day: that day is left to the next report.
    reports = SqlReports(store, max_entries=PAGE_ROWS)
    first = await reports.usage(START, until, "day")
    assert [row.turns for row in first.rows] == [10]
    assert (first.is_complete, first.next_since) == (False, START + DAY)
    # A single interval that is too much stays incomplete, and says so.
    second = await reports.usage(START + DAY, until, "day")
    assert (second.is_complete, second.next_since) == (False, None)
    assert [row.turns for row in second.rows] == [PAGE_ROWS]
    await store.close()


def test_latencies_of_very_many_turns_are_an_even_share_of_all() -> None:
    latencies = _Latencies()
    for milliseconds in range(100_000):
        latencies.add(milliseconds)
    assert MAX_LATENCIES // 2 <= len(latencies.kept) <= MAX_LATENCIES
    middle = sorted(latencies.kept)[len(latencies.kept) // 2]
    assert 45_000 < middle < 55_000
