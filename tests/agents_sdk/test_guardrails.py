"""Output that a guardrail rejects is not stored; tool records are, streamed or not."""

from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    OutputGuardrailTripwireTriggered,
    Runner,
    function_tool,
    output_guardrail,
)

from holdfast.agents_sdk import HoldfastSession
from tests.agents_sdk.fake_model import FakeModel, calls, texts_of

DONE = ["buy it", "function_call c1", "function_call_output c1"]


@function_tool
def pay() -> str:
    """Pay."""
    return "paid"


@output_guardrail
async def no_secrets(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    """Refuse to tell."""
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="secret" in str(output))


async def run(agent: Agent, session: HoldfastSession, *, is_stream: bool) -> None:
    """Ask once, in either way."""
    if not is_stream:
        await Runner.run(agent, "buy it", session=session)
        return
    async for _ in Runner.run_streamed(agent, "buy it", session=session).stream_events():
        pass


@pytest.mark.parametrize("is_stream", [False, True])
async def test_f31_a_rejected_answer_is_not_stored_and_tool_records_are(
    session: HoldfastSession, is_stream: bool
) -> None:
    model = FakeModel([calls("pay", call_id="c1"), "the secret is 42", "it is paid"])
    agent = Agent(name="buyer", model=model, tools=[pay], output_guardrails=[no_secrets])
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await run(agent, session, is_stream=is_stream)
    assert texts_of(await session.get_items()) == DONE
    await Runner.run(agent, "and?", session=session)
    assert texts_of(model.asked[-1]) == [*DONE, "and?"]
    assert texts_of(await session.get_items()) == [*DONE, "and?", "it is paid"]
