"""Schemas grow by numbered steps: once, for everybody, forward only, and nothing is lost."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast.core.errors import SchemaTooNew, SchemaTooOld, StoreError
from holdfast.core.transaction.commands import ExpireWorker, Recover
from holdfast.stores.open import open_store
from holdfast.stores.postgres.dialect import TYPES, in_dollars
from holdfast.stores.sql import migrations
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from tests.migration.golden_store import NOW, RELEASED_STEPS, golden, install

ROOT = Path(__file__).parent.parent.parent
NEWEST = len(migrations.all_migrations())
LATEST = migrations.all_migrations()[-1].version
STARTERS = 4


def test_steps_have_ascending_numbers_from_one() -> None:
    numbers = [step.version for step in migrations.all_migrations()]
    assert numbers[0] == 1
    assert numbers == sorted(set(numbers))


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
    store = await open_store(f"sqlite:///{path}", clock=ManualClock())
    await store.close()
    return path


@pytest.mark.parametrize("version", range(NEWEST))
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


@pytest.mark.parametrize("steps", [1, 4, 7])
def test_a_store_of_the_first_schema_is_refused_with_the_way_out(steps: int) -> None:
    taken = list(enumerate(migrations.FIRST_SCHEMA[:steps], 1))
    with pytest.raises(SchemaTooOld, match="export its sessions with that version"):
        migrations.pending(taken, migrations.all_migrations())


async def test_another_step_of_the_same_number_is_refused_and_the_file_left_as_it_is(
    tmp_path: Path,
) -> None:
    path = await _fresh(tmp_path / "a.db")
    connection = sqlite3.connect(path)
    connection.execute("update schema_versions set name = 'something_else' where version = 1")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"'something_else'.*'log'"):
        await open_store(f"sqlite:///{path}", clock=ManualClock())
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
    with pytest.raises(SchemaTooNew, match=rf"version 9000.*up to {LATEST}"):
        await open_store(f"sqlite:///{path}", clock=ManualClock())
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.db"]


@pytest.mark.parametrize(("version", "steps"), RELEASED_STEPS.items())
def test_the_steps_of_a_release_are_what_they_were(
    tmp_path: Path, version: str, steps: int
) -> None:
    path = tmp_path / "afresh.db"
    connection = sqlite3.connect(path)
    install(connection, steps)
    connection.commit()
    connection.close()
    assert sqlite_schema(golden(version)) == sqlite_schema(path), (
        "a released step never changes; before a release, make the golden store anew"
    )


@pytest.mark.parametrize("version", RELEASED_STEPS)
async def test_sessions_of_a_released_version_continue(tmp_path: Path, version: str) -> None:
    path = Path(shutil.copy(golden(version), tmp_path / "old.db"))
    clock = ManualClock(NOW + 3600)
    store = await open_store(f"sqlite:///{path}", clock=clock)
    try:
        caller = StoreClient(store, "new")
        await caller.enlist()
        for worker in await store.workers():
            if worker.id != caller.worker:
                assert await caller.submit(ExpireWorker(worker=worker.id))
        for session_id in await store.orphaned_sessions(100):
            await caller.submit(Recover(session_id=session_id, worker=caller.worker))
        texts = {}
        for key in ("reset", "edited", "open", "held"):
            ended = await caller.converse("still there?", "yes", key=key)
            texts[key] = await caller.texts(ended.session)
            assert len(await store.read.context(ended.session)) >= len(texts[key])
        assert texts["reset"] == ["again", "welcome back", "still there?", "yes"]
        assert texts["edited"][:4] == ["one", "first", "two, but better", "third"]
        assert texts["edited"][-2:] == ["still there?", "yes"]
        assert texts["open"][0] == "lost"
        assert texts["held"][:2] == ["use your tool", "calling"]
        assert await caller.texts("ses_fork") == ["one", "first", "elsewhere", "in a fork"]
        again = await caller.start("lost", key="open", idempotency_key="lost", body_hash=b"b")
        assert again.turn.number == 1
    finally:
        await store.close()


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


@pytest.mark.parametrize("version", range(NEWEST))
async def test_migrating_postgres_from_any_version_equals_installing_afresh(
    bare_postgres_url: str, postgres_url: str, version: int
) -> None:
    await install_on_postgres(bare_postgres_url, version)
    store = await open_store(bare_postgres_url, clock=ManualClock())
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
