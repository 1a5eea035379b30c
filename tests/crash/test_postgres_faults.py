"""Faults of PostgreSQL under a running process.

Whatever breaks, a turn is refused before the model is called, nothing acknowledged is lost or
done twice, and the process goes on by itself once the fault is gone.
"""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

import holdfast
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.reset_policy import NEVER
from holdfast.doctor.store_checks import check_inspection
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.embedded.turn_handle import Item
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.stores.inspect import inspect_store
from holdfast.stores.postgres import open_postgres
from tests.crash.postgres_wire import Cut, wire_to
from tests.postgres import PostgresServer, private_server

SECONDS = 60.0


def text_of(item: Item) -> str:
    """Return what a message says."""
    return str(item["content"][0]["text"])


class Model:
    """Answers with how much it was shown, and counts."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.released = asyncio.Event()
        self.released.set()
        self.entered = asyncio.Semaphore(0)

    async def __call__(self, items: list[Item]) -> str:
        self.calls.append(text_of(items[-1]))
        self.entered.release()
        await self.released.wait()
        return f"re:{text_of(items[-1])}"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[PostgresServer]:
    """A server that may be stopped."""
    with private_server() as server:
        yield server


@pytest.fixture
def server(shared_server: PostgresServer) -> PostgresServer:
    """The same, running, with nothing of the tests before in it."""
    shared_server.start()
    shared_server.execute("drop schema public cascade", "create schema public")
    return shared_server


@asynccontextmanager
async def opened(url: str, **settings: str) -> AsyncIterator[Holdfast]:
    """Open a store with settings of PostgreSQL that are shorter than ours."""
    clock = SystemClock()
    store = await open_postgres(url, settings=settings)
    try:
        gateway = Gateway(store, clock=clock, ids=RandomIds())
        await gateway.start()
        try:
            yield Holdfast(gateway, DEFAULT_TENANT, NEVER)
        finally:
            await gateway.stop()
    finally:
        await store.close()


async def stop(server: PostgresServer) -> None:
    """Stop the server while everybody else goes on."""
    await asyncio.to_thread(server.stop)


async def start(server: PostgresServer) -> None:
    """Start it again."""
    await asyncio.to_thread(server.start)


async def insist(session: SessionHandle, text: str, model: Model) -> int:
    """Send a turn until it is answered, as a client would; return how often it was refused."""
    refusals = 0
    while True:
        try:
            await session.run(text, model, idempotency_key=f"{session.key}/{text}")
        except HoldfastError as exc:
            if not exc.retryable:
                raise
            refusals += 1
            await asyncio.sleep(0.05)
        else:
            return refusals


async def said(session: SessionHandle) -> list[str]:
    """Return the whole visible history."""
    return [text_of(item) for item in await session.items()]


def conversation(count: int) -> list[str]:
    """Return what was said when every turn went through once, in order."""
    return [line for n in range(count) for line in (f"{n}", f"re:{n}")]


async def test_a_server_that_stops_and_starts_again_loses_and_repeats_nothing(
    server: PostgresServer,
) -> None:
    sessions, turns = 6, 12
    model = Model()
    async with asyncio.timeout(SECONDS), holdfast.open(server.url()) as hf:
        handles = [await hf.session(f"k{n}") for n in range(sessions)]
        done = asyncio.Semaphore(0)

        async def client(handle: SessionHandle) -> int:
            refusals = 0
            for n in range(turns):
                refusals += await insist(handle, f"{n}", model)
                done.release()
            return refusals

        clients = [asyncio.create_task(client(handle)) for handle in handles]
        for _ in range(2):
            for _ in range(sessions * 3):
                await done.acquire()
            await stop(server)
            with pytest.raises(StoreUnavailable) as refused:
                await hf.session("nobody")
            assert refused.value.retryable
            await start(server)
        await asyncio.gather(*clients)
        for handle in handles:
            assert await said(handle) == conversation(turns)


async def test_while_the_server_is_gone_a_turn_is_refused_and_no_model_is_called(
    server: PostgresServer,
) -> None:
    model = Model()
    async with asyncio.timeout(SECONDS), holdfast.open(server.url()) as hf:
        session = await hf.session("k")
        await session.run("0", model)
        await stop(server)
        with pytest.raises(StoreUnavailable) as refused:
            await session.run("1", model)
        assert refused.value.retryable
        with pytest.raises(StoreUnavailable):
            await session.items()
        assert model.calls == ["0"]
        await start(server)
        await insist(session, "1", model)
        assert await said(session) == conversation(2)


async def test_a_run_outlives_an_outage_longer_than_its_lease(server: PostgresServer) -> None:
    model = Model()
    lanes = LaneSettings(lease_seconds=0.5)
    async with asyncio.timeout(SECONDS), holdfast.open(server.url(), lanes=lanes) as hf:
        session = await hf.session("k")
        model.released.clear()
        running = asyncio.create_task(session.run("0", model))
        await model.entered.acquire()
        await stop(server)
        with pytest.raises(StoreUnavailable):
            await hf.session("nobody")
        await start(server)
        connection = await asyncpg.connect(server.url())
        await _until_lease_is_over(connection)
        await connection.close()
        model.released.set()
        await running
        assert await said(session) == conversation(1)
        assert len(model.calls) == 1


async def _until_lease_is_over(connection: asyncpg.Connection) -> None:
    """Wait until the lease that was held when the server stopped has run out or was renewed."""
    renewed_or_over = (
        "select bool_and(alive_until < extract(epoch from clock_timestamp()) "
        "or alive_until > extract(epoch from pg_postmaster_start_time()) + 0.5) from workers"
    )
    while not await connection.fetchval(renewed_or_over):  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)


async def test_a_process_that_cannot_reach_its_server_can_start_later(
    server: PostgresServer,
) -> None:
    await stop(server)
    with pytest.raises(StoreUnavailable):
        async with holdfast.open(server.url()):
            raise AssertionError("it is not there")
    await start(server)
    async with holdfast.open(server.url()) as hf:
        assert await hf.session("k")


@pytest.mark.parametrize("how", ["statement", "lock"])
async def test_a_statement_that_takes_too_long_is_refused_and_goes_through_later(
    postgres_url: str, how: str
) -> None:
    model = Model()
    limits = {"statement_timeout": "500ms"} if how == "statement" else {"lock_timeout": "150ms"}
    async with asyncio.timeout(SECONDS), opened(postgres_url, **limits) as hf:
        session = await hf.session("k")
        await session.run("0", model)
        blocker = await asyncpg.connect(postgres_url)
        try:
            async with blocker.transaction():
                await blocker.execute("lock table log in exclusive mode")
                with pytest.raises(StoreUnavailable) as refused:
                    await session.run("1", model)
                assert refused.value.retryable
                assert model.calls == ["0"]
                # Who only reads does not notice.
                assert await said(session) == conversation(1)
        finally:
            await blocker.close()
        await insist(session, "1", model)
        assert await said(session) == conversation(2)


async def _refuses_writes_only(session: SessionHandle, model: Model) -> None:
    """Check that a turn is refused before its model is called, and that the history can be read."""
    with pytest.raises(StoreUnavailable) as refused:
        await session.run("1", model)
    assert refused.value.retryable
    assert model.calls == ["0"]
    assert await said(session) == conversation(1)


async def test_a_standby_is_not_written_to_until_it_is_promoted(server: PostgresServer) -> None:
    model = Model()
    async with asyncio.timeout(SECONDS), holdfast.open(server.url()) as hf:
        session = await hf.session("k")
        await session.run("0", model)
        await asyncio.to_thread(server.stop, signal.SIGINT)
        server.become_standby()
        await start(server)
        try:
            await _refuses_writes_only(session, model)
            reader = await open_postgres(server.url(), is_read_only=True)
            assert [worker.id for worker in await reader.workers()]
            await reader.close()
            (found,) = check_inspection(await inspect_store(server.url()))
            assert (found.code, found.detail[-21:]) == ("store_read_only", "standby (in recovery)")
        finally:
            await asyncio.to_thread(server.execute, "select pg_promote()")
        await insist(session, "1", model)
        assert await said(session) == conversation(2)


async def test_a_database_that_was_made_read_only_is_not_written_to(server: PostgresServer) -> None:
    model = Model()
    reload = "select pg_reload_conf()"
    async with asyncio.timeout(SECONDS), holdfast.open(server.url()) as hf:
        session = await hf.session("k")
        await session.run("0", model)
        set_read_only = "alter system set default_transaction_read_only = on"
        await asyncio.to_thread(server.execute, set_read_only, reload)
        try:
            await _until_read_only(server.url())
            await _refuses_writes_only(session, model)
        finally:
            reset = "alter system reset default_transaction_read_only"
            await asyncio.to_thread(server.execute, reset, reload)
        await insist(session, "1", model)
        assert await said(session) == conversation(2)


async def _until_read_only(url: str) -> None:
    """Wait until the server has read its configuration: new connections are read-only."""
    is_read_only = False
    while not is_read_only:
        connection = await asyncpg.connect(url)
        is_read_only = await connection.fetchval("show transaction_read_only") == "on"
        await connection.close()


async def test_connections_killed_under_load_lose_and_repeat_nothing(postgres_url: str) -> None:
    sessions, turns, kills = 6, 10, 25
    killed = 0
    model = Model()
    async with asyncio.timeout(SECONDS), holdfast.open(postgres_url) as hf:
        handles = [await hf.session(f"k{n}") for n in range(sessions)]

        async def client(handle: SessionHandle) -> int:
            count = 0
            while count < turns or not killed:
                await insist(handle, f"{count}", model)
                count += 1
            return count

        killer = await asyncpg.connect(postgres_url)
        clients = [asyncio.create_task(client(handle)) for handle in handles]
        while killed < kills and not all(one.done() for one in clients):
            killed += await killer.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = "
                "current_database() and application_name = 'holdfast' and "
                "(state = 'active' or state like 'idle in transaction%')"
            )
        await killer.close()
        counts = await asyncio.gather(*clients)
        assert killed > 0
        for handle, count in zip(handles, counts, strict=True):
            assert await said(handle) == conversation(count)


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_commit_whose_answer_is_lost_is_done_exactly_once(
    postgres_url: str, how: Cut
) -> None:
    """Every kind of write of a conversation meets a wire that is cut at its commit."""
    model = Model()
    with tempfile.TemporaryDirectory(prefix="wire-") as folder:
        async with (
            asyncio.timeout(SECONDS),
            wire_to(postgres_url, Path(folder)) as (url, wire),
            holdfast.open(url) as hf,
        ):
            wire.cut(how)
            session = await hf.session("k")
            first = session.id
            for n in range(3):
                wire.cut(how, how)
                await insist(session, f"{n}", model)
            wire.cut(how)
            await session.append("aside")
            assert await said(session) == [*conversation(3), "aside"]
            wire.cut(how)
            child = await session.fork()
            assert await said(child) == [*conversation(3), "aside"]
            wire.cut(how)
            second = await session.reset()
            assert (session.generation, await said(session)) == (2, [])
            wire.cut(how)
            await session.restore(first)
            assert await said(session) == [*conversation(3), "aside"]
            generations = await hf.sessions(key="k", generations=True)
            assert {view.session.id for view in generations} == {first, second}
            assert len(await session.turns(limit=100)) == 4
            assert wire.cuts >= 8


async def test_with_no_connection_left_reads_are_refused_and_go_through_later(
    postgres_server: PostgresServer, bare_postgres_url: str
) -> None:
    name = bare_postgres_url.split("?", maxsplit=1)[0].rpartition("/")[2]
    await asyncio.to_thread(
        postgres_server.execute,
        f"create role app_{name} login",
        f"alter database {name} owner to app_{name}",
        f"alter database {name} connection limit 4",
    )
    url = bare_postgres_url.replace("postgres:@", f"app_{name}@")
    model = Model()
    async with asyncio.timeout(SECONDS), holdfast.open(url) as hf:
        greedy: list[asyncpg.Connection] = []
        try:
            while True:
                greedy.append(await asyncpg.connect(url))
        except asyncpg.TooManyConnectionsError:
            pass
        outcomes = await asyncio.gather(
            *(hf.session(f"k{n}") for n in range(8)), return_exceptions=True
        )
        refused = [one for one in outcomes if isinstance(one, BaseException)]
        assert refused
        assert all(isinstance(one, StoreUnavailable) for one in refused)
        for connection in greedy:
            await connection.close()
        session = await hf.session("k")
        await insist(session, "0", model)
        assert await said(session) == conversation(1)
