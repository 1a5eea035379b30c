"""Local servers number calls from zero: their interrupted runs look equal, yet each is distinct."""

from pathlib import Path
from typing import Any

import pytest
from agents import ModelResponse, Runner, RunState, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall

from holdfast.agents_sdk import HoldfastRunner, HoldfastSession, RunStateUsed
from tests.acceptance.gateway_process import running_gateway
from tests.agents_sdk.fake_model import FakeModel, agent_of, says
from tests.store_urls import sqlite_url


def call_or_answer(asked: list[Any]) -> Any:
    """Ask for the tool, always by one call id, until its output is the last thing said."""
    if asked[-1].get("type") == "function_call_output":
        return [says("it is paid", item_id="msg_1")]
    call = ResponseFunctionToolCall(
        id="fc_1", type="function_call", name="pay", arguments="{}", call_id="call_1"
    )
    return [call]


class LocalModel(FakeModel):
    """Gives its responses no ids."""

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        return ModelResponse(output=await self._answer(input), usage=Usage(), response_id=None)


class ApprovalAgent:
    """An agent with a local model, whose tool needs approval and counts what it did."""

    def __init__(self, *, interrupted_by_helper: bool = True) -> None:
        self.paid = 0
        self._runner = HoldfastRunner if interrupted_by_helper else Runner
        self.is_broken = False

        @function_tool(needs_approval=True, failure_error_function=None)
        def pay() -> str:
            self.paid += 1
            if self.is_broken:
                raise ConnectionError("gone")
            return "paid"

        self.agent = agent_of(LocalModel(call_or_answer), tools=[pay])

    async def interrupted(self, session: HoldfastSession) -> str:
        result = await self._runner.run(self.agent, "pay", session=session)
        return result.to_state().to_string()

    async def resume(self, interrupted: str, session: HoldfastSession) -> Any:
        state: RunState[Any] = await RunState.from_string(self.agent, interrupted)
        for interruption in state.get_interruptions():
            state.approve(interruption)
        return (await HoldfastRunner.run(self.agent, state, session=session)).final_output

    async def assert_rejected(self, interrupted: str, session: HoldfastSession) -> None:
        with pytest.raises(RunStateUsed, match="resumed before"):
            await self.resume(interrupted, session)


async def check_two_sessions(
    one: HoldfastSession, other: HoldfastSession, *, interrupted_by_helper: bool = True
) -> None:
    agent = ApprovalAgent(interrupted_by_helper=interrupted_by_helper)
    for session in (one, other):
        interrupted = await agent.interrupted(session)
        assert await agent.resume(interrupted, session) == "it is paid"
        await agent.assert_rejected(interrupted, session)
    assert agent.paid == 2


async def check_one_session(session: HoldfastSession, *, clears: bool) -> None:
    agent = ApprovalAgent()
    for number in range(1, 4):
        interrupted = await agent.interrupted(session)
        assert await agent.resume(interrupted, session) == "it is paid"
        await agent.assert_rejected(interrupted, session)
        assert agent.paid == number
        if clears:
            await session.clear_session()
            await agent.assert_rejected(interrupted, session)


async def check_another_key(one: HoldfastSession, other: HoldfastSession) -> None:
    agent = ApprovalAgent()
    interrupted = await agent.interrupted(one)
    assert await agent.resume(interrupted, one) == "it is paid"
    await agent.assert_rejected(interrupted, other)
    borrowed = await agent.interrupted(one)
    assert await agent.resume(borrowed, other) == "it is paid"
    await agent.assert_rejected(borrowed, other)
    await agent.assert_rejected(borrowed, one)
    await HoldfastRunner.run(agent_of(FakeModel()), "hi", session=other)
    await agent.assert_rejected(interrupted, other)
    assert agent.paid == 2


async def test_an_interrupted_run_is_resumed_once_under_any_key(shared_store: str) -> None:
    async with (
        HoldfastSession("a", shared_store) as one,
        HoldfastSession("b", shared_store) as other,
    ):
        await check_another_key(one, other)


@pytest.mark.parametrize("by_helper", [True, False], ids=["by the helper", "by the SDK"])
async def test_equal_runs_of_two_sessions_are_each_resumed_once(
    shared_store: str, by_helper: bool
) -> None:
    async with (
        HoldfastSession("a", shared_store) as one,
        HoldfastSession("b", shared_store) as other,
    ):
        await check_two_sessions(one, other, interrupted_by_helper=by_helper)


@pytest.mark.parametrize("clears", [True, False], ids=["cleared", "in a row"])
async def test_equal_runs_of_one_session_are_each_resumed_once(
    session: HoldfastSession, clears: bool
) -> None:
    await check_one_session(session, clears=clears)


async def test_an_equal_run_whose_resumption_failed_cannot_be_resumed_again(
    session: HoldfastSession,
) -> None:
    agent = ApprovalAgent()
    await agent.resume(await agent.interrupted(session), session)
    await session.clear_session()
    interrupted = await agent.interrupted(session)
    await HoldfastRunner.run(agent_of(FakeModel()), "hi", session=session)
    agent.is_broken = True
    with pytest.raises(Exception, match="gone"):
        await agent.resume(interrupted, session)
    await agent.assert_rejected(interrupted, session)
    assert agent.paid == 2


async def test_equal_runs_at_a_gateway_are_each_resumed_once(tmp_path: Path) -> None:
    with running_gateway(sqlite_url(tmp_path)) as gateway:
        async with (
            HoldfastSession("a", url=gateway.url) as one,
            HoldfastSession("b", url=gateway.url) as other,
            HoldfastSession("c", url=gateway.url) as third,
        ):
            await check_two_sessions(one, other)
            await check_one_session(third, clears=True)
            await check_another_key(one, other)
