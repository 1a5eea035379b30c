"""`holdfast backup`: one moment of a store in use, verified, and good to start from."""

import asyncio
import json
import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.output.masking import mask_url
from holdfast.stores.postgres.backup import address_of
from holdfast.stores.sql.entries import pack, read_items
from tests.acceptance.gateway_process import running_gateway
from tests.cli.conftest import GatewayUnderTest
from tests.cli.terminals import Outcome, in_own_process, in_pipe, in_process, in_terminal
from tests.importing.picture import picture
from tests.postgres import client_tools


def test_a_backup_of_a_busy_gateway_has_every_acknowledged_turn_and_starts(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    copy = tmp_path / "copy.db"
    with running_gateway(store) as process:
        gateway = GatewayUnderTest(process)
        for number in range(5):
            gateway.say("me", f"number {number}")
        made = in_terminal("backup", str(copy), "--store", store)
        assert made.code == 0
        assert "verified" in made.out
        gateway.say("me", "after the backup")
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]
    assert in_pipe("doctor", "--store", f"sqlite:///{copy}").code == 0
    with running_gateway(f"sqlite:///{copy}") as process:
        shown = in_pipe("sessions", "items", "me", "--json", "--url", process.url)
        users = [item for item in json.loads(shown.out) if item["role"] == "user"]
        texts = [item["content"][0]["text"] for item in users]
        assert texts == [f"number {number}" for number in range(5)]
    assert in_pipe("doctor", "--store", f"sqlite:///{copy}", "--fix").code == 0


def test_a_backup_made_during_writes_is_one_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"

    async def talk() -> None:
        async with holdfast.open(url) as hf:
            session = await hf.session("busy")
            reached = [asyncio.Event() for _ in range(3)]
            writing = asyncio.create_task(_write(session, reached))
            for number in range(3):
                await reached[number].wait()
                await asyncio.to_thread(_back_up, number)
            await writing

    def _back_up(number: int) -> None:
        outcome = in_pipe("backup", str(tmp_path / f"copy{number}.db"), "--store", url, "--json")
        assert json.loads(outcome.out)["verified"] is True

    asyncio.run(talk())
    for number in range(3):
        connection = sqlite3.connect(tmp_path / f"copy{number}.db")
        rows = connection.execute("select n, seq, items from log order by n").fetchall()
        connection.close()
        items = sum(len(read_items(row[2]).listed) for row in rows if row[2] is not None)
        assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
        assert rows[-1][1] == items > 0


async def _write(session: Any, reached: list[asyncio.Event]) -> None:
    for number in range(200):
        await session.append(f"said {number}" * 50)
        if number % 20 == 0 and number // 20 < len(reached):
            reached[number // 20].set()


def _without_an_item(connection: sqlite3.Connection) -> None:
    n, packed = connection.execute("select n, items from log where items is not null").fetchone()
    items = read_items(packed)
    items.listed.pop(0)
    connection.execute("update log set items = ? where n = ?", (pack(items), n))


def _without_an_entry(connection: sqlite3.Connection) -> None:
    connection.execute("delete from log where n = 1")


@pytest.mark.parametrize("damage", [_without_an_item, _without_an_entry])
def test_a_damaged_store_gives_no_backup(
    damage: Callable[[sqlite3.Connection], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"

    async def talk() -> None:
        async with holdfast.open(url) as hf:
            await (await hf.session("k")).append(["a", "b"])

    asyncio.run(talk())
    connection = sqlite3.connect(tmp_path / "store.db")
    damage(connection)
    connection.commit()
    connection.close()
    outcome = in_process(capsys, "backup", str(tmp_path / "copy.db"), "--store", url)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert list(tmp_path.glob("*copy*")) == []


def test_a_failed_backup_prints_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store.db"
    in_process(capsys, "keys", "create", "--store", f"sqlite:///{store}")
    (tmp_path / "there.db").touch()
    for target, url, named in (
        ("copy.db", f"sqlite:///{tmp_path / 'none.db'}", "no store"),
        ("there.db", f"sqlite:///{store}", "--force"),
        (".", f"sqlite:///{store}", "directory"),
        ("no/such/copy.db", f"sqlite:///{store}", "no/such/copy.db cannot be written: No such"),
        ("copy.db", "memory:", "nothing to copy"),
    ):
        outcome = in_process(capsys, "backup", str(tmp_path / target), "--store", url)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), named
        assert named in outcome.err
    forced = in_process(
        capsys, "backup", str(tmp_path / "there.db"), "--force", "--store", f"sqlite:///{store}"
    )
    assert forced.code == 0
    assert stat.S_ISREG(os.stat(tmp_path / "there.db").st_mode)


def test_a_backup_replaces_no_file_of_the_store_and_nothing_that_is_not_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "linked.db")

    async def try_all() -> None:
        async with holdfast.open(url) as hf:
            await (await hf.session("k")).append("kept in the write-ahead log")
            # The open store writes to its log in the background: its bytes may grow meanwhile.
            of_the_store = ("store.db", "store.db-wal", "store.db-shm")
            before = [(tmp_path / name).stat().st_ino for name in of_the_store]
            for name in (*of_the_store, "pipe", "link"):
                outcome = await asyncio.to_thread(
                    in_own_process, "backup", str(tmp_path / name), "--force", "--store", url
                )
                assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), name
            assert [(tmp_path / name).stat().st_ino for name in of_the_store] == before
        async with holdfast.open(url) as hf:
            page = await (await hf.session("k")).items()
            assert "kept in the write-ahead log" in str(page)

    asyncio.run(try_all())
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()


# ── PostgreSQL, by its own tools ────────────────────────────────────────────────────────────


TOOLS = client_tools()


def dump(target: Path, url: str, *options: str, tools: Path = TOOLS) -> Outcome:
    """Back a database up."""
    return in_own_process("backup", str(target), "--store", url, *options, env={"PATH": str(tools)})


async def _talk(url: str) -> None:
    async with holdfast.open(url) as hf:
        await (await hf.session("k")).append(["said", "and kept"])


def test_a_postgresql_dump_is_verified_and_can_be_restored(
    tmp_path: Path, postgres_url: str, bare_postgres_url: str
) -> None:
    asyncio.run(_talk(postgres_url))
    copy = tmp_path / "copy.dump"
    made = dump(copy, postgres_url, "--json")
    assert (made.code, made.err) == (0, f"holdfast: used store {mask_url(postgres_url)}\n")
    told = json.loads(made.out)
    assert (told["verified"], told["bytes"]) == (True, copy.stat().st_size)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["copy.dump"]
    again = dump(copy, postgres_url)
    assert (again.code, again.out, again.err.count("\n")) == (1, "", 1)
    assert dump(copy, postgres_url, "--force").code == 0
    restore = [str(TOOLS / "pg_restore"), f"--dbname={bare_postgres_url}", str(copy)]
    assert subprocess.run(restore, check=False).returncode == 0
    assert asyncio.run(picture(bare_postgres_url)) == asyncio.run(picture(postgres_url))
    assert "and kept" in asyncio.run(picture(bare_postgres_url))


def test_a_failed_dump_prints_one_line_and_leaves_no_file(
    tmp_path: Path, postgres_url: str, bare_postgres_url: str
) -> None:
    copy = tmp_path / "copy.dump"
    broken = tmp_path / "tools"
    broken.mkdir()
    for name in ("pg_dump", "pg_restore"):
        (broken / name).write_text("#!/bin/sh\necho 'pg_dump: error: no room' >&2\nexit 1\n")
        (broken / name).chmod(0o755)
    for url, tools, named in (
        (postgres_url, tmp_path, "pg_dump and pg_restore, not found on the PATH"),
        (postgres_url, broken, "no room"),
        (bare_postgres_url, TOOLS, "no store"),
    ):
        outcome = dump(copy, url, tools=tools)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), named
        assert named in outcome.err
        assert list(tmp_path.glob("*copy*")) == []


def test_a_truncated_dump_is_rejected(tmp_path: Path, postgres_url: str) -> None:
    asyncio.run(_talk(postgres_url))
    torn = tmp_path / "tools"
    torn.mkdir()
    (torn / "pg_restore").symlink_to(TOOLS / "pg_restore")
    script = f"""#!/bin/sh
{TOOLS / "pg_dump"} "$@"
for option; do case $option in --file=*) file=${{option#--file=}} ;; esac; done
/usr/bin/truncate --size=-200 "$file"
"""
    (torn / "pg_dump").write_text(script)
    (torn / "pg_dump").chmod(0o755)
    outcome = dump(tmp_path / "copy.dump", postgres_url, tools=torn)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "the copy cannot be read" in outcome.err
    assert list(tmp_path.glob("*copy*")) == []


def test_passwords_are_not_passed_on_the_command_line_of_postgresql_tools() -> None:
    address, environment = address_of(
        "postgresql://ada:p%40ss@db.example:5433/gateway?search_path=a%20b&sslmode=require"
    )
    assert address == "postgresql://ada@db.example:5433/gateway?sslmode=require"
    assert environment["PGPASSWORD"] == "p@ss"
    assert environment["PGOPTIONS"].endswith("-c search_path=a\\ b")
    hidden, environment = address_of("postgresql:///gateway?host=/run/pg&user=ada&password=p%26q")
    assert hidden == "postgresql:///gateway?host=/run/pg&user=ada"
    assert environment["PGPASSWORD"] == "p&q"
