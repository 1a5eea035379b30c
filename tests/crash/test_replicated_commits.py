"""Commits that wait for a synchronous standby, which does not answer.

Such a commit has happened on the primary. Neither our own limits nor an operator may make it an
acknowledged one before a standby has it: not by its own answer, nor by that of a repeat.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.reset_policy import NEVER
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.sessions.gateway import Gateway
from holdfast.stores.postgres import open_postgres
from holdfast.stores.postgres.connect import Connector
from holdfast.stores.postgres.dsn import read_target
from tests.crash.test_postgres_faults import Model, conversation, insist, said
from tests.postgres import PostgresServer, private_server

SECONDS = 60.0
SHORT = {"statement_timeout": "300ms", "lock_timeout": "200ms"}
WAITING = "select array(select pid from pg_stat_activity where wait_event = 'SyncRep')"
COMMIT = "select pg_logical_emit_message(true, 'probe', '')"
ENTRIES = "select count(*) from log"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[PostgresServer]:
    """A server whose standby can be missing."""
    with private_server() as server:
        yield server


@pytest.fixture
def server(shared_server: PostgresServer) -> Iterator[PostgresServer]:
    """The same, with nothing of the tests before in it."""
    shared_server.execute("drop schema public cascade", "create schema public")
    yield shared_server
    shared_server.execute("alter system reset synchronous_standby_names", "select pg_reload_conf()")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Holdfast]:
    """Open a store that waits for less time than a gateway does."""
    store = await open_postgres(url, settings=SHORT, answer_seconds=1.0)
    try:
        gateway = Gateway(store, clock=SystemClock(), ids=RandomIds())
        await gateway.start()
        try:
            yield Holdfast(gateway, DEFAULT_TENANT, NEVER)
        finally:
            await gateway.stop()
    finally:
        await store.close()


@asynccontextmanager
async def observed(server: PostgresServer) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(server.url())
    try:
        yield connection
    finally:
        await connection.close()


async def _wait_for_standby(server: PostgresServer, observer: asyncpg.Connection) -> None:
    """Let commits wait for a standby that is not there, from the next one on."""
    await observer.execute("alter system set synchronous_standby_names = 'absent'")
    await observer.execute("select pg_reload_conf()")
    # The checkpointer reads the setting when it comes to it; until then no commit waits.
    while not await observer.fetchval(WAITING):
        async with observed(server) as probe:
            commit = asyncio.create_task(probe.execute(COMMIT))
            while not commit.done() and not await observer.fetchval(WAITING):  # noqa: ASYNC110 - of the server
                await asyncio.sleep(0.01)
            probe.terminate()
            await asyncio.gather(commit, return_exceptions=True)
    while pids := await observer.fetchval(WAITING):
        await observer.execute(f"select pg_terminate_backend({pids[0]}, 1000)")


async def _wait_no_more(observer: asyncpg.Connection) -> None:
    await observer.execute("alter system reset synchronous_standby_names")
    await observer.execute("select pg_reload_conf()")


async def _refuses(session: SessionHandle, model: Model) -> None:
    with pytest.raises(StoreUnavailable):
        await session.run("1", model, idempotency_key="k/1")
    assert model.calls == ["0"]


async def test_a_commit_that_no_standby_has_is_acknowledged_by_no_repeat_and_read_by_nobody(
    server: PostgresServer,
) -> None:
    model = Model()
    async with asyncio.timeout(SECONDS), observed(server) as observer, opened(server.url()) as hf:
        session = await hf.session("k")
        await session.run("0", model)
        entries = await observer.fetchval(ENTRIES)
        await _wait_for_standby(server, observer)
        for _ in range(3):
            await _refuses(session, model)
            assert await observer.fetchval(WAITING)
            assert await observer.fetchval(ENTRIES) == entries
        await _wait_no_more(observer)
        await insist(session, "1", model)
        assert await said(session) == conversation(2)
        assert model.calls == ["0", "1"]


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_commit_whose_wait_an_operator_ends_is_acknowledged_once_a_standby_has_it(
    server: PostgresServer, how: str
) -> None:
    """It can be read then, but its repeat is a commit of its own, which waits."""
    model = Model()
    async with asyncio.timeout(SECONDS), observed(server) as observer, opened(server.url()) as hf:
        session = await hf.session("k")
        await session.run("0", model)
        entries = await observer.fetchval(ENTRIES)
        await _wait_for_standby(server, observer)
        sending = asyncio.create_task(_refuses(session, model))
        while not await observer.fetchval(WAITING) or await observer.fetchval(ENTRIES) == entries:
            for pid in await observer.fetchval(WAITING):
                await observer.execute(f"select {how}({pid})")
            await asyncio.sleep(0.01)
        await sending
        await _refuses(session, model)
        await _wait_no_more(observer)
        await insist(session, "1", model)
        assert await said(session) == conversation(2)
        assert model.calls == ["0", "1"]


async def test_a_statement_that_is_given_up_is_not_cancelled_at_the_server(
    server: PostgresServer,
) -> None:
    connection = await Connector(target=read_target(server.url())).connect()
    async with asyncio.timeout(SECONDS), observed(server) as observer:
        with pytest.raises(TimeoutError):
            await connection.fetch("select pg_sleep(5)", timeout=0.05)
        assert connection.is_closed()
        states = "select state from pg_stat_activity where query = 'select pg_sleep(5)'"
        assert await observer.fetchval(states) == "active"
