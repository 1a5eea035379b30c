"""What the real programs do with their sessions: the facts that the gateway is built on.

The table in docs/reference/agents.md says the same. A new version of a program that behaves
differently fails here first.
"""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.providers.cli_agents.agent import AgentRequest, AgentTurn, TurnInput
from holdfast.providers.cli_agents.directories import AgentDirectories, SessionDirectory
from holdfast.providers.cli_agents.launcher import Launcher
from holdfast.providers.cli_agents.output import AgentOutput
from holdfast.providers.cli_agents.process import AgentProcess
from holdfast.providers.cli_agents.registry import agent_of
from holdfast.providers.settings import UpstreamSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.cli_agents import programs
from tests.cli_agents.agents import claude_code, codex, opencode

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
Make = Callable[[ProviderSimulator, Path], UpstreamSettings]
UNKNOWN = {
    "claude-code": "No conversation found with session ID",
    "codex": "no rollout found for thread id",
    "acp": "service failure",
}


class Program:
    """A real program of an agent, without a gateway."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._agent = agent_of(settings)
        self._launcher = Launcher(settings, self._agent)
        self._directories = AgentDirectories(settings.runtime.root, settings.workdir, None)

    def directory(self, name: str) -> SessionDirectory:
        """Return the directory of a session, made if it is missing."""
        directory = self._directories.session(name)
        directory.create()
        return directory

    @asynccontextmanager
    async def process(self, request: AgentRequest) -> AsyncIterator[AgentProcess]:
        """Run the program for the length of a block."""
        process = await self._launcher.start(request)
        try:
            yield process
        finally:
            await process.finish()

    async def say(self, text: str, request: AgentRequest) -> tuple[str, AgentTurn]:
        """Run one turn in a process of its own; return the id of the session, and the turn."""
        async with self.process(request) as process:
            session = await self._agent.open(process, request)
            output = AgentOutput(lambda kind: kind, None)
            turn = await session.run(TurnInput(prompt=[text]), output)
            return session.session_id, turn

    def request(self, name: str, session_id: str | None = None, new: str = "") -> AgentRequest:
        """Return a request for a session in its directory."""
        model = {"claude-code": "opus", "codex": "gpt-5.4", "acp": None}[self._settings.api]
        return AgentRequest(
            directory=self.directory(name), model=model, session_id=session_id, new_session=new
        )


@pytest.mark.parametrize("make", [claude_code, codex, opencode])
async def test_a_session_that_is_not_known_is_refused_in_known_words(
    make: Make, simulator: ProviderSimulator, root: Path
) -> None:
    programs.bubblewrap()
    settings = make(simulator, root)
    unknown = "ses_0123456789abcdef" if settings.api == "acp" else str(uuid.uuid4())
    program = Program(settings)
    with pytest.raises(ProviderFailure) as refused:
        await program.say("hi", program.request("a", unknown))
    assert refused.value.failure_class == "stale_state"
    assert UNKNOWN[settings.api] in refused.value.message
    assert simulator.requests(operation="create") == []


async def test_claude_code_knows_a_session_only_in_its_working_directory(
    simulator: ProviderSimulator, root: Path
) -> None:
    program = Program(claude_code(simulator, root))
    chosen = str(uuid.uuid4())
    assert (await program.say("hi", program.request("a", new=chosen)))[0] == chosen
    assert (await program.say("again", program.request("a", chosen)))[0] == chosen
    here, there = program.directory("a"), program.directory("b")
    there.config.rmdir()
    here.config.rename(there.config)
    with pytest.raises(ProviderFailure, match=UNKNOWN["claude-code"]):
        await program.say("hi", program.request("b", chosen))


async def test_claude_code_does_not_use_an_id_twice(
    simulator: ProviderSimulator, root: Path
) -> None:
    program = Program(claude_code(simulator, root))
    chosen = str(uuid.uuid4())
    await program.say("hi", program.request("a", new=chosen))
    with pytest.raises(ProviderFailure, match="already in use"):
        await program.say("hi", program.request("a", new=chosen))


async def test_claude_code_lets_two_processes_write_one_session(
    simulator: ProviderSimulator, root: Path
) -> None:
    settings = claude_code(simulator, root)
    program, agent = Program(settings), agent_of(settings)
    known, _ = await program.say("hi", program.request("a", new=str(uuid.uuid4())))
    request = program.request("a", known)
    async with program.process(request) as first, program.process(request) as second:
        for text, process in (("one", first), ("two", second)):
            session = await agent.open(process, request)
            output = AgentOutput(lambda kind: kind, None)
            await session.run(TurnInput(prompt=[text]), output)
            # The second does not know of the first, and neither is refused.
            assert f"Messages seen: 3. Last text: {text}".encode() in output.items[-1]


async def test_codex_lets_one_process_write_a_thread(
    simulator: ProviderSimulator, root: Path
) -> None:
    settings = codex(simulator, root)
    program, agent = Program(settings), agent_of(settings)
    thread, _ = await program.say("hi", program.request("a"))
    request = program.request("a", thread)
    async with program.process(request) as first, program.process(request) as second:
        await agent.open(first, request)
        with pytest.raises(ProviderFailure, match="already has an active writer"):
            await agent.open(second, request)
