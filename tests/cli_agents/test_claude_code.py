"""Claude Code behind the gateway, with the real program and the simulator as its model."""

from pathlib import Path

import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.cli_agents.agents import agent_session, claude_code, processes_of, texts
from tests.integration.upstream_gateway import open_upstream_gateway, text_of

MODEL = "claude-code/opus"
pytestmark = pytest.mark.timeout(600)  # the first run installs the program


async def test_a_conversation_is_one_session_of_the_agent(
    simulator: ProviderSimulator, root: Path
) -> None:
    async with open_upstream_gateway(claude_code(simulator, root)) as gateway:
        first = await gateway.respond("I am Ada", model=MODEL)
        assert text_of(first) == "Messages seen: 1. Last text: I am Ada"
        second = await gateway.respond("who am I?", model=MODEL, stream=True)
        assert text_of(second) == "Messages seen: 3. Last text: who am I?"
        kinds = [event["type"] for event in second["events"]]
        assert kinds.count("response.output_text.delta") > 3
        third = await gateway.chat("thanks", model=MODEL)
        assert text_of(third) == "Messages seen: 5. Last text: thanks"
    requests = simulator.requests(api="messages")
    assert len({agent_session(request) for request in requests}) == 1
    assert [request.model for request in requests] == ["claude-opus-4-8"] * 3
    assert [request.body.get("tools") for request in requests] == [[]] * 3
