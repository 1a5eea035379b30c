"""Copying a body to a sink: at once where possible, later where it is full, always in order."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.openai.stream_events import Delta, StreamEvent, number_event
from holdfast.ports.provider import AnyEvent, ModelCall
from holdfast.providers.http import client as http
from holdfast.providers.http.client import HttpRequest, PooledClient
from holdfast.providers.http.connection import StopReading
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.openai_chat.adapter import ChatProvider
from holdfast.providers.openai_responses.adapter import ResponsesProvider
from holdfast.providers.settings import TimeoutSettings, UpstreamSettings
from tests.unit.providers.http.raw_server import RawConnection, chunked, raw_server, whole
from tests.unit.providers.http.test_client import connected
from tests.unit.providers.http.test_truncation import CHAT, RESPONSES

SECONDS = 20.0
MUCH = b"x" * 65_536


class RecordingSink:
    """A sink that may be full after each piece, or stop after some."""

    def __init__(self, *, is_always_full: bool = False, stop_after: int | None = None) -> None:
        self.pieces: list[bytes] = []
        self.is_always_full = is_always_full
        self.stop_after = stop_after
        self.came = asyncio.Event()
        self.emptied = asyncio.Semaphore(0)
        self.waits = 0

    def write(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        self.came.set()
        if self.stop_after is not None and len(self.pieces) > self.stop_after:
            raise StopReading
        return not self.is_always_full

    async def drain(self) -> None:
        self.waits += 1
        await self.emptied.acquire()


async def copy_to(client: PooledClient, url: str, sink: RecordingSink) -> None:
    async with client.exchange(HttpRequest(method="GET", url=url)) as answer:
        await answer.copy_to(sink)


async def test_a_body_is_written_at_once_and_in_order() -> None:
    pieces = [b"%04d" % number for number in range(50)]
    sink = RecordingSink()

    async def telling(connection: RawConnection) -> None:
        await connection.request()
        raw = chunked(*pieces)
        edge = raw.index(b"0000") + 6
        await connection.say(raw[:edge])
        for start in range(edge, len(raw), 10):
            sink.came.clear()
            await connection.say(raw[start : start + 10])
            if start + 10 < len(raw) - 5:
                await sink.came.wait()

    async with asyncio.timeout(SECONDS), connected(telling) as (client, server):
        await copy_to(client, server.url, sink)
    assert b"".join(sink.pieces) == b"".join(pieces)
    assert len(sink.pieces) > 40
    assert sink.waits == 0


async def test_a_full_sink_pauses_the_server_and_loses_nothing() -> None:
    body = bytes(range(256)) * 16 * 1024
    sink = RecordingSink(is_always_full=True)

    async def much(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(chunked(*(body[i : i + 4096] for i in range(0, len(body), 4096))))

    async with asyncio.timeout(SECONDS), connected(much) as (client, server):
        pouring = asyncio.create_task(copy_to(client, server.url, sink))
        await sink.came.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(sink.pieces) == 1
        sink.is_always_full = False
        sink.emptied.release()
        await pouring
    assert b"".join(sink.pieces) == body
    assert sink.waits == 1


@asynccontextmanager
async def closing(client: PooledClient) -> AsyncIterator[PooledClient]:
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("rest", "connections"),
    [(b"0\r\n\r\n", 1), (b"5\r\nthree\r\n0\r\n\r\n", 1), (b"", 2), (b"nonsense", 2)],
    ids=["ends", "a-little-more", "nothing", "nonsense"],
)
async def test_a_connection_is_reused_after_the_rest_of_a_stopped_body(
    rest: bytes, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "DISCARD_SECONDS", 0.05 if connections > 1 else SECONDS)
    left, settled = asyncio.Event(), asyncio.Event()

    class Settling(PooledClient):
        def pool(self, *args: Any) -> None:
            super().pool(*args)
            settled.set()

    async def ending_late(connection: RawConnection) -> None:
        while await connection.request():
            await connection.say(chunked(b"one", b"two")[:-5])
            await left.wait()
            await connection.say(rest)
            if connections > 1:
                await connection.until_gone()
                settled.set()

    async with (
        asyncio.timeout(SECONDS),
        raw_server(ending_late) as server,
        closing(Settling()) as client,
    ):
        sink = RecordingSink(stop_after=0)
        await copy_to(client, server.url, sink)
        assert b"".join(sink.pieces) in (b"one", b"onetwo")
        left.set()
        await settled.wait()
        await copy_to(client, server.url, RecordingSink(stop_after=0))
        assert len(server.connections) == connections


async def test_a_long_rest_of_a_stopped_body_is_not_read() -> None:
    gone = asyncio.Event()

    async def endless(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(chunked(b"one")[:-5])
        with suppress(ConnectionError):
            while True:
                await connection.say(b"%x\r\n%b\r\n" % (len(MUCH), MUCH))
        gone.set()

    async with asyncio.timeout(SECONDS), connected(endless) as (client, server):
        await copy_to(client, server.url, RecordingSink(stop_after=0))
        await gone.wait()


async def test_cancelling_in_mid_body_closes_the_connection() -> None:
    sink, gone = RecordingSink(), asyncio.Event()

    async def endless(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(chunked(b"one")[:-5])
        await connection.until_gone()
        gone.set()

    async with asyncio.timeout(SECONDS), connected(endless) as (client, server):
        pouring = asyncio.create_task(copy_to(client, server.url, sink))
        await sink.came.wait()
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
        await gone.wait()


@pytest.mark.parametrize("count", [0, 1])
async def test_an_error_of_the_sink_is_raised_by_copy_to(count: int) -> None:
    class Refusing(RecordingSink):
        def write(self, piece: bytes) -> bool:
            super().write(piece)
            if len(self.pieces) > count:
                raise ZeroDivisionError
            return True

    sink = Refusing()

    async def two(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(chunked(b"one")[:-5])
        await sink.came.wait()
        await connection.say(b"3\r\ntwo\r\n0\r\n\r\n")

    async with asyncio.timeout(SECONDS), connected(two) as (client, server):
        with pytest.raises(ZeroDivisionError):
            await copy_to(client, server.url, sink)


async def test_silence_after_a_piece_has_a_limit() -> None:
    sink = RecordingSink()

    async def falling_silent(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(chunked(b"one")[:-5])
        await sink.came.wait()
        await connection.say(b"3\r\ntwo\r\n")
        await connection.until_gone()

    timeouts = TimeoutSettings(chunk_seconds=0.05)
    async with asyncio.timeout(SECONDS), connected(falling_silent, timeouts) as (client, server):
        with pytest.raises(ProviderFailure) as caught:
            await copy_to(client, server.url, sink)
    assert caught.value.provider_code == "upstream_chunk_timeout"
    assert sink.pieces[-1:] in ([b"two"], [b"onetwo"])


async def test_a_compressed_body_is_copied_plain_and_must_be_complete() -> None:
    plain = b"the same again and again, " * 100
    packed = gzip.compress(plain)

    async def packing(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(whole(packed, b"content-encoding: gzip"))
        await connection.request()
        await connection.say(whole(packed[:-12], b"content-encoding: gzip"))

    async with asyncio.timeout(SECONDS), connected(packing) as (client, server):
        sink = RecordingSink()
        await copy_to(client, server.url, sink)
        assert b"".join(sink.pieces) == plain
        with pytest.raises(ProviderFailure) as caught:
            await copy_to(client, server.url, RecordingSink())
        assert caught.value.provider_code == "upstream_truncated"


class EncodingSink:
    """A sink that encodes every event as a client gets it."""

    def __init__(self) -> None:
        self.encoded: list[bytes] = []

    def write(self, events: Sequence[AnyEvent]) -> bool:
        for event in events:
            number = len(self.encoded)
            if isinstance(event, Delta):
                event.sequence_number = number
                told = StreamEvent(event.type, number, None, delta=event)
            else:
                told = number_event(event.type, number, event.data)
            self.encoded.append(told.body)
        return True

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "stream"),
    [(ResponsesProvider, RESPONSES), (ChatProvider, CHAT)],
    ids=["responses", "chat"],
)
async def test_a_stream_gives_the_same_events_however_it_is_cut(
    make: type[ResponsesProvider] | type[ChatProvider], stream: bytes
) -> None:
    cuts = iter(range(len(stream) + 1))

    async def cutting(connection: RawConnection) -> None:
        while await connection.request():
            cut = next(cuts)
            raw = chunked(*(piece for piece in (stream[:cut], stream[cut:]) if piece))
            edge = raw.index(b"\r\n\r\n") + 4 + cut
            await connection.say(raw[:edge])
            await asyncio.sleep(0)
            await connection.say(raw[edge:])

    heard: set[tuple[bytes, ...]] = set()
    call = ModelCall(model="m", items=[b'{"role":"user","content":"hi"}'], is_stream=True)
    async with asyncio.timeout(SECONDS * 2), raw_server(cutting) as server:
        client = PooledClient()
        try:
            upstream = Upstream(UpstreamSettings(url=f"{server.url}/v1"), client)
            for _ in range(len(stream) + 1):
                sink = EncodingSink()
                await make(upstream, lambda kind: f"{kind}_new").stream(call, sink)
                heard.add(tuple(sink.encoded))
        finally:
            await client.close()
    [said] = heard
    assert len(said) >= 3
