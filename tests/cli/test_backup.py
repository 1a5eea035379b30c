"""`holdfast backup`: one moment of a store in use, verified, and good to start from."""

import asyncio
import json
import os
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.acceptance.gateway_process import running_gateway
from tests.cli.conftest import House
from tests.cli.terminals import in_pipe, in_process, in_terminal


def test_a_backup_of_a_gateway_in_use_has_all_that_was_acknowledged_and_starts(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    copy = tmp_path / "copy.db"
    with running_gateway(store) as gateway:
        house = House(gateway)
        for number in range(5):
            house.say("me", f"number {number}")
        made = in_terminal("backup", str(copy), "--store", store)
        assert made.code == 0
        assert "verified" in made.out
        house.say("me", "after the backup")
    assert sorted(path.name for path in tmp_path.glob("copy*")) == ["copy.db"]
    assert in_pipe("doctor", "--store", f"sqlite:///{copy}").code == 0
    with running_gateway(f"sqlite:///{copy}") as gateway:
        shown = in_pipe("sessions", "items", "me", "--json", "--url", gateway.url)
        users = [item for item in json.loads(shown.out) if item["role"] == "user"]
        texts = [item["content"][0]["text"] for item in users]
        assert texts == [f"number {number}" for number in range(5)]
    assert in_pipe("doctor", "--store", f"sqlite:///{copy}", "--fix").code == 0


def test_a_backup_made_amid_writes_is_one_moment(
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
        (head,) = connection.execute("select head_seq from sessions").fetchone()
        (items,) = connection.execute("select count(*) from items").fetchone()
        connection.close()
        assert head == items > 0


async def _write(session: Any, reached: list[asyncio.Event]) -> None:
    for number in range(200):
        await session.append(f"said {number}" * 50)
        if number % 20 == 0 and number // 20 < len(reached):
            reached[number // 20].set()


def test_a_damaged_store_gives_no_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"

    async def talk() -> None:
        async with holdfast.open(url) as hf:
            await (await hf.session("k")).append(["a", "b"])

    asyncio.run(talk())
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("delete from items where seq = 1")
    connection.commit()
    connection.close()
    outcome = in_process(capsys, "backup", str(tmp_path / "copy.db"), "--store", url)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert list(tmp_path.glob("*copy*")) == []


def test_what_cannot_be_backed_up_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], postgres_url: str
) -> None:
    store = tmp_path / "store.db"
    in_process(capsys, "keys", "list", "--store", f"sqlite:///{store}")
    (tmp_path / "there.db").touch()
    for target, url, named in (
        ("copy.db", f"sqlite:///{tmp_path / 'none.db'}", "no store"),
        ("there.db", f"sqlite:///{store}", "--force"),
        (".", f"sqlite:///{store}", "folder"),
        ("no/such/copy.db", f"sqlite:///{store}", "copy.db"),
        ("copy.db", "memory:", "nothing to copy"),
        ("copy.db", postgres_url, "pg_dump"),
    ):
        outcome = in_process(capsys, "backup", str(tmp_path / target), "--store", url)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1), named
        assert named in outcome.err
    forced = in_process(
        capsys, "backup", str(tmp_path / "there.db"), "--force", "--store", f"sqlite:///{store}"
    )
    assert forced.code == 0
    assert stat.S_ISREG(os.stat(tmp_path / "there.db").st_mode)
