"""Runs that are left before their end give their lane back, and count as what they are."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner

from holdfast.agents_sdk import HoldfastRunner, HoldfastSession
from tests.agents_sdk.fake_model import FakeModel, agent_of, texts_of
from tests.agents_sdk.test_runs import Bank

WAIT = 30


async def events_of(agent: Agent[Any], session: HoldfastSession) -> AsyncIterator[Any]:
    """A handler of a web server, say: a generator around a run."""
    async with HoldfastRunner.streamed(agent, "hello", session=session) as run:
        yield "begun"
        async for event in run.stream_events():
            yield event


async def test_a_stream_whose_generator_is_closed_elsewhere_gives_its_lane_back(
    anywhere: HoldfastSession,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]

    async def leave() -> AsyncIterator[Any]:
        events = events_of(agent_of(model), anywhere)
        assert await anext(events) == "begun"
        return events

    events = await asyncio.create_task(leave())
    await asyncio.create_task(events.aclose())  # type: ignore[attr-defined] # of a generator
    agent = agent_of(FakeModel())
    async with asyncio.timeout(WAIT):
        result = await HoldfastRunner.run(agent, "next", session=anywhere)
        await Runner.run(agent, "bare", session=anywhere)
    assert result.final_output == "answer to next"


async def test_who_began_such_a_generator_has_the_lane_no_more(anywhere: HoldfastSession) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    events = events_of(agent_of(model), anywhere)
    assert await anext(events) == "begun"
    await asyncio.create_task(events.aclose())  # type: ignore[attr-defined] # of a generator
    async with asyncio.timeout(WAIT):
        result = await HoldfastRunner.run(agent_of(FakeModel()), "next", session=anywhere)
        await anywhere.add_items([{"role": "user", "content": "by hand"}])
    assert result.final_output == "answer to next"
    assert texts_of(await anywhere.get_items())[-3:] == ["next", "answer to next", "by hand"]


async def test_a_stream_that_is_left_is_begun_anew(anywhere: HoldfastSession) -> None:
    model, run_id = FakeModel(), f"{anywhere.session_id}:left"
    model.gates = [asyncio.Event()]
    async with HoldfastRunner.streamed(
        agent_of(model), "hello", session=anywhere, run_id=run_id
    ) as run:
        async for _ in run.stream_events():
            break
    for _ in range(2):
        result = await HoldfastRunner.run(
            agent_of(FakeModel()), "hello", session=anywhere, run_id=run_id
        )
        assert result.final_output == "answer to hello"
    assert texts_of(await anywhere.get_items()) == ["hello", "answer to hello"]


async def test_a_stream_that_is_cancelled_is_begun_anew(anywhere: HoldfastSession) -> None:
    model, run_id = FakeModel(), f"{anywhere.session_id}:cancelled"
    model.gates = [asyncio.Event()]
    async with HoldfastRunner.streamed(
        agent_of(model), "hello", session=anywhere, run_id=run_id
    ) as run:
        run.cancel()
    result = await HoldfastRunner.run(
        agent_of(FakeModel()), "hello", session=anywhere, run_id=run_id
    )
    assert result.final_output == "answer to hello"
    assert texts_of(await anywhere.get_items()) == ["hello", "answer to hello"]


async def test_a_stream_whose_error_was_handled_inside_is_begun_anew(
    anywhere: HoldfastSession,
) -> None:
    model, run_id = FakeModel([ConnectionError("gone"), "hi"]), f"{anywhere.session_id}:failed"
    agent = agent_of(model)
    async with HoldfastRunner.streamed(agent, "hello", session=anywhere, run_id=run_id) as run:
        with pytest.raises(ConnectionError):
            async for _ in run.stream_events():
                pass
    result = await HoldfastRunner.run(agent, "hello", session=anywhere, run_id=run_id)
    assert result.final_output == "hi"
    assert texts_of(await anywhere.get_items()) == ["hello", "hi"]


async def test_a_stream_that_is_read_to_its_end_is_done(anywhere: HoldfastSession) -> None:
    model, run_id = FakeModel(), f"{anywhere.session_id}:done"
    agent = agent_of(model)
    async with HoldfastRunner.streamed(agent, "hello", session=anywhere, run_id=run_id) as run:
        async for _ in run.stream_events():
            pass
        run.cancel()  # too late to matter
    result = await HoldfastRunner.run(agent, "hello", session=anywhere, run_id=run_id)
    assert result.final_output == "answer to hello"
    assert len(model.asked) == 1


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_a_parked_run_that_is_asked_again_gives_back_what_it_waits_for(
    anywhere: HoldfastSession, is_streamed: bool
) -> None:
    bank, run_id = Bank(), f"{anywhere.session_id}:parked"
    context = {"user": "ada"}
    if is_streamed:
        async with HoldfastRunner.streamed(
            bank.agent, "pay", session=anywhere, run_id=run_id, context=context
        ) as run:
            async for _ in run.stream_events():
                pass
    else:
        await HoldfastRunner.run(
            bank.agent, "pay", session=anywhere, run_id=run_id, context=context
        )
    again = await HoldfastRunner.run(
        bank.agent, "pay", session=anywhere, run_id=run_id, context=context
    )
    assert [one.raw_item.call_id for one in again.interruptions] == ["call_pay"]  # type: ignore[union-attr] # a call
    assert again.context_wrapper.context is context
    assert (again.final_output, len(bank.model.asked)) == (None, 1)
    state = again.to_state()
    state.approve(again.interruptions[0])
    done = await HoldfastRunner.run(bank.agent, state, session=anywhere)
    assert (done.final_output, bank.paid) == ("it is paid", ["paid"])
    assert texts_of(await anywhere.get_items()) == [
        "pay", "function_call call_pay", "function_call_output call_pay", "it is paid",
    ]  # fmt: skip


# ── corners of a lane ───────────────────────────────────────────────────────────────────────


async def test_a_lane_is_the_same_however_its_file_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    item: Any = {"role": "user", "content": "hi"}
    names = [
        str(tmp_path / "s.db"),
        f"sqlite:///{tmp_path / 's.db'}",
        "link/s.db",
        "sqlite:///s.db",
    ]
    async with HoldfastSession("k", "s.db") as session, session.serial():
        for name in names:
            async with HoldfastSession("k", name) as other, asyncio.timeout(WAIT):
                await other.add_items([item])
        assert await session.get_items() == [item] * len(names)


async def test_a_run_that_outlives_the_block_of_its_lane_goes_on_without_it(
    anywhere: HoldfastSession,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    async with anywhere.serial():
        run = Runner.run_streamed(agent_of(model), "A", session=anywhere)
        await model.arrivals.get()
    model.gates[0].set()
    async for _ in run.stream_events():
        pass
    assert run.final_output == "answer to A"
    assert texts_of(await anywhere.get_items()) == ["A", "answer to A"]
