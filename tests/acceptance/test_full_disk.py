"""A gateway whose disk is full, or takes a lease but no turn, serves reads and is not ready."""

import asyncio
import resource
from pathlib import Path

import httpx

from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.soak.test_http_fuzz import gateway_process
from tests.store_urls import sqlite_url

SECONDS = 60.0
SPARE_BYTES = 64 * 1024
"""More than the write of a lease, less than the turn below."""
LONG = "x" * 400_000
SESSION_KEY = "X-Session-Key"
SCHEDULE = """
[[schedule]]
name = "s"
every = "2h"
prompt = "p"
model = "holdfast-demo"
"""


def _largest_size(folder: Path) -> int:
    """Return the size of the largest file of a store."""
    return max(path.stat().st_size for path in folder.glob("*.db*"))


async def _until(client: httpx.AsyncClient, *, is_ready: bool) -> None:
    async with asyncio.timeout(SECONDS):
        while (await client.get("/readyz")).is_success != is_ready:
            pass


async def test_a_gateway_that_starts_on_a_full_disk_serves_reads_until_there_is_room(
    tmp_path: Path,
) -> None:
    store, body, headers = sqlite_url(tmp_path), {"model": "m", "input": LONG}, {SESSION_KEY: "k"}
    config = tmp_path / "holdfast.toml"
    config.write_text(SCHEDULE)
    with running_gateway(store) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:
            assert (await client.post("/v1/responses", json=body, headers=headers)).is_success
    gateway = GatewayProcess(store, "--config", str(config))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SPARE_BYTES, most))
    try:
        gateway.start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:
            (session,) = (await client.get("/v1/sessions")).json()["data"]
            items = (await client.get(f"/v1/sessions/{session['id']}/items")).json()["data"]
            assert items[0]["content"][0]["text"] == LONG
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.post("/v1/responses", json=body)).status_code == 503
            unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            gateway_process(gateway).rlimit(resource.RLIMIT_FSIZE, unlimited)
            await _until(client, is_ready=True)
            again = await client.post("/v1/responses", json=body, headers=headers)
            assert (again.status_code, again.headers["X-Session-Id"]) == (200, session["id"])
            async with asyncio.timeout(SECONDS):
                while not (await client.get("/v1/schedules")).json()["data"]:
                    pass
    finally:
        gateway.kill()


async def test_a_gateway_without_room_for_a_turn_is_not_ready_before_one_is_refused(
    tmp_path: Path,
) -> None:
    with running_gateway(sqlite_url(tmp_path)) as gateway:
        process = gateway_process(gateway)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:
            await _until(client, is_ready=True)
            limit = _largest_size(tmp_path) + SPARE_BYTES
            process.rlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            await _until(client, is_ready=False)
            body = {"model": "m", "input": LONG}
            assert (await client.post("/v1/responses", json=body)).status_code == 503
            assert (await client.get("/v1/sessions")).status_code == 200
            process.rlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            await _until(client, is_ready=True)
            assert (await client.post("/v1/responses", json=body)).status_code == 200
