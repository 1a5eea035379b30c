"""What an agent printed instead of an answer is part of its failure."""

import os
from pathlib import Path

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.providers.cli_agents.agent import TurnInput
from holdfast.providers.cli_agents.kinds.claude_code import ClaudeSession
from holdfast.providers.cli_agents.kinds.json_rpc import JsonRpc
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.process import MAX_UNREADABLE_BYTES, AgentProcess, Launch


async def start(script: str) -> AgentProcess:
    launch = Launch(
        command=["/bin/sh", "-c", script], env={"PATH": os.environ["PATH"]}, cwd=Path("/")
    )
    return await AgentProcess.start(launch)


async def failure_of(script: str) -> ProviderFailure:
    """Return how a call of an agent fails that is a shell script."""
    process = await start(script)
    try:
        with pytest.raises(ProviderFailure) as failed:
            await JsonRpc(process).call("initialize", {})
    finally:
        await process.kill()
    return failed.value


async def test_an_agent_that_prints_no_json_is_quoted() -> None:
    failure = await failure_of("read line; echo 'Usage: agent [options]'; echo 'see --help'")
    assert failure.provider_code == "agent_exited"
    assert failure.message == (
        "the agent exited with code 0 without an answer; it printed: "
        "Usage: agent [options]\nsee --help"
    )


async def test_an_agent_of_the_other_protocol_is_quoted_too() -> None:
    process = await start("read line; echo 'Welcome!'; echo '[1]'; exit 3")
    output = AgentOutput(lambda prefix: prefix, None)
    try:
        with pytest.raises(ProviderFailure) as failed:
            await ClaudeSession(process, "s").run(TurnInput(prompt=["hi"]), output)
    finally:
        await process.kill()
    assert failed.value.message == (
        "the agent exited with code 3 without an answer; it printed: Welcome!\n[1]"
    )


async def test_standard_error_comes_first() -> None:
    failure = await failure_of("read line; echo out; echo bad >&2; exit 1")
    assert failure.message == (
        "the agent exited with code 1 without an answer: bad; it printed: out"
    )


async def test_only_the_end_of_much_output_is_kept() -> None:
    failure = await failure_of("read line; yes garbage | head -n 100000; echo last")
    assert failure.message.endswith("garbage\nlast")
    assert len(failure.message) < 2 * MAX_UNREADABLE_BYTES
