"""A streamed reply ends with its body, its client, or a reason of its own, and always closes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.http.server.types import ClientDisconnected, Header, IteratorReply, Request


class RecordedRequest(Request):
    """A request whose connection is a list of chunks."""

    def __init__(self) -> None:
        super().__init__("GET", "/", b"", [])
        self.is_read = True
        self.chunks: list[tuple[bytes, bool]] = []
        self.left = asyncio.Event()

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        assert (status, bool(headers)) == (200, True)

    async def send(self, chunk: bytes, *, is_last: bool = False) -> None:
        self.chunks.append((chunk, is_last))

    async def receive(self) -> tuple[bytes, bool]:
        await self.left.wait()
        raise ClientDisconnected

    def leave(self) -> None:
        """Close the client's connection."""
        self.disconnected = True
        self.left.set()
        if self.on_disconnected is not None:
            self.on_disconnected()


class Body:
    """A body that hangs after its first chunk, until it is told to end or to fail."""

    def __init__(self) -> None:
        self.going_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.has_begun = asyncio.Event()
        self.is_closed = self.was_left = False
        self.reply = IteratorReply(self._chunks())
        self.reply.on_close = self._close
        self.reply.on_disconnect = self._leave

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield b"one"
        self.has_begun.set()
        await self.going_on
        yield b"two"

    def _close(self) -> None:
        self.is_closed = True

    async def _leave(self) -> None:
        assert not self.is_closed
        self.was_left = True


async def test_a_body_that_ends_is_sent_to_its_end() -> None:
    body, request = Body(), RecordedRequest()
    body.going_on.set_result(None)
    assert await body.reply.send(request)
    assert request.chunks == [(b"one", False), (b"two", False), (b"", True)]
    assert (body.is_closed, body.was_left) == (True, False)
    assert request.on_disconnected is None


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_client_that_leaves_ends_the_stream_without_a_last_chunk(is_read: bool) -> None:
    body, request = Body(), RecordedRequest()
    request.is_read = is_read
    sending = asyncio.create_task(body.reply.send(request))
    await body.has_begun.wait()
    request.leave()
    assert not await sending
    assert not sending.cancelling()
    assert request.chunks == [(b"one", False)]
    assert (body.is_closed, body.was_left) == (True, True)


async def test_a_client_that_left_before_gets_nothing() -> None:
    body, request = Body(), RecordedRequest()
    request.leave()
    assert not await body.reply.send(request)
    assert request.chunks == []
    assert (body.is_closed, body.was_left) == (True, True)


async def test_a_reason_to_end_early_ends_the_stream_with_a_last_chunk() -> None:
    body, request, revoked = Body(), RecordedRequest(), asyncio.Event()

    async def until_revoked(_: Request) -> None:
        await revoked.wait()

    body.reply.until_ended = until_revoked
    sending = asyncio.create_task(body.reply.send(request))
    await body.has_begun.wait()
    revoked.set()
    assert not await sending
    assert request.chunks == [(b"one", False), (b"", True)]
    assert (body.is_closed, body.was_left) == (True, False)


async def test_a_body_that_fails_leaves_the_stream_without_a_last_chunk() -> None:
    body, request = Body(), RecordedRequest()
    body.going_on.set_exception(StoreUnavailable("gone"))
    assert not await body.reply.send(request)
    assert request.chunks == [(b"one", False)]
    assert (body.is_closed, body.was_left) == (True, False)


def _stay(_: RecordedRequest) -> None:
    """Keep the connection."""


@pytest.mark.parametrize("meanwhile", [_stay, RecordedRequest.leave])
async def test_a_cancelled_request_is_cancelled_whatever_its_client_does(
    meanwhile: Callable[[RecordedRequest], None],
) -> None:
    body, request = Body(), RecordedRequest()
    sending = asyncio.create_task(body.reply.send(request))
    await body.has_begun.wait()
    meanwhile(request)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert body.is_closed
