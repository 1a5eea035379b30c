"""An agent with tools runs behind a wall: a probe tries what the agent must not reach."""

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.providers.settings import UpstreamSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.cli_agents import programs
from tests.cli_agents.agents import claude_code, codex, open_agent_gateway, processes_of
from tests.integration.upstream_gateway import text_of, upstream

pytestmark = pytest.mark.timeout(600)  # the first run installs the programs


@pytest.fixture(name="tmp_path")
def _tmp_path() -> Iterator[Path]:
    """A folder that other users can pass through, as they can under /srv.

    Each start of pytest takes that right from its own folders, which all runs share.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-permissions-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o711)
        yield folder


def guarded(settings: UpstreamSettings, folder: Path) -> UpstreamSettings:
    """Return settings of a gateway that has a store and a configuration to protect."""
    store, config = folder / "holdfast.db", folder / "holdfast.toml"
    for path in (store, config):
        path.write_text("the secret of the gateway")
        path.chmod(0o600)
    return replace(settings, runtime=replace(settings.runtime, protected=(store, config)))


@pytest.mark.parametrize("permissions", ["read", "write"])
def test_tools_without_a_wall_are_refused(
    simulator: ProviderSimulator, root: Path, permissions: str
) -> None:
    with pytest.raises(InvalidSetting, match="needs sandbox = true or run_as"):
        claude_code(simulator, root, permissions=permissions)


async def test_a_start_is_refused_where_an_agent_could_read_what_is_not_its_own(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    # The gateway's own user is no wall: everything is readable.
    settings = guarded(claude_code(simulator, root, permissions="read", run_as="root"), tmp_path)
    with pytest.raises(InvalidSetting) as refused:
        async with open_agent_gateway(settings):
            pass
    message = refused.value.message
    for name in ("holdfast.db", "holdfast.toml", f"/proc/{os.getpid()}/environ", "other/secret"):
        assert name in message


async def test_a_start_is_refused_where_sessions_share_a_user(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    settings = guarded(claude_code(simulator, root, permissions="read", run_as="nobody"), tmp_path)
    with pytest.raises(InvalidSetting) as refused:
        async with open_agent_gateway(settings):
            pass
    message = refused.value.message
    assert "other/secret" in message
    assert "holdfast.db" not in message
    assert "environ" not in message


def shell_call(script: str) -> dict[str, object]:
    """Return a scripted call of Claude Code's shell."""
    return {"name": "Bash", "arguments": {"command": script, "description": "try"}}


async def test_an_agent_in_its_sandbox_works_but_reads_nothing_of_ours(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    programs.bubblewrap()
    settings = guarded(claude_code(simulator, root, permissions="write", sandbox=True), tmp_path)
    plain = upstream(simulator, name="plain", models=("gpt-*",))
    other = root / "claude/ses_other/config"
    await asyncio.to_thread(other.mkdir, parents=True)
    (other / "secret").write_text("the secret of a session")
    script = (
        f"cat {tmp_path}/holdfast.db {tmp_path}/holdfast.toml; cat {other}/secret;"
        f"cat /proc/*/environ | tr '\\0' '\\n' | grep NOT_NAMED; ls {root}/claude; ls /root;"
        "pwd; echo made > file.txt; cat file.txt"
    )
    simulator.add_answer(tool_calls=[shell_call(script)], when={"text": "try it"}, times=1)
    async with open_agent_gateway(settings, plain) as gateway:
        answer = await gateway.respond("try it", model="claude-code/opus")
        (call,) = [item for item in answer["output"] if item["type"] == "agent_tool_call"]
        assert call["name"] == "Bash"
        assert "made" in call["output"]
        assert "secret of" not in call["output"]
        assert "NOT_NAMED" not in call["output"]
        (work,) = root.glob("claude/ses_*/work")  # noqa: ASYNC240 - a test may look at its files
        assert (work / "file.txt").read_text() == "made\n"
        assert len(processes_of(root)) >= 1
        # A plain model that goes on is told of it in a short text.
        again = await gateway.respond("what did you do?", model="gpt-5.4")
        assert text_of(again).endswith("what did you do?")
    last = simulator.requests(api="responses", operation="create")[-1]
    assert "I used my tool Bash" in json.dumps(last.body["input"])
    assert "agent_tool_call" not in json.dumps(last.body["input"])
    assert processes_of(root) == []


@pytest.mark.soak
async def test_codex_in_its_sandbox_reads_but_does_not_write(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    programs.bubblewrap()
    settings = guarded(codex(simulator, root, permissions="read", sandbox=True), tmp_path)
    command = f"cat {tmp_path}/holdfast.db; touch made.txt; echo tried"
    call = {"name": "exec_command", "arguments": {"cmd": command}}
    simulator.add_answer(tool_calls=[call], when={"text": "try it"}, times=1)
    async with open_agent_gateway(settings) as gateway:
        answer = await gateway.respond("try it", model="codex/gpt-5.4")
        calls = [item for item in answer["output"] if item["type"] == "agent_tool_call"]
        assert "tried" in calls[0]["output"]
        assert "secret of" not in calls[0]["output"]
        assert not list(root.glob("codex/*/work/made.txt"))  # noqa: ASYNC240 - as above


@pytest.mark.soak
async def test_each_session_has_a_user_of_its_own(
    simulator: ProviderSimulator, root: Path, tmp_path: Path
) -> None:
    program = tmp_path / "claude"
    os.link(programs.claude(), program)
    settings = guarded(
        claude_code(
            simulator, root, permissions="write", run_as="61000-61001", command=str(program)
        ),
        tmp_path,
    )
    async with open_agent_gateway(settings) as gateway:
        first = await gateway.post("/v1/responses", "a", input="hi", model="claude-code/opus")
        assert first.status_code == 200, first.text
        theirs = root / "claude" / first.headers["x-session-id"]
        script = f"id -u; cat {tmp_path}/holdfast.db; ls {theirs}/config {theirs}; echo end"
        simulator.add_answer(tool_calls=[shell_call(script)], when={"text": "try it"}, times=1)
        answer = await gateway.respond("try it", "b", model="claude-code/opus")
        (call,) = [item for item in answer["output"] if item["type"] == "agent_tool_call"]
        assert call["output"].startswith("61001\n")
        assert call["output"].endswith("end")
        assert "secret of" not in call["output"]
        assert "projects" not in call["output"]
        assert "session.json" not in call["output"]
        # There is no third id, and none is used twice.
        third = await gateway.post("/v1/responses", "c", input="hi", model="claude-code/opus")
        assert third.json()["error"]["code"] == "agent_not_started"
        await gateway.client.delete(f"/v1/sessions/{first.headers['x-session-id']}")
        fourth = await gateway.post("/v1/responses", "d", input="hi", model="claude-code/opus")
        assert fourth.status_code == 200, fourth.text
