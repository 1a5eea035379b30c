"""`holdfast upgrade OLD NEW` as people and programs meet it."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from holdfast.stores.postgres.driver import MIGRATION_LOCK
from tests.acceptance.gateway_process import running_gateway
from tests.cli.terminals import in_own_process, in_pipe, in_process, in_terminal
from tests.migration.first_schema_store import create_file


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store of the first schema."""
    path = tmp_path / "old.db"
    create_file(path)
    return path


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _execute(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_in_a_pipe_only_the_result_is_printed_and_in_json_when_asked(old: Path) -> None:
    new = old.with_name("new.db")
    done = in_own_process("upgrade", _url(old), _url(new), "--json")
    assert (done.code, done.err) == (0, "")
    copied = json.loads(done.out)
    assert (copied["sessions"], copied["api_keys"], copied["items"]) == (6, 2, 211)
    assert _names(old.parent) == ["new.db", "old.db"]


def test_on_a_terminal_the_work_is_shown(old: Path) -> None:
    shown = in_terminal("upgrade", _url(old), _url(old.with_name("new.db")))
    assert shown.code == 0
    assert "copying" in shown.out
    assert "6 sessions, 108 turns, 211 items and 2 API keys copied" in shown.out


def test_a_gateway_starts_on_the_new_store_and_still_asks_for_a_key(old: Path) -> None:
    new = _url(old.with_name("new.db"))
    assert in_pipe("upgrade", _url(old), new).code == 0
    with running_gateway(new) as gateway:
        refused = in_pipe("sessions", "list", "--json", "--url", gateway.url)
        assert refused.code == 1
        assert "key" in refused.err


def test_a_place_that_is_taken_is_refused_and_left_as_it_is(
    old: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = old.with_name("new.db")
    for target in (_url(new), postgres_url):
        assert in_process(capsys, "upgrade", _url(old), target).code == 0
    before = new.read_bytes()
    for target in (_url(new), postgres_url, _url(old.parent), _url(old)):
        again = in_process(capsys, "upgrade", _url(old), target)
        assert (again.code, again.out, again.err.count("\n")) == (1, "", 1)
        assert "is not empty" in again.err
    assert new.read_bytes() == before
    assert _names(old.parent) == ["new.db", "old.db"]


def test_a_log_of_a_removed_store_is_not_read_into_the_new_one(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old.with_name("new.db-wal").write_bytes(b"of another store")
    refused = in_process(capsys, "upgrade", _url(old), _url(old.with_name("new.db")))
    assert (refused.code, "is not empty" in refused.err) == (1, True)


@pytest.mark.parametrize(
    "damage",
    [
        "delete from items where session_id = 'ses_foreign' and seq = 120",
        "delete from items where session_id = 'ses_foreign' and seq = 200",
        "delete from turns where id = 'turn_a7'",
        "update events set turn_id = 'turn_none' where turn_id = 'turn_4'",
    ],
)
def test_an_upgrade_that_fails_leaves_no_store(
    damage: str, old: Path, bare_postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _execute(old, damage)
    for target in (_url(old.with_name("new.db")), bare_postgres_url):
        failed = in_process(capsys, "upgrade", _url(old), target)
        assert (failed.code, failed.out, failed.err.count("\n")) == (1, "", 1)
        assert "the old store is damaged" in failed.err
    assert _names(old.parent) == ["old.db"]
    assert asyncio.run(_tables(bare_postgres_url)) == 0


KILLED = """
import asyncio, os, signal, sys
from holdfast.stores.upgrade.copy import upgrade
asyncio.run(upgrade(*sys.argv[1:], lambda total: os.kill(os.getpid(), signal.SIGKILL)))
"""


def test_an_upgrade_that_is_killed_leaves_no_store_and_can_be_run_again(
    old: Path, bare_postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new = old.with_name("new.db")
    for target in (_url(new), bare_postgres_url):
        command = [sys.executable, "-c", KILLED, _url(old), target]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not new.exists()
    for target in (_url(new), bare_postgres_url):
        # The database may take a moment to notice that the process is gone.
        asyncio.run(_until_unlocked(bare_postgres_url))
        assert in_process(capsys, "upgrade", _url(old), target).code == 0


async def _until_unlocked(url: str) -> None:
    """Wait until the database has undone what the killed process left."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("select pg_advisory_lock($1)", MIGRATION_LOCK, timeout=30)
    finally:
        await connection.close()


async def _tables(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        found: int = await connection.fetchval(
            "select count(*) from pg_tables where schemaname = 'public'"
        )
    finally:
        await connection.close()
    return found


def test_a_store_in_use_is_not_copied(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _execute(old, f"insert into workers values ('wrk_1', 1, {time.time() + 600})")
    refused = in_process(capsys, "upgrade", _url(old), _url(old.with_name("new.db")))
    assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert "still uses" in refused.err
    assert _names(old.parent) == ["old.db"]


def test_what_is_no_old_store_is_refused_in_one_line(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, current = tmp_path / "text.db", tmp_path / "current.db"
    text.write_text("this was never a database, and is long enough to be looked at")
    in_process(capsys, "keys", "create", "--store", _url(current))
    other = tmp_path / "other.db"
    _execute(other, "create table mine (id int)")
    strange = tmp_path / "strange.db"
    create_file(strange)
    _execute(strange, "insert into schema_versions values (8, 'unheard_of', 1)")
    for source, named in (
        (_url(tmp_path / "none.db"), "there is no store"),
        (_url(text), "not a database"),
        (_url(other), "is not a Holdfast store"),
        (_url(current), "needs no upgrade"),
        (_url(strange), "unheard_of"),
        ("memory:", "name a file or a database"),
    ):
        refused = in_process(capsys, "upgrade", source, _url(tmp_path / "new.db"))
        assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1), named
        assert named in refused.err
    assert not (tmp_path / "new.db").exists()


def test_no_secret_of_a_url_is_printed(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "postgresql://ada:sekret@127.0.0.1:1/db"
    for arguments in ((_url(old), secret), (secret, _url(old.with_name("new.db")))):
        refused = in_process(capsys, "upgrade", *arguments)
        assert (refused.code, refused.out, refused.err.count("\n")) == (1, "", 1)
        assert "sekret" not in refused.err
