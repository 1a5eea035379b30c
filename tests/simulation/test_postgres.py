"""What a world wrote to SQLite, written to PostgreSQL: the same outcomes, and nothing erased left.

A world itself runs on SQLite in memory. Its journal is every command in the order of the commits,
with its time, so another store must answer each of them alike.
"""

import asyncio
import re
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.transaction.commands import Command, Extend, IndexLog
from holdfast.stores.postgres.driver import open_postgres
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from tests.simulation.disk import Written, outcome_of
from tests.simulation.erasure_promises import leftovers
from tests.simulation.image import inflated
from tests.simulation.judge import keep
from tests.simulation.plan import START, storm_of
from tests.simulation.trace import line
from tests.simulation.world import Story


async def _outcome(store: SqlStore, written: Written) -> Any:
    try:
        return await store.submit(written.command)
    except HoldfastError as exc:
        return exc


def _compared(command: Command[Any], outcome: Any) -> str:
    """Return what is compared: errors by their code; a lane in memory may lack a retry's claim.

    A checkpoint is fenced by its run alone: what others queued since is not in its session.
    """
    if isinstance(outcome, HoldfastError):
        return outcome.code
    if isinstance(command, Extend) and not command.items:
        return repr((outcome.id, outcome.epoch, outcome.active_run_id))
    return re.sub(r"retry_claim=\d+", "", repr(outcome))


async def _dump(url: str) -> list[tuple[str, bytes]]:
    """Return every text and blob of a database, with its table and column."""
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "select table_name from information_schema.tables where table_schema = 'public'"
        )
        return [
            (f"{table}.{column}", value.encode() if isinstance(value, str) else inflated(value))
            for (table,) in tables
            for row in await connection.fetch(f'select * from "{table}"')
            for column, value in row.items()
            if isinstance(value, str | bytes)
        ]
    finally:
        await connection.close()


async def _write_again(story: Story, url: str) -> None:
    clock = ManualClock()
    store = await open_postgres(url, clock=clock)
    try:
        for written in story.journal:
            # The positions of the follower are those of its store.
            is_skipped = isinstance(written.command, IndexLog)
            if is_skipped or isinstance(written.result, StoreUnavailable):
                continue
            clock.set(START.timestamp() + written.at)
            outcome = await _outcome(store, written)
            compared = _compared(written.command, outcome)
            assert compared == _compared(written.command, outcome_of(written)), line(written)
        follower = StoreClient(store, "follower")
        while (batch := await store.search.read_backlog(follower.worker, 100)) is not None:
            await store.submit(batch)
    finally:
        await store.close()
    assert list(leftovers(story, await _dump(url) if story.image.dump else [])) == []


SEEDS = [3, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 400))]


@pytest.mark.parametrize("seed", SEEDS)
def test_postgres_answers_the_commands_of_a_world_alike(seed: int, postgres_url: str) -> None:
    plan = replace(storm_of(seed), clock_steps=())
    story = keep(plan, f"replace(storm_of({seed}), clock_steps=())")
    asyncio.run(_write_again(story, postgres_url))
