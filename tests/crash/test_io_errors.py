"""The disk refuses one operation, any of them: nothing told is lost, nothing is done twice."""

import asyncio
import sqlite3
import sys
from itertools import count
from pathlib import Path
from typing import TypeVar

import apsw
import pytest
from msgspec.structs import replace

from holdfast.core.errors import StoreUnavailable
from holdfast.core.transaction.commands import Command, Started
from holdfast.stores.commit.executors import InlineExecutor
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import ProcessTokens
from holdfast.stores.sqlite.driver import SqliteDriver
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from tests.crash.apsw_connection import PATH, connect_to
from tests.crash.recorded_disk import Disk, Operation

OutcomeT = TypeVar("OutcomeT")
_names = count()
LONG = "because " * 600


@pytest.fixture(autouse=True)
def _refusals_are_told_by_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SQLite goes on regardless, as after a failed checkpoint, apsw has nobody to tell."""
    others = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if not isinstance(unraisable.exc_value, apsw.IOError | apsw.FullError):
            others(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", hook)


class Insistent(StoreClient):
    """A caller that sends what was refused again, as one whose outcome is unknown."""

    refused = 0

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        for _ in range(20):
            try:
                return await super().submit(command)
            except StoreUnavailable:
                self.refused += 1
                command = replace(command, again=True)
        raise AssertionError("the store did not come back")


async def _converse(disk: Disk) -> Insistent:
    """Have three conversations side by side, in batches, with turns that wait for others."""
    driver = SqliteDriver(connect_to(disk), clock=ManualClock(), writer=InlineExecutor())
    for _ in range(20):
        try:
            await driver.migrate()
            break
        except StoreUnavailable:
            continue
    caller = Insistent(SqlStore(driver, ProcessTokens()))
    await asyncio.gather(*(_talk(caller, key) for key in "abc"))
    for key in "abc":
        appended = await caller.append("note", key=key)
        assert await caller.texts(appended.session) == ["hi", LONG, "and", LONG, "note"]
    await caller.store.close()
    return caller


async def _talk(caller: Insistent, key: str) -> None:
    first = await caller.start("hi", key=key, idempotency_key=f"i{key}", body_hash=b"b")
    queued = await caller.wait("and", key=key)
    await caller.finish(first, LONG)
    second = await caller.claim(queued.turn)
    assert isinstance(second, Started)
    await caller.finish(second, LONG)


def _refuse(disk: Disk, at: int, length: int, error: type[apsw.Error]) -> None:
    seen = count(1)

    def before(operation: Operation) -> None:
        if at <= next(seen) < at + length:
            raise error("refused")

    disk.before = before


def _refuse_sync(disk: Disk, number: int) -> None:
    """Refuse one sync of the log: what it was to make durable is written all the same."""
    seen = count(1)

    def before(operation: Operation) -> None:
        is_sync = operation.kind == "sync" and operation.file.endswith("-wal")
        if is_sync and next(seen) == number:
            raise apsw.IOError("refused")

    disk.before = before


async def test_a_batch_that_was_written_although_its_commit_failed_is_done_once() -> None:
    healthy = Disk(f"healthy-{next(_names)}")
    await _converse(healthy)
    healthy.unregister()
    syncs = [one for one in healthy.log if one.kind == "sync" and one.file.endswith("-wal")]
    assert len(syncs) > 10
    for number in range(1, len(syncs) + 1):
        disk = Disk(f"unsynced-{next(_names)}")
        _refuse_sync(disk, number)
        await _converse(disk)
        disk.unregister()


async def _length(name: str) -> int:
    """Return how many operations a day without faults takes."""
    healthy = Disk(name)
    await _converse(healthy)
    healthy.unregister()
    return len(healthy.log)


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError])
@pytest.mark.parametrize("length", [1, 9])
async def test_a_refused_operation_is_survived_wherever_it_strikes(
    error: type[apsw.Error], length: int, tmp_path: Path
) -> None:
    total = await _length(f"healthy-{next(_names)}")
    refusals = 0
    for at in range(1, total, 5):
        disk = Disk(f"faulty-{next(_names)}")
        _refuse(disk, at, length, error)
        refusals += (await _converse(disk)).refused
        disk.unregister()
        folder = tmp_path / str(at)
        folder.mkdir()
        for name in (PATH, f"{PATH}-wal"):
            (folder / name).write_bytes(disk.files.get(name, b""))
        connection = sqlite3.connect(folder / PATH)
        assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        connection.close()
    assert refusals > 5, "the faults were felt, also where running one by one did not help"
