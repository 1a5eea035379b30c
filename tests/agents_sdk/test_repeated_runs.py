"""A repeat of a completed run returns its output, with its type and agent."""

from collections.abc import Callable
from typing import Any

import pytest
from agents import Agent, AgentOutputSchemaBase, function_tool, handoff
from pydantic import BaseModel, Field

from holdfast.agents_sdk import HoldfastRunner, HoldfastSession
from tests.agents_sdk.fake_model import FakeModel, agent_of, calls

_kept: list[Agent[Any]] = []


class Out(BaseModel):
    x: int = Field(alias="theX")


class Upper(AgentOutputSchemaBase):
    """A schema of the user's own."""

    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return "upper"

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object"}

    def is_strict_json_schema(self) -> bool:
        return False

    def validate_json(self, json_str: str) -> Any:
        return (json_str.upper(),)


def with_a_list() -> Agent[Any]:
    model = FakeModel(['{"response": [{"theX": 3}]}'])
    return agent_of(model, output_type=list[Out])


def with_its_own_schema() -> Agent[Any]:
    return agent_of(FakeModel(["a"]), output_type=Upper())


def with_a_hand_off() -> Agent[Any]:
    second = Agent(name="second", output_type=Out, model=FakeModel(['{"theX": 5}']))
    return agent_of(FakeModel([calls("transfer_to_second")]), handoffs=[second])


def with_a_wrapped_hand_off() -> Agent[Any]:
    second = Agent(name="second", output_type=Out, model=FakeModel(['{"theX": 5}']))
    agent = agent_of(FakeModel([calls("transfer_to_second")]), handoffs=[handoff(second)])
    _kept.append(second)  # a hand-off knows its agent weakly
    return agent


def with_a_tools_output() -> Agent[Any]:
    @function_tool
    def measure() -> Out:
        return Out(theX=2962)

    model = FakeModel([calls("measure")])
    return agent_of(model, tools=[measure], output_type=Out, tool_use_behavior="stop_on_first_tool")


@pytest.mark.parametrize(
    ("make", "output", "name"),
    [
        (with_a_list, [Out(theX=3)], "tester"),
        (with_its_own_schema, ("A",), "tester"),
        (with_a_hand_off, Out(theX=5), "second"),
        (with_a_wrapped_hand_off, Out(theX=5), "second"),
        (with_a_tools_output, Out(theX=2962), "tester"),
    ],
    ids=["list", "own schema", "hand-off", "wrapped hand-off", "tool"],
)
async def test_a_repeat_returns_the_output_with_its_type_and_agent(
    located_session: HoldfastSession, make: Callable[[], Agent[Any]], output: Any, name: str
) -> None:
    for _ in range(2):  # each time with agents made anew, as by another process
        result = await HoldfastRunner.run(
            make(), "go", session=located_session, run_id=f"{located_session.session_id}:1"
        )
        assert result.final_output == output
        assert result.last_agent.name == name
