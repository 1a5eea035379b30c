"""Upstreams behind forward proxies."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.providers.http.client import HttpRequest, PooledClient
from holdfast.providers.http.proxy import Proxy
from tests.unit.providers.http.raw_server import RawConnection, raw_server, whole
from tests.unit.providers.http.test_tls import certificate, tls_server

SECONDS = 20.0


@asynccontextmanager
async def tunnelling_proxy(reply: bytes | None = None) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Run a proxy that connects by CONNECT, or gives a fixed reply; collect what it was sent."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            heads.append(head)
            if reply is not None:
                writer.write(reply)
                await writer.drain()
                return
            host, port = head.split(b" ")[1].rsplit(b":", 1)
            inner_reader, inner_writer = await asyncio.open_connection(host.decode(), int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as group:
                group.create_task(copy(reader, inner_writer))
                group.create_task(copy(inner_reader, writer))
        finally:
            writer.close()
            tasks.discard(task)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], heads
    finally:
        listener.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def get(client: PooledClient, url: str) -> bytes:
    async with client.exchange(HttpRequest(method="GET", url=url)) as answer:
        return await answer.read()


async def test_tls_goes_through_a_tunnel(tmp_path: Path) -> None:
    pem = certificate(tmp_path)
    trust = ssl.create_default_context(cafile=str(pem))
    async with (
        asyncio.timeout(SECONDS),
        tls_server(pem) as (url, counts),
        tunnelling_proxy() as (port, heads),
    ):
        proxy = Proxy.parse(f"http://me:se%20cret@127.0.0.1:{port}")
        client = PooledClient(tls=trust, proxy=proxy)
        try:
            for _ in range(3):
                assert await get(client, url)
        finally:
            await client.close()
    assert counts == [3], "the tunnel is pooled"
    [head] = heads
    lines = head.decode().split("\r\n")
    authority = urlsplit(url).netloc
    assert lines[0] == f"CONNECT {authority} HTTP/1.1"
    assert "proxy-authorization: Basic bWU6c2UgY3JldA==" in lines


async def test_the_certificate_is_checked_behind_a_proxy(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(SECONDS),
        tls_server(certificate(tmp_path)) as (url, _),
        tunnelling_proxy() as (port, _),
    ):
        client = PooledClient(proxy=Proxy.parse(f"127.0.0.1:{port}"))
        try:
            with pytest.raises(ProviderFailure) as caught:
                await get(client, url)
        finally:
            await client.close()
    assert caught.value.provider_code == "upstream_unreachable"


async def test_plain_http_is_sent_to_the_proxy_with_its_whole_address() -> None:
    heads: list[bytes] = []

    async def script(connection: RawConnection) -> None:
        while head := await connection.request():
            heads.append(head)
            await connection.say(whole(b"ok"))

    async with asyncio.timeout(SECONDS), raw_server(script) as server:
        client = PooledClient(proxy=Proxy.parse(f"http://me:x@127.0.0.1:{server.port}"))
        try:
            assert await get(client, "http://model.example:8000/v1/x?y=z") == b"ok"
        finally:
            await client.close()
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "GET http://model.example:8000/v1/x?y=z HTTP/1.1"
    assert "host: model.example:8000" in lines
    assert "proxy-authorization: Basic bWU6eA==" in lines


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "status 407"),
        (b"HTTP/1.1 200 OK\r\n\r\nsurprise", "no valid reply"),
        (b"nonsense\r\n\r\n", "no valid reply"),
        (b"", "no valid reply"),
        (b"x" * 20_000, "no valid reply"),
    ],
    ids=["refused", "early-bytes", "nonsense", "closed", "endless"],
)
async def test_a_proxy_that_gives_no_tunnel_is_a_failure(reply: bytes, message: str) -> None:
    async with asyncio.timeout(SECONDS), tunnelling_proxy(reply) as (port, _):
        client = PooledClient(proxy=Proxy.parse(f"http://me:geheim@127.0.0.1:{port}"))
        try:
            with pytest.raises(ProviderFailure, match=message) as caught:
                await get(client, "https://model.example/v1")
        finally:
            await client.close()
    assert caught.value.provider_code == "upstream_proxy_failed"
    assert "geheim" not in caught.value.message


@pytest.mark.parametrize("url", ["socks5://127.0.0.1:1", "http://", "ftp://x"])
def test_other_proxies_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="a proxy must be"):
        Proxy.parse(url)
