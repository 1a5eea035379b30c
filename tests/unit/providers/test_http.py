"""The line to an upstream: reuse, stale connections, limits, and answers that are cut anywhere."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.providers.http import AiohttpClient, HttpRequest
from holdfast.providers.settings import TimeoutSettings
from tests.unit.providers.raw_server import RawServer, Script, Talk, chunked, raw_server, whole


@asynccontextmanager
async def line(
    script: Script, timeouts: TimeoutSettings | None = None
) -> AsyncIterator[tuple[AiohttpClient, RawServer]]:
    client = AiohttpClient(timeouts)
    async with raw_server(script) as server:
        try:
            yield client, server
        finally:
            await client.close()


async def ask(client: AiohttpClient, url: str, body: bytes = b"{}") -> bytes:
    request = HttpRequest(method="POST", url=url, body=body, headers={"x-a": "b"})
    async with client.exchange(request) as answer:
        return await answer.read()


async def refusal(client: AiohttpClient, url: str) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        await ask(client, url)
    assert caught.value.failure_class == "transient"
    return caught.value


async def polite(talk: Talk) -> None:
    while await talk.request():
        await talk.say(whole(b"connection %d" % talk.number))


async def test_connections_are_used_again() -> None:
    async with line(polite) as (client, server):
        assert [await ask(client, server.url) for _ in range(3)] == [b"connection 0"] * 3
        assert len(server.talks) == 1


async def test_a_server_that_wants_to_close_is_left() -> None:
    async def closing(talk: Talk) -> None:
        await talk.request()
        await talk.say(whole(b"bye", b"connection: close"))

    async with line(closing) as (client, server):
        assert [await ask(client, server.url) for _ in range(2)] == [b"bye", b"bye"]
        assert len(server.talks) == 2


async def leaving(talk: Talk) -> None:
    """Answer once; on the first connection, hang up on the second request without a word."""
    await talk.request()
    await talk.say(whole(b"connection %d" % talk.number))
    await talk.request()
    if talk.number:
        await talk.say(whole(b"again"))


async def test_a_kept_connection_that_turns_out_closed_is_replaced() -> None:
    async with line(leaving) as (client, server):
        assert await ask(client, server.url) == b"connection 0"
        assert await ask(client, server.url) == b"connection 1"
        assert [talk.requests for talk in server.talks] == [2, 1]


async def test_a_fresh_connection_that_is_closed_without_an_answer_is_a_failure() -> None:
    async def silent(talk: Talk) -> None:
        await talk.request()

    async with line(silent) as (client, server):
        failure = await refusal(client, server.url)
        assert failure.provider_code == "upstream_disconnected"
        assert len(server.talks) == 1


async def test_nothing_is_sent_again_once_a_byte_of_an_answer_has_come() -> None:
    async def half(talk: Talk) -> None:
        await talk.request()
        await talk.say(whole(b"first"))
        await talk.request()
        await talk.say(b"HTTP/1.1 2")

    async with line(half) as (client, server):
        assert await ask(client, server.url) == b"first"
        failure = await refusal(client, server.url)
        assert failure.provider_code == "upstream_disconnected"
        assert [talk.requests for talk in server.talks] == [2]


async def test_a_server_that_is_not_there_cannot_be_reached() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = AiohttpClient()
        try:
            failure = await refusal(client, f"http://127.0.0.1:{taken.getsockname()[1]}")
        finally:
            await client.close()
    assert failure.provider_code == "upstream_unreachable"


async def silence(talk: Talk) -> None:
    await talk.until_gone()


async def test_a_connection_that_is_never_made_has_a_limit() -> None:
    async with line(silence, TimeoutSettings(connect_seconds=0.05)) as (client, server):
        # TLS is part of a connection, and this server does not answer its greeting.
        failure = await refusal(client, f"https://127.0.0.1:{server.port}")
        assert (failure.provider_code, failure.status) == ("upstream_connect_timeout", 504)


async def test_the_first_byte_has_a_limit() -> None:
    async with line(silence, TimeoutSettings(first_byte_seconds=0.05)) as (client, server):
        failure = await refusal(client, server.url)
        assert (failure.provider_code, failure.status) == ("upstream_first_byte_timeout", 504)


async def test_the_time_between_chunks_has_a_limit() -> None:
    async def stalling(talk: Talk) -> None:
        await talk.request()
        await talk.say(chunked(b"data: 1\n\n")[:-5])
        await talk.until_gone()

    async with line(stalling, TimeoutSettings(chunk_seconds=0.05)) as (client, server):
        failure = await refusal(client, server.url)
        assert (failure.provider_code, failure.status) == ("upstream_chunk_timeout", 504)


@pytest.mark.parametrize(
    "answer", [whole(b'{"a": 1}'), chunked(b"data: 1\n\n", b"data: 2\n\n")], ids=["whole", "chunks"]
)
async def test_an_answer_that_is_cut_at_any_byte_is_no_answer(answer: bytes) -> None:
    async def cutting(talk: Talk) -> None:
        await talk.request()
        await talk.say(answer[: talk.number])

    async with line(cutting) as (client, server):
        for _ in range(len(answer)):
            failure = await refusal(client, server.url)
            assert failure.provider_code in ("upstream_truncated", "upstream_disconnected")
        assert await ask(client, server.url)
        assert len(server.talks) == len(answer) + 1


async def test_a_stream_is_passed_on_as_it_comes() -> None:
    heard = asyncio.Event()

    async def slow(talk: Talk) -> None:
        await talk.request()
        raw = chunked(b"one", b"two")
        edge = raw.index(b"one") + len(b"one\r\n")
        await talk.say(raw[:edge])
        await heard.wait()
        await talk.say(raw[edge:])

    async with line(slow) as (client, server):
        async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
            pieces = []
            async for piece in answer.chunks():
                pieces.append(piece)
                heard.set()
        assert pieces == [b"one", b"two"]


async def test_an_answer_that_nobody_reads_takes_its_connection_with_it() -> None:
    async with line(polite) as (client, server):
        async with client.exchange(HttpRequest(method="GET", url=server.url)):
            pass
        await ask(client, server.url)
        assert sum(talk.requests for talk in server.talks) == 2


async def test_no_cookie_is_kept_and_no_redirect_is_followed() -> None:
    seen: list[bytes] = []

    async def moving(talk: Talk) -> None:
        while request := await talk.request():
            seen.append(request.lower())
            await talk.say(b"HTTP/1.1 302 Found\r\nlocation: /x\r\nset-cookie: a=b\r\n"
                           b"content-length: 0\r\n\r\n")  # fmt: skip

    async with line(moving) as (client, server):
        for _ in range(2):
            async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
                assert answer.status == 302
        assert len(seen) == 2
        assert all(b"cookie" not in request for request in seen)
