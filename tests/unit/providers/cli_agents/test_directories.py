"""Directories of agents' sessions: private, locked, and searched for leftovers at the start."""

import os
from pathlib import Path

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.processes.process_table import ProcessIdentity, group_members
from holdfast.providers.cli_agents.directories import (
    AgentDirectories,
    AgentSessionRecord,
    this_gateway,
)
from holdfast.providers.cli_agents.pool import ProcessPool
from holdfast.providers.cli_agents.process import AgentProcess, Launch
from tests.cli_agents.agents import until

DEAD = ProcessIdentity(this_gateway().pid, this_gateway().started - 1, this_gateway().boot)
"""A gateway that had the pid of this one."""


async def start(cwd: Path) -> AgentProcess:
    """Start a program that waits, as if it were an agent."""
    command = ["/bin/sleep", "600"]
    return await AgentProcess.start(
        Launch(command=command, env={"PATH": os.defpath, "HOME": str(cwd)}, cwd=cwd)
    )


async def test_only_what_dead_gateways_left_is_ended_at_the_start(tmp_path: Path) -> None:
    directories = AgentDirectories(tmp_path / "claude", "", None)
    processes = {}
    for name, gateway in (("ses_dead", DEAD), ("ses_live", this_gateway())):
        directory = directories.session(name)
        directory.create()
        processes[name] = await start(directory.work)
        record = AgentSessionRecord(token="t", process=processes[name].identity, gateway=gateway)
        directory.write(record)
    temporary = directories.temporary("x")
    temporary.create()
    assert directories.end_leftovers() == 1
    await until(lambda: not group_members(processes["ses_dead"].identity.pid))
    assert processes["ses_live"].is_running
    # The session can still be resumed; a call that belonged to no session leaves nothing.
    assert directories.session("ses_dead").read() == AgentSessionRecord(token="t")
    assert not temporary.path.exists()
    for process in processes.values():
        await process.kill()


async def test_a_session_is_locked_against_another_gateway(tmp_path: Path) -> None:
    directory = AgentDirectories(tmp_path, "", None).session("ses_1")
    directory.create()
    async with directory.locked(5):
        with pytest.raises(ProviderFailure) as busy:
            async with directory.locked(0.05):
                pass
    assert busy.value.provider_code == "agent_session_locked"
    async with directory.locked(5):
        pass


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "once-1", ".uids", "x" * 200])
def test_an_id_never_leaves_the_directory(tmp_path: Path, name: str) -> None:
    directory = AgentDirectories(tmp_path, "", None).session(name)
    assert directory.path.parent == tmp_path
    assert directory.path.name.isalnum()
    assert not directory.is_temporary


async def test_a_process_that_uses_too_much_memory_is_killed(tmp_path: Path) -> None:
    pool = ProcessPool(max_processes=1, idle_seconds=60, memory_bytes=1024)
    process = await start(tmp_path)
    pool.watch(process)
    await until(lambda: not process.is_running)
    assert process.exceeds_memory
    await process.kill()
    pool.unwatch(process)
    await pool.close()
