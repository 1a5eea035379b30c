"""ACP agents are known by their first answer: what is wrong with one is said in seconds, once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import HoldfastError
from holdfast.doctor.configuration import check_upstreams
from holdfast.providers.cli_agents import launcher
from holdfast.providers.cli_agents.kinds import acp
from holdfast.providers.settings import UpstreamSettings
from tests.cli_agents.agents import heals, open_agent_gateway, processes_of, until
from tests.cli_agents.test_agent_approvals import MODEL, asking
from tests.integration.upstream_gateway import UpstreamGateway, text_of

HINT = "check that `command` and `args` start it"


def silent(root: Path) -> UpstreamSettings:
    """Return an agent that never answers, and notes each of its starts."""
    return asking(root, args=("silent",), workdir=str(root / "work"), shared=True)


def starts(root: Path) -> int:
    """Return how often the silent agent was started."""
    return len((root / "work" / "starts").read_text().splitlines())


async def error_of(gateway: UpstreamGateway, key: str) -> dict[str, Any]:
    """Return the error of a turn that fails."""
    answer = await gateway.post("/v1/responses", key, input="hi", model=MODEL)
    assert answer.status_code == 502, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("args", [(), ("nameless",)])
async def test_an_agent_that_ignores_the_version_flag_is_used(
    root: Path, args: tuple[str, ...]
) -> None:
    [result] = await check_upstreams([asking(root, args=args)])
    assert result.is_ok, result.detail
    async with open_agent_gateway(asking(root, args=args)) as gateway:
        assert text_of(await gateway.respond("hello", model=MODEL)) == "You said: hello"
        assert text_of(await gateway.respond("again", model=MODEL)) == "You said: again"
        assert await heals(gateway) == []


async def test_a_session_of_another_version_of_the_agent_is_rebuilt(root: Path) -> None:
    async with open_agent_gateway(asking(root, idle_seconds=0.01)) as gateway:
        await gateway.respond("hello", model=MODEL)
        await until(lambda: not processes_of(root))
        [config] = root.glob("asking/*/config")  # noqa: ASYNC240 - a test may look
        (config / "version").write_text("1.0.1")
        await gateway.respond("again", model=MODEL)
        assert await heals(gateway) == ["agent_version_changed"]


async def test_the_check_says_what_is_wrong_with_an_agent_that_never_answers(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "INITIALIZE_SECONDS", 0.5)
    [result] = await check_upstreams([silent(root)])
    assert not result.is_ok
    assert "did not answer `initialize` within 0.5 s" in result.detail
    assert HINT in result.detail
    assert processes_of(root) == []
    assert list(root.glob("asking/*/config")) == []  # noqa: ASYNC240 - a test may look


async def test_the_check_shows_what_a_program_said_before_it_ended(root: Path) -> None:
    [result] = await check_upstreams([asking(root, args=("broken",))])
    assert not result.is_ok
    assert "exited with code 1 without an answer: this is not an agent" in result.detail
    assert HINT in result.detail


async def test_an_agent_that_never_answers_is_not_started_again_by_every_turn(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for the agent to start in its sandbox, and to note that.
    monkeypatch.setattr(acp, "INITIALIZE_SECONDS", 5.0)
    async with open_agent_gateway(silent(root)) as gateway:
        first = await error_of(gateway, "a")
        assert first["code"] == "agent_not_started"
        assert HINT in first["message"]
        for key in ("b", "c", "a"):
            assert await error_of(gateway, key) == first
        assert starts(root) == 1
        monkeypatch.setattr(launcher, "REMEMBERED_SECONDS", 0.0)
    async with open_agent_gateway(silent(root)) as gateway:
        await error_of(gateway, "d")
        await error_of(gateway, "e")
        assert starts(root) == 3


async def test_a_program_without_a_version_is_not_asked_again_until_it_changes(
    tmp_path: Path,
) -> None:
    from holdfast.providers.cli_agents.registry import agent_of
    from tests.cli_agents.test_inspection import agent

    settings = agent(tmp_path, f"echo asked >> {tmp_path}/asked; echo none")
    starter = launcher.Launcher(settings, agent_of(settings))

    async def error() -> str:
        with pytest.raises(HoldfastError) as failed:
            await starter.version()
        return failed.value.message

    errors = await asyncio.gather(*(error() for _ in range(10)))
    assert len(set(errors)) == 1
    assert (tmp_path / "asked").read_text() == "asked\n"
    agent(tmp_path, "echo 9.9.9 is a longer file")
    assert await starter.version() == "9.9.9"
