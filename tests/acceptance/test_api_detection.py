"""`holdfast serve` says in one line what its upstream speaks, and starts whatever that is."""

from pathlib import Path
from typing import Any

import httpx

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.store_urls import sqlite_url

KEY = {"HOLDFAST_UPSTREAM_KEY": "sk-simulated"}


def said(gateway: GatewayProcess) -> list[str]:
    """Return what a stopped gateway has said about its upstreams."""
    return [line.strip() for line in gateway.output if "upstream upstream" in line]


def ask(gateway: GatewayProcess, **fields: Any) -> httpx.Response:
    """Send a Chat message."""
    body = {"model": "gpt-5.4", "messages": [{"role": "user", "content": "hi"}], **fields}
    headers = {"X-Session-Key": "k"}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def test_it_is_said_once_and_asking_is_no_call(tmp_path: Path) -> None:
    with ProviderSimulator() as simulator:
        gateway = GatewayProcess(sqlite_url(tmp_path), "--upstream", simulator.base_url, env=KEY)
        gateway.start()
        assert ask(gateway).status_code == 200
        assert ask(gateway, stop=["END"]).status_code == 200
        assert [request.api for request in simulator.requests()] == ["responses", "chat"]
        assert gateway.stop() == 0
        found = f"speaks Responses and Chat Completions at {simulator.base_url}"
        assert said(gateway) == [f"holdfast: upstream upstream {found}"]


def test_a_gateway_starts_before_its_upstream(tmp_path: Path) -> None:
    with ProviderSimulator() as simulator:
        simulator.shut()
        gateway = GatewayProcess(sqlite_url(tmp_path), "--upstream", simulator.base_url, env=KEY)
        gateway.start()
        assert httpx.get(f"{gateway.url}/readyz").status_code == 200
        simulator.open()
        assert ask(gateway, stop=["END"]).status_code == 200
        assert gateway.stop() == 0
    assert "speaks Responses and Chat Completions" in said(gateway)[-1]


def test_the_variable_and_the_flag_name_the_api(tmp_path: Path) -> None:
    with ProviderSimulator() as simulator:
        env = {
            **KEY,
            "HOLDFAST_UPSTREAM_URL": simulator.base_url,
            "HOLDFAST_UPSTREAM_API": "both",
        }
        gateway = GatewayProcess(sqlite_url(tmp_path), env=env)
        gateway.start()
        assert ask(gateway, stop=["END"]).status_code == 200
        assert gateway.stop() == 0
        assert said(gateway) == []
        gateway = GatewayProcess(sqlite_url(tmp_path), "--upstream-api", "responses", env=env)
        gateway.start()
        assert ask(gateway, stop=["END"]).status_code == 400
        assert gateway.stop() == 0
