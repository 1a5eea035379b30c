"""The HTTP client: connection reuse, stale connections, timeouts and truncated responses."""

import asyncio
import gzip
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.providers.http import client as http
from holdfast.providers.http.client import HttpRequest, PooledClient
from holdfast.providers.settings import TimeoutSettings
from tests.unit.providers.http.raw_server import (
    CollectingSink,
    RawConnection,
    RawServer,
    Script,
    chunked,
    raw_server,
    whole,
)


@asynccontextmanager
async def connected(
    script: Script, timeouts: TimeoutSettings | None = None
) -> AsyncIterator[tuple[PooledClient, RawServer]]:
    client = PooledClient(timeouts)
    async with raw_server(script) as server:
        try:
            yield client, server
        finally:
            await client.close()


async def ask(
    client: PooledClient, url: str, body: bytes = b"{}", *, may_repeat: bool = False
) -> bytes:
    request = HttpRequest(
        method="POST", url=url, body=(body,), headers={"x-a": "b"}, may_repeat=may_repeat
    )
    async with client.exchange(request) as answer:
        return await answer.read()


async def refusal(client: PooledClient, url: str) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await ask(client, url)
    assert caught.value.failure_class == "transient"
    return caught.value


async def polite(connection: RawConnection) -> None:
    while await connection.request():
        await connection.say(whole(b"connection %d" % connection.number))


async def test_connections_are_reused() -> None:
    async with connected(polite) as (client, server):
        assert [await ask(client, server.url) for _ in range(3)] == [b"connection 0"] * 3
        assert len(server.connections) == 1


async def test_a_connection_that_the_server_closes_is_not_reused() -> None:
    async def closing(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(whole(b"bye", b"connection: close"))

    async with connected(closing) as (client, server):
        assert [await ask(client, server.url) for _ in range(2)] == [b"bye", b"bye"]
        assert len(server.connections) == 2


async def leaving(connection: RawConnection) -> None:
    """Answer once; close the first connection on its second request."""
    await connection.request()
    await connection.say(whole(b"connection %d" % connection.number))
    await connection.request()
    if connection.number:
        await connection.say(whole(b"again"))


async def test_a_stale_connection_is_replaced() -> None:
    async with connected(leaving) as (client, server):
        assert await ask(client, server.url, may_repeat=True) == b"connection 0"
        assert await ask(client, server.url, may_repeat=True) == b"connection 1"
        assert [connection.requests for connection in server.connections] == [2, 1]


async def test_a_request_that_may_have_had_an_effect_is_not_repeated() -> None:
    async with connected(leaving) as (client, server):
        assert await ask(client, server.url) == b"connection 0"
        failure = await refusal(client, server.url)
        assert failure.provider_code == "upstream_disconnected"
        assert [connection.requests for connection in server.connections] == [2]


async def test_an_unrepeatable_request_does_not_use_an_idle_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "FRESH_SECONDS", -1.0)
    async with connected(polite) as (client, server):
        said = [await ask(client, server.url) for _ in range(2)]
        assert said == [b"connection 0", b"connection 1"]
        assert await ask(client, server.url, may_repeat=True) == b"connection 1"


async def test_a_new_connection_closed_without_a_response_is_a_failure() -> None:
    async def silent(connection: RawConnection) -> None:
        await connection.request()

    async with connected(silent) as (client, server):
        failure = await refusal(client, server.url)
        assert failure.provider_code == "upstream_disconnected"
        assert len(server.connections) == 1


async def test_a_request_is_not_repeated_after_the_first_response_byte() -> None:
    async def half(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(whole(b"first"))
        await connection.request()
        await connection.say(b"HTTP/1.1 2")

    async with connected(half) as (client, server):
        assert await ask(client, server.url) == b"first"
        failure = await refusal(client, server.url)
        assert failure.provider_code == "upstream_disconnected"
        assert [connection.requests for connection in server.connections] == [2]


async def test_a_refused_connection_is_a_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = PooledClient()
        try:
            failure = await refusal(client, f"http://127.0.0.1:{taken.getsockname()[1]}")
        finally:
            await client.close()
    assert failure.provider_code == "upstream_unreachable"


async def silence(connection: RawConnection) -> None:
    await connection.until_gone()


async def test_connecting_has_a_timeout() -> None:
    async with connected(silence, TimeoutSettings(connect_seconds=0.05)) as (client, server):
        # TLS is part of a connection, and this server does not answer its greeting.
        failure = await refusal(client, f"https://127.0.0.1:{server.port}")
        assert (failure.provider_code, failure.status) == ("upstream_connect_timeout", 504)


async def test_the_first_byte_has_a_timeout() -> None:
    async with connected(silence, TimeoutSettings(first_byte_seconds=0.05)) as (client, server):
        failure = await refusal(client, server.url)
        assert (failure.provider_code, failure.status) == ("upstream_first_byte_timeout", 504)


async def test_chunks_have_a_timeout() -> None:
    async def stalling(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(chunked(b"data: 1\n\n")[:-5])
        await connection.until_gone()

    async with connected(stalling, TimeoutSettings(chunk_seconds=0.05)) as (client, server):
        failure = await refusal(client, server.url)
        assert (failure.provider_code, failure.status) == ("upstream_chunk_timeout", 504)


@pytest.mark.parametrize(
    "answer", [whole(b'{"a": 1}'), chunked(b"data: 1\n\n", b"data: 2\n\n")], ids=["whole", "chunks"]
)
async def test_a_response_cut_at_any_byte_is_a_failure(answer: bytes) -> None:
    async def cutting(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(answer[: connection.number])

    async with connected(cutting) as (client, server):
        for _ in range(len(answer)):
            failure = await refusal(client, server.url)
            assert failure.provider_code in ("upstream_truncated", "upstream_disconnected")
        assert await ask(client, server.url)
        assert len(server.connections) == len(answer) + 1


async def test_a_stream_is_copied_as_it_arrives() -> None:
    heard = asyncio.Event()

    async def slow(connection: RawConnection) -> None:
        await connection.request()
        raw = chunked(b"one", b"two")
        edge = raw.index(b"one") + len(b"one\r\n")
        await connection.say(raw[:edge])
        await heard.wait()
        await connection.say(raw[edge:])

    async with connected(slow) as (client, server):
        async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
            sink = CollectingSink(heard)
            await answer.copy_to(sink)
        assert sink.pieces == [b"one", b"two"]


async def test_an_unread_response_costs_its_connection() -> None:
    async with connected(polite) as (client, server):
        async with client.exchange(HttpRequest(method="GET", url=server.url)):
            pass
        await ask(client, server.url)
        assert sum(connection.requests for connection in server.connections) == 2


async def test_no_cookie_is_kept_and_no_redirect_is_followed() -> None:
    seen: list[bytes] = []

    async def moving(connection: RawConnection) -> None:
        while request := await connection.request():
            seen.append(request.lower())
            await connection.say(b"HTTP/1.1 302 Found\r\nlocation: /x\r\nset-cookie: a=b\r\n"
                           b"content-length: 0\r\n\r\n")  # fmt: skip

    async with connected(moving) as (client, server):
        for _ in range(2):
            async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
                assert answer.status == 302
        assert len(seen) == 2
        assert all(b"cookie" not in request for request in seen)


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async def talking(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nas long as it lasts")

    async with connected(talking) as (client, server):
        assert [await ask(client, server.url) for _ in range(2)] == [b"as long as it lasts"] * 2
        assert len(server.connections) == 2


async def test_an_interim_response_is_skipped() -> None:
    async def patient(connection: RawConnection) -> None:
        while await connection.request():
            await connection.say(
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\na: b\r\n\r\n"
            )
            await connection.say(whole(b"here"))

    async with connected(patient) as (client, server):
        assert [await ask(client, server.url) for _ in range(2)] == [b"here"] * 2
        assert len(server.connections) == 1


async def test_the_response_to_head_has_no_body() -> None:
    async def heading(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        await connection.until_gone()

    async with (
        connected(heading) as (client, server),
        client.exchange(HttpRequest(method="HEAD", url=server.url)) as answer,
    ):
        assert await answer.read() == b""
        assert answer.headers["content-length"] == "1000"


@pytest.mark.parametrize("status", [204, 304])
async def test_responses_without_a_body_keep_their_connection(status: int) -> None:
    async def bare(connection: RawConnection) -> None:
        while await connection.request():
            await connection.say(b"HTTP/1.1 %d Bare\r\n\r\n" % status)

    async with connected(bare) as (client, server):
        assert [await ask(client, server.url) for _ in range(2)] == [b"", b""]
        assert len(server.connections) == 1


async def test_unexpected_bytes_close_the_connection() -> None:
    """Bytes after a response must never count as the next response."""

    async def chatty(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(whole(b"connection %d" % connection.number) + whole(b"a lie"))
        await connection.until_gone()

    async with connected(chatty) as (client, server):
        assert await ask(client, server.url) == b"connection 0"
        assert await ask(client, server.url) == b"connection 1"


async def test_bytes_on_an_idle_connection_close_it() -> None:
    said = asyncio.Event()

    async def late(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(whole(b"connection %d" % connection.number))
        if not connection.number:
            await connection.say(whole(b"a lie"))
            said.set()
        await connection.until_gone()

    async with connected(late) as (client, server):
        assert await ask(client, server.url) == b"connection 0"
        await said.wait()
        assert await ask(client, server.url) == b"connection 1"


async def test_idle_connections_are_closed_although_no_request_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "POOLED_SECONDS", 0.05)
    arrived, gone = asyncio.Semaphore(0), asyncio.Semaphore(0)
    answer = asyncio.Event()

    async def crowded(connection: RawConnection) -> None:
        await connection.request()
        arrived.release()
        await answer.wait()
        await connection.say(whole(b"x"))
        await connection.until_gone()
        gone.release()

    async with connected(crowded) as (client, server):
        asking = asyncio.gather(*(ask(client, server.url) for _ in range(5)))
        for _ in range(5):
            await arrived.acquire()
        answer.set()
        await asking
        for _ in range(5):
            await gone.acquire()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: " + b"b" * 300_000,
    ],
    ids=["another protocol", "an upgrade", "no number", "an encoding", "a head without end"],
)
async def test_invalid_http_is_a_failure(nonsense: bytes) -> None:
    async def raving(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(nonsense)
        await connection.until_gone()

    async with connected(raving) as (client, server):
        assert (await refusal(client, server.url)).provider_code == "upstream_broken_answer"


async def test_an_invalid_compressed_body_is_a_failure() -> None:
    async def raving(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        await connection.until_gone()

    async with connected(raving) as (client, server):
        assert (await refusal(client, server.url)).provider_code == "upstream_broken_answer"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_an_unrequested_compression_is_decoded(encoding: str) -> None:
    plain = b"the same again and again, " * 100
    packed = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)

    async def packing(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(whole(packed, b"content-encoding: " + encoding.encode()))
        await connection.request()
        cut = packed[:-12]
        await connection.say(whole(cut, b"content-encoding: " + encoding.encode()))

    async with connected(packing) as (client, server):
        assert await ask(client, server.url) == plain
        assert (await refusal(client, server.url)).provider_code == "upstream_truncated"


async def test_backpressure_pauses_a_long_body_and_loses_nothing() -> None:
    body = bytes(range(256)) * 16 * 1024

    async def long(connection: RawConnection) -> None:
        while await connection.request():
            await connection.say(whole(body))

    async with connected(long) as (client, server):
        for _ in range(2):
            async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
                await asyncio.sleep(0)
                sink = CollectingSink()
                await answer.copy_to(sink)
                assert b"".join(sink.pieces) == body
        assert len(server.connections) == 1


async def test_leaving_a_stream_frees_its_connection() -> None:
    async def endless(connection: RawConnection) -> None:
        while await connection.request():
            await connection.say(chunked(b"one")[:-5])
            await connection.until_gone()

    async def listen(client: PooledClient, url: str, heard: asyncio.Event) -> None:
        async with client.exchange(HttpRequest(method="GET", url=url)) as answer:
            await answer.copy_to(CollectingSink(heard))

    async with connected(endless) as (client, server):
        for _ in range(10):
            heard = asyncio.Event()
            listening = asyncio.create_task(listen(client, server.url, heard))
            await heard.wait()
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening
        assert len(server.connections) == 10


async def test_a_header_with_a_line_break_is_never_sent() -> None:
    async with connected(polite) as (client, server):
        request = HttpRequest(method="GET", url=server.url, headers={"a": "b\r\nx: y"})
        with pytest.raises(ProviderFailure, match="line break"):
            async with client.exchange(request):
                pass
        assert not server.connections


async def test_a_request_target_is_sent_unchanged() -> None:
    seen: list[bytes] = []

    async def noting(connection: RawConnection) -> None:
        while request := await connection.request():
            seen.append(request.partition(b"\r\n")[0])
            await connection.say(whole(b""))

    async with connected(noting) as (client, server):
        await ask(client, f"{server.url}/v1/a%2Fb?x=%20&y[]=1")
        await ask(client, server.url)
    assert seen == [b"POST /v1/a%2Fb?x=%20&y[]=1 HTTP/1.1", b"POST / HTTP/1.1"]
