"""A turn's time begins with its process; waiting for one has a time limit of its own."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.ports.provider import Answer, AnyEvent, ModelCall
from holdfast.ports.session_runtimes import RuntimeSession
from holdfast.providers.cli_agents import provider as module
from holdfast.providers.cli_agents.provider import CliAgentProvider
from holdfast.providers.cli_agents.registry import open_agent
from holdfast.providers.settings import AgentRuntime, UpstreamSettings
from tests.cli_agents import programs
from tests.cli_agents.agents import until

PROGRAM = Path(__file__).with_name("asking_agent.py")
TURN_SECONDS = 600.0


class _MovedClock:
    """Adds seconds to the time of the running event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._added = 0.0
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self._added)

    def add(self, seconds: float) -> None:
        self._added += seconds


class _Sink:
    """Tells when the agent has begun to answer."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    def write(self, events: Sequence[AnyEvent]) -> bool:
        self.begun.set()
        return True

    async def drain(self) -> None:
        """Nothing has to be drained."""


class _Turn:
    """A turn that works until its pipe is opened."""

    def __init__(self, provider: CliAgentProvider, name: str) -> None:
        directory = provider.directories.session(name)
        directory.create()
        self._gate = directory.work / "gate"
        if not self._gate.exists():
            os.mkfifo(self._gate)
        self.lock = directory.path / "lock"
        """The file that it locks when its call has begun."""
        self.sink = _Sink()
        items = [b'{"type":"message","role":"user","content":"wait"}']
        call = ModelCall(model="acp/asking", items=items, new_items=items, session_id=name)
        self.task: asyncio.Task[Answer] = asyncio.create_task(provider.stream(call, self.sink))

    async def finish(self) -> Answer:
        await asyncio.to_thread(self._gate.write_text, "go")
        return await self.task


def _provider(root: Path, **more: Any) -> CliAgentProvider:
    programs.bubblewrap()
    settings = {
        "name": "asking",
        "api": "acp",
        "command": str(PROGRAM),
        "models": ("acp/asking",),
        "sandbox": True,
        "max_processes": 1,
        "turn_seconds": TURN_SECONDS,
        "runtime": AgentRuntime(root=root, environment={"PATH": "/usr/local/bin:/usr/bin:/bin"}),
    }
    return open_agent(UpstreamSettings(**{**settings, **more}), lambda prefix: f"{prefix}_1")


async def test_a_turn_that_waited_for_a_process_has_its_whole_time(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = _provider(root)
    clock = _MovedClock(monkeypatch)
    try:
        first = _Turn(provider, "one")
        await first.sink.begun.wait()
        second = _Turn(provider, "two")
        await until(second.lock.exists)
        clock.add(0.9 * TURN_SECONDS)
        assert (await first.finish()).items
        await second.sink.begun.wait()
        clock.add(0.9 * TURN_SECONDS)
        assert (await second.finish()).items
    finally:
        await provider.close()


async def test_a_turn_without_a_free_process_fails_with_a_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = _provider(root)
    try:
        first = _Turn(provider, "one")
        await first.sink.begun.wait()
        # Only now: the first one waits for its directory before it gets the process.
        monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
        with pytest.raises(ProviderFailure, match=r"became free within 0[.]01 s") as told:
            await _Turn(provider, "two").task
        assert (told.value.status, told.value.provider_code) == (503, "agent_busy")
        assert (await first.finish()).items
    finally:
        await provider.close()


@pytest.mark.parametrize("gateways", [1, 2])
async def test_turns_in_a_shared_working_directory_run_one_after_the_other(
    root: Path, tmp_path: Path, gateways: int
) -> None:
    work = {"workdir": str(tmp_path / "work"), "shared": True, "max_processes": 2}
    providers = [_provider(root, **work) for _ in range(gateways)]
    elsewhere = _provider(root, name="elsewhere")
    try:
        first = _Turn(providers[0], "one")
        await first.sink.begun.wait()
        second = _Turn(providers[-1], "two")
        # A whole turn in another directory takes longer than the beginning of one.
        other = _Turn(elsewhere, "three")
        await other.sink.begun.wait()
        assert (await other.finish()).items
        assert not second.sink.begun.is_set()
        assert (await first.finish()).items
        await second.sink.begun.wait()
        assert (await second.finish()).items
    finally:
        for provider in (*providers, elsewhere):
            await provider.close()


async def test_a_clean_up_does_not_wait_for_a_turn(root: Path) -> None:
    async def find(_: str) -> RuntimeSession:
        return RuntimeSession()  # the turn began since it was read

    provider = _provider(root)
    try:
        turn = _Turn(provider, "one")
        await turn.sink.begun.wait()
        await provider.clean_session("one", find)
        assert not turn.task.done()
        assert (await turn.finish()).items
    finally:
        await provider.close()
