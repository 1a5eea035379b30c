"""A store behind PgBouncer in session mode, and the settings that each connection gets."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from holdfast.core.errors import DurabilityRefused, StoreError
from holdfast.stores.postgres import connect, open_postgres
from holdfast.stores.postgres.connect import PREPARE
from holdfast.stores.postgres.dialect import in_dollars
from holdfast.stores.postgres.driver import PostgresDriver
from holdfast.stores.sql.plan import Plan, Statement
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient
from tests.pgbouncer import pgbouncer

SECONDS = 20.0
SETTINGS = Statement(
    "settings", "select name, setting, coalesce(unit, '') from pg_settings where name = any(?1)"
)
EXPECTED = {
    "application_name": "holdfast",
    "statement_timeout": "10000ms",
    "lock_timeout": "3000ms",
    "idle_in_transaction_session_timeout": "5000ms",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "random_page_cost": "0.1",
    "jit": "off",
}
"""The settings that a connection over a Unix socket has; those of TCP are 0 there."""


@pytest.fixture
def pooled_url(postgres_url: str) -> Iterator[str]:
    with pgbouncer(postgres_url) as url:
        yield url


@asynccontextmanager
async def opened(url: str, **settings: str) -> AsyncIterator[SqlStore]:
    store = await open_postgres(url, settings=settings)
    try:
        yield store
    finally:
        await store.close()


def _ask_settings(_now: float) -> Plan[dict[str, str]]:
    rows = yield SETTINGS, (list(EXPECTED),)
    return {name: f"{setting}{unit}" for name, setting, unit in rows}


async def settings_of(store: SqlStore) -> list[dict[str, str]]:
    """Return the settings of the connection that writes, and of one that reads."""
    driver = store._driver
    assert isinstance(driver, PostgresDriver)
    assert driver._writer is not None
    rows = await driver._writer.fetch(in_dollars(SETTINGS.text), list(EXPECTED))
    return [
        {name: f"{setting}{unit}" for name, setting, unit in rows},
        await driver.read(_ask_settings),
    ]


async def test_a_pooler_in_session_mode_needs_no_configuration(pooled_url: str) -> None:
    """Turns, wake-ups and tokens of two processes, through PgBouncer with its defaults."""
    async with asyncio.timeout(SECONDS), opened(pooled_url) as one, opened(pooled_url) as two:
        heard = asyncio.Event()
        two.listen(lambda *_: heard.set())
        caller = StoreClient(one)
        await caller.enlist()
        assert await two._tokens.held([caller.worker]) == {caller.worker}
        other = StoreClient(two, "other")
        await other.enlist()
        run = await caller.start("one", key="k")
        await other.wait("two", key="k")
        await caller.finish(run, "answer")
        await heard.wait()


async def test_a_pooler_in_transaction_mode_is_refused_with_its_reason(postgres_url: str) -> None:
    with pgbouncer(postgres_url, pool_mode="transaction") as url:
        async with asyncio.timeout(SECONDS):
            with pytest.raises(StoreError, match="is in transaction mode") as refused:
                await open_postgres(url)
    assert "pool_mode = session" in str(refused.value)
    assert not refused.value.retryable


async def test_the_pooler_is_refused_too_if_it_finds_prepared_statements(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As newer poolers do; without names, this one finds them as well."""
    monkeypatch.setattr(connect, "CACHED_STATEMENTS", 0)
    with pgbouncer(postgres_url, pool_mode="transaction") as url:
        async with asyncio.timeout(SECONDS):
            with pytest.raises(StoreError, match="is in transaction mode") as refused:
                await open_postgres(url)
    assert refused.value.__cause__ is None, "no statement has failed"


async def test_every_pooled_connection_has_our_settings(pooled_url: str) -> None:
    async with asyncio.timeout(SECONDS), opened(pooled_url) as store:
        # Each read gives its connection back to asyncpg's pool; the next one takes it again.
        seen = [found for _ in range(3) for found in await settings_of(store)]
        assert seen == [EXPECTED] * 6


async def test_a_connection_that_the_pooler_gives_on_has_our_settings(postgres_url: str) -> None:
    """PgBouncer resets what one client has set before another one gets the connection."""
    # As many as one store has: the second store gets what the first one has left.
    with pgbouncer(postgres_url, default_pool_size="3") as url:
        async with asyncio.timeout(SECONDS):
            async with opened(url, statement_timeout="1s") as store:
                expected = EXPECTED | {"statement_timeout": "1000ms"}
                assert await settings_of(store) == [expected] * 2
            async with opened(url) as store:
                assert await settings_of(store) == [EXPECTED] * 2


async def test_settings_of_the_url_override_ours_behind_a_pooler(pooled_url: str) -> None:
    async with (
        asyncio.timeout(SECONDS),
        opened(f"{pooled_url}&statement_timeout=7s&search_path=public,pg_temp") as store,
    ):
        expected = EXPECTED | {"statement_timeout": "7000ms"}
        assert await settings_of(store) == [expected] * 2
        assert await StoreClient(store).append("x", key="k")


async def test_a_setting_that_the_server_does_not_know_is_named(postgres_url: str) -> None:
    with pytest.raises(StoreError, match=r"refused the connection: .*no_such_setting"):
        await open_postgres(f"{postgres_url}&no_such_setting=1")


async def test_an_asynchronous_commit_set_by_the_url_is_seen_by_the_check(
    postgres_url: str,
) -> None:
    """The settings are made before the server is judged."""
    with pytest.raises(DurabilityRefused):
        await open_postgres(f"{postgres_url}&synchronous_commit=off")


async def test_settings_and_check_are_one_statement(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        driver = store._driver
        assert isinstance(driver, PostgresDriver)
        asked: list[str] = []
        connection = await driver._connector.connect()
        try:
            with connection.query_logger(lambda record: asked.append(record.query)):
                await driver._connector.prepare(connection)
        finally:
            await connection.close()
        assert asked == [PREPARE]
