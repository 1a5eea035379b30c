"""What the doctor finds about agents, and what it says to run."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import InvalidSetting, ProviderFailure
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.transaction.commands import AddApiKey
from holdfast.doctor.configuration import check_agent_access, check_agents, check_upstreams
from holdfast.engine.clock import SystemClock
from holdfast.ports.provider import ModelCall
from holdfast.providers.cli_agents.launcher import Launcher
from holdfast.providers.cli_agents.registry import agent_of, open_agent
from holdfast.providers.settings import AgentRuntime, UpstreamSettings
from holdfast.stores.open import open_store
from tests.cli_agents import programs
from tests.integration.upstream_gateway import open_upstream_gateway


def agent(folder: Path, script: str = "echo 9.9.9", **more: Any) -> UpstreamSettings:
    """Return a small program as if it were Claude Code."""
    program = folder / "claude"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "ANTHROPIC_API_KEY": "sk"}
    settings = {
        "name": "claude",
        "api": "claude-code",
        "command": str(program),
        "env": ("ANTHROPIC_API_KEY",),
        "runtime": AgentRuntime(root=folder / "agents", environment=environment),
    }
    return UpstreamSettings(**{**settings, **more})


async def found(settings: UpstreamSettings) -> dict[str, str]:
    """Return the details of all findings by their codes."""
    return {finding.code: finding.detail for finding in await check_agents([settings])}


async def test_an_agent_that_can_be_used_has_no_findings(tmp_path: Path) -> None:
    assert await found(agent(tmp_path)) == {}
    (result,) = await check_upstreams([agent(tmp_path)])
    assert result.is_ok


async def test_a_missing_program_is_found_and_how_to_install_it(tmp_path: Path) -> None:
    settings = agent(tmp_path, command=str(tmp_path / "nothing"))
    findings = await found(settings)
    assert "npm install --global @anthropic-ai/claude-code" in findings["agent_missing"]
    (result,) = await check_upstreams([settings])
    assert not result.is_ok
    assert "agent_missing" in await found(agent(tmp_path, "exit 1"))


async def test_a_turn_of_a_missing_program_is_logged_as_a_failed_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provider = open_agent(agent(tmp_path, command="no-such-program"), new_id=lambda kind: kind)
    text = b'{"type":"message","role":"user","content":"no-such-program is private"}'
    with pytest.raises(ProviderFailure):
        await provider.answer(ModelCall(model="claude-code/default", items=[text]))
    [failed] = [one for one in caplog.records if one.message == "upstream.failed"]
    assert failed.name == "holdfast.upstream"
    assert vars(failed)["code"] == "agent_not_found"
    assert vars(failed)["upstream"] == provider.name
    assert "no-such-program" not in vars(failed)["reason"]


async def test_an_old_program_is_found(tmp_path: Path) -> None:
    findings = await found(agent(tmp_path, "echo 1.0.3"))
    assert "version 1.0.3 is older than 2.1.0" in findings["agent_too_old"]


async def test_an_agent_without_credentials_is_found_and_how_to_log_in(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.json")
    findings = await found(agent(tmp_path, env=(), credentials=missing))
    assert "run `claude auth login`" in findings["agent_not_logged_in"]
    there = tmp_path / "credentials.json"
    there.touch()
    assert await found(agent(tmp_path, env=(), credentials=str(there))) == {}


async def test_turns_that_begin_at_once_ask_for_the_version_once(tmp_path: Path) -> None:
    settings = agent(tmp_path, f"echo asked >> {tmp_path}/asked; echo 9.9.9")
    launcher = Launcher(settings, agent_of(settings))
    assert await asyncio.gather(*(launcher.version() for _ in range(20))) == ["9.9.9"] * 20
    assert (tmp_path / "asked").read_text() == "asked\n"


async def test_the_gateway_lists_findings_about_its_agents(tmp_path: Path) -> None:
    settings = agent(tmp_path, "echo 1.0.3", env=(), credentials=str(tmp_path / "none.json"))
    async with open_upstream_gateway(settings) as gateway:
        answer = await gateway.client.get("/v1/doctor")
        listed = {each["code"]: each for each in answer.json()["data"]}
        assert listed["agent_too_old"]["subject"] == "claude"
        assert "npm install --global" in listed["agent_too_old"]["detail"]
        assert "run `claude auth login`" in listed["agent_not_logged_in"]["detail"]


@pytest.mark.parametrize("permissions", ["none", "read"])
async def test_an_agent_with_tools_on_a_gateway_without_keys_is_found(
    tmp_path: Path, permissions: str
) -> None:
    settings = agent(tmp_path, permissions=permissions, run_as="61000-61001")
    store = await open_store("memory:", clock=SystemClock())
    findings = await check_agent_access([settings], store.read)
    assert [each.subject for each in findings] == (["claude"] if permissions == "read" else [])
    await store.submit(AddApiKey(id="key", tenant=DEFAULT_TENANT, hash=b"x", name="n"))
    assert await check_agent_access([settings], store.read) == []
    await store.close()


async def test_the_gateway_says_that_its_agent_can_read_sessions(tmp_path: Path) -> None:
    settings = agent(tmp_path, permissions="read", sandbox=True)
    programs.bubblewrap()
    async with open_upstream_gateway(settings) as gateway:
        listed = (await gateway.client.get("/v1/doctor")).json()["data"]
        assert "agent_reads_sessions" in {each["code"] for each in listed}


async def test_directories_that_others_can_read_are_found(tmp_path: Path) -> None:
    settings = agent(tmp_path)
    config = tmp_path / "agents/claude/ses_1/config"
    config.mkdir(parents=True)
    config.chmod(0o755)
    assert str(config) in (await found(settings))["agent_directory_broken"]
    config.chmod(0o700)
    assert await found(settings) == {}


async def test_an_agent_that_could_read_our_secrets_is_found(tmp_path: Path) -> None:
    secret = tmp_path / "holdfast.db"
    secret.touch()
    settings = agent(tmp_path, permissions="read", run_as="root")
    settings = replace(settings, runtime=replace(settings.runtime, protected=(secret,)))
    assert str(secret) in (await found(settings))["agent_unsafe"]


@pytest.mark.parametrize("permissions", ["none", "read"])
async def test_a_directory_that_the_agents_user_cannot_enter_is_named(
    tmp_path: Path, permissions: str
) -> None:
    # Pytest's folders are for their owner alone.
    settings = agent(tmp_path, permissions=permissions, run_as="61000-61001")
    detail = (await found(settings))["agent_directory_broken"]
    closed = next(path for path in reversed(tmp_path.parents) if not path.stat().st_mode & 0o001)
    assert f"upstream claude: user 61000 (run_as) cannot enter {closed}" in detail
    with pytest.raises(InvalidSetting, match="cannot enter"):
        async with open_upstream_gateway(settings):
            pass
