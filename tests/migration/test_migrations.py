"""Schemas grow by numbered steps: once, for everybody, forward only, and nothing is lost."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.core.errors import SchemaTooNew, StoreError
from holdfast.core.ids import DEFAULT_TENANT, Key, SessionId, WorkerId
from holdfast.core.transaction.commands import LaneLimits, Repeated, Started
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.store import SessionQuery
from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.stores.postgres.dialect import TYPES, in_dollars
from holdfast.stores.sql import migrations
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.caller import Caller, answered
from holdfast.testing.clock import HandClock
from holdfast.testing.ids import CountedIds
from tests.migration.golden_store import NOW, golden, install, tables_of

ROOT = Path(__file__).parent.parent.parent
NEWEST = len(migrations.all_migrations())
STARTERS = 4


def test_steps_are_numbered_without_gaps() -> None:
    assert [step.version for step in migrations.all_migrations()] == list(range(1, NEWEST + 1))


# ── SQLite ──────────────────────────────────────────────────────────────────────────────────


def sqlite_schema(path: Path) -> list[Any]:
    """Return everything that a schema consists of, and how far it is."""
    connection = sqlite3.connect(path)
    try:
        return [
            *connection.execute(
                "select type, name, tbl_name, sql from sqlite_master order by 1, 2"
            ),
            *connection.execute("select version, name from schema_versions order by 1"),
        ]
    finally:
        connection.close()


async def _fresh(path: Path) -> Path:
    store = await open_store(f"sqlite:///{path}", clock=HandClock())
    await store.close()
    return path


@pytest.mark.parametrize("version", range(1, NEWEST))
async def test_migrating_from_any_version_equals_installing_afresh(
    tmp_path: Path, version: int
) -> None:
    old = tmp_path / "old.db"
    connection = sqlite3.connect(old)
    install(connection, version)
    connection.commit()
    connection.close()
    await _fresh(old)
    assert sqlite_schema(old) == sqlite_schema(await _fresh(tmp_path / "fresh.db"))


async def test_a_step_that_was_left_out_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    connection = sqlite3.connect(path)
    install(connection, NEWEST, without=3)
    connection.commit()
    connection.close()
    await _fresh(path)
    assert sqlite_schema(path) == sqlite_schema(await _fresh(tmp_path / "fresh.db"))


STEPS = [migrations.Migration(number, f"s{number}", "") for number in (1, 2, 3, 5)]


@pytest.mark.parametrize(
    ("applied", "needed"),
    [([], [1, 2, 3, 5]), ([1, 2, 3, 5], []), ([1], [2, 3, 5]), ([1, 2, 5], [3]), ([5], [1, 2, 3])],
    ids=repr,
)
def test_what_a_store_lacks_is_needed_in_its_order(applied: list[int], needed: list[int]) -> None:
    taken = [(version, f"s{version}") for version in applied]
    assert [step.version for step in migrations.pending(taken, STEPS)] == needed


@pytest.mark.parametrize("unknown", [4, 6])
def test_a_step_that_nobody_here_knows_is_refused(unknown: int) -> None:
    with pytest.raises(SchemaTooNew, match=f"version {unknown}"):
        migrations.pending([(1, "s1"), (unknown, f"s{unknown}")], STEPS)


async def test_another_step_of_the_same_number_is_refused_and_the_file_left_as_it_is(
    tmp_path: Path,
) -> None:
    path = await _fresh(tmp_path / "a.db")
    connection = sqlite3.connect(path)
    connection.execute("update schema_versions set name = 'something_else' where version = 2")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"'something_else'.*'journals'"):
        await open_store(f"sqlite:///{path}", clock=HandClock())
    assert path.read_bytes() == before


async def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = await _fresh(tmp_path / "a.db")
    before = sqlite_schema(path)
    await _fresh(path)
    assert sqlite_schema(path) == before


async def test_a_newer_file_is_refused_with_both_versions_and_left_as_it_is(
    tmp_path: Path,
) -> None:
    path = await _fresh(tmp_path / "a.db")
    connection = sqlite3.connect(path)
    connection.execute("insert into schema_versions values (9000, 'from the future', 0.0)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=rf"version 9000.*up to {NEWEST}"):
        await open_store(f"sqlite:///{path}", clock=HandClock())
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.db"]


def test_a_step_that_was_released_is_what_it_was(tmp_path: Path) -> None:
    path = tmp_path / "v1.db"
    connection = sqlite3.connect(path)
    install(connection, 1)
    connection.commit()
    connection.close()
    assert sqlite_schema(golden(1)) == sqlite_schema(path), (
        "a released step never changes; before a release, make the golden store anew"
    )


# ── PostgreSQL ──────────────────────────────────────────────────────────────────────────────

PARTS = """
select 'column', table_name, column_name, data_type || ' ' || is_nullable || ' ' ||
  coalesce(column_default, '') || ' ' || coalesce(collation_name, '')
  from information_schema.columns where table_schema = 'public'
union all select 'index', tablename, indexname, indexdef from pg_indexes where schemaname = 'public'
union all select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid)
  from pg_constraint where connamespace = 'public'::regnamespace
union all select 'view', viewname, '', definition from pg_views where schemaname = 'public'
union all select 'version', version::text, name, '' from schema_versions
order by 1, 2, 3
"""


async def postgres_schema(url: str) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(PARTS)]
    finally:
        await connection.close()


async def install_on_postgres(url: str, version: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(migrations.CREATE_VERSIONS.format_map(TYPES))
        for step in migrations.all_migrations()[:version]:
            for statement in step.statements(TYPES):
                await connection.execute(statement)
            row = (step.version, step.name, NOW)
            await connection.execute(in_dollars(migrations.ADD_VERSION), *row)
    finally:
        await connection.close()


@pytest.mark.parametrize("version", range(1, NEWEST))
async def test_migrating_postgres_from_any_version_equals_installing_afresh(
    bare_postgres_url: str, postgres_url: str, version: int
) -> None:
    await install_on_postgres(bare_postgres_url, version)
    store = await open_store(bare_postgres_url, clock=HandClock())
    await store.close()
    assert await postgres_schema(bare_postgres_url) == await postgres_schema(postgres_url)


# ── starting together ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_processes_that_start_together_migrate_once(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    if kind == "postgres":
        url = request.getfixturevalue("bare_postgres_url")
    starters = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.migration.starter", url, f"p{number}"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(STARTERS)
    ]  # fmt: skip
    try:
        for starter in starters:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "ready\n"
        for starter in starters:
            assert starter.stdin is not None
            starter.stdin.write("go\n")
            starter.stdin.flush()
        said = [starter.communicate(timeout=60)[0].strip() for starter in starters]
    finally:
        for starter in starters:
            starter.kill()
            starter.communicate()
    assert len(set(said)) == 1, said
    assert said[0].startswith("done ses_")


# ── a store of the first version ────────────────────────────────────────────────────────────


async def _copy_to_postgres(url: str) -> None:
    """Bring the golden store's rows into tables of its version on PostgreSQL."""
    await install_on_postgres(url, 1)
    source = sqlite3.connect(golden(1))
    target = await asyncpg.connect(url)
    try:
        for table, columns in tables_of(source).items():
            if table == "schema_versions":
                continue
            rows = source.execute(f"select {', '.join(columns)} from {table}").fetchall()
            await target.copy_records_to_table(table, records=rows, columns=columns)
    finally:
        await target.close()
        source.close()


@pytest.fixture
def clock() -> HandClock:
    clock = HandClock(NOW)
    clock.advance(3600)
    return clock


@pytest.fixture(params=["sqlite", "postgres"])
def golden_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a copy of the golden store is, or is to be made."""
    if request.param == "sqlite":
        shutil.copy(golden(1), tmp_path / "a.db")
        return f"sqlite:///{tmp_path}/a.db"
    found: str = request.getfixturevalue("bare_postgres_url")
    return found


@pytest.fixture
async def opened(golden_url: str, clock: HandClock) -> AsyncIterator[SqlStore]:
    """The golden store, as today's version opens it an hour later."""
    if golden_url.startswith("sqlite:"):
        store = await open_store(golden_url, clock=clock)
    else:
        await _copy_to_postgres(golden_url)
        store = await open_postgres(golden_url, clock=clock)
    yield store
    await store.close()


async def _live(store: SqlStore, key: str) -> SessionId:
    view = await store.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    return view.session.id


async def test_conversations_of_the_first_version_read_as_they_were(opened: SqlStore) -> None:
    caller = Caller(opened, "t")
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


async def test_generations_state_and_usage_of_the_first_version_are_kept(opened: SqlStore) -> None:
    caller = Caller(opened, "t")
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


async def test_events_of_the_first_version_keep_their_numbers(opened: SqlStore) -> None:
    edited = await _live(opened, "edited")
    events = await opened.read.events(edited, after=0, limit=100)
    assert [event.no for event in events] == list(range(1, len(events) + 1))
    assert events[0].kind == "session.created"


async def test_requests_of_the_first_version_are_still_once(opened: SqlStore) -> None:
    caller = Caller(opened, "t")
    await caller.enlist()
    known = await caller.repeat("hello", key="reset", idempotency_key="i", body_hash=b"b")
    assert known.turn.outcome == "completed"
    torn = await caller.accept("lost", key="open", idempotency_key="lost", body_hash=b"b")
    assert not isinstance(torn, Repeated)
    erased = await caller.start("new", key="erased")
    assert erased.session.generation == 2


async def test_what_the_first_version_left_open_is_taken_up(
    opened: SqlStore, clock: HandClock
) -> None:
    done: list[str] = []
    all_done = asyncio.Event()

    async def handler(run: ActiveRun) -> None:
        caller = Caller(opened, "h")
        done.append((await caller.texts(run.session))[-1])
        await caller.finish(run.fence, items=answered(f"did {done[-1]}"))
        if len(done) == 2:
            all_done.set()

    gateway = Gateway(
        opened, clock=clock, ids=CountedIds("w"), limits=LaneLimits(can_run_again=True)
    )
    await gateway.start(handler)
    async with asyncio.timeout(30):
        await all_done.wait()
    caller = Caller(opened, "t")
    started = await caller.start("next", key="open", limits=gateway.limits)
    assert isinstance(started, Started)
    assert await caller.texts(started.session) == [
        "lost", "job 1", "did job 1", "job 2", "did job 2", "next",
    ]  # fmt: skip
    held = await opened.read.turns(await _live(opened, "held"))
    assert [(view.status, view.turn.error_code) for view in held] == [
        ("interrupted", "tool_wait_expired")
    ]
    assert WorkerId("wrk_g000001") not in [gone.id for gone in await opened.gone_workers()]
    await gateway.stop()
