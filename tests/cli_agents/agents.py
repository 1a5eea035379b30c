"""Real agents as upstreams, with the simulator as their model."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from holdfast.core.healing.policy import read_heals
from holdfast.providers.settings import AgentRuntime, UpstreamSettings
from holdfast.testing.simulator.provider import ProviderSimulator, RecordedRequest
from tests.cli_agents import programs
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway


def claude_code(simulator: ProviderSimulator, root: Path, **more: Any) -> UpstreamSettings:
    """Return Claude Code as an upstream."""
    environment = {
        "PATH": os.environ["PATH"],
        "ANTHROPIC_BASE_URL": simulator.url,
        "ANTHROPIC_API_KEY": simulator.key,
        "NOT_NAMED": "a secret of the gateway",
    }
    settings = {
        "name": "claude",
        "api": "claude-code",
        "command": str(programs.claude()),
        "env": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
        "models": ("claude-code/*",),
        "runtime": AgentRuntime(root=root, environment=environment),
    }
    return UpstreamSettings(**{**settings, **more})


def codex(simulator: ProviderSimulator, root: Path, **more: Any) -> UpstreamSettings:
    """Return Codex as an upstream."""
    provider = (
        f'model_providers.sim={{name="sim", base_url="{simulator.base_url}", '
        'wire_api="responses", env_key="SIM_KEY", request_max_retries=0, stream_max_retries=0}'
    )
    settings = {
        "name": "codex",
        "api": "codex",
        "command": str(programs.codex()),
        "args": ("-c", 'model_provider="sim"', "-c", provider),
        "env": ("SIM_KEY",),
        "models": ("codex/*",),
        "runtime": AgentRuntime(
            root=root, environment={"PATH": os.environ["PATH"], "SIM_KEY": simulator.key}
        ),
    }
    return UpstreamSettings(**{**settings, **more})


def opencode(simulator: ProviderSimulator, root: Path, **more: Any) -> UpstreamSettings:
    """Return opencode as an upstream."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": simulator.base_url, "apiKey": simulator.key},
        "models": {"gpt-5.4": {}},
    }
    config = {"model": "sim/gpt-5.4", "small_model": "sim/gpt-5.4", "provider": {"sim": provider}}
    environment = {
        "PATH": os.environ["PATH"],
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    settings = {
        "name": "opencode",
        "api": "acp",
        "command": str(programs.opencode()),
        "args": ("acp",),
        "env": tuple(environment)[1:],
        "models": ("acp/opencode",),
        "sandbox": True,
        "runtime": AgentRuntime(root=root, environment=environment),
    }
    return UpstreamSettings(**{**settings, **more})


def agent_session(request: RecordedRequest) -> str:
    """Return the agent's own session id of a request."""
    headers = request.headers
    return headers.get("x-claude-code-session-id") or headers["session-id"]


def texts(request: RecordedRequest) -> list[str]:
    """Return the texts of a request to the Messages API, in order."""
    return [
        block["text"]
        for message in request.body["messages"]
        for block in message["content"]
        if isinstance(block, dict) and block.get("type") == "text"
    ]


def transcripts(root: Path) -> list[Path]:
    """Return Claude Code's own transcripts."""
    return list(root.rglob("projects/*/*.jsonl"))


def processes_of(root: Path) -> list[psutil.Process]:
    """Return the processes that have a directory in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(root) in " ".join(process.environ().values()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return [process for process in found if process.pid != os.getpid()]


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Return as soon as a condition holds; fail where it does not."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - another process has no event of ours
            await asyncio.sleep(0.01)


async def heals(gateway: UpstreamGateway, key: str = "k") -> list[str]:
    """Return the codes of the failures that were healed in a key's last turn."""
    listed = await gateway.client.get("/v1/sessions", params={"key": key})
    session = listed.json()["data"][0]
    runs = await gateway.engine.read.runs(session["last_turn"]["id"])
    return [heal.code or "" for run in runs for heal in read_heals(run.heals)]


@asynccontextmanager
async def open_agent_gateway(
    *upstreams: UpstreamSettings, **more: Any
) -> AsyncIterator[UpstreamGateway]:
    """Run a gateway whose client waits for programs that start slowly on a busy machine."""
    async with open_upstream_gateway(*upstreams, **more) as gateway:
        gateway.client.timeout = httpx.Timeout(300)
        yield gateway
