"""`holdfast upgrade OLD NEW`: a store of the first schema is copied whole, on either database."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from holdfast.core.ids import DEFAULT_TENANT, Key, SessionId, WorkerId
from holdfast.core.transaction.commands import Repeated, Started
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.ports.store import ItemQuery, SessionQuery
from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.stores.sql import lookups, queries
from holdfast.stores.sql.entries import read_session
from holdfast.stores.sql.plan import Plan, Statement, every
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.upgrade.copy import upgrade
from holdfast.testing.clock import ManualClock
from holdfast.testing.ids import SequentialIds
from holdfast.testing.store_client import StoreClient, answered
from tests.cli.terminals import in_process
from tests.migration.first_schema_store import (
    COLUMNS,
    GOLDEN,
    NOW,
    SIDE_TABLES,
    Picture,
    copy_to_postgres,
    create_file,
    picture_of_file,
)


@pytest.fixture
def clock() -> ManualClock:
    clock = ManualClock(NOW)
    clock.advance(3600)
    return clock


@pytest.fixture
def long_life(tmp_path: Path) -> Path:
    """A store of the first schema with a little of everything."""
    path = tmp_path / "old.db"
    create_file(path)
    return path


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy of the store that a version with the first schema wrote."""
    return Path(shutil.copy(GOLDEN, tmp_path / "old.db"))


@pytest.fixture(params=["golden", "long_life"])
def path(request: pytest.FixtureRequest) -> Path:
    """Each of them."""
    found: Path = request.getfixturevalue(request.param)
    return found


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


class Places(NamedTuple):
    """Databases to copy from and to; none: a file."""

    old: str | None = None
    new: str | None = None


FILES = Places()


@pytest.fixture(params=["sqlite-sqlite", "sqlite-postgres", "postgres-sqlite", "postgres-postgres"])
def places(request: pytest.FixtureRequest) -> Places:
    """Every way to copy; one database has no tables, the other an empty store."""
    old, new = request.param.split("-")
    bare = request.getfixturevalue("bare_postgres_url") if "postgres" in (old, new) else None
    if old == new == "postgres":
        return Places(bare, request.getfixturevalue("postgres_url"))
    return Places(bare if old == "postgres" else None, bare if new == "postgres" else None)


async def _upgraded(path: Path, places: Places, clock: ManualClock) -> SqlStore:
    """Return the store that an upgrade makes of a file's rows."""
    source, target = _url(path), _url(path.with_name("new.db"))
    if places.old is not None:
        source = places.old
        await copy_to_postgres(path, source)
    if places.new is None:
        await upgrade(source, target, lambda total: None)
        return await open_store(target, clock=clock)
    await upgrade(source, places.new, lambda total: None)
    return await open_postgres(places.new, clock=clock)


# ── everything is there ─────────────────────────────────────────────────────────────────────


RENAMED = {"trails": ("history_hashes", "session_id, seq, record_no, tenant, history_hash")}
"""Tables that have another name and other columns in the new store."""


def picture_of_store(old: Picture) -> Plan[Picture]:
    """Return what the new store's own reads say about the sessions and turns of the old one."""
    new = Picture([], [], [], [], [], [], {})
    for known in old.sessions:
        row = yield from lookups.session_row(known.id)
        assert row is not None
        session = read_session(row)
        first, last = session.parent_seq + 1, session.head_seq
        new.sessions.append(session)
        new.items += yield from lookups.find_items(session, first, last)
        new.records += yield from queries.records(session)
        new.events += yield from queries.events(session.id, 0, 1000)
    for known_turn in old.turns:
        turn = yield from lookups.find_turn(known_turn.id)
        assert turn is not None
        new.turns.append(turn)
        new.runs += yield from lookups.find_runs(turn.id)
    new.runs.sort(key=lambda run: (run.turn_id, run.epoch))
    for table in SIDE_TABLES:
        name, columns = RENAMED.get(table, (table, COLUMNS[table]))
        rows = yield from every(Statement(table, f"select {columns} from {name}"))
        new.beside[table] = sorted(tuple(row) for row in rows)
    return new


async def test_the_new_store_has_the_content_of_the_old_tables(
    path: Path, places: Places, clock: ManualClock
) -> None:
    old = picture_of_file(path)
    store = await _upgraded(path, places, clock)
    try:
        new = await store.query(lambda _: picture_of_store(old))
    finally:
        await store.close()
    assert all(one.version >= one.epoch for one in new.sessions)
    # The old tables kept the highest retry count; now all counts are kept, as bits.
    old.turns = [
        replace(turn, retry_claim=(2 << turn.retry_claim) - 1 if turn.retry_claim else 0)
        for turn in old.turns
    ]
    old.sessions = [replace(session, version=0) for session in old.sessions]
    new.sessions = [replace(session, version=0) for session in new.sessions]
    for field in Picture.__struct_fields__:
        assert getattr(new, field) == getattr(old, field), field
    assert picture_of_file(path).events == old.events, "the old store stays as it is"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_the_doctor_finds_nothing_wrong_but_what_was_left_open(
    kind: str, long_life: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    target = _url(long_life.with_name("new.db"))
    if kind == "postgres":
        target = request.getfixturevalue("bare_postgres_url")
    asyncio.run(upgrade(_url(long_life), target, lambda total: None))
    looked = in_process(capsys, "doctor", "--store", target, "--deep", "--json")
    found = {(one["code"], one["subject"]) for one in json.loads(looked.out)}
    assert {one for one in found if one[0] not in ("durability_weak", "disk_low")} == {
        ("run_orphaned", "turn_o1"), ("turn_abandoned", "turn_o2")
    }  # fmt: skip


async def test_forks_rewinds_and_compactions_show_what_they_showed(
    long_life: Path, clock: ManualClock
) -> None:
    store = await _upgraded(long_life, FILES, clock)
    caller = StoreClient(store, "t")
    fork = await caller.session(SessionId("ses_fork"))
    assert [item.seq for item in await store.read.items(fork, ItemQuery())] == [1, 2, 3, 4]
    edited = await caller.session(SessionId("ses_edited"))
    shown = [item.seq for item in await store.read.items(edited, ItemQuery())]
    assert shown == [1, 2, 5, 6, 7, 8]
    everything = await store.read.items(edited, ItemQuery(view="log"))
    assert [item.seq for item in everything] == list(range(1, 9))
    # What comes next is numbered behind what was copied.
    started = await caller.start("and on", key="edited")
    assert isinstance(started, Started)
    assert (started.turn.number, started.session.head_seq) == (5, 9)
    assert started.session.epoch > edited.epoch
    await store.close()


# ── what the first version left ─────────────────────────────────────────────────────────────


@pytest.fixture
async def opened(golden: Path, places: Places, clock: ManualClock) -> AsyncIterator[SqlStore]:
    """The golden store, upgraded and opened an hour later."""
    store = await _upgraded(golden, places, clock)
    yield store
    await store.close()


async def _live(store: SqlStore, key: str) -> SessionId:
    view = await store.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    return view.session.id


async def test_conversations_of_the_first_schema_read_as_they_were(opened: SqlStore) -> None:
    caller = StoreClient(opened, "t")
    edited = await caller.session(await _live(opened, "edited"))
    assert await caller.texts(edited) == [
        "one", "first", "two, but better", "third", "break", "done so far", "and th",
    ]  # fmt: skip
    assert await caller.texts(edited, view="log") == [
        "one", "first", "two", "second", "two, but better", "third", "break", "done so far",
        "and th",
    ]  # fmt: skip
    assert (edited.item_count, edited.turn_count) == (7, 4)
    assert await caller.texts("ses_fork") == ["one", "first", "elsewhere", "in a fork"]
    (*_, failed) = await opened.read.turns(edited.id)
    assert (failed.status, failed.turn.error_code) == ("failed", "boom")
    assert failed.turn.error_message == "it broke"


async def test_generations_state_and_usage_of_the_first_schema_are_kept(opened: SqlStore) -> None:
    caller = StoreClient(opened, "t")
    query = SessionQuery(key=Key("reset"), generations=True, order="asc")
    old, new = await opened.read.sessions(DEFAULT_TENANT, query)
    assert (old.session.generation, old.status) == (1, "retired")
    assert (new.session.generation, new.status) == (2, "idle")
    assert new.session.previous_session_id == old.session.id
    assert await caller.texts(old.session) == ["hello", "hi there"]
    assert await caller.texts(new.session) == ["again", "welcome back"]
    assert (new.session.input_tokens, new.session.reasoning_tokens) == (10, 1)
    (state,) = await opened.read.provider_state(new.session.id)
    assert (state.value, state.covers_seq) == (b"resp_1", 2)
    assert await opened.read.session(DEFAULT_TENANT, key=Key("erased")) is None


async def test_events_of_the_first_schema_keep_their_numbers(opened: SqlStore) -> None:
    edited = await _live(opened, "edited")
    events = await opened.read.events(edited, after=0, limit=100)
    assert [event.no for event in events] == list(range(1, len(events) + 1))
    assert events[0].kind == "session.created"


async def test_requests_of_the_first_schema_are_still_once(opened: SqlStore) -> None:
    caller = StoreClient(opened, "t")
    await caller.enlist()
    known = await caller.repeat("hello", key="reset", idempotency_key="i", body_hash=b"b")
    assert known.turn.outcome == "completed"
    torn = await caller.accept("lost", key="open", idempotency_key="lost", body_hash=b"b")
    assert not isinstance(torn, Repeated)
    erased = await caller.start("new", key="erased")
    assert erased.session.generation == 2


async def test_what_an_old_gateway_left_open_is_taken_up(
    opened: SqlStore, clock: ManualClock
) -> None:
    done: list[str] = []
    all_done = asyncio.Event()

    async def handler(run: ActiveRun) -> None:
        caller = StoreClient(opened, "h")
        done.append((await caller.texts(run.session))[-1])
        await caller.finish(run.fence, items=answered(f"did {done[-1]}"))
        if len(done) == 2:
            all_done.set()

    limits = LaneSettings().limits(can_run_again=True)
    gateway = Gateway(opened, clock=clock, ids=SequentialIds("w"), limits=limits)
    await gateway.start(handler)
    async with asyncio.timeout(30):
        await all_done.wait()
    caller = StoreClient(opened, "t")
    started = await caller.start("next", key="open", limits=gateway.limits)
    assert isinstance(started, Started)
    assert await caller.texts(started.session) == [
        "lost", "job 1", "did job 1", "job 2", "did job 2", "next",
    ]  # fmt: skip
    held = await opened.read.turns(await _live(opened, "held"))
    assert [(view.status, view.turn.error_code) for view in held] == [
        ("interrupted", "tool_wait_expired")
    ]
    assert WorkerId("wrk_g000001") not in [one.id for one in await opened.workers() if one.is_gone]
    await gateway.stop()
