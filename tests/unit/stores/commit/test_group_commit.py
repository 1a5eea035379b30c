"""Group commit: what arrives together is committed together, by one loop."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.errors import InvalidInput, StoreClosed
from holdfast.core.ids import DEFAULT_TENANT, RunId, SessionId, TurnId, WorkerId
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Accept, Command, Reserve
from holdfast.stores.commit import group_commit
from holdfast.stores.commit.group_commit import (
    BatchDriver,
    GroupCommitter,
    Result,
    Settle,
)


def command(name: str) -> Command[Any]:
    return Reserve(tenant=DEFAULT_TENANT, candidate_id=SessionId(name))


async def submitted(committer: GroupCommitter, name: str) -> Decision[Any]:
    return await committer.submit(command(name))


class Held(BatchDriver):
    """A driver whose commits wait to be let go, from whatever thread."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.begun = threading.Event()
        self.may_end = threading.Event()

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        self.batches.append(len(commands))
        self.begun.set()
        await asyncio.to_thread(self.may_end.wait)
        return [Decision(one) for one in commands]


async def test_commands_of_one_loop_iteration_share_a_commit() -> None:
    driver = Held()
    driver.may_end.set()
    committer = GroupCommitter(driver)
    found = await asyncio.gather(*(submitted(committer, f"s{n}") for n in range(9)))
    assert driver.batches == [9]
    answered = [one.outcome for one in found]
    assert answered == [command(f"s{n}") for n in range(9)]


async def test_commands_that_arrive_during_a_commit_share_the_next_one() -> None:
    driver = Held()
    committer = GroupCommitter(driver)
    first = asyncio.create_task(submitted(committer, "first"))
    await asyncio.to_thread(driver.begun.wait)
    rest = [asyncio.create_task(submitted(committer, f"s{n}")) for n in range(5)]
    await asyncio.sleep(0)
    driver.may_end.set()
    await asyncio.gather(first, *rest)
    assert driver.batches == [1, 5]
    counts = committer.commits
    assert counts.by_commands == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0], "by the bounds 1 and 8"
    assert (sum(counts.by_seconds), counts.commands) == (2, 6)
    assert counts.seconds > 0.0


async def test_a_commit_that_fails_is_not_counted() -> None:
    class Failing(BatchDriver):
        async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
            raise OSError

    committer = GroupCommitter(Failing())
    with pytest.raises(OSError):  # noqa: PT011 - any
        await submitted(committer, "s")
    assert (sum(committer.commits.by_commands), committer.commits.commands) == (0, 0)


class Patient(Held):
    """A driver whose turns all join a queue."""

    @staticmethod
    def can_wait(_: Accept) -> bool:
        """Return that nobody has to wait for this commit."""
        return True


def arrival(name: str) -> Accept:
    return Accept(
        tenant=DEFAULT_TENANT, turn_id=TurnId(name), run_id=RunId(name), worker=WorkerId("w"),
        candidate_id=SessionId(name),
    )  # fmt: skip


async def test_a_turn_that_joins_a_queue_is_committed_with_the_next_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit, "MAX_DELAY", 3600.0)
    driver = Patient()
    committer = GroupCommitter(driver)
    first = asyncio.create_task(submitted(committer, "first"))
    await asyncio.to_thread(driver.begun.wait)
    during = committer.submit(arrival("during a commit"))
    driver.may_end.set()
    await first
    assert driver.batches == [1]
    behind = committer.submit(arrival("behind it"))
    await submitted(committer, "next")
    assert driver.batches == [1, 3]
    assert during.done()
    assert behind.done()


async def test_a_turn_that_joins_a_queue_is_committed_soon_by_itself() -> None:
    driver = Patient()
    driver.may_end.set()
    committer = GroupCommitter(driver)
    found = await asyncio.gather(*(committer.submit(arrival(name)) for name in "abc"))
    assert [one.outcome for one in found] == [arrival(name) for name in "abc"]
    assert driver.batches == [3]


async def test_a_turn_that_waits_for_others_is_committed_before_the_store_closes() -> None:
    driver = Patient()
    driver.may_end.set()
    committer = GroupCommitter(driver)
    done = committer.submit(arrival("a"))
    await committer.close()
    assert done.done()


class AtOnce(Patient):
    """The same, whose commits are over before their callers go on."""

    def commit_then(self, commands: Sequence[Command[Any]], settle: Settle) -> None:
        """Commit where the command is submitted."""
        self.batches.append(len(commands))
        settle([Decision(one) for one in commands], None)


async def test_turns_that_join_a_queue_do_not_delay_the_next_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_commit, "MAX_DELAY", 3600.0)
    driver = AtOnce()
    committer = GroupCommitter(driver)
    for number in range(1, 4):
        joining = committer.submit(arrival(f"arrival {number}"))
        assert not joining.done()
        ending = committer.submit(command(f"end {number}"))
        assert joining.done()
        assert ending.done()
        assert driver.batches == [2] * number
        await asyncio.sleep(0)  # once per round of the loop


async def test_a_turn_waits_for_a_commit_to_join_as_long_as_the_one_before_it_could(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(group_commit, "MAX_DELAY", 100.0)
    driver = AtOnce()
    committer = GroupCommitter(driver)

    async def move(seconds: float) -> None:
        nonlocal now
        now += seconds
        for _ in range(3):  # due timers, and what they schedule
            await asyncio.sleep(0)

    earlier = committer.submit(arrival("earlier"))
    committer.submit(command("end"))
    assert earlier.done()
    await move(75)
    later = committer.submit(arrival("later"))
    await move(50)  # the timer of the earlier one
    assert not later.done(), "a commit of its own, although it may wait for another 50 seconds"
    committer.submit(command("next end"))
    assert later.done()
    assert driver.batches == [2, 2]
    last = committer.submit(arrival("last"))
    await move(99)
    assert not last.done()
    await move(2)
    assert last.done()
    assert driver.batches == [2, 2, 1]


async def test_a_second_event_loop_is_refused_while_the_first_one_commits() -> None:
    driver = Held()
    committer = GroupCommitter(driver)
    first = asyncio.create_task(submitted(committer, "first"))
    await asyncio.to_thread(driver.begun.wait)

    def use_elsewhere() -> None:
        asyncio.run(submitted(committer, "second"))

    with pytest.raises(InvalidInput, match="another event loop"):
        await asyncio.to_thread(use_elsewhere)
    driver.may_end.set()
    await first
    await committer.close()
    with pytest.raises(StoreClosed):
        await committer.submit(command("late"))
