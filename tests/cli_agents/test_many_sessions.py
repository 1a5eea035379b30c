"""Many sessions share few processes, and none meets another's history."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.cli_agents.agents import agent_session, claude_code, open_agent_gateway, processes_of
from tests.integration.upstream_gateway import UpstreamGateway, text_of

SESSIONS, PROCESSES = 50, 4
MODEL = "claude-code/opus"


def count_agents(root: Path) -> int:
    """Return how many agents run: each leads a group, with what it starts for itself in it.

    A scan takes a while. An agent that has ended by its end was not there with the last one.
    """
    found = [process for process in processes_of(root) if process.is_running()]
    groups = set()
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            groups.add(os.getpgid(process.pid))
    return len(groups)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_fifty_sessions_on_four_processes_each_keep_their_own_history(
    simulator: ProviderSimulator, root: Path
) -> None:
    most = 0
    is_done = asyncio.Event()

    async def watch() -> None:
        nonlocal most
        while not is_done.is_set():
            most = max(most, await asyncio.to_thread(count_agents, root))
            await asyncio.sleep(0.2)

    async def talk(gateway: UpstreamGateway, number: int) -> None:
        for turn, text in enumerate((f"I am {number}", "who am I?")):
            answer = await gateway.respond(text, f"k{number}", model=MODEL)
            assert text_of(answer) == f"Messages seen: {1 + 2 * turn}. Last text: {text}"

    settings = claude_code(simulator, root, max_processes=PROCESSES, turn_seconds=900)
    async with open_agent_gateway(settings) as gateway:
        gateway.client.timeout = 900  # most turns wait for a process
        watching = asyncio.create_task(watch())
        async with asyncio.TaskGroup() as group:
            for number in range(SESSIONS):
                group.create_task(talk(gateway, number))
        is_done.set()
        await watching
    assert 1 < most <= PROCESSES
    requests = simulator.requests(api="messages")
    assert len(requests) == 2 * SESSIONS
    assert len({agent_session(request) for request in requests}) == SESSIONS
