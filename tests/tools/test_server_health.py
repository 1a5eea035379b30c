"""What operators see of MCP servers that cannot be used, and requests that nobody can serve."""

import sys
from itertools import product
from pathlib import Path

import httpx
import pytest

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import running_gateway
from tests.cli.terminals import in_process
from tests.store_urls import sqlite_url

SERVER = Path(__file__).with_name("odd_mcp_server.py")


def _config(tmp_path: Path, upstream: str = "") -> Path:
    path = tmp_path / "holdfast.toml"
    path.write_text(
        f'{upstream}\n[[mcp]]\nname = "good"\ncommand = "{sys.executable}"\n'
        f'args = ["{SERVER}", "{tmp_path / "state"}"]\n'
        f'[[mcp]]\nname = "bad"\ncommand = "{tmp_path / "missing"}"\n'
    )
    return path


def test_the_doctor_names_servers_that_do_not_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(_config(tmp_path))
    outcome = in_process(capsys, "doctor", "--config", config, "--store", sqlite_url(tmp_path))
    assert outcome.code == 1
    assert "mcp_unavailable: bad" in outcome.out
    assert "good" not in outcome.out


def test_a_running_gateway_reports_a_server_that_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_gateway(sqlite_url(tmp_path), "--config", str(_config(tmp_path))) as gateway:
        tools = [{"type": "mcp", "server_label": name} for name in ("good", "bad")]
        body = {"model": "holdfast-demo", "input": "hi", "tools": tools}
        headers = {"X-Session-Key": "k"}
        reply = httpx.post(f"{gateway.url}/v1/responses", json=body, headers=headers, timeout=60)
        assert reply.status_code == 200, reply.text
        findings = httpx.get(f"{gateway.url}/v1/doctor", timeout=60).json()
        assert [
            found["subject"] for found in findings["data"] if found["code"] == "mcp_unavailable"
        ] == ["bad"]
        shown = in_process(capsys, "status", "--url", gateway.url).out
        assert "mcp good" in shown
        assert "mcp bad" in shown
        assert "failed" in shown


def test_a_server_that_the_upstream_does_not_run_is_refused(tmp_path: Path) -> None:
    with ProviderSimulator() as sim:
        upstream = f'[[upstream]]\nurl = "{sim.base_url}"\nkey_env = "K"\napi = "chat"\n'
        config = str(_config(tmp_path, upstream))
        url = sqlite_url(tmp_path)
        with running_gateway(url, "--config", config, env={"K": "x"}) as gateway:
            for field, key in product(("server_url", "connector_id"), ({"X-Session-Key": "k"}, {})):
                tools = [{"type": "mcp", "server_label": "x", field: "http://127.0.0.1:9/"}]
                messages = [{"role": "user", "content": "hi"}]
                body = {"model": "gpt-4.1", "messages": messages, "tools": tools}
                reply = httpx.post(
                    f"{gateway.url}/v1/chat/completions", json=body, headers=key, timeout=60
                )
                assert reply.status_code == 400, (field, key, reply.text)
                assert "runs no MCP servers" in reply.text
        assert not sim.requests()
