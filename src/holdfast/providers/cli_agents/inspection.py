"""Inspect the configured agents without a turn: what would fail, and how to fix it."""

import asyncio
import os
import stat
import uuid
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.core.errors import HoldfastError, ProviderFailure
from holdfast.providers.cli_agents.agent import Agent, AgentRequest
from holdfast.providers.cli_agents.directories import AgentDirectories
from holdfast.providers.cli_agents.kinds.acp import initialize
from holdfast.providers.cli_agents.kinds.json_rpc import JsonRpc
from holdfast.providers.cli_agents.launcher import Launcher
from holdfast.providers.cli_agents.registry import agent_of
from holdfast.providers.settings import UpstreamSettings

ProblemCode = Literal[
    "agent_missing", "agent_too_old", "agent_not_logged_in", "agent_directory_broken",
    "agent_unsafe",
]  # fmt: skip


class AgentProblem(msgspec.Struct, frozen=True):
    """One problem of an agent."""

    code: ProblemCode
    detail: str


async def inspect_agent(settings: UpstreamSettings) -> list[AgentProblem]:
    """Return the problems of an agent; empty if it can be used."""
    agent = agent_of(settings)
    try:
        launcher = Launcher(settings, agent)
        version = await launcher.version()
    except ProviderFailure as failure:
        help_text = f"; run `{agent.install_command}`" if agent.install_command else ""
        return [AgentProblem("agent_missing", f"{failure.message}{help_text}")]
    except HoldfastError as error:
        return [AgentProblem("agent_unsafe", error.message)]
    problems = [
        *(_check_version(settings, agent, version) if version else []),
        *_check_login(settings, agent, launcher),
        *await asyncio.to_thread(_check_directory, settings.runtime.root / settings.name),
    ]
    closed = await launcher.find_closed()
    if closed is not None:
        return [*problems, AgentProblem("agent_directory_broken", closed)]
    try:
        await launcher.check()
    except HoldfastError as error:
        return [*problems, AgentProblem("agent_unsafe", error.message)]
    if not version and not problems:
        problems += await _greet(settings, launcher)
    return problems


async def _greet(settings: UpstreamSettings, launcher: Launcher) -> list[AgentProblem]:
    """Start an agent of the Agent Client Protocol for its first answer, isolated as for a turn."""
    root = settings.runtime.root / settings.name
    directories = AgentDirectories(root, settings.workdir, launcher.accounts)
    directory = directories.temporary(uuid.uuid4().hex)
    try:
        directory.create()
        process = await launcher.start(AgentRequest(directory=directory, model=None))
        try:
            await initialize(JsonRpc(process))
        finally:
            await asyncio.shield(process.kill())
    except (ProviderFailure, OSError) as exc:
        message = exc.message if isinstance(exc, ProviderFailure) else str(exc)
        return [AgentProblem("agent_missing", f"upstream {settings.name}: {message}")]
    finally:
        await asyncio.to_thread(directory.remove)
    return []


def _check_version(settings: UpstreamSettings, agent: Agent, version: str) -> list[AgentProblem]:
    if tuple(int(part) for part in version.split(".")) >= agent.oldest_version:
        return []
    oldest = ".".join(map(str, agent.oldest_version))
    detail = f"upstream {settings.name}: version {version} is older than {oldest}"
    return [AgentProblem("agent_too_old", f"{detail}; run `{agent.install_command}`")]


def _check_login(
    settings: UpstreamSettings, agent: Agent, launcher: Launcher
) -> list[AgentProblem]:
    """Report an agent that has neither credentials nor a variable that could hold a key."""
    has_key = any(settings.runtime.environment.get(name) for name in settings.env)
    credentials = launcher.credentials
    if not agent.login_command or has_key or (credentials is not None and credentials.is_file()):
        return []
    detail = (
        f"upstream {settings.name}: no credentials and no variable of `env` is set; "
        f"run `{agent.login_command}`, or name the variable of its key in `env`"
    )
    return [AgentProblem("agent_not_logged_in", detail)]


def _check_directory(root: Path) -> list[AgentProblem]:
    """Report directories of sessions that cannot be written, or that others can read."""
    if not root.exists():
        return []
    if not root.is_dir() or not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return [AgentProblem("agent_directory_broken", f"{root} cannot be written")]
    broken = [
        path
        for session in root.iterdir()
        for path in (session / "config", session / "work")
        if _is_broken(path)
    ]
    return [
        AgentProblem("agent_directory_broken", f"{path} is not a directory for its owner alone")
        for path in broken[:10]
    ]


def _is_broken(path: Path) -> bool:
    """Return whether a path exists, but is not a directory for its owner alone."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISDIR(mode) or bool(mode & 0o077)
