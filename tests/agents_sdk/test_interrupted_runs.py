"""Interrupted runs release their lane and are recorded as interrupted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner

from holdfast.agents_sdk import HoldfastRunner, HoldfastSession
from tests.agents_sdk.fake_model import FakeModel, agent_of, texts_of
from tests.agents_sdk.test_runs import PaymentAgent

WAIT = 30


async def events_of(agent: Agent[Any], session: HoldfastSession) -> AsyncIterator[Any]:
    """A handler of a web server, say: a generator around a run."""
    async with HoldfastRunner.streamed(agent, "hello", session=session) as run:
        yield "begun"
        async for event in run.stream_events():
            yield event


async def test_a_stream_closed_in_another_context_releases_its_lane(
    located_session: HoldfastSession,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]

    async def leave() -> AsyncIterator[Any]:
        events = events_of(agent_of(model), located_session)
        assert await anext(events) == "begun"
        return events

    events = await asyncio.create_task(leave())
    await asyncio.create_task(events.aclose())  # type: ignore[attr-defined] # of a generator
    agent = agent_of(FakeModel())
    async with asyncio.timeout(WAIT):
        result = await HoldfastRunner.run(agent, "next", session=located_session)
        await Runner.run(agent, "bare", session=located_session)
    assert result.final_output == "answer to next"


async def test_the_context_that_started_a_closed_stream_no_longer_holds_the_lane(
    located_session: HoldfastSession,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    events = events_of(agent_of(model), located_session)
    assert await anext(events) == "begun"
    await asyncio.create_task(events.aclose())  # type: ignore[attr-defined] # of a generator
    async with asyncio.timeout(WAIT):
        result = await HoldfastRunner.run(agent_of(FakeModel()), "next", session=located_session)
        await located_session.add_items([{"role": "user", "content": "by hand"}])
    assert result.final_output == "answer to next"
    assert texts_of(await located_session.get_items())[-3:] == ["next", "answer to next", "by hand"]


async def test_an_abandoned_stream_restarts(located_session: HoldfastSession) -> None:
    model, run_id = FakeModel(), f"{located_session.session_id}:left"
    model.gates = [asyncio.Event()]
    async with HoldfastRunner.streamed(
        agent_of(model), "hello", session=located_session, run_id=run_id
    ) as run:
        async for _ in run.stream_events():
            break
    for _ in range(2):
        result = await HoldfastRunner.run(
            agent_of(FakeModel()), "hello", session=located_session, run_id=run_id
        )
        assert result.final_output == "answer to hello"
    assert texts_of(await located_session.get_items()) == ["hello", "answer to hello"]


async def test_a_cancelled_stream_restarts(located_session: HoldfastSession) -> None:
    model, run_id = FakeModel(), f"{located_session.session_id}:cancelled"
    model.gates = [asyncio.Event()]
    async with HoldfastRunner.streamed(
        agent_of(model), "hello", session=located_session, run_id=run_id
    ) as run:
        run.cancel()
    result = await HoldfastRunner.run(
        agent_of(FakeModel()), "hello", session=located_session, run_id=run_id
    )
    assert result.final_output == "answer to hello"
    assert texts_of(await located_session.get_items()) == ["hello", "answer to hello"]


async def test_a_stream_whose_error_was_handled_inside_restarts(
    located_session: HoldfastSession,
) -> None:
    model, run_id = (
        FakeModel([ConnectionError("gone"), "hi"]),
        f"{located_session.session_id}:failed",
    )
    agent = agent_of(model)
    async with HoldfastRunner.streamed(
        agent, "hello", session=located_session, run_id=run_id
    ) as run:
        with pytest.raises(ConnectionError):
            async for _ in run.stream_events():
                pass
    result = await HoldfastRunner.run(agent, "hello", session=located_session, run_id=run_id)
    assert result.final_output == "hi"
    assert texts_of(await located_session.get_items()) == ["hello", "hi"]


async def test_a_stream_read_to_its_end_is_completed(located_session: HoldfastSession) -> None:
    model, run_id = FakeModel(), f"{located_session.session_id}:done"
    agent = agent_of(model)
    async with HoldfastRunner.streamed(
        agent, "hello", session=located_session, run_id=run_id
    ) as run:
        async for _ in run.stream_events():
            pass
        run.cancel()  # too late to matter
    result = await HoldfastRunner.run(agent, "hello", session=located_session, run_id=run_id)
    assert result.final_output == "answer to hello"
    assert len(model.asked) == 1


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_a_repeat_of_an_interrupted_run_returns_its_pending_decisions(
    located_session: HoldfastSession, is_streamed: bool
) -> None:
    payments, run_id = PaymentAgent(), f"{located_session.session_id}:interrupted"
    context = {"user": "ada"}
    if is_streamed:
        async with HoldfastRunner.streamed(
            payments.agent, "pay", session=located_session, run_id=run_id, context=context
        ) as run:
            async for _ in run.stream_events():
                pass
    else:
        await HoldfastRunner.run(
            payments.agent, "pay", session=located_session, run_id=run_id, context=context
        )
    again = await HoldfastRunner.run(
        payments.agent, "pay", session=located_session, run_id=run_id, context=context
    )
    assert [one.raw_item.call_id for one in again.interruptions] == ["call_pay"]  # type: ignore[union-attr] # a call
    assert again.context_wrapper.context is context
    assert (again.final_output, len(payments.model.asked)) == (None, 1)
    state = again.to_state()
    state.approve(again.interruptions[0])
    done = await HoldfastRunner.run(payments.agent, state, session=located_session)
    assert (done.final_output, payments.paid) == ("it is paid", ["paid"])
    assert texts_of(await located_session.get_items()) == [
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


async def test_a_run_that_outlives_its_lane_block_continues_without_the_lane(
    located_session: HoldfastSession,
) -> None:
    model = FakeModel()
    model.gates = [asyncio.Event()]
    async with located_session.serial():
        run = Runner.run_streamed(agent_of(model), "A", session=located_session)
        await model.arrivals.get()
    model.gates[0].set()
    async for _ in run.stream_events():
        pass
    assert run.final_output == "answer to A"
    assert texts_of(await located_session.get_items()) == ["A", "answer to A"]
