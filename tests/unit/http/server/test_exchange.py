"""The server protocol: what a connection reads, and with which writes it answers."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest

from holdfast.http.server.connection import ServerState
from holdfast.http.server.protocol import ConnectionLimits, HttpProtocol, protocol_class
from holdfast.http.server.types import ClientDisconnected, Header, Request


class RecordingTransport(asyncio.Transport):
    """The other end of a connection: what was written, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closed = asyncio.Event()
        self.is_reading_paused = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.written.append(b"".join(list_of_data))

    def close(self) -> None:
        self.closed.set()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed.set()

    def abort(self) -> None:
        self.closed.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_closed

    @property
    def is_closed(self) -> bool:
        return self.closed.is_set()

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False


class Seen:
    """An application that answers with what it was told to, and keeps what it was asked."""

    def __init__(self, body: bytes = b"", *headers: Header) -> None:
        self.body, self.headers = body, headers
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.is_left = False

    async def serve(self, request: Request) -> None:
        request.max_body_bytes = 1_000_000
        self.paths.append(request.path)
        try:
            self.bodies.append(await request.body())
        except ClientDisconnected:
            self.is_left = True
        else:
            await self.answer(request)

    async def answer(self, request: Request) -> None:
        await request.answer(200, self.headers, self.body)


def connect(app: Seen) -> tuple[HttpProtocol, RecordingTransport]:
    protocol = protocol_class(app, ConnectionLimits())(ServerState(), asyncio.get_running_loop())
    transport = RecordingTransport()
    protocol.connection_made(transport)
    return protocol, transport


async def settled(protocol: HttpProtocol) -> None:
    while protocol.tasks:
        await asyncio.gather(*protocol.tasks, return_exceptions=True)
        await asyncio.sleep(0)  # from Python 3.12 on, waiting for what is done lets nothing run


def asked(body: bytes = b"", *, method: bytes = b"POST", path: bytes = b"/a") -> bytes:
    return b"%b %b HTTP/1.1\r\nhost: us\r\ncontent-length: %d\r\n\r\n%b" % (
        method, path, len(body), body,
    )  # fmt: skip


async def test_a_complete_response_is_one_write() -> None:
    app = Seen(b"hello", (b"x-a", b"1"))
    protocol, transport = connect(app)
    protocol.data_received(asked(b"what?"))
    await settled(protocol)
    assert transport.written == [b"HTTP/1.1 200 OK\r\nx-a: 1\r\ncontent-length: 5\r\n\r\nhello"]
    assert app.bodies == [b"what?"]
    assert not transport.is_closed
    protocol.connection_lost(None)


def streamed(*, has_pause: bool) -> Seen:
    """Return an application that sends a stream, with or without a pause behind its head."""

    class Streaming(Seen):
        async def answer(self, request: Request) -> None:
            await request.start(200, [])
            if has_pause:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            await request.send(b"one")
            await request.send(b"", is_last=True)

    return Streaming()


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_the_head_of_a_stream_is_sent_before_its_first_chunk() -> None:
    protocol, transport = connect(streamed(has_pause=True))
    protocol.data_received(asked())
    await settled(protocol)
    assert transport.written == [STREAM_HEAD, b"3\r\none\r\n", b"0\r\n\r\n"]
    protocol.connection_lost(None)


async def test_a_chunk_in_the_same_iteration_is_sent_with_the_head() -> None:
    protocol, transport = connect(streamed(has_pause=False))
    protocol.data_received(asked())
    await settled(protocol)
    assert transport.written == [STREAM_HEAD + b"3\r\none\r\n", b"0\r\n\r\n"]
    protocol.connection_lost(None)


async def test_a_body_in_pieces_is_read_completely() -> None:
    app = Seen(b"")
    protocol, transport = connect(app)
    sent = asked(b"a long question")
    protocol.data_received(sent[:-8])
    await asyncio.sleep(0)
    protocol.data_received(sent[-8:-4])
    await asyncio.sleep(0)
    protocol.data_received(sent[-4:])
    await settled(protocol)
    assert app.bodies == [b"a long question"]
    assert len(transport.written) == 1
    protocol.connection_lost(None)


async def test_pipelined_requests_are_answered_in_order() -> None:
    app = Seen(b"x")
    protocol, transport = connect(app)
    protocol.data_received(asked(b"1", path=b"/one%20") + asked(b"2", path=b"/two?q=1"))
    await settled(protocol)
    assert (app.paths, app.bodies) == (["/one ", "/two"], [b"1", b"2"])
    assert len(transport.written) == 2
    protocol.connection_lost(None)


async def test_a_response_to_head_has_no_body() -> None:
    protocol, transport = connect(Seen(b"hello"))
    protocol.data_received(asked(method=b"HEAD"))
    await settled(protocol)
    assert transport.written == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"]
    protocol.connection_lost(None)


async def test_expect_100_continue_is_answered() -> None:
    app = Seen(b"")
    protocol, transport = connect(app)
    head = b"POST /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    protocol.data_received(head)
    await asyncio.sleep(0)
    assert transport.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    protocol.data_received(b"hi")
    await settled(protocol)
    assert app.bodies == [b"hi"]
    protocol.connection_lost(None)


async def test_connection_close_is_honoured() -> None:
    protocol, transport = connect(Seen(b"x"))
    protocol.data_received(b"GET /a HTTP/1.1\r\nconnection: close\r\n\r\n")
    await settled(protocol)
    assert b"connection: close\r\n" in transport.written[0]
    assert transport.is_closed
    protocol.connection_lost(None)


async def test_a_response_header_with_control_characters_is_never_written() -> None:
    for unfit in (b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\0b"):
        protocol, transport = connect(Seen(b"x", (b"x-a", unfit)))
        protocol.data_received(asked())
        await settled(protocol)
        assert b"".join(transport.written).startswith(b"HTTP/1.1 200") is False
        assert transport.is_closed
        protocol.connection_lost(None)


async def test_a_streamed_response_to_head_has_no_body() -> None:
    protocol, transport = connect(streamed(has_pause=False))
    protocol.data_received(asked(method=b"HEAD"))
    await settled(protocol)
    assert transport.written == [b"HTTP/1.1 200 OK\r\n\r\n"]
    protocol.connection_lost(None)


@pytest.mark.parametrize("has_begun", [False, True], ids=["unanswered", "in_the_middle"])
async def test_an_application_error_answers_500_or_closes_the_connection(has_begun: bool) -> None:
    class Breaking(Seen):
        async def answer(self, request: Request) -> None:
            if has_begun:
                await request.start(200, [])
                await request.send(b"1")
            raise RuntimeError("broke")

    protocol, transport = connect(Breaking())
    protocol.data_received(asked())
    await asyncio.wait_for(transport.closed.wait(), timeout=30)
    assert transport.written[0].startswith(b"HTTP/1.1 200" if has_begun else b"HTTP/1.1 500")
    assert (len(transport.written), protocol.tasks) == (1, set())
    protocol.connection_lost(None)


async def test_an_application_without_a_response_answers_500() -> None:
    class Leaving(Seen):
        async def answer(self, request: Request) -> None:
            """Nothing."""

    protocol, transport = connect(Leaving())
    protocol.data_received(asked())
    await asyncio.wait_for(transport.closed.wait(), timeout=30)
    assert transport.written[0].startswith(b"HTTP/1.1 500")
    protocol.connection_lost(None)


async def test_the_application_sees_a_disconnect() -> None:
    app = Seen(b"x")
    protocol, transport = connect(app)
    protocol.data_received(asked(b"a question")[:-3])
    await asyncio.sleep(0)
    protocol.connection_lost(None)
    await settled(protocol)
    assert app.is_left
    assert transport.written == []


async def test_an_unread_body_pauses_reading_from_the_socket() -> None:
    app = Seen(b"x")
    protocol, transport = connect(app)
    sent = asked(b"a" * 300_000)
    protocol.data_received(sent[:200_000])
    was_paused = transport.is_reading_paused
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (was_paused, transport.is_reading_paused) == (True, False)
    protocol.data_received(sent[200_000:])
    await settled(protocol)
    assert app.bodies == [b"a" * 300_000]
    protocol.connection_lost(None)


async def test_the_head_limit_counts_all_pieces_of_a_head() -> None:
    protocol, transport = connect(Seen(b"x"))
    first = b"GET /a HTTP/1.1\r\nx-a: " + b"a" * 60_000 + b"\r\n"
    protocol.data_received(first)
    protocol.data_received(b"x-b: " + b"b" * 10_000 + b"\r\n\r\n")
    assert transport.written[0].startswith(b"HTTP/1.1 431 ")
    assert transport.is_closed
    protocol.connection_lost(None)


async def test_body_bytes_do_not_count_towards_the_head_limit() -> None:
    app = Seen(b"x")
    protocol, transport = connect(app)
    protocol.data_received(asked(b"a" * 100_000))
    await settled(protocol)
    assert (len(app.bodies[0]), len(transport.written)) == (100_000, 1)
    protocol.connection_lost(None)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    app = Seen(b"x")
    protocol, transport = connect(app)
    protocol.timeout_keep_alive = cast(Any, 0.05)
    protocol.data_received(asked())
    await settled(protocol)
    protocol.data_received(asked(b"half of it")[:-3])
    protocol.check_deadlines()
    assert not transport.is_closed
    protocol.data_received(b" it")
    await settled(protocol)
    await asyncio.wait_for(transport.closed.wait(), timeout=30)
    protocol.connection_lost(None)


async def test_a_check_that_comes_late_lets_the_connection_be_read_first() -> None:
    protocol, transport = connect(Seen(b"x"))
    protocol.data_received(asked())
    await settled(protocol)
    stopped_seconds = 1000.0
    assert protocol._idle_since is not None
    protocol._idle_since -= stopped_seconds
    protocol._checked_at -= stopped_seconds
    closed: list[bool] = []
    for _ in range(2):
        protocol.check_deadlines()
        closed.append(transport.is_closed)
    assert closed == [False, True]
    protocol.connection_lost(None)


def poured(*pieces: bytes) -> Seen:
    """Return an application that writes the pieces of a stream at once, and then its end."""

    class Pouring(Seen):
        async def answer(self, request: Request) -> None:
            await request.start(200, [])
            for piece in pieces:
                request.push(bytes, piece)
            await asyncio.sleep(0)
            request.push(bytes, b"last")
            await request.send(b"", is_last=True)

    return Pouring()


async def test_chunks_of_one_loop_iteration_are_one_write_in_order() -> None:
    protocol, transport = connect(poured(b"one", b"two"))
    protocol.data_received(asked())
    await settled(protocol)
    assert transport.written == [
        STREAM_HEAD + b"3\r\none\r\n3\r\ntwo\r\n",
        b"4\r\nlast\r\n0\r\n\r\n",
    ]
    protocol.connection_lost(None)


async def test_chunks_for_a_disconnected_client_are_not_written() -> None:
    protocol, transport = connect(poured(b"one"))
    protocol.data_received(asked())
    await asyncio.sleep(0)
    protocol.connection_lost(None)
    await settled(protocol)
    assert transport.written == []
