"""Holdfast as an MCP server for real programs, and both sides in MCP's own conformance tests.

The programs are large: these tests are part of `make soak`.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.cli_agents import programs
from tests.clients.environments import node_with
from tests.store_urls import sqlite_url

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

MANIFEST = Path(__file__).parent / "conformance/package.json"
CLIENT = Path(__file__).parent / "conformance/client.py"
KEY = "agent:main:ada"
_MACHINES = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway with one conversation."""
    with running_gateway(sqlite_url(tmp_path)) as running:
        body = {"model": "holdfast-demo", "input": "My dog is Rex"}
        reply = httpx.post(
            f"{running.url}/v1/responses", json=body, headers={"X-Session-Key": KEY}, timeout=60
        )
        assert reply.status_code == 200
        yield running


def _run(folder: Path, environment: dict[str, str], *command: str | Path) -> str:
    """Run a program to its end; return what it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def _packages() -> Path:
    return node_with(MANIFEST)


def _conformance() -> tuple[Path, Path]:
    """Return a Node that is new enough, and the program."""
    packages = _packages()
    node = f"node-{platform.system().lower()}-{_MACHINES[platform.machine()]}/bin/node"
    return packages / node, packages / "@modelcontextprotocol/conformance/dist/index.js"


def test_claude_code_calls_a_tool(gateway: GatewayProcess, tmp_path: Path) -> None:
    server = {"type": "http", "url": f"{gateway.url}/mcp", "headers": {"X-Session-Key": KEY}}
    with ProviderSimulator(profile="anthropic") as sim:
        sim.add_answer("it is done", when={"text": KEY})
        call = {"name": "mcp__holdfast__session_status", "arguments": {}}
        sim.add_answer(None, when={"text": "look it up"}, tool_calls=[call], times=1)
        environment = {
            "ANTHROPIC_BASE_URL": sim.url,
            "ANTHROPIC_API_KEY": sim.key,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        shown = _run(
            tmp_path, environment, programs.claude(), "-p", "look it up", "--strict-mcp-config",
            "--mcp-config", json.dumps({"mcpServers": {"holdfast": server}}),
            "--allowedTools", "mcp__holdfast__session_status",
        )  # fmt: skip
    assert "it is done" in shown


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_codex_is_offered_the_tools(
    transport: str, gateway: GatewayProcess, tmp_path: Path
) -> None:
    server = f'url="{gateway.url}/mcp", http_headers={{"X-Session-Key"="{KEY}"}}'
    if transport == "stdio":
        arguments = ["-m", "holdfast.cli", "mcp", "--key", KEY, "--url", gateway.url]
        server = f'command="{sys.executable}", args={json.dumps(arguments)}'
    with ProviderSimulator() as sim:
        provider = (
            f'model_providers.sim={{name="sim", base_url="{sim.base_url}", '
            'wire_api="responses", env_key="SIM_KEY"}'
        )
        _run(
            tmp_path, {"SIM_KEY": sim.key}, programs.codex(), "exec", "--skip-git-repo-check",
            "-m", "gpt-5.4", "-c", 'model_provider="sim"', "-c", provider,
            "-c", f"mcp_servers.holdfast={{{server}, required=true}}", "hello",
        )  # fmt: skip
        tools = sim.requests()[-1].body["tools"]
    (namespace,) = [tool for tool in tools if tool.get("name") == "mcp__holdfast"]
    assert "memory_search" in [tool["name"] for tool in namespace["tools"]]


def test_the_inspector_lists_and_calls_tools(gateway: GatewayProcess, tmp_path: Path) -> None:
    inspector: list[str | Path] = [_packages() / ".bin/mcp-inspector", "--cli"]
    inspector += [f"{gateway.url}/mcp", "--transport", "http", "--header", f"X-Session-Key: {KEY}"]
    listed = _run(tmp_path, {}, *inspector, "--method", "tools/list")
    assert "sessions_history" in listed
    called = _run(
        tmp_path, {}, *inspector, "--method", "tools/call", "--tool-name", "session_status"
    )
    assert KEY in called


@pytest.mark.parametrize(
    "scenario", ["server-initialize", "ping", "tools-list", "dns-rebinding-protection"]
)
def test_the_server_conforms(scenario: str, gateway: GatewayProcess, tmp_path: Path) -> None:
    command: list[str | Path] = [
        *_conformance(),
        "server",
        "--url",
        f"{gateway.url}/mcp",
        "--scenario",
        scenario,
    ]
    assert "0 failed" in _run(tmp_path, {}, *command)


@pytest.mark.parametrize("scenario", ["initialize", "tools_call"])
def test_the_client_conforms(scenario: str, tmp_path: Path) -> None:
    client = f"{sys.executable} {CLIENT}"
    command: list[str | Path] = [
        *_conformance(),
        "client",
        "--command",
        client,
        "--scenario",
        scenario,
    ]
    assert "PASSED" in _run(tmp_path, {}, *command)
