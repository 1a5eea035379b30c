"""Clients at work while the clock is set and the disk takes no more.

Every turn ends, and what was answered is kept, once.
"""

import asyncio
import contextlib
import random
import resource
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
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


Disturb = Callable[[httpx.AsyncClient, int], Awaitable[None]]
"""Disturbs the gateway for the so many-th time; -1 undoes it."""


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


async def _speak(
    client: httpx.AsyncClient, number: int, statuses: Counter[int], answered: list[str]
) -> float:
    """Say one thing after the other; every third leaves a call that nobody answers.

    Return the largest distance of an answer's time from the test's own clock.
    """
    farthest = 0.0
    headers = {"X-Session-Key": f"steps-{number % 3}"}
    for turn in range(TURNS):
        text = f"turn {turn} of {number}"
        if turn % 3 == 0:
            text = f'call weather {{"city": "{text}"}}'
        body: dict[str, Any] = {"model": "gpt-4.1", "input": text, "tools": [TOOL]}
        reply = await client.post("/v1/responses", json=body, headers=headers)
        statuses[reply.status_code] += 1
        if reply.status_code == 200:
            answered.append(text)
            farthest = max(farthest, abs(reply.json()["created_at"] - time.time()))
    return farthest


async def _kept_texts(client: httpx.AsyncClient) -> Counter[str]:
    """Return what users have said in all sessions, as it is kept."""
    texts: Counter[str] = Counter()
    for session in (await client.get("/v1/sessions", params={"limit": 100})).json()["data"]:
        path, query = f"/v1/sessions/{session['id']}/items", {"limit": "100", "order": "asc"}
        has_more = True
        while has_more:
            page = (await client.get(path, params=query)).json()
            for item in page["data"]:
                if item["type"] == "message" and item["role"] == "user":
                    texts["".join(part["text"] for part in item["content"])] += 1
            has_more, query = page["has_more"], {**query, "after": page["last_id"]}
    return texts


async def _while_speaking(
    gateway: GatewayProcess, statuses: Counter[int], disturb: Disturb
) -> Disturbed:
    """Disturb the gateway until all clients are done; then what was answered is kept."""
    count = 0
    answered: list[str] = []
    async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:
        speaking = asyncio.gather(*(_speak(client, n, statuses, answered) for n in range(CLIENTS)))
        while not speaking.done():
            await disturb(client, count)
            count += 1
            await asyncio.wait([speaking], timeout=0.5)
        farthest = max(await speaking)
        await disturb(client, -1)
        await wait_until_idle(client)
        kept = await _kept_texts(client)
    assert [text for text in answered if kept[text] != 1] == []
    assert [text for text, times in kept.items() if times > 1] == []
    assert await is_alive(gateway)
    return Disturbed(count, farthest)


async def _wait_until_ready(client: httpx.AsyncClient, *, is_ready: bool) -> None:
    """Return once the gateway says that the store takes a write, or that it does not."""
    async with asyncio.timeout(SECONDS):
        while True:
            if (await client.get("/readyz")).is_success == is_ready:
                return


def _largest_size(folder: Path) -> int:
    """Return the size of the largest file of a store."""
    return max(path.stat().st_size for path in folder.glob("*.db*"))


async def test_every_turn_ends_while_the_clock_is_set(
    tmp_path: Path, record_property: Report
) -> None:
    chance = random.Random(SEED)
    statuses: Counter[int] = Counter()
    with ProviderSimulator() as simulator:
        arguments = ("--upstream", simulator.base_url, "--upstream-api", "responses")
        with _stepping_gateway(tmp_path, *arguments) as (gateway, offset):

            async def step(_: httpx.AsyncClient, count: int) -> None:
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
            refusals = 0

            async def fill(client: httpx.AsyncClient, count: int) -> None:
                nonlocal refusals
                limit = resource.RLIM_INFINITY
                if count % 8 == 1:
                    limit = 0
                elif count % 8 == 5:
                    # A write that goes on behind the end of the log is cut off in its middle.
                    limit = _largest_size(tmp_path) + 100
                process.rlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
                if limit in (0, resource.RLIM_INFINITY):
                    await _wait_until_ready(client, is_ready=limit != 0)
                refusals += limit == 0

            done = await _while_speaking(gateway, statuses, fill)
            peak = peak_bytes(gateway)
            counts = f"{done.times} changes, {refusals} times full"
            record_property("soak", f"disk: {counts}, {dict(statuses)}, peak {peak:,}")
    assert refusals > 0
    assert set(statuses) <= ANSWERED
    assert statuses[200] > 0
