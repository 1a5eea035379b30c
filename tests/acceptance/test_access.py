"""API keys and the limits of their tenants, through a real process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.store_urls import sqlite_url

PER_MINUTE = 4
"""So few that none is added while a test runs."""
CONFIGURED = "configured-key-0123456789-abcdefghijklmnopqrstuvwxyz"
CONFIGURATION = """
[[key]]
key_env = "TEST_CONFIGURED_KEY"
tenant = "configured"
"""


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(name="keys", scope="module")
def _keys(folder: Path) -> dict[str, str]:
    """A key of each of three tenants: two from the command line, one from the configuration."""
    keys = {tenant: _create_key(folder, tenant) for tenant in ("first", "second")}
    return {**keys, "configured": CONFIGURED}


def _create_key(folder: Path, tenant: str) -> str:
    command = ["keys", "create", "--tenant", tenant, "--json", "--store", sqlite_url(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *command], capture_output=True, text=True, check=True
    )
    return str(json.loads(done.stdout)["key"])


@pytest.fixture(name="gateway", scope="module")
def _gateway(folder: Path, keys: dict[str, str]) -> Iterator[GatewayProcess]:
    configuration = folder / "holdfast.toml"
    configuration.write_text(CONFIGURATION)
    env = {
        "TEST_CONFIGURED_KEY": CONFIGURED,
        "HOLDFAST_LIMITS_REQUESTS_PER_MINUTE": str(PER_MINUTE),
    }
    arguments = ("--config", str(configuration))
    with running_gateway(sqlite_url(folder), *arguments, env=env) as gateway:
        yield gateway


def _status(gateway: GatewayProcess, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{gateway.url}/v1/sessions", headers=headers).status_code


@pytest.mark.parametrize("tenant", ["first", "configured"])
def test_a_key_that_differs_in_any_character_is_refused(
    gateway: GatewayProcess, keys: dict[str, str], tenant: str
) -> None:
    key = keys[tenant]
    assert _status(gateway, key) == 200
    for place in range(0, len(key), 3):
        other = "x" if key[place] != "x" else "y"
        assert _status(gateway, key[:place] + other + key[place + 1 :]) == 401, place
    for changed in (key[:-1], key + "x", key[:-1] + ("x" if key[-1] != "x" else "y")):
        assert _status(gateway, changed) == 401


def test_what_one_tenant_asks_is_not_counted_against_another(
    gateway: GatewayProcess, keys: dict[str, str]
) -> None:
    found = [_status(gateway, keys["second"]) for _ in range(PER_MINUTE + 2)]
    assert found[0] == 200
    assert found[-1] == 429
    assert _status(gateway, keys["first"]) == 200
