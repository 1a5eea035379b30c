"""How far the doctor looks: at what is new, in slices, and at everything only if it is told to."""

import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from holdfast.doctor.findings import Finding
from holdfast.doctor.store_checks import Coverage, check_contents
from holdfast.stores.sql.health_checks import ENTRIES_AT_ONCE
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient
from tests.contract.counted_store import CountedStore

ENTRIES, SESSIONS = 60, 20
"""What an ordinary check of these tests reads."""
OWN_STATEMENTS = 8
"""More statements of a larger store: a part of its log that is cut is a page of its own."""


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that the test can reach beside the store's own code."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'holdfast.db'}"
    return str(request.getfixturevalue("postgres_url"))


async def examine(store: SqlStore, *, is_deep: bool = False) -> tuple[list[Finding], Coverage]:
    """Return the findings about a store, and what was looked at."""
    coverage = Coverage(is_deep=is_deep, most_entries=ENTRIES, most_sessions=SESSIONS)
    checking = check_contents(store, turn_seconds=600.0, coverage=coverage)
    return [finding async for finding in checking], coverage


async def converse(caller: StoreClient, sessions: range) -> None:
    for number in sessions:
        await caller.converse("hi", "hello", key=f"k{number}")


async def test_an_ordinary_check_reads_no_more_as_the_store_grows(
    store: SqlStore, caller: StoreClient
) -> None:
    counted = CountedStore(store)
    read: list[tuple[int, int]] = []
    for sessions in (range(40), range(40, 160)):
        await converse(caller, sessions)
        before = counted.statements, counted.rows
        findings, coverage = await examine(store)
        assert findings == []
        assert (coverage.entries, coverage.sessions) == (ENTRIES, SESSIONS)
        assert not coverage.is_whole
        assert "the newest 60 entries" in coverage.describe()
        read.append((counted.statements - before[0], counted.rows - before[1]))
    assert read[1][0] <= read[0][0] + OWN_STATEMENTS
    # Item ids and the index are read by their own limits, which this store is far below.
    assert read[1][1] <= read[0][1] + 4 * 120


async def test_of_a_long_session_the_end_is_checked(store: SqlStore, caller: StoreClient) -> None:
    counted = CountedStore(store)
    for number in range(ENTRIES_AT_ONCE // 2 + 5):
        await caller.converse(f"question {number}", "answer", key="long")
    for is_deep in (False, True):
        counted.largest.clear()
        findings, coverage = await examine(store, is_deep=is_deep)
        assert findings == []
        assert coverage.is_whole == is_deep
        assert counted.largest["log_parts"] in (ENTRIES_AT_ONCE, ENTRIES_AT_ONCE + 1)


async def test_damage_of_old_sessions_is_found_by_a_deep_check_only(
    store: SqlStore, caller: StoreClient, store_url: str
) -> None:
    old = await caller.start("hi", key="old")
    await converse(caller, range(120))
    await execute(store_url, "delete from lanes")
    findings, coverage = await examine(store)
    assert (findings, coverage.is_whole) == ([], False)
    findings, coverage = await examine(store, is_deep=True)
    assert {(finding.code, finding.subject) for finding in findings} == {
        ("run_without_lane", old.turn.id),
        ("lane_wrong", old.session.id),
    }
    assert coverage.is_whole
    assert coverage.sessions == 121


async def execute(url: str, statement: str) -> None:
    """Change the tables by hand."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
            database.execute(statement)
            database.commit()
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize("failing", ["stray_turns", "log_parts", "recent_entries", "lanes"])
async def test_a_check_that_fails_is_a_finding_and_the_others_go_on(
    store: SqlStore, caller: StoreClient, failing: str
) -> None:
    await converse(caller, range(3))
    counted = CountedStore(store)
    counted.failing = failing
    (found,), _ = await examine(store)
    assert found.code == "check_unfinished"
    assert "statement timeout" in found.detail
    assert counted.statements > 10
