"""Directories of agents' sessions: private, locked, and searched for leftovers at the start."""

import os
import secrets
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.errors import ProviderFailure
from holdfast.processes.child import UnixAccount
from holdfast.processes.process_table import ProcessIdentity, group_members, start_time
from holdfast.providers.cli_agents.directories import (
    MAX_TRANSCRIPT_BYTES,
    AgentDirectories,
    AgentSessionRecord,
    open_transcript,
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


def _accounts(first: int = 61000, last: int = 61009) -> tuple[UnixAccount, UnixAccount]:
    return UnixAccount(first, first), UnixAccount(last, last)


def test_a_session_that_is_older_than_its_users_gets_one_of_them(tmp_path: Path) -> None:
    before = AgentDirectories(tmp_path, "", None).session("ses_1")
    before.create()
    (before.work / "folder").mkdir()
    (before.work / "folder/file").write_text("x")
    (before.work / "link").symlink_to("/etc/passwd")
    directories = AgentDirectories(tmp_path, "", _accounts())
    directory = directories.session("ses_1")
    assert directory.account == _accounts()[0]
    directory.create()
    paths = (directory.config, directory.work, *directory.work.rglob("*"))
    assert {path.lstat().st_uid for path in paths} == {61000}
    assert Path("/etc/passwd").stat().st_uid == 0
    # It keeps its user, and another session gets another one.
    assert directories.session("ses_1").account == directory.account
    assert directories.session("ses_2").account == UnixAccount(61001, 61001)


async def _start_escaping(launch: Launch) -> tuple[AgentProcess, int]:
    """Start a process, and wait until what it started has left its group."""
    process = await AgentProcess.start(launch)
    escaped = int(await process.read_line() or b"0")
    await until(lambda: os.getsid(escaped) == escaped)
    return process, escaped


async def _until_ended(pid: int) -> None:
    await until(lambda: start_time(pid) is None)


async def test_what_left_the_group_ends_before_its_user_id_is_free_again(tmp_path: Path) -> None:
    # Another run of the tests on this machine must not use the same user.
    uid = 20_000 + secrets.randbelow(40_000)
    directories = AgentDirectories(tmp_path, "", _accounts(uid, uid + 1))
    directory = directories.session("ses_1")
    directory.create()
    assert directory.account is not None
    launch = Launch(
        command=["/bin/sh", "-c", "setsid sleep 600 <&- >&- 2>&- & echo $!; read line"],
        env={"PATH": os.defpath},
        cwd=Path("/"),
        account=directory.account,
        owns_account=directory.owns_account,
    )
    process, escaped = await _start_escaping(launch)
    await process.kill()
    await _until_ended(escaped)
    # A gateway that died ends nothing: its successor does, or whoever deletes the session.
    for end in (directories.end_leftovers, directory.remove):
        process, escaped = await _start_escaping(replace(launch, owns_account=False))
        directory.write(AgentSessionRecord(process=process.identity, gateway=DEAD))
        end()
        await _until_ended(escaped)
        await process.kill()


@pytest.mark.parametrize("name", ["instructions.txt", "transcript.jsonl"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    directory = AgentDirectories(tmp_path, "", None).session("ses_1")
    directory.create()
    os.mkfifo(directory.config / name)
    with pytest.raises(OSError, match="not a file"):
        open_transcript(directory.config / name)
    directory.write_config(name, "text")
    with open_transcript(directory.config / name) as file:
        assert file.read() == b"text"


def test_a_transcript_that_is_a_link_or_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="link"):
        open_transcript(tmp_path / "link")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(MAX_TRANSCRIPT_BYTES + 1)
    with pytest.raises(OSError, match="not a file"):
        open_transcript(tmp_path / "huge")


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
