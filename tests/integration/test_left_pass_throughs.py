"""A request that nobody can read any more is cancelled at its upstream, unless it is stored."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.integration.upstream_gateway import open_upstream_gateway
from tests.long_streams import (
    PATHS,
    Api,
    LongAnswer,
    LongUpstream,
    long_upstream,
    read_stream,
    request_body,
)
from tests.socket_client import SocketClient

SECONDS = 20.0
APIS = pytest.mark.parametrize("api", ["chat", "responses"])
UPSTREAMS = pytest.mark.parametrize("upstream_api", ["chat", "responses"])


async def leave(url: str, path: str, body: dict[str, Any], upstream: LongUpstream) -> None:
    """Send a request, and close the connection when its upstream has begun to answer it."""
    address = httpx.URL(url)
    _, writer = await asyncio.open_connection(address.host, address.port)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    async with asyncio.timeout(SECONDS):
        await upstream.began.acquire()
    writer.close()


@pytest.mark.parametrize("is_stream", [True, False])
@APIS
@UPSTREAMS
async def test_a_pass_through_whose_client_left_is_cancelled_at_the_upstream(
    upstream_api: Api, api: Api, is_stream: bool
) -> None:
    async with (
        long_upstream() as upstream,
        open_upstream_gateway(upstream.upstream(upstream_api)) as gateway,
    ):
        upstream.is_held = True
        body = request_body(api, stream=is_stream, store=False)
        for _ in range(2):
            await leave(gateway.server.url, PATHS[api], body, upstream)
            async with asyncio.timeout(SECONDS):
                await upstream.left.acquire()
        upstream.is_held, upstream.answer = False, LongAnswer(1000, 100)
        got = await read_stream(gateway.server.url, api, request_body(api, store=False), key=None)
        assert (got.is_finished, got.text) == (True, upstream.answer.text)


async def test_a_relayed_request_whose_client_left_is_cancelled_at_the_upstream() -> None:
    async with (
        long_upstream() as upstream,
        open_upstream_gateway(upstream.upstream("chat")) as gateway,
    ):
        upstream.is_held = True
        body = {"model": "m", "input": "hi"}
        await leave(gateway.server.url, "/v1/embeddings", body, upstream)
        async with asyncio.timeout(SECONDS):
            await upstream.left.acquire()


@UPSTREAMS
async def test_a_websocket_that_closes_cancels_its_request_that_is_not_stored(
    upstream_api: Api,
) -> None:
    async with (
        long_upstream() as upstream,
        open_upstream_gateway(upstream.upstream(upstream_api)) as gateway,
    ):
        upstream.is_held = True
        client = SocketClient(gateway.server)
        client.create("hi", store=False)
        async with asyncio.timeout(SECONDS):
            await upstream.began.acquire()
            await client.leave()
            await upstream.left.acquire()


@APIS
async def test_a_turn_of_a_session_goes_on_without_its_client(api: Api) -> None:
    async with (
        long_upstream() as upstream,
        open_upstream_gateway(upstream.upstream("chat")) as gateway,
    ):
        upstream.is_held = True
        body = request_body(api, store=True)
        await leave(gateway.server.url, PATHS[api], body, upstream)
        assert (await gateway.client.get("/healthz")).status_code == 200
        [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
        assert session["status"] == "running"
        assert upstream.left.locked()
