"""The power goes, after any operation of the disk: what was acknowledged is there, and whole.

The real store runs once over a disk that records what is done to it. For every moment of that
record, and every way in which unsynced writes may be lost, the database is opened as it would be
found, and compared with what had been acknowledged by then.
"""

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from holdfast.core.ids import Key, TurnId
from holdfast.core.transaction.commands import Started
from holdfast.stores.commit.executors import InlineExecutor
from holdfast.stores.open import open_store
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import ProcessTokens
from holdfast.stores.sqlite.driver import SqliteDriver
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from tests.crash.apsw_connection import PATH, connect_to
from tests.crash.production import pragma_of_writers
from tests.crash.recorded_disk import Disk, Images, Loss
from tests.store_tables import read_tables

KEYS = ("a", "b", "c")


class Acknowledged(NamedTuple):
    """What a caller was told is durable: a turn, its state, its last item."""

    turn_id: TurnId
    is_ended: bool
    last_seq: int


async def _one_day(store: SqlStore, disk: Disk, random: Random) -> None:
    """Have conversations side by side: turns that run, wait, end, append and reset."""
    caller = StoreClient(store)
    await caller.enlist(lease_seconds=3600)
    for number in range(6):
        await asyncio.gather(*(_turn(caller, disk, key, number, random) for key in KEYS))
        appended = await caller.append("note " * random.randint(1, 900), key=f"n{number}")
        disk.note(Acknowledged(appended.turn.id, True, appended.turn.last_seq or 0))
        if number == 3:
            view = await store.read.session(caller.tenant, key=Key(KEYS[0]))
            assert view is not None
            await caller.reset(view.session)


async def _turn(caller: StoreClient, disk: Disk, key: str, number: int, random: Random) -> None:
    """Have one turn run while another waits for it, and then the other."""
    first = await caller.start(f"{key}{number} " * random.randint(1, 400), key=key)
    disk.note(Acknowledged(first.turn.id, False, first.turn.last_seq or 0))
    queued = await caller.wait("and then", key=key)
    disk.note(Acknowledged(queued.turn.id, False, 0))
    await _finish(caller, disk, first, random)
    second = await caller.claim(queued.turn)
    assert isinstance(second, Started)
    await _finish(caller, disk, second, random)


async def _finish(caller: StoreClient, disk: Disk, run: Started, random: Random) -> None:
    ended = await caller.finish(run, "because " * random.randint(1, 700))
    disk.note(Acknowledged(ended.turn.id, True, ended.turn.last_seq or 0))


def record(synchronous: str) -> Disk:
    """Run the day once, and return the disk with its record."""
    disk = Disk(f"recorded-{synchronous}")

    async def run() -> None:
        driver = SqliteDriver(
            connect_to(disk, synchronous=synchronous), clock=ManualClock(), writer=InlineExecutor()
        )
        await driver.migrate()
        disk.note("migrated")
        store = SqlStore(driver, ProcessTokens())
        await _one_day(store, disk, Random(7))
        await store.close()

    asyncio.run(run())
    return disk


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """The day on a disk, as safe as the connections of a store that is opened by its URL."""
    disk = record(str(pragma_of_writers(tmp_path_factory.mktemp("production"), "synchronous")))
    yield disk
    disk.unregister()


class Found(NamedTuple):
    """What a database has after the power came back."""

    lost: list[Acknowledged]
    wrong: list[str]


def check(folder: Path, images: Images, told: list[Acknowledged]) -> Found:
    """Open what was left on the disk, and compare it with what had been acknowledged."""
    for name in (PATH, f"{PATH}-wal", f"{PATH}-shm"):
        (folder / name).unlink(missing_ok=True)
    for name, image in images.items():
        (folder / name).write_bytes(image)
    connection = sqlite3.connect(folder / PATH)
    try:
        return _compare(connection, told)
    except sqlite3.DatabaseError as exc:
        return Found([], [str(exc)])
    finally:
        connection.close()


def _compare(connection: sqlite3.Connection, told: list[Acknowledged]) -> Found:
    wrong = [text for (text,) in connection.execute("pragma integrity_check") if text != "ok"] + [
        f"foreign key {row}" for row in connection.execute("pragma foreign_key_check")
    ]
    (tables,) = connection.execute("select count(*) from sqlite_master where name = 'log'")
    if tables == (0,):
        return Found(told, wrong)
    tables = read_tables(connection)
    for session in tables.sessions.values():
        seqs = [item.seq for item in tables.items.get(session.id, [])]
        if seqs != list(range(1, session.head_seq + 1)):
            wrong.append(f"session {session.id} has gaps: {seqs}, head {session.head_seq}")
        if session.active_run_id is not None and session.active_run_id not in tables.runs:
            wrong.append(f"turn {session.active_turn_id} is without its run")
        lane = tables.lanes.get(session.id)
        if (lane[0] if lane else None) != session.active_turn_id:
            wrong.append(f"lane {lane} of session {session.id}, head {session.active_turn_id}")
    found = {turn.id: (turn.outcome, turn.last_seq or 0) for turn in tables.turns.values()}
    return Found([one for one in told if not _is_kept(one, found.get(one.turn_id))], wrong)


def _is_kept(told: Acknowledged, found: tuple[Any, int] | None) -> bool:
    if found is None:
        return False
    outcome, last_seq = found
    return last_seq >= told.last_seq and (outcome is not None or not told.is_ended)


@pytest.mark.parametrize(
    ("pragma", "value"), [("synchronous", 2), ("journal_mode", "wal"), ("foreign_keys", 1)]
)
def test_a_store_writes_with_the_settings_that_its_promises_need(
    pragma: str, value: Any, tmp_path: Path
) -> None:
    assert pragma_of_writers(tmp_path, pragma) == value


def told_by(disk: Disk, at: int) -> list[Acknowledged]:
    """Return what had been acknowledged when the disk had done so many operations."""
    return [done.note for done in disk.log[:at] if isinstance(done.note, Acknowledged)]


@pytest.mark.parametrize(("loss", "every"), [("nothing", 1), ("prefix", 13), ("torn", 11)])
def test_no_loss_of_power_loses_what_was_acknowledged_or_breaks_the_file(
    full: Disk, loss: Loss, every: int, tmp_path: Path
) -> None:
    checkpoints = [done for done in full.log if done.kind == "write" and done.file == PATH]
    assert len(checkpoints) > 100, "the day is long enough for checkpoints"
    for at, images in full.power_losses(loss, every=every):
        found = check(tmp_path, images, told_by(full, at))
        assert found == Found([], []), f"cut after operation {at}"


@pytest.mark.parametrize("synchronous", ["normal", "off"])
def test_a_weaker_setting_would_lose_acknowledged_turns(synchronous: str, tmp_path: Path) -> None:
    disk = record(synchronous)
    try:
        losses = [
            len(check(tmp_path, images, told_by(disk, at)).lost)
            for at, images in disk.power_losses("nothing")
            if disk.log[at - 1].kind == "note"
        ]
    finally:
        disk.unregister()
    assert sum(count > 0 for count in losses) > len(losses) / 4


def test_the_check_notices_an_acknowledgement_before_the_sync(full: Disk, tmp_path: Path) -> None:
    too_early = [
        check(tmp_path, images, told_by(full, at + 40)).lost
        for at, images in full.power_losses("nothing", every=7)
    ]
    assert any(too_early)


async def test_the_store_goes_on_after_the_power_came_back(full: Disk, tmp_path: Path) -> None:
    clock = ManualClock()
    clock.advance(7200)
    migrated = next(at for at, done in enumerate(full.log) if done.note == "migrated")
    for at, images in full.power_losses("torn", every=131):
        if at <= migrated:
            continue
        check(tmp_path, images, [])
        store = await open_store(f"sqlite:///{tmp_path / PATH}", clock=clock)
        caller = StoreClient(store, "after")
        await caller.enlist()
        for key in KEYS:
            ended = await caller.finish(await _first_start(caller, key), "I am back")
            assert ended.turn.outcome == "completed"
        await store.close()


async def _first_start(caller: StoreClient, key: str) -> Started:
    """Be accepted, and given the lane as soon as those are settled who stood before."""
    admission = await caller.accept("are you there?", key=key, on_busy="interrupt")
    assert isinstance(admission, Started)
    return admission
