"""Metrics and per-tenant limits."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from holdfast.app import open_application
from holdfast.core.ids import DEFAULT_TENANT, Tenant
from holdfast.engine.sessions.quota import StorageQuota
from holdfast.engine.settings import LaneSettings
from holdfast.http.app import Application
from holdfast.http.request.auth import RateLimiter
from holdfast.http.server.errors import RateLimited
from holdfast.settings import LimitSettings, ServerSettings, Settings, StoreSettings
from tests.http_server import serving
from tests.in_process import RunningGateway, open_gateway

ASK = {"model": "holdfast-demo", "messages": [{"role": "user", "content": "hi"}]}
MEMORY = StoreSettings(url="memory:")


@asynccontextmanager
async def _client(application: Application) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(application) as server, httpx.AsyncClient(base_url=server.url) as client:
        yield client


async def test_turns_runs_commits_and_requests_are_counted() -> None:
    async with open_application(Settings(store=MEMORY)) as app, _client(app) as client:
        await client.post("/v1/chat/completions", json=ASK, headers={"X-Session-Key": "k"})
        text = (await client.get("/metrics")).text
    assert 'holdfast_turns_accepted_total{admission="started",source="user"} 1.0' in text
    assert 'holdfast_runs_ended_total{outcome="completed"} 1.0' in text
    counts = re.findall(r"^holdfast_commit_(?:seconds|commands)_count (\S+)$", text, re.MULTILINE)
    assert len(counts) == 2
    assert min(map(float, counts)) >= 2
    assert 'holdfast_upstream_seconds_count{outcome="completed",upstream="demo"} 1.0' in text
    assert 'route="/v1/chat/completions",status="200"' in text


async def test_requests_per_minute_are_limited_per_tenant() -> None:
    settings = Settings(store=MEMORY, limits=LimitSettings(requests_per_minute=2))
    async with open_application(settings) as app, _client(app) as client:
        codes = [(await client.get("/v1/sessions")).status_code for _ in range(3)]
        late = await client.get("/v1/sessions")
        health = await client.get("/healthz")
    assert codes == [200, 200, 429]
    assert late.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(late.headers["retry-after"]) >= 1
    assert health.status_code == 200


def test_the_requests_of_one_tenant_are_not_counted_against_another() -> None:
    limiter = RateLimiter(requests_per_minute=1)
    limiter.consume(Tenant("first"))
    with pytest.raises(RateLimited):
        limiter.consume(Tenant("first"))
    limiter.consume(Tenant("second"))


async def test_a_body_over_the_limit_is_413() -> None:
    settings = Settings(store=MEMORY, limits=LimitSettings(body_bytes=1024))
    async with open_application(settings) as app, _client(app) as client:
        reply = await client.post("/v1/chat/completions", json={**ASK, "pad": "x" * 2000})
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"


async def test_only_configured_origins_get_cors_headers() -> None:
    server = ServerSettings(cors_origins=("https://app.example",))
    async with open_application(Settings(store=MEMORY, server=server)) as app, _client(app) as c:
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        preflight = await c.options("/v1/responses", headers=asked)
        other = await c.get("/v1/sessions", headers={"Origin": "https://evil.example"})
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in other.headers


async def test_open_turns_of_a_tenant_can_be_limited() -> None:
    async with open_gateway() as gateway:
        gateway.engine.limits = LaneSettings().limits(can_run_again=True, max_tenant_turns=1)
        gateway.model.gate.clear()
        running = asyncio.create_task(gateway.chat([{"role": "user", "content": "one"}], "a"))
        await gateway.model.entered.acquire()
        full = await gateway.chat([{"role": "user", "content": "two"}], "b")
        assert full.status_code == 429
        assert full.json()["error"]["code"] == "tenant_full"
        internal = await gateway.respond("two", "a", headers={"X-Session-Internal": "true"})
        assert internal.status_code == 429
        gateway.model.gate.set()
        assert (await running).status_code == 200
        assert (await gateway.chat([{"role": "user", "content": "two"}], "b")).status_code == 200


async def test_stored_bytes_of_a_tenant_can_be_limited() -> None:
    async with open_gateway() as gateway:
        gateway.engine.storage = StorageQuota(gateway.engine.read, 2000)
        said = [{"role": "user", "content": "x" * 1500}]
        first = await gateway.chat(said, headers={"Idempotency-Key": "once"})
        assert first.status_code == 200
        added = await _add(gateway, said, {"Idempotency-Key": "batch"})
        for full in (
            await _add(gateway, said, {}),
            await gateway.client.post("/v1/transcript/lane", headers={"X-Session-Key": "k"}),
            await gateway.respond("x", headers={"X-Session-Internal": "true"}),
            await gateway.chat(said),
            await gateway.chat(said, "another"),
            await gateway.respond("x", None),
            await gateway.client.post("/v1/conversations", json={"items": said}),
            await gateway.respond("x", None, previous_response_id=await _kept(gateway)),
        ):
            assert full.status_code == 429, full.text
            assert full.json()["error"]["code"] == "storage_full"
            assert full.headers["x-should-retry"] == "false"
        # What came before is answered again, what is not stored is none of it, and all is read.
        again = await gateway.chat(said, headers={"Idempotency-Key": "once"})
        assert again.json() == first.json()
        assert (await _add(gateway, said, {"Idempotency-Key": "batch"})).json() == added.json()
        assert (await gateway.respond("x", None, store=False)).status_code == 200
        session = first.headers["x-session-id"]
        assert (await gateway.client.delete(f"/v1/sessions/{session}")).status_code == 200
        gateway.engine.storage = StorageQuota(gateway.engine.read, 2000)
        assert (await gateway.chat(said)).status_code == 200


async def _add(
    gateway: RunningGateway, items: list[dict[str, Any]], headers: dict[str, str]
) -> httpx.Response:
    """Add items to a transcript."""
    named = {"X-Session-Key": "k", **headers}
    return await gateway.client.post("/v1/transcript", json={"items": items}, headers=named)


async def _kept(gateway: RunningGateway) -> str:
    """Return a response that was stored before there was a bound."""
    gauge, gateway.engine.storage = gateway.engine.storage, StorageQuota(gateway.engine.read, 0)
    kept = await gateway.respond("kept", None)
    gateway.engine.storage = gauge
    return str(kept.json()["id"])


async def test_a_tenants_bytes_are_measured_and_then_counted() -> None:
    async with open_gateway() as gateway:
        now = [100.0]
        gauge = StorageQuota(gateway.engine.read, 300, lambda: now[0])
        limits = gateway.engine.limits
        assert (await gauge.limits(DEFAULT_TENANT, limits)).full_bytes == 0
        await gateway.chat([{"role": "user", "content": "x" * 500}])
        # Another's bytes are seen with the next measurement, our own at once.
        assert (await gauge.limits(DEFAULT_TENANT, limits)).full_bytes == 0
        gauge.note(DEFAULT_TENANT, 301)
        assert (await gauge.limits(DEFAULT_TENANT, limits)).full_bytes == 300
        now[0] += 11
        assert (await gauge.limits(DEFAULT_TENANT, limits)).full_bytes == 300
