"""Failed turns leave nothing to the garbage collector: a long-running process collects rarely."""

import asyncio
import functools
import gc
import json
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web
from websockets.asyncio.client import connect

from holdfast.engine.settings import HealSettings
from holdfast.providers.settings import UpstreamSettings
from tests.integration.odd_server import Reply, odd_server
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway

Json = dict[str, Any]
BODY_BYTES = 200_000
QUICK = HealSettings(first_pause_seconds=0.001, transient_retries=1)
OURS = "/src/holdfast/"
INDEXER = "/stores/sql/search/"
"""The search index is left out: its thread frees what it has read at any moment."""
ITEM: Json = {
    "id": "msg_" + "a" * 40,
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "hello", "annotations": []}],
}
WHOLE: Json = {"id": "r", "status": "completed", "output": [ITEM], "usage": None}


def refuse(status: int) -> Reply:
    """Return an error of an upstream that names a parameter."""
    error = {"message": "no", "type": "server_error", "code": "x", "param": "temperature"}
    return web.json_response({"error": error}, status=status)


FAILURES: dict[str, Callable[[int], Reply]] = {
    "refused": lambda _: refuse(400),
    "failed": lambda _: refuse(500),
    "failed once": lambda number: refuse(500) if number % 2 else WHOLE,
    "broken": lambda _: web.Response(body=b'{"oops', content_type="application/json"),
    "cut": lambda _: [{"type": "response.created", "response": {"id": "r"}}],
}
TEXT = "w" * BODY_BYTES


async def whole(gateway: UpstreamGateway) -> None:
    await gateway.post("/v1/responses", "whole", input=TEXT)


async def streamed(gateway: UpstreamGateway) -> None:
    await gateway.post("/v1/responses", "streamed", input=TEXT, stream=True)


async def chat(gateway: UpstreamGateway) -> None:
    await gateway.post("/v1/chat/completions", "chat", messages=[{"role": "user", "content": TEXT}])


async def not_stored(gateway: UpstreamGateway) -> None:
    for is_stream in (False, True):
        await gateway.post("/v1/responses", None, input=TEXT, store=False, stream=is_stream)


async def background(gateway: UpstreamGateway) -> None:
    answer = await gateway.post("/v1/responses", None, input=TEXT, background=True)
    await gateway.client.get(f"/v1/responses/{answer.json()['id']}?stream=true")


async def by_websocket(gateway: UpstreamGateway) -> None:
    url = gateway.server.url.replace("http", "ws", 1) + "/v1/responses"
    async with connect(url, max_size=None) as socket:
        for is_stored in (True, False):
            body = {"model": "gpt-5.4", "input": TEXT, "store": is_stored}
            await socket.send(json.dumps({"type": "response.create", **body}))
            kind = ""
            while kind not in ("response.completed", "response.failed", "error"):
                kind = json.loads(await socket.recv())["type"]


WAYS = (whole, streamed, chat, not_stored, background, by_websocket)


@contextmanager
def _without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start(8)
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@functools.cache
def _is_ours(traceback: tracemalloc.Traceback) -> bool:
    files = [frame.filename for frame in traceback]
    return any(OURS in file for file in files) and not any(INDEXER in file for file in files)


def _held_bytes() -> int:
    # Not by `filter_traces`, which matches a pattern with every frame of every block.
    held = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in held if _is_ours(trace.traceback))


async def _garbage(
    use: Callable[[UpstreamGateway], Awaitable[None]], gateway: Any, times: int = 3
) -> int:
    """Return how many bytes only a collection frees after some uses; caches hold the newest."""
    with _without_collection():
        for _ in range(times):
            await use(gateway)
        for _ in range(10):
            await asyncio.sleep(0)  # the tasks of both servers end
        before = _held_bytes()
        gc.collect()
        return before - _held_bytes()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_failed_turns_leave_no_body_to_the_collector(way: Any) -> None:
    """Fail in every way before one measurement, because tracing the memory is slow."""
    failing: list[str] = []

    async def fail_in_every_way(gateway: UpstreamGateway) -> None:
        for failure in FAILURES:
            failing[:] = [failure]
            await way(gateway)

    async with (
        odd_server(lambda _, body: FAILURES[failing[0]](len(server.asked))) as server,
        open_upstream_gateway(server.upstream(), heals=QUICK) as gateway,
    ):
        assert await _garbage(fail_in_every_way, gateway, times=2) < BODY_BYTES


async def test_a_turn_whose_client_left_leaves_no_body_to_the_collector() -> None:
    asked = asyncio.Event()
    goes_on = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        asked.set()
        await goes_on.wait()
        return web.json_response({"error": {"message": "no"}}, status=400)

    async def leave(gateway: UpstreamGateway) -> None:
        asked.clear()
        goes_on.clear()
        turn = asyncio.create_task(whole(gateway))
        await asked.wait()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        goes_on.set()
        status = "running"
        while status != "idle":
            [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
            status = session["status"]

    application = web.Application(client_max_size=2**24)
    application.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        async with open_upstream_gateway(
            UpstreamSettings(url=url, key="sk-slow"), heals=QUICK
        ) as gateway:
            assert await _garbage(leave, gateway) < BODY_BYTES / 2
    finally:
        await runner.cleanup()
