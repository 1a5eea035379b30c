"""An agent of the Agent Client Protocol behind the gateway: opencode, with its real program."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.testing.simulator.provider import ProviderSimulator, RecordedRequest
from tests.cli_agents import programs
from tests.cli_agents.agents import heals, open_agent_gateway, opencode, processes_of, until
from tests.integration.upstream_gateway import text_of

MODEL = "acp/opencode"
pytestmark = pytest.mark.timeout(600)  # the first run installs the program


def prompts(simulator: ProviderSimulator) -> list[RecordedRequest]:
    """Return the requests of turns; the agent makes others for its own titles."""
    found = simulator.requests(api="chat")
    return [request for request in found if request.body.get("tools")]


async def test_a_turn_of_the_agent_is_streamed(simulator: ProviderSimulator, root: Path) -> None:
    programs.bubblewrap()
    async with open_agent_gateway(opencode(simulator, root)) as gateway:
        answer = await gateway.respond("I am Ada", model=MODEL, stream=True)
        assert text_of(answer) == "Messages seen: 1. Last text: I am Ada"
        kinds = [event["type"] for event in answer["events"]]
        assert kinds.count("response.output_text.delta") > 3


def test_an_agent_whose_tools_cannot_be_taken_away_needs_a_wall(
    simulator: ProviderSimulator, root: Path
) -> None:
    with pytest.raises(InvalidSetting, match="api = 'acp' needs sandbox"):
        opencode(simulator, root, sandbox=False)


@pytest.mark.soak
async def test_a_session_is_loaded_by_a_new_process_and_rebuilt_when_it_is_gone(
    simulator: ProviderSimulator, root: Path
) -> None:
    programs.bubblewrap()
    async with open_agent_gateway(opencode(simulator, root, idle_seconds=0.01)) as gateway:
        await gateway.respond("I am Ada", model=MODEL)
        await until(lambda: not processes_of(root))
        second = await gateway.respond("who am I?", model=MODEL)
        assert text_of(second) == "Messages seen: 3. Last text: who am I?"
        assert await heals(gateway) == []
        await until(lambda: not processes_of(root))
        for folder in data_folders(root):
            shutil.rmtree(folder)
        third = await gateway.respond("and now?", model=MODEL)
        assert text_of(third).endswith("and now?")
        assert await heals(gateway) == ["agent_session_not_found"]
    assert "I am Ada" in str(prompts(simulator)[-1].body["messages"])


def data_folders(root: Path) -> list[Path]:
    """Return the folders with the agent's own data."""
    return list(root.glob("opencode/*/config/.local/share/opencode"))


@pytest.mark.soak
async def test_what_the_real_agent_asks_for_waits_for_a_person(
    simulator: ProviderSimulator, root: Path
) -> None:
    programs.bubblewrap()
    settings = opencode(simulator, root, permissions="write")
    config = json.loads(settings.runtime.environment["OPENCODE_CONFIG_CONTENT"])
    environment = {
        **settings.runtime.environment,
        "OPENCODE_CONFIG_CONTENT": json.dumps({**config, "permission": {"bash": "ask"}}),
    }
    settings = replace(settings, runtime=replace(settings.runtime, environment=environment))
    command = {"command": "echo made > made.txt; cat made.txt", "description": "make a file"}
    call = {"name": "bash", "arguments": command}
    simulator.add_answer(tool_calls=[call], when={"text": "make it"}, times=1)
    async with open_agent_gateway(settings) as gateway:
        await gateway.respond("I am Ada", model=MODEL)  # its title is made now
        asked = await gateway.respond("make it", model=MODEL)
        request = asked["output"][-1]
        assert request["type"] == "mcp_approval_request"
        assert "echo made > made.txt" in request["arguments"]
        assert list(root.glob("opencode/*/work/made.txt")) == []  # noqa: ASYNC240 - a test may look
        response = {
            "type": "mcp_approval_response",
            "approval_request_id": request["id"],
            "approve": True,
        }
        answer = await gateway.respond([response], model=MODEL)
        (used,) = [item for item in answer["output"] if item["type"] == "agent_tool_call"]
        assert "made" in used["output"]
        assert list(root.glob("opencode/*/work/made.txt"))  # noqa: ASYNC240 - as above
        assert await heals(gateway) == []
