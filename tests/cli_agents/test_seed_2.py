"""Story 2 with an agent: after an idle hour, "yes" goes on in the same session of the agent."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.acceptance.stories import HttpUser, answer_text
from tests.cli_agents import programs
from tests.cli_agents.agents import agent_session, processes_of, texts, transcripts, until

pytestmark = pytest.mark.timeout(600)  # the first run installs the program
MODEL = "claude-code/opus"
IDLE = '[sessions.reset]\nmode = "idle"\nidle_minutes = 0.000001\n'


@contextmanager
def gateway_with_claude(
    simulator: ProviderSimulator, store_url: str, root: Path
) -> Iterator[GatewayProcess]:
    """Run a gateway whose only upstream is Claude Code."""
    config = root.parent / "holdfast.toml"
    config.write_text(
        f'[[upstream]]\nname = "claude"\napi = "claude-code"\ncommand = "{programs.claude()}"\n'
        f'env = ["ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"]\n{IDLE}'
    )
    env = {
        "ANTHROPIC_BASE_URL": simulator.url,
        "ANTHROPIC_API_KEY": simulator.key,
        "XDG_DATA_HOME": str(root),
    }
    with running_gateway(store_url, "--config", str(config), env=env) as gateway:
        yield gateway


async def test_the_yes_after_the_pause_resumes_the_same_session_of_the_agent(
    simulator: ProviderSimulator, store_url: str, root: Path
) -> None:
    with gateway_with_claude(simulator, store_url, root) as gateway:
        user = HttpUser(gateway)
        first = user.say("chat", "shall I book the flight?", model=MODEL)
        assert answer_text(first) == "Messages seen: 1. Last text: shall I book the flight?"
        # The program writes its transcript a moment after its answer.
        await until(lambda: any("Messages seen" in t.read_text() for t in transcripts(root)))
        gateway.kill()
        await until(lambda: not processes_of(root))
        gateway.start()
        second = user.say("chat", "yes", model=MODEL)
        assert answer_text(second) == "Messages seen: 3. Last text: yes"
        assert second.headers["x-session-id"] == first.headers["x-session-id"]
        assert second.headers["x-session-generation"] == "1"
        seen = simulator.requests(api="messages")
        assert agent_session(seen[0]) == agent_session(seen[1])

        gateway.stop()
        assert processes_of(root) == []
        for transcript in transcripts(root):
            shutil.rmtree(transcript.parent)
        gateway.start()
        third = user.say("chat", "is it booked?", model=MODEL)
        assert answer_text(third).endswith("Last text: is it booked?")
        last = simulator.requests(api="messages")[-1]
        assert agent_session(last) != agent_session(seen[0])
        history = "\n".join(texts(last))
        for text in ("shall I book the flight?", "yes"):
            assert json.dumps({"role": "user", "text": text}, separators=(",", ":")) in history


@pytest.mark.soak
async def test_a_gateway_that_is_killed_in_a_turn_leaves_no_process_and_the_turn_is_replayed(
    simulator: ProviderSimulator, store_url: str, root: Path
) -> None:
    with gateway_with_claude(simulator, store_url, root) as gateway:
        user = HttpUser(gateway)
        user.say("chat", "I am Ada", model=MODEL)
        with simulator.hold(when={"text": "hang"}, times=1) as barrier:
            hanging = asyncio.create_task(asyncio.to_thread(user.say, "chat", "hang", model=MODEL))
            await barrier.wait_held_async(wait_seconds=30)
            assert processes_of(root)
            gateway.kill()
            await until(lambda: not processes_of(root))
            assert isinstance(
                (await asyncio.gather(hanging, return_exceptions=True))[0], httpx.HTTPError
            )
        gateway.start()
        answer = user.say("chat", "who am I?", model=MODEL)
        assert answer_text(answer).endswith("Last text: who am I?")
    last = simulator.requests(api="messages")[-1]
    assert agent_session(last) != agent_session(simulator.requests(api="messages")[0])
    assert '{"role":"user","text":"I am Ada"}' in "\n".join(texts(last))
