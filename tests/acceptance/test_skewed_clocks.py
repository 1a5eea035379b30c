"""Replicas whose clocks are wrong: the database's time counts."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.postgres import Databases, PostgresServer

DAY = 86_400
TIMEOUT = 60
SERVER = Path(__file__).parents[1] / "tools" / "odd_mcp_server.py"
_PATCH = """
import os, time
_real, _ahead = time.time, float(os.environ["CLOCK_AHEAD_SECONDS"])
time.time = lambda: _real() + _ahead
"""
"""Run by the interpreter at its start: the wall clock of the process is wrong."""


@pytest.fixture(name="gateways")
def _gateways(
    postgres_server: PostgresServer, databases: Databases, tmp_path: Path
) -> Iterator[list[GatewayProcess]]:
    """Three gateways: on time, a day ahead, and a day behind."""
    name = databases.take()
    (tmp_path / "sitecustomize.py").write_text(_PATCH)
    config = tmp_path / "holdfast.toml"
    with ProviderSimulator(seed=5) as simulator, ExitStack() as stack:
        config.write_text(
            f'[[upstream]]\nurl = "{simulator.base_url}"\nkey_env = "STORY_KEY"\n'
            f'[[mcp]]\nname = "odd"\ncommand = "{sys.executable}"\n'
            f'args = ["{SERVER}", "{tmp_path / "state"}"]\n'
        )
        call = {"name": "odd__echo", "arguments": {"text": "done"}}
        simulator.add_answer(None, when={"text": "use it"}, tool_calls=[call])
        yield [
            stack.enter_context(
                running_gateway(
                    postgres_server.url(name), "--config", str(config),
                    env={
                        "STORY_KEY": "sk-story", "PYTHONPATH": str(tmp_path),
                        "CLOCK_AHEAD_SECONDS": str(ahead),
                    },
                )
            )
            for ahead in (0, DAY, -DAY)
        ]  # fmt: skip
    databases.give_back(name)


def test_an_approval_is_answered_at_every_replica(gateways: list[GatewayProcess]) -> None:
    replicas = zip(gateways, gateways[1:] + gateways[:1], strict=True)
    for number, (asking, answering) in enumerate(replicas):
        body = {
            "model": "gpt-4.1",
            "input": "use it",
            "tools": [{"type": "mcp", "server_label": "odd"}],
        }
        headers = {"X-Session-Key": f"k{number}"}
        reply = httpx.post(
            f"{asking.url}/v1/responses", json=body, headers=headers, timeout=TIMEOUT
        )
        assert "mcp_approval_request" in reply.text, reply.text
        path, query = f"{answering.url}/v1/approvals", {"session_id": reply.headers["x-session-id"]}
        (waiting,) = httpx.get(path, params=query, timeout=TIMEOUT).json()["data"]
        path = f"{path}/{waiting['id']}"
        answered = httpx.post(path, json={"approve": True}, timeout=TIMEOUT)
        assert answered.status_code == 200, answered.text
