"""Faults of the disk under a running process.

Whatever breaks, a turn is refused before the model is called, nothing acknowledged is lost, and
the process goes on by itself once the fault is gone.
"""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.engine.embedded.api import SessionHandle
from holdfast.engine.embedded.turn_handle import Item
from holdfast.testing.clock import ManualClock
from tests.crash.tampered_store import TamperedStore, open_tampered_store, text_of

Fault = Callable[[TamperedStore], AbstractContextManager[None]]


class Model:
    """Answers with how much it was shown, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, items: list[Item]) -> str:
        self.calls += 1
        return f"answer to {text_of(items[-1])}, knowing {len(items) - 1}"


# ── the faults: each lasts for its block ────────────────────────────────────────────────────


@contextmanager
def full(tampered: TamperedStore) -> Iterator[None]:
    """Let the file grow by not one page more."""

    def fill(connection: sqlite3.Connection) -> None:
        (pages,) = connection.execute("pragma page_count").fetchone()
        connection.execute(f"pragma max_page_count = {pages}")

    tampered.alter(fill)
    try:
        yield
    finally:
        tampered.alter(lambda connection: _ask(connection, "pragma max_page_count = 1000000"))


@contextmanager
def read_only(tampered: TamperedStore) -> Iterator[None]:
    """Have every write refused."""
    tampered.alter(lambda connection: _ask(connection, "pragma query_only = on"))
    try:
        yield
    finally:
        tampered.alter(lambda connection: _ask(connection, "pragma query_only = off"))


@contextmanager
def locked(tampered: TamperedStore) -> Iterator[None]:
    """Have another process hold the write lock for longer than anybody waits."""
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('begin immediate'); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tampered.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        try:
            assert holder.stdout.readline() == b"locked\n"
            yield
        finally:
            holder.stdin.close()
            holder.wait(10)


@contextmanager
def removed(tampered: TamperedStore) -> Iterator[None]:
    """Take the file away, and put it back."""
    away = tampered.path.with_suffix(".away")
    tampered.path.rename(away)
    try:
        yield
    finally:
        assert not tampered.path.exists(), "nothing may be made in its place"
        away.rename(tampered.path)


@contextmanager
def corrupt(tampered: TamperedStore) -> Iterator[None]:
    """Scramble every page but the first, and mend them again."""
    other = sqlite3.connect(tampered.path, isolation_level=None)
    other.execute("pragma wal_checkpoint(truncate)")
    healthy = tampered.path.read_bytes()
    with tampered.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * (len(healthy) - 4096))
    # A write of somebody else makes every connection read its pages again.
    other.execute("pragma user_version = 1")
    other.execute("pragma user_version = 0")
    other.execute("pragma wal_checkpoint(truncate)")
    try:
        yield
    finally:
        with tampered.path.open("r+b") as file:
            file.seek(4096)
            file.write(healthy[4096:])
        other.close()


def _ask(connection: sqlite3.Connection, sql: str) -> None:
    connection.execute(sql)


every_fault = pytest.mark.parametrize(
    "fault", [full, read_only, locked, removed, corrupt], ids=lambda fault: fault.__name__
)
LONG = "x" * 20_000
"""Text that needs pages of its own."""


@every_fault
async def test_a_turn_is_refused_before_the_model_is_called_and_goes_through_afterwards(
    tmp_path: Path, fault: Fault
) -> None:
    model = Model()
    async with open_tampered_store(tmp_path / "a.db") as tampered:
        session = await tampered.hf.session("k")
        await session.run("one", model)
        with fault(tampered):
            with pytest.raises(StoreUnavailable) as caught:
                await session.run(LONG, model, idempotency_key="two")
            assert caught.value.retryable
            assert model.calls == 1
        await session.run(LONG, model, idempotency_key="two")
        await session.run(LONG, model, idempotency_key="two")
        assert model.calls == 2
        assert await tampered.texts() == [
            "one", "answer to one, knowing 0", LONG, f"answer to {LONG}, knowing 2",
        ]  # fmt: skip
        assert (await session.view()).session.turn_count == 2


@every_fault
async def test_an_answer_outlasts_a_fault_that_ends_in_time(tmp_path: Path, fault: Fault) -> None:
    async with open_tampered_store(tmp_path / "a.db") as tampered:
        session = await tampered.hf.session("k")

        async def converse() -> None:
            async with session.turn("one", idempotency_key="one") as turn:
                turn.add(LONG)
                broken.enter_context(fault(tampered))

        with ExitStack() as broken:
            task = asyncio.create_task(converse())
            await tampered.driver.was_refused.wait()
        await task
        assert await tampered.texts() == ["one", LONG]


@every_fault
async def test_a_new_conversation_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, fault: Fault
) -> None:
    async with open_tampered_store(tmp_path / "a.db") as tampered:
        await (await tampered.hf.session("k")).append(LONG)
        with fault(tampered), pytest.raises(StoreUnavailable):
            await (await tampered.hf.session("new")).append(LONG)
        views = await tampered.hf.sessions()
        assert all(view.session.turn_count == (view.session.key == "k") for view in views)
        await (await tampered.hf.session("new")).append(LONG)
        assert await tampered.texts("new") == [LONG]


@pytest.mark.parametrize("fault", [full, read_only, locked], ids=lambda fault: fault.__name__)
async def test_reading_goes_on_where_only_writing_is_broken(tmp_path: Path, fault: Fault) -> None:
    async with open_tampered_store(tmp_path / "a.db") as tampered:
        await (await tampered.hf.session("k")).append("one")
        with fault(tampered):
            assert await tampered.texts() == ["one"]


@every_fault
async def test_an_outage_longer_than_the_lease_costs_a_worker_nothing(
    tmp_path: Path, fault: Fault
) -> None:
    clock = ManualClock()
    async with open_tampered_store(tmp_path / "a.db", clock=clock) as tampered:
        session = await tampered.hf.session("k")

        async def second() -> None:
            async with session.turn("two") as turn:
                turn.add(str(len(await turn.context())))

        async with session.turn("one") as turn:
            with fault(tampered):
                clock.advance(3600)
            waiting = asyncio.create_task(second())
            await _until_one_waits(session)
            turn.add("still here")
        await waiting
        assert await tampered.texts() == ["one", "still here", "two", "3"]


async def _until_one_waits(session: SessionHandle) -> None:
    while (await session.view()).queued_turns == 0:  # noqa: ASYNC110 - the store has no event
        await asyncio.sleep(0)


async def test_a_process_that_starts_on_a_broken_file_is_refused_and_can_start_later(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    async with open_tampered_store(path) as tampered:
        await (await tampered.hf.session("k")).append("one")
    healthy = path.read_bytes()
    path.write_bytes(b"\x5a" * len(healthy))
    with pytest.raises(StoreUnavailable):
        async with open_tampered_store(path):
            raise AssertionError("it must not start")
    path.write_bytes(healthy)
    async with open_tampered_store(path) as tampered:
        assert await tampered.texts() == ["one"]


async def test_damage_to_one_conversation_does_not_stop_the_others(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_tampered_store(path) as tampered:
        for key in ("a", "b"):
            await (await tampered.hf.session(key)).append(key * 20_000)
    raw = bytearray(path.read_bytes())
    overflow = next(
        page for page in range(0, len(raw), 4096) if raw[page + 4 : page + 4096] == b"a" * 4092
    )
    raw[overflow : overflow + 4096] = bytes(4096)
    path.write_bytes(raw)
    async with open_tampered_store(path) as tampered:
        assert await tampered.texts("b") == ["b" * 20_000]
        await (await tampered.hf.session("b")).append("more")
        assert await tampered.texts("b") == ["b" * 20_000, "more"]
        with pytest.raises(StoreUnavailable, match="malformed"):
            await tampered.texts("a")


@pytest.mark.parametrize("fault", ["file_size_limit", "read_only_folder"])
def test_a_process_lives_through_what_the_system_itself_refuses(tmp_path: Path, fault: str) -> None:
    script = Path(__file__).with_name("refused_by_system.py")
    done = subprocess.run(
        [sys.executable, script, fault, str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == ["answered", "store_unavailable", "answered", "in_order"]
