"""What only PostgreSQL can do or refuse: pushed wake-ups, tokens, its clock, its settings."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.core.errors import (
    DurabilityRefused,
    InvalidInput,
    InvalidSetting,
    RunFenced,
    SchemaTooNew,
    StoreError,
    StoreUnavailable,
)
from holdfast.core.ids import RunId, SessionId, WorkerId
from holdfast.core.transaction.commands import Queued, Renew, Started
from holdfast.ports.outbox import OutboxQuery
from holdfast.stores.postgres import driver, listener, open_postgres
from holdfast.stores.postgres.driver import PostgresDriver
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient
from holdfast.testing.store_contract.channels.commands import CHANNEL, queue, to_chat
from tests.contract.foreign_entries import append_foreign_entry
from tests.contract.half_open import half_open_proxy
from tests.postgres import PostgresServer

SECONDS = 20.0


class Ear:
    """Hears what a store announces, and lets a test wait for it."""

    def __init__(self, store: SqlStore) -> None:
        self.heard: asyncio.Queue[tuple[list[SessionId], list[RunId]]] = asyncio.Queue()
        store.listen(self._hear)

    def _hear(self, woken: Sequence[SessionId], aborted: Sequence[RunId]) -> None:
        self.heard.put_nowait((list(woken), list(aborted)))

    async def next(self) -> tuple[list[SessionId], list[RunId]]:
        async with asyncio.timeout(SECONDS):
            return await self.heard.get()


Opener = Callable[[], Awaitable[SqlStore]]


@pytest.fixture
async def open_another(postgres_url: str) -> AsyncIterator[Opener]:
    """Open the test's database once more, as another process would."""
    async with AsyncExitStack() as stack:

        async def open_one() -> SqlStore:
            store = await open_postgres(postgres_url)
            stack.push_async_callback(store.close)
            return store

        yield open_one


async def _query(url: str, text: str, *parameters: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(text, *parameters)
    finally:
        await connection.close()


async def _listeners(url: str) -> set[int]:
    """Return the backends that hold a worker's token: the connections that listen."""
    rows = await _query(
        url,
        "select pid from pg_stat_activity a where datname = current_database() and exists "
        "(select 1 from pg_locks l where l.pid = a.pid and l.locktype = 'advisory')",
    )
    return {row[0] for row in rows}


async def _kill_listeners(url: str) -> set[int]:
    """Cut the connections that listen, and only those."""
    listeners = await _listeners(url)
    assert listeners
    await _query(url, "select pg_terminate_backend(pid) from unnest($1::int[]) pid", listeners)
    return listeners


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await is_so():  # noqa: ASYNC110 - it is asked of the database, which sets no event
            await asyncio.sleep(0.01)


# ── wake-ups ────────────────────────────────────────────────────────────────────────────────


async def test_other_processes_that_wait_are_told_once_the_commit_is_done(
    open_another: Opener,
) -> None:
    here, there = await open_another(), await open_another()
    ear = Ear(there)
    caller, other = StoreClient(here), StoreClient(there, "other")
    await caller.enlist()
    await other.enlist()
    run = await caller.start("one", key="k")
    await other.wait("two", key="k")
    asked = await _statements_during(here, [caller.finish(run, "answer")])
    assert not [text for text in asked if "pg_notify" in text]
    assert await ear.next() == ([run.session.id], [])
    assert not await there.has_news()


async def test_nobody_is_told_of_a_lane_in_which_turns_of_this_process_alone_wait(
    open_another: Opener,
) -> None:
    here, there = await open_another(), await open_another()
    ear = Ear(there)
    caller, other = StoreClient(here), StoreClient(there, "other")
    await caller.enlist()
    await other.enlist()
    own = await caller.start("one", key="own")
    await caller.wait("two", key="own")
    await caller.finish(own, "answer")
    theirs = await caller.start("one", key="theirs")
    await other.wait("two", key="theirs")
    await caller.finish(theirs, "answer")
    assert await ear.next() == ([theirs.session.id], [])


async def test_a_store_that_is_closed_has_told_the_others(open_another: Opener) -> None:
    here, there = await open_another(), await open_another()
    ear = Ear(there)
    caller, other = StoreClient(here), StoreClient(there, "other")
    await caller.enlist()
    await other.enlist()
    run = await caller.start("one", key="k")
    await other.wait("two", key="k")
    await caller.finish(run, "answer")
    await here.close()
    assert await ear.next() == ([run.session.id], [])


async def test_lanes_that_are_freed_together_take_one_message(
    open_another: Opener,
) -> None:
    here, there = await open_another(), await open_another()
    ear = Ear(there)
    caller, other = StoreClient(here), StoreClient(there, "other")
    await caller.enlist()
    await other.enlist()
    keys = [f"k{number}" for number in range(8)]
    runs = await asyncio.gather(*(caller.start("one", key=key) for key in keys))
    for key in keys:
        await other.wait("two", key=key)
    await asyncio.gather(*(caller.finish(run, "answer") for run in runs))
    woken, aborted = await ear.next()
    assert (sorted(woken), aborted) == (sorted(run.session.id for run in runs), [])


async def test_messages_of_a_process_that_sends_none_wake_those_that_do(
    open_another: Opener,
) -> None:
    here, there, beside = await open_another(), await open_another(), await open_another()
    heard: dict[str, asyncio.Queue[str]] = {"there": asyncio.Queue(), "beside": asyncio.Queue()}
    there.on_outbox(lambda: heard["there"].put_nowait("news"), {CHANNEL})
    beside.on_outbox(lambda: heard["beside"].put_nowait("news"), {CHANNEL, "other"})
    caller = StoreClient(here)
    async with asyncio.timeout(SECONDS):
        await caller.submit(queue(caller, "a"))
        for queued in heard.values():
            await queued.get()
        # A process that sends its messages itself tells nobody.
        await StoreClient(there).submit(queue(caller, "b"))
        await heard["there"].get()
        await caller.submit(queue(caller, "c"))
        await heard["there"].get()
        await heard["beside"].get()
        assert heard["beside"].empty()
        # Nor does one that sends for other channels keep it to itself.
        other = replace(to_chat("d")[0], channel="other")
        await StoreClient(there).submit(replace(queue(caller, "d"), messages=(other,)))
        await heard["beside"].get()


async def test_a_run_that_loses_its_session_is_stopped_in_its_own_process(
    open_another: Opener,
) -> None:
    here, there = await open_another(), await open_another()
    caller, other = StoreClient(here, "a"), StoreClient(there, "b")
    await caller.enlist()
    ear = Ear(here)
    run = await caller.start("one", key="k")
    await other.reset(run.session)
    assert await ear.next() == ([run.session.id], [run.run.id])


async def test_a_process_is_notified_once_of_its_own_writes(open_another: Opener) -> None:
    store, other = await open_another(), await open_another()
    ear, far = Ear(store), Ear(other)
    caller = StoreClient(store)
    session = await caller.reserve("k")
    fresh = await caller.reset(session)
    await caller.reset(fresh)
    # By the time that others have heard of both, our own echo would have come back too.
    await far.next()
    await far.next()
    await store.read.session(caller.tenant, session_id=fresh.id)
    assert ear.heard.qsize() == 2


async def test_a_listener_that_was_cut_off_comes_back_and_says_so(
    open_another: Opener, postgres_url: str
) -> None:
    here, there = await open_another(), await open_another()
    caller = StoreClient(there, "b")
    await caller.enlist()
    ear = Ear(there)
    assert not await there.has_news()
    killed = await _kill_listeners(postgres_url)

    async def is_back() -> bool:
        return bool(await _listeners(postgres_url) - killed)

    await _until(is_back)
    await _until(there.has_news)
    session = await caller.reserve("k")
    await StoreClient(here, "a").reset(session)
    assert await ear.next() == ([session.id], [])


async def test_a_listener_whose_connection_stays_open_after_its_end_comes_back_too(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEARTBEAT_SECONDS", 0.1)
    before, host = postgres_url.split("?host=")
    async with half_open_proxy(tmp_path, host) as proxy:
        store = await open_postgres(f"{before}?host={proxy}")
        try:
            await StoreClient(store).enlist()
            killed = await _kill_listeners(postgres_url)

            async def is_back() -> bool:
                return bool(await _listeners(postgres_url) - killed)

            await _until(is_back)
        finally:
            await store.close()


# ── tokens ──────────────────────────────────────────────────────────────────────────────────


async def test_the_worker_of_a_closed_process_is_gone_at_once(open_another: Opener) -> None:
    here, there = await open_another(), await open_another()
    living, dying = StoreClient(here, "a"), StoreClient(there, "b")
    await living.enlist(lease_seconds=3600)
    await dying.enlist(lease_seconds=3600)
    assert [worker.id for worker in await here.workers() if worker.is_gone] == []
    await there.close()
    assert [worker.id for worker in await here.workers() if worker.is_gone] == [dying.worker]


async def test_a_living_worker_that_lost_its_connection_is_not_taken_for_dead(
    open_another: Opener, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It has as long as a slow machine needs to connect; the check ends once it is back.
    monkeypatch.setattr(listener, "RECHECK_SECONDS", SECONDS)
    here, there = await open_another(), await open_another()
    await StoreClient(there, "b").enlist(lease_seconds=3600)
    await _kill_listeners(postgres_url)
    assert [worker.id for worker in await here.workers() if worker.is_gone] == []


@pytest.mark.parametrize("state", ["in time", "late", "reconnected"])
async def test_a_worker_that_takes_its_token_again_a_moment_later_is_alive(
    open_another: Opener, postgres_url: str, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """After an outage leases may be over, and others may need longer to reconnect."""
    monkeypatch.setattr(listener, "RECHECK_SECONDS", 0.0 if state == "reconnected" else SECONDS)
    monkeypatch.setattr(listener, "RECONNECT_SECONDS", SECONDS)
    here, there = await open_another(), await open_another()
    if state == "reconnected":
        await StoreClient(here, "a").enlist(lease_seconds=3600)
        killed = await _kill_listeners(postgres_url)

        async def is_back() -> bool:
            with contextlib.suppress(StoreUnavailable):
                await here._tokens.take(WorkerId("wrk_of_a_new_connection"))
                return bool(await _listeners(postgres_url) - killed)
            return False

        await _until(is_back)
    worker = WorkerId("wrk_slow")
    lease = 0.001 if state == "late" else 3600.0
    await there.submit(Renew(worker=worker, lease_seconds=lease, is_new=True))
    looking = asyncio.create_task(here.workers())

    async def has_looked() -> bool:
        text = "select 1 from pg_stat_activity where datname = current_database() and query = $1"
        return bool(await _query(postgres_url, text, listener.HELD))

    await _until(has_looked)
    await there._tokens.take(worker)
    assert [one.is_dead for one in await looking if one.id == worker] == [False]


async def test_a_dismissed_worker_leaves_no_token(open_another: Opener, postgres_url: str) -> None:
    store = await open_another()
    caller = StoreClient(store)
    await caller.enlist()
    locks = (
        "select 1 from pg_locks l join pg_database d on d.oid = l.database "
        "where l.locktype = 'advisory' and d.datname = current_database()"
    )
    assert len(await _query(postgres_url, locks)) == 1
    await store.dismiss(caller.worker)
    assert await _query(postgres_url, locks) == []
    await store.dismiss(WorkerId("wrk_of_nobody"))


# ── time ────────────────────────────────────────────────────────────────────────────────────


async def test_time_is_the_databases(open_another: Opener, postgres_url: str) -> None:
    clock = "select extract(epoch from clock_timestamp())::double precision"
    ((before,),) = await _query(postgres_url, clock)
    session = await StoreClient(await open_another()).reserve("k")
    ((after,),) = await _query(postgres_url, clock)
    assert before <= session.created_at <= after


# ── what is refused ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("where", ["url", "options", "database", "role"])
async def test_a_database_that_may_lose_acknowledged_work_is_refused(
    postgres_server: PostgresServer, postgres_url: str, where: str
) -> None:
    url = postgres_url
    match where:
        case "url":
            url += "&synchronous_commit=off"
        case "options":
            url += "&options=-c%20synchronous_commit%3Doff"
        case "database":
            name = (await _query(url, "select current_database()"))[0][0]
            await _query(url, f"alter database {name} set synchronous_commit = off")
        case "role":
            name = (await _query(url, "select current_database()"))[0][0]
            await _query(url, f"create role lossy_{name} superuser login")
            await _query(url, f"alter role lossy_{name} set synchronous_commit = off")
            url = url.replace("postgres:@", f"lossy_{name}:@")
    with pytest.raises(DurabilityRefused, match="synchronous_commit = off"):
        await open_postgres(url)
    store = await open_postgres(url + "&holdfast_allow_async_commit=true")
    try:
        assert await StoreClient(store).reserve("k")
    finally:
        await store.close()


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    await _query(postgres_url, "insert into schema_versions values (9999, 'later', 0)")
    with pytest.raises(SchemaTooNew, match="9999"):
        await open_postgres(postgres_url)


async def test_processes_that_start_together_make_the_schema_once(bare_postgres_url: str) -> None:
    stores = await asyncio.gather(*(open_postgres(bare_postgres_url) for _ in range(4)))
    try:
        sessions = await asyncio.gather(
            *(StoreClient(store, str(n)).reserve("k") for n, store in enumerate(stores))
        )
        assert len({session.id for session in sessions}) == 1
    finally:
        await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/d", StoreUnavailable),
        ("postgresql://me:hunter2@/d?host=/no/such/folder", StoreUnavailable),
        ("postgresql://me:hunter2@127.0.0.1:1/d?sslmode=nonsense", InvalidSetting),
        ("postgresql://me:hunter2@127.0.0.1:x/d", InvalidSetting),
        ("postgresql://me:hunter2@h/d?nothing", InvalidSetting),
    ],
)
async def test_a_database_out_of_reach_is_an_error_without_secrets(
    url: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as refused:
        await open_postgres(url)
    shown: BaseException | None = refused.value
    while shown is not None:
        assert "hunter2" not in str(shown)
        shown = shown.__cause__


async def test_an_unknown_database_is_refused_for_good(postgres_server: PostgresServer) -> None:
    with pytest.raises(StoreError, match="does not exist") as refused:
        await open_postgres(postgres_server.url("no_such_database"))
    assert not refused.value.retryable


# ── races ───────────────────────────────────────────────────────────────────────────────────


async def test_processes_that_make_one_session_agree_on_it(open_another: Opener) -> None:
    stores = [await open_another() for _ in range(3)]
    callers = [StoreClient(store, f"{n}_") for n, store in enumerate(stores)]
    for caller in callers:
        await caller.enlist()
    outcomes = await asyncio.gather(
        *(caller.accept(f"{n}", key="k") for caller in callers for n in range(10))
    )
    assert len({outcome.session.id for outcome in outcomes}) == 1
    assert sorted(outcome.turn.number for outcome in outcomes) == list(range(1, 31))
    assert [type(outcome) for outcome in outcomes].count(Started) == 1


async def test_processes_that_write_to_many_sessions_do_not_wait_for_each_other(
    open_another: Opener,
) -> None:
    stores = [await open_another() for _ in range(2)]
    callers = [StoreClient(store, f"{n}_") for n, store in enumerate(stores)]
    keys = [f"k{n}" for n in range(12)]
    rounds = 5
    await asyncio.gather(
        *(
            caller.append(f"{n}", key=key)
            for n in range(rounds)
            for caller, order in zip(callers, (keys, keys[::-1]), strict=True)
            for key in order
        )
    )
    for key in keys:
        session = await callers[0].reserve(key)
        log = await callers[0].read.turns(session.id, limit=100)
        assert [view.turn.number for view in log] == list(range(1, 2 * rounds + 1))


async def test_a_row_that_somebody_keeps_locked_delays_nobody_else(
    postgres_url: str,
) -> None:
    store = await open_postgres(postgres_url, settings={"lock_timeout": "100ms"})
    caller = StoreClient(store)
    blocker = await asyncpg.connect(postgres_url)
    try:
        first, second = await caller.reserve("locked"), await caller.reserve("free")
        async with blocker.transaction():
            await append_foreign_entry(blocker, first.id)
            results = await asyncio.gather(
                caller.append("x", key="locked"),
                caller.append("y", key="free"),
                return_exceptions=True,
            )
        assert isinstance(results[0], StoreUnavailable)
        assert not isinstance(results[1], BaseException)
        assert await caller.texts(second) == ["y"]
        await caller.append("z", key="locked")
        assert await caller.texts(first) == ["z"]
    finally:
        await blocker.close()
        await store.close()


async def test_reading_does_not_wait_for_a_writer(open_another: Opener, postgres_url: str) -> None:
    store = await open_another()
    caller = StoreClient(store)
    session = (await caller.append("x", key="k")).session
    blocker = await asyncpg.connect(postgres_url)
    try:
        async with blocker.transaction():
            await append_foreign_entry(blocker, session.id)
            async with asyncio.timeout(SECONDS):
                assert await caller.texts(session) == ["x"]
    finally:
        await blocker.close()


# ── lanes in memory ─────────────────────────────────────────────────────────────────────────


async def test_turns_whose_lanes_are_known_are_one_statement(open_another: Opener) -> None:
    store = await open_another()
    caller = StoreClient(store)
    await caller.enlist()
    keys = [f"k{n}" for n in range(4)]
    runs = await asyncio.gather(*(caller.start("a", key=key) for key in keys))
    await asyncio.gather(*(caller.finish(run, "A") for run in runs))
    asked = await _statements_during(store, [caller.start("b", key=key) for key in keys])
    assert [text.split(" ")[0] for text in asked] == ["with"]
    for run in runs:
        assert await caller.texts(run.session) == ["a", "A", "b"]


async def test_first_turns_of_new_keys_are_one_statement(open_another: Opener) -> None:
    store = await open_another()
    caller = StoreClient(store)
    await caller.enlist()
    keys = [f"k{n}" for n in range(4)]
    asked = await _statements_during(store, [caller.start("a", key=key) for key in keys])
    assert [text.split(" ")[0] for text in asked] == ["with"]
    for key in keys:
        assert await caller.texts(await caller.reserve(key)) == ["a"]


async def test_a_key_that_is_not_new_says_nothing_about_other_lanes(open_another: Opener) -> None:
    store, neighbour = await open_another(), await open_another()
    caller, other = StoreClient(store), StoreClient(neighbour, "o")
    await caller.enlist()
    await other.enlist()
    known = await caller.converse("a", "A", key="known")
    theirs = await other.converse("theirs", "answer", key="theirs")
    asked = await _statements_during(store, [caller.start("mine", key="theirs")])
    assert [text.split(" ")[0] for text in asked[:2]] == ["with", "begin"]
    asked = await _statements_during(store, [caller.start("b", key="known")])
    assert [text.split(" ")[0] for text in asked] == ["with"]
    assert await caller.texts(known.session) == ["a", "A", "b"]
    assert await caller.texts(theirs.session) == ["theirs", "answer", "mine"]


async def test_appends_to_one_session_that_come_together_are_one_statement(
    open_another: Opener,
) -> None:
    store = await open_another()
    caller = StoreClient(store)
    session = (await caller.append("0", key="k")).session
    asked = await _statements_during(store, [caller.append(f"{n}", key="k") for n in range(1, 9)])
    assert [text.split(" ")[0] for text in asked] == ["with"]
    assert await caller.texts(session) == [f"{n}" for n in range(9)]
    log = await caller.read.turns(session.id, limit=100)
    assert [view.turn.number for view in log] == list(range(1, 10))


async def test_nothing_is_decided_on_a_lane_that_is_not_committed(
    open_another: Opener, postgres_url: str
) -> None:
    caller = StoreClient(await open_another())
    session = (await caller.append("a", key="k")).session
    other = await asyncpg.connect(postgres_url)
    try:
        async with other.transaction():
            # The entry that the first append is about to write comes to mean something else.
            await append_foreign_entry(other, session.id)
            first = asyncio.create_task(caller.append("b", key="k"))
            await _until(lambda: _is_waited_for(other))
            second = asyncio.create_task(caller.append("c", key="k"))
            for _ in range(10):
                await other.execute("select 1")
        await asyncio.gather(first, second)
    finally:
        await other.close()
    assert sorted(await caller.texts(session)) == ["a", "b", "c"]
    log = await caller.read.turns(session.id, limit=100)
    assert [view.turn.number for view in log] == [1, 2, 3]


async def _is_waited_for(connection: asyncpg.Connection) -> bool:
    asked = (
        "select exists (select 1 from pg_stat_activity where datname = current_database() "
        "and pg_backend_pid() = any(pg_blocking_pids(pid)))"
    )
    return bool(await connection.fetchval(asked))


async def test_appends_to_a_session_that_others_append_to_lose_nothing(
    open_another: Opener,
) -> None:
    callers = [StoreClient(await open_another(), name) for name in ("one", "two")]
    session = await callers[0].reserve("k")
    for n in range(6):
        await asyncio.gather(
            *(caller.append(f"{n}", key=key) for caller in callers for key in ("k", "k", "near"))
        )
    assert sorted(await callers[0].texts(session)) == sorted(
        f"{n}" for n in range(6) for _ in "1234"
    )
    log = await callers[0].read.turns(session.id, limit=100)
    assert [view.turn.number for view in log] == list(range(1, 25))


async def test_what_another_gateway_did_to_a_lane_is_seen(open_another: Opener) -> None:
    one, two = StoreClient(await open_another(), "one"), StoreClient(await open_another(), "two")
    await one.enlist()
    await two.enlist()
    first = await one.start("a", key="k")
    await one.finish(first, "A")
    near = await one.converse("n", "N", key="near")
    await two.append("b", key="k")
    # Beside a lane that is as it was left; neither may suffer from the other.
    second, beside = await asyncio.gather(one.start("c", key="k"), one.start("m", key="near"))
    assert await one.texts(second.session) == ["a", "A", "b", "c"]
    assert await one.texts(near.session) == ["n", "N", "m"]
    await one.finish(beside, "M")
    waiting = await two.wait("d", key="k")
    await one.finish(second, "C")
    assert isinstance(await one.accept("e", key="k"), Queued), "somebody waits before it"
    claimed = await two.claim(waiting.turn)
    assert isinstance(claimed, Started)
    new = await one.reset(claimed.session)
    with pytest.raises(RunFenced):
        await two.finish(claimed, "D")
    third = await two.start("f", key="k")
    assert third.session.id == new.id
    assert await one.texts(second.session) == ["a", "A", "b", "c", "C", "d"]


async def test_two_gateways_that_take_turns_in_many_sessions_lose_nothing(
    open_another: Opener,
) -> None:
    callers = [StoreClient(await open_another(), name) for name in ("one", "two")]
    keys = [f"k{n}" for n in range(6)]
    for number in range(6):
        caller = callers[number % 2]
        await asyncio.gather(*(caller.converse(f"q{number}", f"a{number}", key=k) for k in keys))
        await callers[0].append("and", key=keys[number])
    for n, key in enumerate(keys):
        expected = [text for i in range(6) for text in (f"q{i}", f"a{i}", *["and"] * (i == n))]
        session = await callers[0].reserve(key)
        assert await callers[1].texts(session) == expected


async def test_a_lane_that_another_gateway_changed_costs_its_own_session_only(
    open_another: Opener,
) -> None:
    store, neighbour = await open_another(), await open_another()
    caller, other = StoreClient(store), StoreClient(neighbour, "other")
    await caller.enlist()
    keys = [f"k{number}" for number in range(8)]
    first = await asyncio.gather(*(caller.start("a", key=key) for key in keys))
    await asyncio.gather(*(caller.finish(run, "A") for run in first))
    await other.append("b", key="k0")
    # What fails is asked once which lanes have changed, and written again.
    runs, asked = await _runs_and_statements(store, [caller.start("c", key=key) for key in keys])
    assert _verbs(asked) == ["with", "select", "with"]
    # All lanes are still in memory: their runs end in one statement.
    asked = await _statements_during(store, [caller.finish(run, "C") for run in runs])
    assert _verbs(asked) == ["with"]
    # For a while it asks before it writes, so that no write fails.
    await other.append("d", key="k1")
    runs, asked = await _runs_and_statements(store, [caller.start("e", key=key) for key in keys])
    assert _verbs(asked) == ["select", "with"]
    await asyncio.gather(*(caller.finish(run, "E") for run in runs))
    shown = [await caller.texts(run.session) for run in runs]
    assert shown[0] == ["a", "A", "b", "c", "C", "e", "E"]
    assert shown[1] == ["a", "A", "c", "C", "d", "e", "E"]
    assert shown[2:] == [["a", "A", "c", "C", "e", "E"]] * 6


async def test_once_nobody_else_writes_no_lane_is_asked_about(
    open_another: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "CHECKED_BATCHES", 2)
    store, neighbour = await open_another(), await open_another()
    caller = StoreClient(store)
    await caller.enlist()
    await caller.converse("a", "A", key="k")
    await StoreClient(neighbour, "other").append("b", key="k")
    await caller.converse("c", "C", key="k")
    await caller.converse("d", "D", key="k")
    asked = await _statements_during(store, [caller.start("e", key="k")])
    assert _verbs(asked) == ["with"]


async def test_of_a_stale_batch_only_what_no_lane_in_memory_has_is_decided_after_reading(
    open_another: Opener,
) -> None:
    store, neighbour = await open_another(), await open_another()
    caller, other = StoreClient(store), StoreClient(neighbour, "other")
    await caller.enlist()
    await other.enlist()
    keys = [f"k{number}" for number in range(8)]
    first = await asyncio.gather(*(caller.start("a", key=key) for key in keys))
    await asyncio.gather(*(caller.finish(run, "A") for run in first))
    # A lane in which turns of others wait is not cached.
    theirs = await other.start("b", key="k0")
    await other.wait("c", key="k0")
    work = [caller.accept("d", key=key) for key in keys]
    asked = await _statements_during(store, work)
    assert _verbs(asked)[:4] == ["with", "select", "with", "begin"]
    assert not [text for text in asked[4:] if "unnest(" in text]
    assert await caller.texts(theirs.session) == ["a", "A", "b"]
    sessions = [await caller.reserve(key) for key in keys[1:]]
    assert [await caller.texts(session) for session in sessions] == [["a", "A", "d"]] * 7
    assert len(await caller.read.turns(theirs.session.id, limit=9)) == 4


async def test_items_of_another_gateway_come_with_the_lane(open_another: Opener) -> None:
    store, neighbour = await open_another(), await open_another()
    caller, other = StoreClient(store), StoreClient(neighbour, "other")
    await caller.enlist()
    await other.enlist()
    session = (await caller.converse("a", "A", key="k")).session
    await other.converse("b", "B", key="k")
    run = await caller.start("c", key="k")
    cached = store._transcripts.find(run.session)
    assert cached is not None
    assert cached.head_seq == run.session.head_seq == 5
    assert run.session.id == session.id
    assert await caller.texts(run.session) == ["a", "A", "b", "B", "c"]


def _verbs(asked: Sequence[str]) -> list[str]:
    return [text.split()[0] for text in asked]


async def _runs_and_statements(
    store: SqlStore, work: Sequence[Awaitable[Started]]
) -> tuple[list[Started], list[str]]:
    runs: list[Started] = []

    async def start(one: Awaitable[Started]) -> None:
        runs.append(await one)

    asked = await _statements_during(store, [start(one) for one in work])
    return sorted(runs, key=lambda run: run.session.key or ""), asked


async def _statements_during(store: SqlStore, work: Sequence[Awaitable[object]]) -> list[str]:
    """Return the statements that the writer of a store sends while something is done."""
    driver = store._driver
    assert isinstance(driver, PostgresDriver)
    connection = driver._writer
    assert connection is not None
    asked: list[str] = []

    def note(record: asyncpg.connection.LoggedQuery) -> None:
        # What the client asks about types, once for each connection, is in capitals.
        if record.query[0].islower():
            asked.append(record.query)

    with connection.query_logger(note):
        await asyncio.gather(*work)
    return asked


async def test_a_text_that_no_column_can_hold_is_the_callers_mistake(postgres_url: str) -> None:
    store = await open_postgres(postgres_url)
    try:
        with pytest.raises(InvalidInput, match=r"U\+0000"):
            await store.channels.messages(None, OutboxQuery(channel="a\0b"))
    finally:
        await store.close()
