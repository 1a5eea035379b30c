"""Tools that an upstream adds to requests: a tenant gets its own, and hears of no others."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from holdfast.app import open_application
from holdfast.settings import AccessKey, Settings, StoreSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from holdfast.tools.settings import McpSettings
from tests.http_server import serving
from tests.integration.upstream_gateway import upstream

CLOSED = "http://127.0.0.1:9/mcp"


@pytest.fixture
def simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator() as simulator:
        yield simulator


@asynccontextmanager
async def opened(simulator: ProviderSimulator, *names: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run a gateway of two tenants; the server `ledger` belongs to `acme`."""
    settings = Settings(
        store=StoreSettings(url="memory:"),
        upstreams=(upstream(simulator, tools=names),),
        mcp=(McpSettings(name="ledger", url=CLOSED, tenant="acme"),),
        keys=tuple(
            AccessKey(key_env="K", tenant=tenant, key=f"hf_{tenant}") for tenant in ("acme", "zeta")
        ),
    )
    async with (
        open_application(settings) as application,
        serving(application) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        yield client


async def respond(client: httpx.AsyncClient, tenant: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer hf_{tenant}", "X-Session-Key": "k"}
    return await client.post(
        "/v1/responses", json={"model": "gpt-5.4", "input": "hi"}, headers=headers
    )


@pytest.mark.parametrize("names", [("mcp:ledger",), ("mcp:ledger", "session_status")])
async def test_the_server_of_another_tenant_is_no_default_tool(
    simulator: ProviderSimulator, names: tuple[str, ...]
) -> None:
    async with opened(simulator, *names) as client:
        answer = await respond(client, "zeta")
        assert answer.status_code == 200, answer.text
        assert "ledger" not in answer.text
        assert "ledger" not in str(simulator.requests()[-1].body)
        own = await respond(client, "acme")
        assert "ledger" in own.text


async def test_a_server_that_nobody_has_is_still_an_error(simulator: ProviderSimulator) -> None:
    async with opened(simulator, "mcp:leger") as client:
        answer = await respond(client, "zeta")
        assert answer.status_code == 400
        assert "no MCP server 'leger'" in answer.text
