"""The line to an upstream: reuse, stale connections, limits, and answers that are cut anywhere."""

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
from tests.unit.providers.raw_server import (
    Basin,
    RawServer,
    Script,
    Talk,
    chunked,
    raw_server,
    whole,
)


@asynccontextmanager
async def line(
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
        assert await ask(client, server.url, may_repeat=True) == b"connection 0"
        assert await ask(client, server.url, may_repeat=True) == b"connection 1"
        assert [talk.requests for talk in server.talks] == [2, 1]


async def test_what_may_have_been_taken_is_not_sent_again_behind_its_senders_back() -> None:
    async with line(leaving) as (client, server):
        assert await ask(client, server.url) == b"connection 0"
        failure = await refusal(client, server.url)
        assert failure.provider_code == "upstream_disconnected"
        assert [talk.requests for talk in server.talks] == [2]


async def test_what_cannot_be_sent_twice_is_not_trusted_to_a_connection_that_rested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "FRESH_SECONDS", -1.0)
    async with line(polite) as (client, server):
        said = [await ask(client, server.url) for _ in range(2)]
        assert said == [b"connection 0", b"connection 1"]
        assert await ask(client, server.url, may_repeat=True) == b"connection 1"


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
        client = PooledClient()
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
            basin = Basin(heard)
            await answer.copy_to(basin)
        assert basin.pieces == [b"one", b"two"]


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


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async def talking(talk: Talk) -> None:
        await talk.request()
        await talk.say(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nas long as it lasts")

    async with line(talking) as (client, server):
        assert [await ask(client, server.url) for _ in range(2)] == [b"as long as it lasts"] * 2
        assert len(server.talks) == 2


async def test_word_that_an_answer_is_under_way_is_no_answer() -> None:
    async def patient(talk: Talk) -> None:
        while await talk.request():
            await talk.say(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\na: b\r\n\r\n")
            await talk.say(whole(b"here"))

    async with line(patient) as (client, server):
        assert [await ask(client, server.url) for _ in range(2)] == [b"here"] * 2
        assert len(server.talks) == 1


async def test_the_answer_to_a_question_about_a_head_has_no_body() -> None:
    async def heading(talk: Talk) -> None:
        await talk.request()
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        await talk.until_gone()

    async with (
        line(heading) as (client, server),
        client.exchange(HttpRequest(method="HEAD", url=server.url)) as answer,
    ):
        assert await answer.read() == b""
        assert answer.headers["content-length"] == "1000"


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body_keep_their_connection(status: int) -> None:
    async def bare(talk: Talk) -> None:
        while await talk.request():
            await talk.say(b"HTTP/1.1 %d Bare\r\n\r\n" % status)

    async with line(bare) as (client, server):
        assert [await ask(client, server.url) for _ in range(2)] == [b"", b""]
        assert len(server.talks) == 1


async def test_bytes_that_nobody_asked_for_end_their_connection() -> None:
    """What follows an answer must never be taken for the answer to the next request."""

    async def chatty(talk: Talk) -> None:
        await talk.request()
        await talk.say(whole(b"connection %d" % talk.number) + whole(b"a lie"))
        await talk.until_gone()

    async with line(chatty) as (client, server):
        assert await ask(client, server.url) == b"connection 0"
        assert await ask(client, server.url) == b"connection 1"


async def test_bytes_on_a_kept_connection_end_it() -> None:
    said = asyncio.Event()

    async def late(talk: Talk) -> None:
        await talk.request()
        await talk.say(whole(b"connection %d" % talk.number))
        if not talk.number:
            await talk.say(whole(b"a lie"))
            said.set()
        await talk.until_gone()

    async with line(late) as (client, server):
        assert await ask(client, server.url) == b"connection 0"
        await said.wait()
        assert await ask(client, server.url) == b"connection 1"


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
async def test_what_cannot_be_read_is_a_failure(nonsense: bytes) -> None:
    async def raving(talk: Talk) -> None:
        await talk.request()
        await talk.say(nonsense)
        await talk.until_gone()

    async with line(raving) as (client, server):
        assert (await refusal(client, server.url)).provider_code == "upstream_broken_answer"


async def test_a_body_that_is_no_body_is_a_failure() -> None:
    async def raving(talk: Talk) -> None:
        await talk.request()
        await talk.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")
        await talk.until_gone()

    async with line(raving) as (client, server):
        assert (await refusal(client, server.url)).provider_code == "upstream_broken_answer"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_server_that_compresses_although_not_asked_to_is_read(encoding: str) -> None:
    plain = b"the same again and again, " * 100
    packed = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)

    async def packing(talk: Talk) -> None:
        await talk.request()
        await talk.say(whole(packed, b"content-encoding: " + encoding.encode()))
        await talk.request()
        cut = packed[:-12]
        await talk.say(whole(cut, b"content-encoding: " + encoding.encode()))

    async with line(packing) as (client, server):
        assert await ask(client, server.url) == plain
        assert (await refusal(client, server.url)).provider_code == "upstream_truncated"


async def test_a_long_answer_waits_until_it_is_read_and_arrives_whole() -> None:
    body = bytes(range(256)) * 16 * 1024

    async def long(talk: Talk) -> None:
        while await talk.request():
            await talk.say(whole(body))

    async with line(long) as (client, server):
        for _ in range(2):
            async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
                await asyncio.sleep(0)
                basin = Basin()
                await answer.copy_to(basin)
                assert b"".join(basin.pieces) == body
        assert len(server.talks) == 1


async def test_a_stream_that_is_left_frees_everything() -> None:
    async def endless(talk: Talk) -> None:
        while await talk.request():
            await talk.say(chunked(b"one")[:-5])
            await talk.until_gone()

    async def listen(client: PooledClient, url: str, heard: asyncio.Event) -> None:
        async with client.exchange(HttpRequest(method="GET", url=url)) as answer:
            await answer.copy_to(Basin(heard))

    async with line(endless) as (client, server):
        for _ in range(10):
            heard = asyncio.Event()
            listening = asyncio.create_task(listen(client, server.url, heard))
            await heard.wait()
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await listening
        assert len(server.talks) == 10


async def test_a_header_with_a_line_end_is_never_sent() -> None:
    async with line(polite) as (client, server):
        request = HttpRequest(method="GET", url=server.url, headers={"a": "b\r\nx: y"})
        with pytest.raises(ProviderFailure, match="line break"):
            async with client.exchange(request):
                pass
        assert not server.talks


async def test_a_target_is_sent_as_it_is_written() -> None:
    seen: list[bytes] = []

    async def noting(talk: Talk) -> None:
        while request := await talk.request():
            seen.append(request.partition(b"\r\n")[0])
            await talk.say(whole(b""))

    async with line(noting) as (client, server):
        await ask(client, f"{server.url}/v1/a%2Fb?x=%20&y[]=1")
        await ask(client, server.url)
    assert seen == [b"POST /v1/a%2Fb?x=%20&y[]=1 HTTP/1.1", b"POST / HTTP/1.1"]
