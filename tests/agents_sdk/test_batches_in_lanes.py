"""A batch that is added inside the session's lane is written in the lane, and counts once."""

import asyncio
from typing import Any

import pytest
from agents import function_tool

from holdfast.agents_sdk import HoldfastRunner, HoldfastSession
from holdfast.core.errors import IdempotencyMismatch
from tests.agents_sdk.fake_model import FakeModel, agent_of, calls, texts_of
from tests.agents_sdk.test_session_protocol import say

WAIT = 30


def noting(session: HoldfastSession, batch_id: str, *answers: Any) -> Any:
    """Return an agent whose tool notes something in the session, twice over."""

    @function_tool(failure_error_function=None)
    async def note() -> str:
        for _ in range(2):
            await session.add_items(say("noted"), batch_id=batch_id)
        return "ok"

    return agent_of(FakeModel([*answers]), tools=[note])


def words(items: Any) -> list[str]:
    return [text.split()[0] for text in texts_of(items)]


async def test_a_batch_of_a_tool_is_written_in_the_lane_of_its_run(
    anywhere: HoldfastSession,
) -> None:
    batch_id = f"{anywhere.session_id}:note"
    agent = noting(anywhere, batch_id, calls("note"), "done")
    async with asyncio.timeout(WAIT):
        await HoldfastRunner.run(agent, "go", session=anywhere)
    whole = words(await anywhere.get_items())
    assert sorted(whole) == ["done", "function_call", "function_call_output", "go", "noted"]
    await anywhere.add_items(say("noted"), batch_id=batch_id)
    async with anywhere.serial():
        await anywhere.add_items(say("noted"), batch_id=batch_id)
        with pytest.raises(IdempotencyMismatch):
            await anywhere.add_items(say("other"), batch_id=batch_id)
        await anywhere.add_items(say("after"))
    with pytest.raises(IdempotencyMismatch):
        await anywhere.add_items(say("other"), batch_id=batch_id)
    assert words(await anywhere.get_items()) == [*whole, "after"]


async def test_a_batch_that_came_before_the_lane_is_not_added_in_it(
    anywhere: HoldfastSession,
) -> None:
    batch_id = f"{anywhere.session_id}:before"
    await anywhere.add_items(say("noted"), batch_id=batch_id)
    async with anywhere.serial():
        await anywhere.add_items(say("A"))
        await anywhere.add_items(say("noted"), batch_id=batch_id)
        await anywhere.add_items(say("B"))
    assert texts_of(await anywhere.get_items()) == ["noted", "A", "B"]


async def test_a_batch_of_an_attempt_that_was_torn_off_is_added_by_the_next(
    anywhere: HoldfastSession,
) -> None:
    batch_id, run_id = f"{anywhere.session_id}:torn", f"{anywhere.session_id}:1"
    agent = noting(
        anywhere, batch_id, calls("note"), ConnectionError("gone"), calls("note"), "done"
    )
    with pytest.raises(ConnectionError):
        await HoldfastRunner.run(agent, "go", session=anywhere, run_id=run_id)
    await HoldfastRunner.run(agent, "go", session=anywhere, run_id=run_id)
    assert words(await anywhere.get_items()).count("noted") == 1


async def test_batches_and_items_that_are_added_at_once_are_all_there(
    anywhere: HoldfastSession,
) -> None:
    name = anywhere.session_id
    async with anywhere.serial():
        await asyncio.gather(
            *(
                anywhere.add_items(
                    say(f"{number}"), batch_id=f"{name}:{number}" if number % 2 else None
                )
                for number in range(8)
            )
        )
    assert sorted(texts_of(await anywhere.get_items())) == [f"{number}" for number in range(8)]
