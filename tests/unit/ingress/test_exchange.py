"""The wire: what a connection reads, and in how many writes it answers."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from holdfast.ingress.http.wire import BoundedProtocol


class Line(asyncio.Transport):
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

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = messages
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.is_left = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.is_left = True
                return
            body += message["body"]
            more = message["more_body"]
        self.bodies.append(body)
        for message in self.messages:
            await send(message)


def whole(body: bytes, *headers: tuple[bytes, bytes], length: int | None = None) -> Seen:
    size = str(len(body) if length is None else length).encode()
    listed = [*headers, (b"content-length", size)]
    return Seen(
        {"type": "http.response.start", "status": 200, "headers": listed},
        {"type": "http.response.body", "body": body},
    )


def connect(app: Seen) -> tuple[BoundedProtocol, Line]:
    config = uvicorn.Config(cast(Any, app), lifespan="off", log_config=None)
    protocol = BoundedProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    line = Line()
    protocol.connection_made(line)
    return protocol, line


async def settled(protocol: BoundedProtocol) -> None:
    while protocol.tasks:
        await asyncio.gather(*protocol.tasks)


def asked(body: bytes = b"", *, method: bytes = b"POST", path: bytes = b"/a") -> bytes:
    return b"%b %b HTTP/1.1\r\nhost: us\r\ncontent-length: %d\r\n\r\n%b" % (
        method, path, len(body), body,
    )  # fmt: skip


async def test_a_whole_answer_leaves_in_one_write() -> None:
    app = whole(b"hello", (b"x-a", b"1"))
    protocol, line = connect(app)
    protocol.data_received(asked(b"what?"))
    await settled(protocol)
    assert line.written == [b"HTTP/1.1 200 OK\r\nx-a: 1\r\ncontent-length: 5\r\n\r\nhello"]
    assert app.bodies == [b"what?"]
    assert not line.is_closed
    protocol.connection_lost(None)


def streamed(*, has_pause: bool) -> Seen:
    """Return an application that sends a stream, with or without a pause behind its head."""

    class Streaming(Seen):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if has_pause:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Streaming()


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_the_head_of_a_stream_does_not_wait_for_its_body() -> None:
    protocol, line = connect(streamed(has_pause=True))
    protocol.data_received(asked())
    await settled(protocol)
    assert line.written == [STREAM_HEAD, b"3\r\none\r\n", b"0\r\n\r\n"]
    protocol.connection_lost(None)


async def test_a_piece_that_comes_with_the_head_leaves_with_it() -> None:
    protocol, line = connect(streamed(has_pause=False))
    protocol.data_received(asked())
    await settled(protocol)
    assert line.written == [STREAM_HEAD + b"3\r\none\r\n", b"0\r\n\r\n"]
    protocol.connection_lost(None)


async def test_a_body_in_pieces_is_read_to_its_end() -> None:
    app = whole(b"")
    protocol, line = connect(app)
    sent = asked(b"a long question")
    protocol.data_received(sent[:-8])
    await asyncio.sleep(0)
    protocol.data_received(sent[-8:-4])
    await asyncio.sleep(0)
    protocol.data_received(sent[-4:])
    await settled(protocol)
    assert app.bodies == [b"a long question"]
    assert len(line.written) == 1
    protocol.connection_lost(None)


async def test_requests_sent_at_once_are_answered_one_after_the_other() -> None:
    app = whole(b"x")
    protocol, line = connect(app)
    protocol.data_received(asked(b"1", path=b"/one%20") + asked(b"2", path=b"/two?q=1"))
    await settled(protocol)
    assert (app.paths, app.bodies) == (["/one ", "/two"], [b"1", b"2"])
    assert len(line.written) == 2
    protocol.connection_lost(None)


async def test_the_body_of_an_answer_to_head_stays_here() -> None:
    protocol, line = connect(whole(b"hello"))
    protocol.data_received(asked(method=b"HEAD"))
    await settled(protocol)
    assert line.written == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"]
    protocol.connection_lost(None)


async def test_who_asks_whether_to_go_on_is_told_to() -> None:
    app = whole(b"")
    protocol, line = connect(app)
    head = b"POST /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    protocol.data_received(head)
    await asyncio.sleep(0)
    assert line.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    protocol.data_received(b"hi")
    await settled(protocol)
    assert app.bodies == [b"hi"]
    protocol.connection_lost(None)


async def test_who_wants_the_connection_closed_has_it_closed() -> None:
    protocol, line = connect(whole(b"x"))
    protocol.data_received(b"GET /a HTTP/1.1\r\nconnection: close\r\n\r\n")
    await settled(protocol)
    assert b"connection: close\r\n" in line.written[0]
    assert line.is_closed
    protocol.connection_lost(None)


async def test_a_header_that_would_begin_a_line_of_its_own_is_never_written() -> None:
    for unfit in (b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\0b"):
        protocol, line = connect(whole(b"x", (b"x-a", unfit)))
        protocol.data_received(asked())
        await settled(protocol)
        assert b"".join(line.written).startswith(b"HTTP/1.1 200") is False
        assert line.is_closed
        protocol.connection_lost(None)


async def test_an_answer_that_is_not_as_long_as_it_says_closes_the_connection() -> None:
    for length in (4, 6):
        protocol, line = connect(whole(b"hello", length=length))
        protocol.data_received(asked())
        await settled(protocol)
        assert (line.written, line.is_closed) == ([], True)
        protocol.connection_lost(None)


async def test_the_application_hears_that_its_client_has_gone() -> None:
    app = whole(b"x")
    protocol, line = connect(app)
    protocol.data_received(asked(b"a question")[:-3])
    await asyncio.sleep(0)
    protocol.connection_lost(None)
    await settled(protocol)
    assert app.is_left
    assert line.written == []


async def test_a_long_body_that_nobody_reads_makes_its_client_wait() -> None:
    app = whole(b"x")
    protocol, line = connect(app)
    sent = asked(b"a" * 300_000)
    protocol.data_received(sent[:200_000])
    was_paused = line.is_reading_paused
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (was_paused, line.is_reading_paused) == (True, False)
    protocol.data_received(sent[200_000:])
    await settled(protocol)
    assert app.bodies == [b"a" * 300_000]
    protocol.connection_lost(None)


async def test_a_head_in_pieces_counts_as_a_whole() -> None:
    protocol, line = connect(whole(b"x"))
    first = b"GET /a HTTP/1.1\r\nx-a: " + b"a" * 60_000 + b"\r\n"
    protocol.data_received(first)
    protocol.data_received(b"x-b: " + b"b" * 10_000 + b"\r\n\r\n")
    assert line.written[0].startswith(b"HTTP/1.1 431 ")
    assert line.is_closed
    protocol.connection_lost(None)


async def test_a_long_body_behind_a_short_head_is_no_long_head() -> None:
    app = whole(b"x")
    protocol, line = connect(app)
    protocol.data_received(asked(b"a" * 100_000))
    await settled(protocol)
    assert (len(app.bodies[0]), len(line.written)) == (100_000, 1)
    protocol.connection_lost(None)


async def test_a_connection_that_nobody_uses_is_closed_and_one_in_use_is_not() -> None:
    app = whole(b"x")
    protocol, line = connect(app)
    protocol.timeout_keep_alive = cast(Any, 0.05)
    protocol.data_received(asked())
    await settled(protocol)
    protocol.data_received(asked(b"half of it")[:-3])
    protocol.timeout_keep_alive_handler()
    assert not line.is_closed
    protocol.data_received(b" it")
    await settled(protocol)
    await asyncio.wait_for(line.closed.wait(), timeout=30)
    protocol.connection_lost(None)


def poured(*pieces: bytes) -> Seen:
    """Return an application that writes the pieces of a stream at once, and then its end."""

    class Pouring(Seen):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for piece in pieces:
                send.__self__.write(piece)
            await asyncio.sleep(0)
            send.__self__.write(b"last")
            await send({"type": "http.response.body", "body": b""})

    return Pouring()


async def test_pieces_of_one_round_of_the_loop_leave_in_one_write_and_in_order() -> None:
    protocol, line = connect(poured(b"one", b"two"))
    protocol.data_received(asked())
    await settled(protocol)
    assert line.written == [
        STREAM_HEAD + b"3\r\none\r\n3\r\ntwo\r\n",
        b"4\r\nlast\r\n0\r\n\r\n",
    ]
    protocol.connection_lost(None)


async def test_pieces_for_a_client_that_has_gone_are_not_written() -> None:
    protocol, line = connect(poured(b"one"))
    protocol.data_received(asked())
    await asyncio.sleep(0)
    protocol.connection_lost(None)
    await settled(protocol)
    assert line.written == []
