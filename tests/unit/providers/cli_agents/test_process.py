"""Processes of agents: their own group, bounded output, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.processes.process_table import (
    ProcessIdentity,
    group_members,
    identify,
    kill_leftover,
)
from holdfast.providers.cli_agents import process as process_module
from holdfast.providers.cli_agents.process import AgentProcess, Launch
from tests.cli_agents.agents import until

ENV = {"PATH": os.defpath}


async def start(script: str, cwd: Path, **env: str) -> AgentProcess:
    """Start a shell script as if it were an agent."""
    command = ["/bin/sh", "-c", script]
    return await AgentProcess.start(Launch(command=command, env={**ENV, **env}, cwd=cwd))


async def _read_all(process: AgentProcess) -> None:
    while await process.read_line():
        pass


async def test_killing_a_process_kills_what_it_started(tmp_path: Path) -> None:
    process = await start("sleep 600 & sleep 600 & echo ready; wait", tmp_path)
    assert await process.read_line() == b"ready"
    assert len(group_members(process.identity.pid)) == 3
    await process.kill()
    await until(lambda: not group_members(process.identity.pid))
    await process.kill()


async def test_a_process_that_exits_leaves_none_of_its_group(tmp_path: Path) -> None:
    process = await start("sleep 600 & echo ready; read line; exit 7", tmp_path)
    assert await process.read_line() == b"ready"
    await process.finish()
    await until(lambda: not group_members(process.identity.pid))
    assert not process.is_running


async def test_lines_turns_and_errors_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "MAX_LINE_BYTES", 4096)
    monkeypatch.setattr(process_module, "MAX_TURN_BYTES", 8192)
    monkeypatch.setattr(process_module, "MAX_ERROR_BYTES", 4096)
    process = await start("head -c 100000 /dev/zero | tr '\\0' x; echo", tmp_path)
    with pytest.raises(ProviderFailure, match="in a line"):
        await process.read_line()
    await process.kill()
    process = await start("yes line", tmp_path)
    with pytest.raises(ProviderFailure, match="in a turn"):
        await _read_all(process)
    await process.kill()
    process = await start("yes noise | head -c 1000000 >&2; echo the end >&2", tmp_path)
    assert await process.read_line() is None
    assert await process.exit_code() == 0
    assert process.errors.endswith("the end")
    assert len(process.errors) <= 2 * 4096
    await process.kill()


async def test_a_program_that_cannot_be_started_is_a_failure_of_the_provider(
    tmp_path: Path,
) -> None:
    launch = Launch(command=[str(tmp_path / "missing")], env=ENV, cwd=tmp_path)
    with pytest.raises(ProviderFailure) as failure:
        await AgentProcess.start(launch)
    assert failure.value.provider_code == "agent_not_started"


def test_an_agent_dies_with_its_gateway(tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import asyncio, sys
        from pathlib import Path
        from holdfast.providers.cli_agents.process import AgentProcess, Launch

        async def main():
            launch = Launch(command=["/bin/sleep", "600"], env={{}}, cwd=Path({str(tmp_path)!r}))
            process = await AgentProcess.start(launch)
            print(process.identity.pid, flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
        """
    )
    gateway = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert gateway.stdout is not None
    agent = psutil.Process(int(gateway.stdout.readline()))
    gateway.send_signal(signal.SIGKILL)
    gateway.wait()
    gateway.stdout.close()
    psutil.wait_procs([agent], timeout=20)
    assert not agent.is_running()


async def test_a_leftover_is_known_by_its_start_time_or_its_directory(tmp_path: Path) -> None:
    process = await start("sleep 600 & echo ready; wait", tmp_path, HOME=f"{tmp_path}/config")
    await process.read_line()
    ours = process.identity
    stranger = ProcessIdentity(ours.pid, ours.started + 1, ours.boot)
    assert not kill_leftover(stranger, tmp_path / "elsewhere")
    assert not kill_leftover(ProcessIdentity(ours.pid, ours.started, "another"), tmp_path)
    assert process.is_running
    # Its leader is gone; what it had started is still recognised.
    os.kill(ours.pid, signal.SIGKILL)
    await until(lambda: len(group_members(ours.pid)) == 1)
    assert not kill_leftover(ours, tmp_path / "elsewhere")
    assert kill_leftover(ours, tmp_path)
    await until(lambda: not group_members(ours.pid))
    await process.kill()


def test_a_process_is_alive_only_as_itself() -> None:
    me = identify(os.getpid())
    assert me.is_alive
    assert not ProcessIdentity(me.pid, me.started - 1, me.boot).is_alive
    assert not ProcessIdentity(me.pid, me.started, "another boot").is_alive
