"""Two real processes on one store: one history, and an heir for what one leaves behind."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.engine.embedded import Holdfast

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
"""Less than a lease would take."""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store that processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'holdfast.db'}"
    return str(request.getfixturevalue("postgres_url"))


class PeerProcess:
    """The other end of `peer.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def ask(self, **request: Any) -> None:
        """Have it begin something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")

    async def answer(self) -> dict[str, Any]:
        """Return its next answer."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            line = await self.process.stdout.readline()
        assert line, "the process is gone"
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def answers(self, count: int) -> list[dict[str, Any]]:
        """Return its next answers."""
        return [await self.answer() for _ in range(count)]

    async def kill(self) -> None:
        """End it as the power does: no farewell, no clean-up."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def peer(url: str, name: str) -> AsyncIterator[PeerProcess]:
    """Run a process on the store until the block ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.crash.peer", url, name,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    found = PeerProcess(process)
    try:
        assert await found.answer() == {"ready": name}
        yield found
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(SECONDS):
                assert await process.wait() == 0
    finally:
        if process.returncode is None:
            await found.kill()


async def history(hf: Holdfast, key: str) -> list[str]:
    """Return what was said under a key."""
    session = await hf.session(key)
    return [str(item["content"][0]["text"]) for item in await session.items()]


async def test_forty_first_contacts_in_two_processes_are_one_serial_conversation(url: str) -> None:
    async with peer(url, "a") as here, peer(url, "b") as there:
        for n in range(20):
            here.ask(key="k", text=f"a{n}")
            there.ask(key="k", text=f"b{n}")
        answers = await here.answers(20) + await there.answers(20)
    assert len({answer["session"] for answer in answers}) == 1
    assert len({answer["turn"] for answer in answers}) == 40
    async with holdfast.open(url) as hf:
        listed = await hf.sessions(generations=True)
        assert [view.session.turn_count for view in listed] == [40]
        said = await history(hf, "k")
    assert sorted(said[::2]) == sorted(f"{name}{n}" for name in "ab" for n in range(20))
    # Every run saw all that the runs before it had said, and its own input: nothing in between.
    assert said[1::2] == [f"{said[at][0]} knows {at + 1}" for at in range(0, 80, 2)]


async def test_the_other_process_carries_on_at_once_where_one_was_killed(url: str) -> None:
    async with peer(url, "b") as there:
        async with peer(url, "a") as here:
            here.ask(key="k", text="stuck", source="channel", stuck=True)
            stuck = await here.answer()
            here.ask(key="l", text="stuck", stuck=True)
            alone = await here.answer()
            # It waits behind the stuck turn, in the process that lives on.
            there.ask(key="k", text="behind")
            await here.kill()
        adopted = await there.answer()
        assert adopted == {"adopted": stuck["stuck"], "by": "b"}
        assert (await there.answer())["done"] == "behind"
        there.ask(key="l", text="next")
        assert (await there.answer())["done"] == "next"
    async with holdfast.open(url) as hf:
        assert await history(hf, "k") == ["stuck", "b knows 1", "behind", "b knows 3"]
        assert await history(hf, "l") == ["stuck", "next", "b knows 2"]
        session = await hf.session("l")
        left = [view for view in await session.turns() if view.turn.id == alone["stuck"]]
        assert [(view.status, view.turn.error_code) for view in left] == [
            ("interrupted", "worker_lost")
        ]


async def test_a_process_that_starts_after_a_kill_takes_up_what_was_left(url: str) -> None:
    async with peer(url, "a") as here:
        here.ask(key="k", text="first", source="channel", stuck=True)
        stuck = await here.answer()
        here.ask(key="k", text="second", source="channel")
        async with holdfast.open(url) as hf:
            await _until_waiting(hf, "k")
        await here.kill()
    async with peer(url, "b") as there:
        assert await there.answer() == {"adopted": stuck["stuck"], "by": "b"}
        assert (await there.answer())["by"] == "b"
    async with holdfast.open(url) as hf:
        assert await history(hf, "k") == ["first", "b knows 1", "second", "b knows 3"]
        session = await hf.session("k")
        assert [view.turn.outcome for view in await session.turns()] == ["completed"] * 2


async def _until_waiting(hf: Holdfast, key: str) -> None:
    """Wait until a turn waits in the lane: the other process has accepted it."""
    session = await hf.session(key)
    async with asyncio.timeout(SECONDS):
        while (await session.view()).queued_turns == 0:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)
