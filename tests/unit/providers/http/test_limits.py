"""Hostile upstreams: every part of a response has a limit, and its error says which."""

import asyncio
import sys
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.ports.provider import RelayRequest
from holdfast.providers.http import client as http
from holdfast.providers.http import relay as relays
from holdfast.providers.http import upstream as upstreams
from holdfast.providers.http.client import HttpRequest
from holdfast.providers.http.relay import open_relay
from holdfast.providers.http.sse import SseSplitter
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.settings import UpstreamSettings
from tests.unit.providers.http.raw_server import (
    CollectedEvents,
    CollectingSink,
    RawConnection,
    chunked,
    whole,
)
from tests.unit.providers.http.test_client import connected

SECONDS = 20.0
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
Script = Callable[[RawConnection], Awaitable[None]]


async def read(script: Script) -> bytes:
    async with (
        asyncio.timeout(SECONDS),
        connected(script) as (client, server),
        client.exchange(HttpRequest(method="GET", url=server.url)) as answer,
    ):
        return await answer.read()


async def stream(script: Script) -> CollectedEvents:
    async with asyncio.timeout(SECONDS), connected(script) as (client, server):
        sink = CollectedEvents()
        settings = UpstreamSettings(url=server.url)
        await Upstream(settings, client).stream("/x", (b"{}",), sink)
        return sink


def saying(data: bytes, *, repeats: int = 1) -> Script:
    async def script(connection: RawConnection) -> None:
        while await connection.request():
            for _ in range(repeats):
                await connection.say(data)

    return script


async def test_trailers_are_dropped() -> None:
    body = chunked(b"one")[:-2] + b"x-note: a\r\nx-note: b\r\n\r\n"
    async with asyncio.timeout(SECONDS), connected(saying(body)) as (client, server):
        for _ in range(2):
            async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
                assert await answer.read() == b"one"
                assert "x-note" not in answer.headers
        assert len(server.connections) == 1, "trailers end a response like any other"


async def test_endless_trailers_are_refused() -> None:
    async def script(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(chunked(b"one")[:-2])
        while True:
            await connection.say(b"x-note: %b\r\n" % (b"a" * 100) * 100)

    with pytest.raises(ProviderFailure, match="trailers") as caught:
        await read(script)
    assert caught.value.provider_code == "upstream_broken_answer"


async def test_repeated_headers_are_joined_once() -> None:
    count = 8000
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n" + b"x-a: 1\r\n" * count
    calls = 0

    def profile(_: FrameType, event: str, function: Any) -> None:
        nonlocal calls
        calls += event == "c_call" and getattr(function, "__name__", "") == "join"

    async with asyncio.timeout(SECONDS), connected(saying(head + b"\r\nok")) as (client, server):
        sys.setprofile(profile)
        try:
            async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
                headers = answer.headers
        finally:
            sys.setprofile(None)
        assert headers["x-a"] == ", ".join(["1"] * count)
        assert calls < 100


async def test_an_endless_head_is_refused() -> None:
    async def script(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(b"HTTP/1.1 200 OK\r\n")
        while True:
            await connection.say(b"x-note: %b\r\n" % (b"a" * 100) * 100)

    with pytest.raises(ProviderFailure, match="head"):
        await read(script)


def bomb(size: int) -> bytes:
    """Return a gzip body of many zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    block = b"\0" * (1 << 20)
    return b"".join([*(packer.compress(block) for _ in range(size >> 20)), packer.flush()])


async def test_a_gzip_bomb_is_refused_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 1 << 20)
    packed = bomb(64 << 20)
    assert len(packed) < 1 << 17
    tracemalloc.start()
    try:
        with pytest.raises(ProviderFailure, match="exceeds 1048576 bytes") as caught:
            await read(saying(whole(packed, b"content-encoding: gzip")))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.provider_code == "upstream_answer_too_long"
    assert peak < 8 << 20, "it is never inflated as a whole"


async def test_a_sink_that_is_full_stops_decompression() -> None:
    packed = bomb(4 << 20)
    permits = asyncio.Semaphore(0)

    class Narrow(CollectingSink):
        most = 0

        def write(self, piece: bytes) -> bool:
            super().write(piece)
            self.most = max(self.most, sum(map(len, self.pieces)))
            return False

        async def drain(self) -> None:
            await permits.acquire()
            self.pieces.clear()

    sink = Narrow()
    async with asyncio.timeout(SECONDS):
        for _ in range(1000):
            permits.release()
        async with (
            connected(saying(whole(packed, b"content-encoding: gzip"))) as (client, server),
            client.exchange(HttpRequest(method="GET", url=server.url)) as answer,
        ):
            await answer.copy_to(sink)
    assert 0 < sink.most <= http.INFLATE_STEP_BYTES


def repeating(piece: bytes, first: bytes = b"") -> Script:
    """Return a server that answers with a stream of the same piece without end."""

    async def script(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(HEAD + b"\r\n" + first)
        while True:
            await connection.say(b"%x\r\n%b\r\n" % (len(piece), piece))

    return script


async def test_an_endless_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstreams, "MAX_STREAM_BYTES", 1 << 20)
    event = b"data: %b\n\n" % (b"x" * 10_000)

    with pytest.raises(ProviderFailure, match="exceeds 1048576 bytes") as caught:
        await stream(repeating(event))
    assert caught.value.provider_code == "upstream_answer_too_long"


async def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SseSplitter.__init__, "__defaults__", (1 << 20,))
    piece = b"x" * 65_536

    with pytest.raises(ProviderFailure, match="event of the upstream's answer exceeds"):
        await stream(repeating(piece, b"6\r\ndata: \r\n"))


async def relay(script: Script) -> list[bytes]:
    async with asyncio.timeout(SECONDS), connected(script) as (client, server):
        request = RelayRequest(method="POST", path="/x", headers={}, body=b"{}")
        relayed = await open_relay(Upstream(UpstreamSettings(url=server.url), client), request)
        sink = CollectingSink()
        try:
            await relayed.copy_to(sink)
        finally:
            await relayed.close()
        return sink.pieces


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_an_endless_stream_that_is_relayed_is_refused(
    monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(relays, "MAX_STREAM_BYTES", 1 << 20)
    monkeypatch.setattr(relays, "MAX_EVENT_BYTES", 1 << 15)
    event = b"data: %b%b" % (b"x" * 10_000, end)

    with pytest.raises(ProviderFailure, match="answer exceeds 1048576 bytes") as caught:
        await relay(repeating(event))
    assert caught.value.provider_code == "upstream_answer_too_long"


async def test_an_endless_line_that_is_relayed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "MAX_EVENT_BYTES", 1 << 20)
    piece = b"x" * 65_536

    with pytest.raises(ProviderFailure, match="event of the upstream's answer exceeds"):
        await relay(repeating(piece, b"6\r\ndata: \r\n"))


async def test_an_end_mark_reaches_the_sink() -> None:
    events = [b"data: one\n\n", b"data: [DONE]\n\n"]
    apart, together = (
        await stream(saying(chunked(*events))),
        await stream(saying(chunked(b"".join(events)))),
    )
    for sink in (apart, together):
        assert [event.data for event in sink.events] == [b"one"]
        assert sink.is_ended
    cut = await stream(saying(chunked(events[0])))
    assert not cut.is_ended


async def test_a_second_response_in_the_same_bytes_is_dropped() -> None:
    async with (
        asyncio.timeout(SECONDS),
        connected(saying(whole(b"one") + whole(b"two"))) as (
            client,
            server,
        ),
    ):
        for _ in range(2):
            async with client.exchange(HttpRequest(method="GET", url=server.url)) as answer:
                assert await answer.read() == b"one"
        assert len(server.connections) == 2, "such a connection is not used again"
