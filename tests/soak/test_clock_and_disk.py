"""Clients at work while the clock is set and the disk takes no more: every turn ends."""

import asyncio
import contextlib
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.soak.test_hostile_upstream import wait_until_idle
from tests.soak.test_http_fuzz import Report, gateway_process, is_alive, peak_bytes
from tests.store_urls import sqlite_url

pytestmark = pytest.mark.soak

SEED = 20_261_118
CLIENTS = 6
TURNS = 20
SECONDS = 120.0
STEPS = (86_400, -86_400, 3_600, -3_600, 600, -600)
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
ANSWERED = {200, 429, 503}
_PATCH = """
import os, time
_real = time.time
def _stepped():
    try:
        with open(os.environ["CLOCK_OFFSET_FILE"]) as file:
            return _real() + float(file.read() or 0)
    except (OSError, ValueError):
        return _real()
time.time = _stepped
"""
"""Run by the interpreter at its start: the wall clock of the process follows a file."""


class Disturbed(NamedTuple):
    """How often a gateway was disturbed, and how far its clock was from the test's."""

    times: int
    farthest_seconds: float


@contextlib.contextmanager
def _stepping_gateway(folder: Path, *arguments: str) -> Iterator[tuple[GatewayProcess, Path]]:
    (folder / "patch").mkdir()
    (folder / "patch" / "sitecustomize.py").write_text(_PATCH)
    offset = folder / "offset"
    offset.write_text("0")
    env = {
        "PYTHONPATH": str(folder / "patch"),
        "CLOCK_OFFSET_FILE": str(offset),
        "HOLDFAST_LANES_TOOL_WAIT_SECONDS": "2",
        "HOLDFAST_UPSTREAM_KEY": "k",
    }
    with running_gateway(sqlite_url(folder), *arguments, env=env) as gateway:
        yield gateway, offset


async def _speak(client: httpx.AsyncClient, number: int, statuses: Counter[int]) -> float:
    """Say one thing after the other; every third leaves a call that nobody answers.

    Return the largest distance of an answer's time from the test's own clock.
    """
    farthest = 0.0
    headers = {"X-Session-Key": f"steps-{number % 3}"}
    for turn in range(TURNS):
        text = 'call weather {"city": "Ulm"}' if turn % 3 == 0 else f"turn {turn} of {number}"
        body: dict[str, Any] = {"model": "gpt-4.1", "input": text, "tools": [TOOL]}
        reply = await client.post("/v1/responses", json=body, headers=headers)
        statuses[reply.status_code] += 1
        if reply.status_code == 200:
            farthest = max(farthest, abs(reply.json()["created_at"] - time.time()))
    return farthest


async def _while_speaking(
    gateway: GatewayProcess, statuses: Counter[int], disturb: Any
) -> Disturbed:
    """Disturb the gateway until all clients are done."""
    count = 0
    async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:
        speaking = asyncio.gather(*(_speak(client, n, statuses) for n in range(CLIENTS)))
        while not speaking.done():
            disturb(count)
            count += 1
            await asyncio.wait([speaking], timeout=0.5)
        farthest = max(await speaking)
        disturb(-1)
        await wait_until_idle(client)
    assert await is_alive(gateway)
    return Disturbed(count, farthest)


async def test_every_turn_ends_while_the_clock_is_set(
    tmp_path: Path, record_property: Report
) -> None:
    chance = random.Random(SEED)
    statuses: Counter[int] = Counter()
    with ProviderSimulator() as simulator:
        arguments = ("--upstream", simulator.base_url, "--upstream-api", "responses")
        with _stepping_gateway(tmp_path, *arguments) as (gateway, offset):

            def step(count: int) -> None:
                offset.write_text("0" if count < 0 else str(chance.choice(STEPS)))

            done = await _while_speaking(gateway, statuses, step)
            record_property("soak", f"clock: {done.times} steps, {dict(statuses)}")
            assert done.farthest_seconds > 500
    assert set(statuses) <= ANSWERED
    assert statuses[200] > 0


async def test_every_turn_ends_while_the_disk_takes_no_more(
    tmp_path: Path, record_property: Report
) -> None:
    statuses: Counter[int] = Counter()
    env = {"HOLDFAST_LANES_TOOL_WAIT_SECONDS": "2", "HOLDFAST_UPSTREAM_KEY": "k"}
    with ProviderSimulator() as simulator:
        arguments = ("--upstream", simulator.base_url, "--upstream-api", "responses")
        with running_gateway(sqlite_url(tmp_path), *arguments, env=env) as gateway:
            process = gateway_process(gateway)

            def fill(count: int) -> None:
                is_full = count >= 0 and count % 4 == 1
                largest = max(path.stat().st_size for path in tmp_path.iterdir() if path.is_file())
                limit = largest if is_full else resource.RLIM_INFINITY
                process.rlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

            done = await _while_speaking(gateway, statuses, fill)
            peak = peak_bytes(gateway)
            record_property("soak", f"disk: {done.times} changes, {dict(statuses)}, peak {peak:,}")
    assert set(statuses) <= ANSWERED
    assert statuses[200] > 0
