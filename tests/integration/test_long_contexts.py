"""Turns of very long sessions: the event loop goes on, because long work is done beside it.

What a step of the loop does is counted as executed lines, which depend on no machine.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
from benchmarks.counting.upstream import Upstream, serving
from benchmarks.servers.processes import free_port

import holdfast
from holdfast.app import open_application
from holdfast.settings import load
from holdfast.stores.sql.store import LONG_ROWS
from tests.http_server import serving as serving_http

SOURCES = str(Path(holdfast.__file__).parent)
BATCH = 100
LINES_PER_ITEM = 16
"""About what unpacking a piece of a context takes on the loop, where the driver is asynchronous."""
MOST_LINES = LINES_PER_ITEM * LONG_ROWS


@asynccontextmanager
async def client_of(
    url: str, api: str, cache_bytes: int, context: dict[str, Any] | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """Run a gateway in this loop, in front of an upstream that answers at once."""
    port = free_port()
    environment = {
        "HOLDFAST_UPSTREAM_URL": f"http://127.0.0.1:{port}/v1",
        "HOLDFAST_UPSTREAM_API": api,
    }
    flags: dict[str, Any] = {
        "store": {"url": url, "cache_bytes": cache_bytes},
        "search": {"enabled": False},
        "context": context or {},
    }
    async with (
        serving(Upstream(), port),
        open_application(load(None, flags=flags, environment=environment)) as application,
        serving_http(application) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        yield client


async def fill(client: httpx.AsyncClient, items: int) -> None:
    """Add turns that were run elsewhere to the session."""
    exchange = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    for number in range(items // BATCH):
        body = {"items": exchange * (BATCH // 2), "turn_id": f"turn_{number}"}
        reply = await client.post("/v1/transcript", json=body, headers={"x-session-key": "long"})
        assert reply.status_code == 200, reply.text


async def take_turn(client: httpx.AsyncClient, text: str) -> None:
    message = {"role": "user", "content": text}
    reply = await client.post(
        "/v1/chat/completions",
        json={"model": "stub", "messages": [message]},
        headers={"x-session-key": "long"},
    )
    assert reply.status_code == 200, reply.text


@contextmanager
def counted_steps() -> Iterator[Callable[[], int]]:
    """Count the lines of our code in each step of this thread's loop; get those of the longest."""
    longest = lines = 0
    run = asyncio.events.Handle._run

    def step(handle: asyncio.events.Handle) -> None:
        nonlocal longest, lines
        lines = 0
        run(handle)
        longest = max(longest, lines)

    def trace_lines(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace_lines

    def trace_calls(frame: FrameType, _event: str, _argument: object) -> Any:
        return trace_lines if frame.f_code.co_filename.startswith(SOURCES) else None

    before = sys.gettrace()
    asyncio.events.Handle._run = step  # type: ignore[assignment, method-assign] # undone below
    sys.settrace(trace_calls)
    try:
        yield lambda: longest
    finally:
        sys.settrace(before)
        asyncio.events.Handle._run = run  # type: ignore[method-assign]


@pytest.mark.parametrize("cache_bytes", [128 * 1024 * 1024, 0], ids=["cached", "uncached"])
@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_no_step_of_a_turn_grows_with_the_length_of_its_session(
    api: str, cache_bytes: int, store_url: str
) -> None:
    items = 4 * LONG_ROWS
    async with client_of(store_url, api, cache_bytes) as client:
        await fill(client, items)
    async with client_of(store_url, api, cache_bytes) as client:
        for temperature in ("cold", "warm", "warm"):
            with counted_steps() as longest:
                await take_turn(client, temperature)
            # The whole session would take this many, and more, in one step.
            assert 100 < longest() < MOST_LINES < items * LINES_PER_ITEM
        listed = await client.get("/v1/sessions", params={"key": "long"})
        assert json.loads(listed.content)["data"][0]["item_count"] == items + 6


@pytest.mark.parametrize("mode", ["model", "elide"])
async def test_no_step_of_a_turn_that_compacts_a_long_session_grows_with_its_length(
    mode: str, store_url: str
) -> None:
    items, window = 4 * LONG_ROWS, 20_000
    context = {"mode": mode, "unknown_window_tokens": window}
    async with client_of(store_url, "chat", 128 * 1024 * 1024, context) as client:
        await fill(client, items)
        with counted_steps() as longest:
            await take_turn(client, "compacted before it is sent")
        assert 100 < longest() < MOST_LINES < items * LINES_PER_ITEM
        [session] = (await client.get("/v1/sessions", params={"key": "long"})).json()["data"]
        listed = await client.get(f"/v1/sessions/{session['id']}/compactions")
        [compaction] = listed.json()["data"]
        assert (compaction["mode"], compaction["assumed_window"]) == (mode, window)
        assert compaction["last_sequence"] > items // 4
