"""A batch that is appended inside the session's lane is written in the lane, once."""

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


async def test_a_tools_batch_is_written_in_the_lane_of_its_run(
    located_session: HoldfastSession,
) -> None:
    batch_id = f"{located_session.session_id}:note"
    agent = noting(located_session, batch_id, calls("note"), "done")
    async with asyncio.timeout(WAIT):
        await HoldfastRunner.run(agent, "go", session=located_session)
    whole = words(await located_session.get_items())
    assert sorted(whole) == ["done", "function_call", "function_call_output", "go", "noted"]
    await located_session.add_items(say("noted"), batch_id=batch_id)
    async with located_session.serial():
        await located_session.add_items(say("noted"), batch_id=batch_id)
        with pytest.raises(IdempotencyMismatch):
            await located_session.add_items(say("other"), batch_id=batch_id)
        await located_session.add_items(say("after"))
    with pytest.raises(IdempotencyMismatch):
        await located_session.add_items(say("other"), batch_id=batch_id)
    assert words(await located_session.get_items()) == [*whole, "after"]


async def test_a_batch_stored_before_the_lane_is_not_added_again_in_it(
    located_session: HoldfastSession,
) -> None:
    batch_id = f"{located_session.session_id}:before"
    await located_session.add_items(say("noted"), batch_id=batch_id)
    async with located_session.serial():
        await located_session.add_items(say("A"))
        await located_session.add_items(say("noted"), batch_id=batch_id)
        await located_session.add_items(say("B"))
    assert texts_of(await located_session.get_items()) == ["noted", "A", "B"]


async def test_a_batch_of_an_interrupted_attempt_is_added_by_the_next_attempt(
    located_session: HoldfastSession,
) -> None:
    batch_id, run_id = (
        f"{located_session.session_id}:interrupted",
        f"{located_session.session_id}:1",
    )
    agent = noting(
        located_session, batch_id, calls("note"), ConnectionError("gone"), calls("note"), "done"
    )
    with pytest.raises(ConnectionError):
        await HoldfastRunner.run(agent, "go", session=located_session, run_id=run_id)
    await HoldfastRunner.run(agent, "go", session=located_session, run_id=run_id)
    assert words(await located_session.get_items()).count("noted") == 1


async def test_concurrent_batches_and_items_are_all_stored(
    located_session: HoldfastSession,
) -> None:
    name = located_session.session_id
    async with located_session.serial():
        await asyncio.gather(
            *(
                located_session.add_items(
                    say(f"{number}"), batch_id=f"{name}:{number}" if number % 2 else None
                )
                for number in range(8)
            )
        )
    assert sorted(texts_of(await located_session.get_items())) == [
        f"{number}" for number in range(8)
    ]
