"""A gateway on each database, and upstreams other than the simulator."""

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from holdfast.engine.turns import in_flight
from tests.in_process import RunningGateway, open_gateway


@pytest.fixture
async def gateway(store_url: str) -> AsyncIterator[RunningGateway]:
    """A gateway with a scripted model."""
    async with open_gateway(store_url=store_url) as gateway:
        yield gateway


@pytest.fixture
def slow_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a replica wait for another one's answer, however slow the machine is."""
    monkeypatch.setattr(in_flight, "ASK_SECONDS", 60.0)


@pytest.fixture
def slow_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the worker of a run end it with all that was streamed, however slow the machine is."""
    monkeypatch.setattr(in_flight, "STOP_SECONDS", 60.0)


@pytest.fixture
async def recorder_url() -> AsyncIterator[str]:
    """The URL of a server that answers every request with the request itself."""

    async def echo(request: web.Request) -> web.Response:
        seen = {
            "method": request.method,
            "path": request.raw_path,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": (await request.read()).decode("latin-1"),
        }
        body = json.dumps(seen).encode()
        return web.Response(status=201, body=body, content_type="application/x-echo")

    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", echo)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
