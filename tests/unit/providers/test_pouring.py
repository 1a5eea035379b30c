"""A body taken as it comes: at once where it can be, later where it must, never out of order."""

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
from tests.unit.providers.http.test_client import line
from tests.unit.providers.raw_server import Talk, chunked, raw_server, whole
from tests.unit.providers.test_truncation import CHAT, RESPONSES

SECONDS = 20.0
MUCH = b"x" * 65_536


class Bucket:
    """Takes pieces; full after each one if it is small."""

    def __init__(self, *, is_small: bool = False, enough_after: int | None = None) -> None:
        self.pieces: list[bytes] = []
        self.is_small = is_small
        self.enough_after = enough_after
        self.came = asyncio.Event()
        self.emptied = asyncio.Semaphore(0)
        self.waits = 0

    def write(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        self.came.set()
        if self.enough_after is not None and len(self.pieces) > self.enough_after:
            raise StopReading
        return not self.is_small

    async def drain(self) -> None:
        self.waits += 1
        await self.emptied.acquire()


async def copy_to(client: PooledClient, url: str, bucket: Bucket) -> None:
    async with client.exchange(HttpRequest(method="GET", url=url)) as answer:
        await answer.copy_to(bucket)


async def test_what_comes_is_taken_at_once_and_in_order() -> None:
    pieces = [b"%04d" % number for number in range(50)]
    bucket = Bucket()

    async def telling(talk: Talk) -> None:
        await talk.request()
        raw = chunked(*pieces)
        edge = raw.index(b"0000") + 6
        await talk.say(raw[:edge])
        for start in range(edge, len(raw), 10):
            bucket.came.clear()
            await talk.say(raw[start : start + 10])
            if start + 10 < len(raw) - 5:
                await bucket.came.wait()

    async with asyncio.timeout(SECONDS), line(telling) as (client, server):
        await copy_to(client, server.url, bucket)
    assert b"".join(bucket.pieces) == b"".join(pieces)
    assert len(bucket.pieces) > 40
    assert bucket.waits == 0


async def test_whoever_is_full_has_the_server_wait_and_misses_nothing() -> None:
    body = bytes(range(256)) * 16 * 1024
    bucket = Bucket(is_small=True)

    async def much(talk: Talk) -> None:
        await talk.request()
        await talk.say(chunked(*(body[i : i + 4096] for i in range(0, len(body), 4096))))

    async with asyncio.timeout(SECONDS), line(much) as (client, server):
        pouring = asyncio.create_task(copy_to(client, server.url, bucket))
        await bucket.came.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(bucket.pieces) == 1
        bucket.is_small = False
        bucket.emptied.release()
        await pouring
    assert b"".join(bucket.pieces) == body
    assert bucket.waits == 1


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
async def test_a_connection_is_used_again_once_the_rest_of_what_was_enough_has_come(
    rest: bytes, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "DISCARD_SECONDS", 0.05 if connections > 1 else SECONDS)
    left, settled = asyncio.Event(), asyncio.Event()

    class Settling(PooledClient):
        def pool(self, *args: Any) -> None:
            super().pool(*args)
            settled.set()

    async def ending_late(talk: Talk) -> None:
        while await talk.request():
            await talk.say(chunked(b"one", b"two")[:-5])
            await left.wait()
            await talk.say(rest)
            if connections > 1:
                await talk.until_gone()
                settled.set()

    async with (
        asyncio.timeout(SECONDS),
        raw_server(ending_late) as server,
        closing(Settling()) as client,
    ):
        bucket = Bucket(enough_after=0)
        await copy_to(client, server.url, bucket)
        assert b"".join(bucket.pieces) in (b"one", b"onetwo")
        left.set()
        await settled.wait()
        await copy_to(client, server.url, Bucket(enough_after=0))
        assert len(server.talks) == connections


async def test_much_more_of_what_was_enough_is_not_waited_for() -> None:
    gone = asyncio.Event()

    async def endless(talk: Talk) -> None:
        await talk.request()
        await talk.say(chunked(b"one")[:-5])
        with suppress(ConnectionError):
            while True:
                await talk.say(b"%x\r\n%b\r\n" % (len(MUCH), MUCH))
        gone.set()

    async with asyncio.timeout(SECONDS), line(endless) as (client, server):
        await copy_to(client, server.url, Bucket(enough_after=0))
        await gone.wait()


async def test_who_leaves_in_the_middle_closes_the_line() -> None:
    bucket, gone = Bucket(), asyncio.Event()

    async def endless(talk: Talk) -> None:
        await talk.request()
        await talk.say(chunked(b"one")[:-5])
        await talk.until_gone()
        gone.set()

    async with asyncio.timeout(SECONDS), line(endless) as (client, server):
        pouring = asyncio.create_task(copy_to(client, server.url, bucket))
        await bucket.came.wait()
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
        await gone.wait()


@pytest.mark.parametrize("count", [0, 1])
async def test_what_the_taker_raises_is_raised_where_it_was_asked_for(count: int) -> None:
    class Refusing(Bucket):
        def write(self, piece: bytes) -> bool:
            super().write(piece)
            if len(self.pieces) > count:
                raise ZeroDivisionError
            return True

    bucket = Refusing()

    async def two(talk: Talk) -> None:
        await talk.request()
        await talk.say(chunked(b"one")[:-5])
        await bucket.came.wait()
        await talk.say(b"3\r\ntwo\r\n0\r\n\r\n")

    async with asyncio.timeout(SECONDS), line(two) as (client, server):
        with pytest.raises(ZeroDivisionError):
            await copy_to(client, server.url, bucket)


async def test_silence_after_what_was_taken_has_its_limit() -> None:
    bucket = Bucket()

    async def falling_silent(talk: Talk) -> None:
        await talk.request()
        await talk.say(chunked(b"one")[:-5])
        await bucket.came.wait()
        await talk.say(b"3\r\ntwo\r\n")
        await talk.until_gone()

    timeouts = TimeoutSettings(chunk_seconds=0.05)
    async with asyncio.timeout(SECONDS), line(falling_silent, timeouts) as (client, server):
        with pytest.raises(ProviderFailure) as caught:
            await copy_to(client, server.url, bucket)
    assert caught.value.provider_code == "upstream_chunk_timeout"
    assert bucket.pieces[-1:] in ([b"two"], [b"onetwo"])


async def test_a_compressed_body_is_poured_plain_and_its_end_is_missed() -> None:
    plain = b"the same again and again, " * 100
    packed = gzip.compress(plain)

    async def packing(talk: Talk) -> None:
        await talk.request()
        await talk.say(whole(packed, b"content-encoding: gzip"))
        await talk.request()
        await talk.say(whole(packed[:-12], b"content-encoding: gzip"))

    async with asyncio.timeout(SECONDS), line(packing) as (client, server):
        bucket = Bucket()
        await copy_to(client, server.url, bucket)
        assert b"".join(bucket.pieces) == plain
        with pytest.raises(ProviderFailure) as caught:
            await copy_to(client, server.url, Bucket())
        assert caught.value.provider_code == "upstream_truncated"


class Ear:
    """Hears everything, as it would be told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def write(self, events: Sequence[AnyEvent]) -> bool:
        for event in events:
            number = len(self.told)
            if isinstance(event, Delta):
                event.sequence_number = number
                told = StreamEvent(event.type, number, None, delta=event)
            else:
                told = number_event(event.type, number, event.data)
            self.told.append(told.body)
        return True

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "stream"),
    [(ResponsesProvider, RESPONSES), (ChatProvider, CHAT)],
    ids=["responses", "chat"],
)
async def test_a_stream_says_the_same_however_it_is_cut_into_pieces(
    make: type[ResponsesProvider] | type[ChatProvider], stream: bytes
) -> None:
    cuts = iter(range(len(stream) + 1))

    async def cutting(talk: Talk) -> None:
        while await talk.request():
            cut = next(cuts)
            raw = chunked(*(piece for piece in (stream[:cut], stream[cut:]) if piece))
            edge = raw.index(b"\r\n\r\n") + 4 + cut
            await talk.say(raw[:edge])
            await asyncio.sleep(0)
            await talk.say(raw[edge:])

    heard: set[tuple[bytes, ...]] = set()
    call = ModelCall(model="m", items=[b'{"role":"user","content":"hi"}'], is_stream=True)
    async with asyncio.timeout(SECONDS * 2), raw_server(cutting) as server:
        client = PooledClient()
        try:
            upstream = Upstream(UpstreamSettings(url=f"{server.url}/v1"), client)
            for _ in range(len(stream) + 1):
                ear = Ear()
                await make(upstream, lambda kind: f"{kind}_new").stream(call, ear)
                heard.add(tuple(ear.told))
        finally:
            await client.close()
    [said] = heard
    assert len(said) >= 3
