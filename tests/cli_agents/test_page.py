"""The page about agents is run as it is written, with the real program."""

import os
import sys
from pathlib import Path

import pytest

from holdfast.settings import load
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import free_port
from tests.cli_agents import programs
from tests.cli_agents.agents import agent_session, processes_of, until
from tests.shell_walk import Walker, blocks_of

PAGE = Path(__file__).parents[2] / "docs/how-to/use-a-command-line-agent.md"


@pytest.mark.timeout(600)  # the first run installs the program
async def test_the_page_about_agents_does_what_it_says(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    home, port = tmp_path / "home", str(free_port())
    home.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "ANTHROPIC_"))}
    folders = [str(programs.claude().parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = {
        **kept,
        "PATH": os.pathsep.join(folders),
        "HOME": str(home),
        "XDG_DATA_HOME": str(root),
        "ANTHROPIC_BASE_URL": simulator.url,
        "HOLDFAST_SERVER_PORT": port,
        "HOLDFAST_URL": f"http://127.0.0.1:{port}",
    }
    packages = frozenset({"@anthropic-ai/claude-code"})
    with Walker(tmp_path, env, {"8377": port}, packages) as walker:
        assert walker.walk(PAGE, set(), set()) == 3
    await until(lambda: not processes_of(root))
    first, second = simulator.requests(api="messages")
    assert agent_session(first) == agent_session(second)


def test_every_configuration_of_the_page_loads(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of(PAGE) if block.language == "toml"]
    for block in blocks:
        path = tmp_path / "holdfast.toml"
        path.write_text(block.text)
        assert all(upstream.is_agent for upstream in load(path, environment={}).upstreams)
    assert len(blocks) == 3
