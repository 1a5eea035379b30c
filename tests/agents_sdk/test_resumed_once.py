"""A parked run is resumed once, whichever copy of its state comes second."""

from typing import Any

import pytest
from agents import Runner, RunState

from holdfast.agents_sdk import HoldfastRunner, HoldfastSession, RunStateUsed
from tests.agents_sdk.fake_model import calls, texts_of
from tests.agents_sdk.test_equal_runs import Till
from tests.agents_sdk.test_runs import Bank

PAID = ["pay", "function_call call_pay", "function_call_output call_pay", "it is paid"]
RUNNERS = pytest.mark.parametrize("runner", [HoldfastRunner, Runner], ids=["helper", "SDK"])


def approved(state: RunState[Any]) -> RunState[Any]:
    for interruption in state.get_interruptions():
        state.approve(interruption)
    return state


async def is_refused(bank: Bank, state: RunState[Any], session: HoldfastSession) -> None:
    with pytest.raises(RunStateUsed, match="resumed before"):
        await HoldfastRunner.run(bank.agent, approved(state), session=session)
    with pytest.raises(RunStateUsed, match="resumed before"):
        async with HoldfastRunner.streamed(bank.agent, approved(state), session=session):
            pass
    assert bank.paid == ["paid"]
    assert texts_of(await session.get_items()) == PAID


@RUNNERS
async def test_the_state_of_one_result_is_resumed_once_however_often_it_is_taken(
    anywhere: HoldfastSession, runner: Any
) -> None:
    bank = Bank()
    result = await runner.run(bank.agent, "pay", session=anywhere)
    await HoldfastRunner.run(bank.agent, approved(result.to_state()), session=anywhere)
    await is_refused(bank, result.to_state(), anywhere)
    sent = await RunState.from_string(bank.agent, result.to_state().to_string())
    await is_refused(bank, sent, anywhere)


@RUNNERS
async def test_the_very_state_that_was_resumed_is_refused(
    anywhere: HoldfastSession, runner: Any
) -> None:
    bank = Bank()
    state = approved((await runner.run(bank.agent, "pay", session=anywhere)).to_state())
    await HoldfastRunner.run(bank.agent, state, session=anywhere)
    await is_refused(bank, state, anywhere)
    await is_refused(bank, await RunState.from_string(bank.agent, state.to_string()), anywhere)


@pytest.mark.parametrize("first", ["inside", "after"])
async def test_the_state_of_a_stream_is_one_inside_its_block_and_after_it(
    anywhere: HoldfastSession, first: str
) -> None:
    bank = Bank()
    async with HoldfastRunner.streamed(bank.agent, "pay", session=anywhere) as run:
        async for _ in run.stream_events():
            pass
        inside = run.to_state().to_string()
    after = run.to_state().to_string()
    copies = [inside, after] if first == "inside" else [after, inside]
    await HoldfastRunner.run(bank.agent, await bank.resumed(copies[0]), session=anywhere)
    await is_refused(bank, await bank.resumed(copies[1]), anywhere)


async def test_a_state_resumed_as_a_stream_is_refused_while_it_streams(
    anywhere: HoldfastSession,
) -> None:
    bank = Bank()
    result = await HoldfastRunner.run(bank.agent, "pay", session=anywhere)
    state = approved(result.to_state())
    async with HoldfastRunner.streamed(bank.agent, state, session=anywhere) as run:
        async for _ in run.stream_events():
            pass
    await is_refused(bank, state, anywhere)
    await is_refused(bank, result.to_state(), anywhere)


@pytest.mark.parametrize("again", ["the same state", "a new state"])
async def test_a_run_that_is_parked_again_is_resumed_again(
    anywhere: HoldfastSession, again: str
) -> None:
    bank = Bank(calls("pay", call_id="call_1"), calls("pay", call_id="call_2"), "it is paid")
    state = approved((await HoldfastRunner.run(bank.agent, "pay", session=anywhere)).to_state())
    result = await HoldfastRunner.run(bank.agent, state, session=anywhere)
    assert len(result.interruptions) == 1
    copies = [approved(result.to_state()), state]
    if again == "the same state":
        state.approve(result.interruptions[0])
        copies.reverse()
    done = await HoldfastRunner.run(bank.agent, copies[0], session=anywhere)
    assert done.final_output == "it is paid"
    assert bank.paid == ["paid", "paid"]
    with pytest.raises(RunStateUsed, match="resumed before"):
        await HoldfastRunner.run(bank.agent, copies[1], session=anywhere)
    assert bank.paid == ["paid", "paid"]


async def test_an_equal_run_that_is_parked_later_does_not_free_the_state_of_one_before(
    anywhere: HoldfastSession,
) -> None:
    till = Till()
    used = await till.parked(anywhere)
    await till.resume(used, anywhere)
    waiting = await till.parked(anywhere)
    await till.is_refused(used, anywhere)
    assert till.paid == 1
    assert await till.resume(waiting, anywhere) == "it is paid"
    assert till.paid == 2
