"""Relayed upstream streams: every piece once, in order, with keep-alive comments."""

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.http.api.relay import RelayReply
from holdfast.http.server.types import SSE, Request, ValueT
from holdfast.ports.provider import ByteSink

PIECES = [b"data: %d\n\n" % number for number in range(20)]
SECONDS = 20.0


class Upstream:
    """Says pieces, and waits in between if it is told to."""

    status = 200
    outcome = "completed"

    def __init__(self, *pieces: bytes, failure: Exception | None = None) -> None:
        self.headers = {"content-type": "text/event-stream"}
        self._pieces = pieces
        self._failure = failure
        self.may_go_on = asyncio.Event()
        self.pauses_after: int | None = None
        self.is_closed = False

    async def read(self) -> bytes:
        return b"".join(self._pieces)

    async def copy_to(self, sink: ByteSink) -> None:
        for number, piece in enumerate(self._pieces):
            if not sink.write(piece):
                await sink.drain()
            if number == self.pauses_after:
                await self.may_go_on.wait()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        self.is_closed = True


class Client(Request):
    """A request that records the body chunks sent to it."""

    def __init__(self, keeps_up: Iterator[bool]) -> None:
        super().__init__("POST", "/", b"", [])
        self.sent: list[bytes] = []
        self.written = 0
        self.hears: Callable[[bytes], None] = lambda _: None
        self._keeps_up = keeps_up

    def push(self, encode: Callable[[ValueT], bytes], value: ValueT) -> bool:
        if not next(self._keeps_up):
            return False
        self.written += 1
        self._take(encode(value))
        return True

    async def send(self, chunk: bytes, *, is_last: bool = False) -> None:
        await asyncio.sleep(0)
        self._take(chunk)

    def _take(self, body: bytes) -> None:
        self.sent.append(body)
        self.hears(body)

    async def listen(self, upstream: Upstream, seconds: float = SECONDS) -> bytes:
        ended: list[str] = []
        reply = RelayReply(upstream, seconds, [SSE], ended.append)
        async with asyncio.timeout(SECONDS):
            last = await reply.write_body(self)
        await reply.close()
        assert upstream.is_closed
        assert ended == [upstream.outcome]
        return last


@pytest.mark.parametrize("pattern", [(True,), (False,), (True, False, False)])
async def test_every_piece_is_relayed_once_and_in_order(pattern: tuple[bool, ...]) -> None:
    client = Client(itertools.cycle(pattern))
    assert await client.listen(Upstream(*PIECES)) == b""
    assert client.sent == PIECES
    assert (client.written > 0) == any(pattern)


async def test_a_truncated_relay_ends_with_an_error_event() -> None:
    failure = ProviderFailure("cut off", failure_class="transient")
    client = Client(itertools.repeat(True))
    last = await client.listen(Upstream(*PIECES, failure=failure))
    assert client.sent == PIECES
    assert b'"code":"upstream_truncated"' in last
    assert last.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("keeps_up", [False, True])
async def test_comments_are_sent_while_the_upstream_is_idle(keeps_up: bool) -> None:
    client = Client(itertools.repeat(keeps_up))
    upstream = Upstream(*PIECES)
    upstream.pauses_after = 2

    def write(body: bytes) -> None:
        if body.startswith(b":"):
            upstream.may_go_on.set()

    client.hears = write
    await client.listen(upstream, 0.01)
    assert [one for one in client.sent if one != b": keep-alive\n\n"] == PIECES
    assert client.sent[3] == b": keep-alive\n\n"


async def listen_through_a_quiet_time(client: Client, upstream: Upstream) -> None:
    """Relay a stream that is quiet for too long in every round of the loop, then goes on."""
    listening = asyncio.create_task(client.listen(upstream, 0.0))
    for _ in range(50):
        await asyncio.sleep(0)
    upstream.may_go_on.set()
    await listening


async def test_no_comment_is_sent_in_the_middle_of_an_event() -> None:
    client = Client(itertools.repeat(True))
    upstream = Upstream(b"data: one\n", b"data: two\n\n")
    upstream.pauses_after = 0
    await listen_through_a_quiet_time(client, upstream)
    assert client.sent[:2] == [b"data: one\n", b"data: two\n\n"]


async def test_a_comment_may_follow_a_complete_event() -> None:
    client = Client(itertools.repeat(True))
    upstream = Upstream(b"data: one\n\n", b"data: two\n\n")
    upstream.pauses_after = 0
    await listen_through_a_quiet_time(client, upstream)
    assert client.sent[1] == b": keep-alive\n\n"


async def test_a_cancelled_relay_closes_the_upstream() -> None:
    client = Client(itertools.repeat(True))
    upstream = Upstream(*PIECES)
    upstream.pauses_after = 0
    heard = asyncio.Event()
    client.hears = lambda _: heard.set()
    listening = asyncio.create_task(client.listen(upstream))
    await heard.wait()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert client.sent == PIECES[:1]
    assert [one for one in asyncio.all_tasks() if one is not asyncio.current_task()] == []
