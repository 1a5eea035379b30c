"""A gateway whose disk takes a lease but no turn is not ready."""

import asyncio
import resource
from pathlib import Path

import httpx

from tests.acceptance.gateway_process import running_gateway
from tests.soak.test_http_fuzz import gateway_process
from tests.store_urls import sqlite_url

SECONDS = 60.0
SPARE_BYTES = 64 * 1024
"""More than the write of a lease, less than the turn below."""
LONG = "x" * 400_000


def _largest_size(folder: Path) -> int:
    """Return the size of the largest file of a store."""
    return max(path.stat().st_size for path in folder.glob("*.db*"))


async def _until(client: httpx.AsyncClient, *, is_ready: bool) -> None:
    async with asyncio.timeout(SECONDS):
        while (await client.get("/readyz")).is_success != is_ready:
            pass


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
