"""An interrupted run is resumed once, whichever copy of its state comes second."""

from typing import Any

import pytest
from agents import Runner, RunState

from holdfast.agents_sdk import HoldfastRunner, HoldfastSession, RunStateUsed
from tests.agents_sdk.fake_model import calls, texts_of
from tests.agents_sdk.test_equal_runs import ApprovalAgent
from tests.agents_sdk.test_runs import PaymentAgent

PAID = ["pay", "function_call call_pay", "function_call_output call_pay", "it is paid"]
RUNNERS = pytest.mark.parametrize("runner", [HoldfastRunner, Runner], ids=["helper", "SDK"])


def approved(state: RunState[Any]) -> RunState[Any]:
    for interruption in state.get_interruptions():
        state.approve(interruption)
    return state


async def assert_rejected(
    payments: PaymentAgent, state: RunState[Any], session: HoldfastSession
) -> None:
    with pytest.raises(RunStateUsed, match="resumed before"):
        await HoldfastRunner.run(payments.agent, approved(state), session=session)
    with pytest.raises(RunStateUsed, match="resumed before"):
        async with HoldfastRunner.streamed(payments.agent, approved(state), session=session):
            pass
    assert payments.paid == ["paid"]
    assert texts_of(await session.get_items()) == PAID


@RUNNERS
async def test_all_states_of_one_result_are_resumed_once_together(
    located_session: HoldfastSession, runner: Any
) -> None:
    payments = PaymentAgent()
    result = await runner.run(payments.agent, "pay", session=located_session)
    await HoldfastRunner.run(payments.agent, approved(result.to_state()), session=located_session)
    await assert_rejected(payments, result.to_state(), located_session)
    sent = await RunState.from_string(payments.agent, result.to_state().to_string())
    await assert_rejected(payments, sent, located_session)


@RUNNERS
async def test_the_resumed_state_itself_is_rejected(
    located_session: HoldfastSession, runner: Any
) -> None:
    payments = PaymentAgent()
    state = approved((await runner.run(payments.agent, "pay", session=located_session)).to_state())
    await HoldfastRunner.run(payments.agent, state, session=located_session)
    await assert_rejected(payments, state, located_session)
    await assert_rejected(
        payments, await RunState.from_string(payments.agent, state.to_string()), located_session
    )


@pytest.mark.parametrize("first", ["inside", "after"])
async def test_a_streams_state_is_the_same_inside_its_block_and_after_it(
    located_session: HoldfastSession, first: str
) -> None:
    payments = PaymentAgent()
    async with HoldfastRunner.streamed(payments.agent, "pay", session=located_session) as run:
        async for _ in run.stream_events():
            pass
        inside = run.to_state().to_string()
    after = run.to_state().to_string()
    copies = [inside, after] if first == "inside" else [after, inside]
    await HoldfastRunner.run(
        payments.agent, await payments.resumed(copies[0]), session=located_session
    )
    await assert_rejected(payments, await payments.resumed(copies[1]), located_session)


async def test_a_state_resumed_as_a_stream_is_rejected_while_it_streams(
    located_session: HoldfastSession,
) -> None:
    payments = PaymentAgent()
    result = await HoldfastRunner.run(payments.agent, "pay", session=located_session)
    state = approved(result.to_state())
    async with HoldfastRunner.streamed(payments.agent, state, session=located_session) as run:
        async for _ in run.stream_events():
            pass
    await assert_rejected(payments, state, located_session)
    await assert_rejected(payments, result.to_state(), located_session)


@pytest.mark.parametrize("again", ["the same state", "a new state"])
async def test_a_run_interrupted_again_is_resumed_again(
    located_session: HoldfastSession, again: str
) -> None:
    payments = PaymentAgent(
        calls("pay", call_id="call_1"), calls("pay", call_id="call_2"), "it is paid"
    )
    state = approved(
        (await HoldfastRunner.run(payments.agent, "pay", session=located_session)).to_state()
    )
    result = await HoldfastRunner.run(payments.agent, state, session=located_session)
    assert len(result.interruptions) == 1
    copies = [approved(result.to_state()), state]
    if again == "the same state":
        state.approve(result.interruptions[0])
        copies.reverse()
    done = await HoldfastRunner.run(payments.agent, copies[0], session=located_session)
    assert done.final_output == "it is paid"
    assert payments.paid == ["paid", "paid"]
    with pytest.raises(RunStateUsed, match="resumed before"):
        await HoldfastRunner.run(payments.agent, copies[1], session=located_session)
    assert payments.paid == ["paid", "paid"]


async def test_a_later_equal_run_does_not_free_the_state_of_an_earlier_one(
    located_session: HoldfastSession,
) -> None:
    agent = ApprovalAgent()
    used = await agent.interrupted(located_session)
    await agent.resume(used, located_session)
    waiting = await agent.interrupted(located_session)
    await agent.assert_rejected(used, located_session)
    assert agent.paid == 1
    assert await agent.resume(waiting, located_session) == "it is paid"
    assert agent.paid == 2
