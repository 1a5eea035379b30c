"""Bounds of a connection: sizes, time limits, half-closed clients, HTTP/1.0, connection counts."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from holdfast.http.server.connection import ServerState, client_network
from holdfast.http.server.protocol import (
    ConnectionLimits,
    HttpProtocol,
    protocol_class,
)
from holdfast.http.server.types import ClientDisconnected, Request

SECONDS = 20.0
QUICK = ConnectionLimits(head_seconds=0.4, body_seconds=0.4, stall_seconds=0.4)


class Recorder:
    """An application that answers with the body; `/stream` streams, `/big` answers 8 MB."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.disconnected: asyncio.Queue[str] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, request: Request) -> None:
        """Answer one request."""
        request.max_body_bytes = 1_000_000
        self.requests.append(request)
        try:
            body = await request.body()
        except ClientDisconnected:
            self.disconnected.put_nowait(request.path)
            return
        await self.gate.wait()
        if request.path == "/stream":
            await request.start(200, [])
            for chunk in (b"one", b"two"):
                await request.send(chunk)
            await request.send(b"", is_last=True)
        elif request.path == "/follow":
            await request.start(200, [])
            await request.send(b"one")
            await request.wait_disconnected()
            self.disconnected.put_nowait(request.path)
        elif request.path == "/big":
            await request.answer(200, [], b"x" * 8_000_000)
        else:
            await request.answer(200, [], body)


class Serving:
    """A protocol on a loopback socket."""

    def __init__(self, app: Recorder, limits: ConnectionLimits) -> None:
        self.app = app
        self.state = ServerState()
        self.protocol = protocol_class(app, limits)
        self.address = ("127.0.0.1", 0)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address)

    async def send(self, data: bytes, *, half_close: bool = False) -> bytes:
        """Send bytes and return everything that comes until the server closes."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            if half_close:
                writer.write_eof()
            async with asyncio.timeout(SECONDS):
                return await reader.read()
        finally:
            writer.close()


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(SECONDS):
        while not is_so():  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(limits: ConnectionLimits | None = None) -> AsyncIterator[Serving]:
    app = Recorder()
    server = Serving(app, limits or ConnectionLimits())
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: server.protocol(server.state, loop), "127.0.0.1", 0)
    server.address = listener.sockets[0].getsockname()
    try:
        yield server
    finally:
        app.gate.set()
        listener.close()
        for connection in list(server.state.connections):
            cast(HttpProtocol, connection).transport.abort()
        while server.state.tasks:
            await asyncio.gather(*server.state.tasks, return_exceptions=True)
            await asyncio.sleep(0)  # from Python 3.12 on, waiting for what is done lets nothing run
        await listener.wait_closed()


CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


# ── sizes ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "flood",
    [
        b"2\r\nhi\r\n0\r\nx-trailer: " + b"a" * 200_000,
        b"2\r\nhi\r\n0\r\n" + b"x-trailer: aaaaaaaaaa\r\n" * 10_000,
        b"2;" + b"a" * 200_000,
        b"2\r\nhi\r\n0\r\n" + b"x-trailer: aaaaaaaaaa\r\n" * 10_000 + b"\r\n",
    ],
    ids=["one long trailer", "many trailers", "chunk extension", "complete trailers"],
)
async def test_trailers_and_chunk_extensions_count_as_header_bytes(flood: bytes) -> None:
    async with serving() as server:
        reader, writer = await server.connect()
        writer.write(CHUNKED)
        for start in range(0, len(flood), 10_000):
            writer.write(flood[start : start + 10_000])
            await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS):
            reply = await reader.read()
        writer.close()
        assert reply.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"headers_too_large"' in reply
        assert b"\r\nx-request-id: req_" in reply


async def test_trailers_within_the_limit_are_dropped() -> None:
    async with serving() as server:
        trailers = b"2\r\nhi\r\n0\r\nx-session-key: evil\r\nx-a: b\r\n\r\n"
        closing = b"GET /end HTTP/1.1\r\nconnection: close\r\n\r\n"
        reply = await server.send(CHUNKED + trailers + closing)
        assert reply.count(b"HTTP/1.1 200 OK") == 2
        names = [name for name, _ in server.app.requests[0].headers]
        assert names == [b"host", b"transfer-encoding"]


# ── time ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"", b""),
        (b"POST / HTTP/1.1\r\nhost: a\r\n", b"HTTP/1.1 408 "),
        (b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhi", b"HTTP/1.1 408 "),
        (CHUNKED + b"2\r\nhi\r\n", b"HTTP/1.1 408 "),
    ],
    ids=["silent", "head", "body", "chunked body"],
)
async def test_a_client_that_stops_sending_is_disconnected(sent: bytes, expected: bytes) -> None:
    async with serving(QUICK) as server:
        reply = await server.send(sent)
        assert reply.startswith(expected)
        assert bool(reply) == bool(expected)
        assert reply.count(b"\r\nx-request-id: req_") == bool(expected)
        if server.app.requests:
            assert await server.app.disconnected.get() == "/"


async def test_a_body_that_keeps_coming_may_take_longer() -> None:
    limits = ConnectionLimits(body_seconds=0.1, body_bytes_per_second=10)
    async with serving(limits) as server:
        reader, writer = await server.connect()
        writer.write(b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: 40\r\n\r\n")
        for _ in range(4):
            # 10 bytes extend the deadline by one second.
            writer.write(b"x" * 10)
            await asyncio.sleep(0.1)
        async with asyncio.timeout(SECONDS):
            reply = await reader.read()
        writer.close()
        assert reply.startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_came_fast_may_not_stop_for_longer() -> None:
    limits = ConnectionLimits(body_seconds=0.1, body_bytes_per_second=10, body_ahead_seconds=0.2)
    async with serving(limits) as server:
        # Ten thousand bytes are a thousand seconds ahead of that rate.
        head = b"POST / HTTP/1.1\r\ncontent-length: 40000\r\n\r\n"
        assert (await server.send(head + b"x" * 10_000)).startswith(b"HTTP/1.1 408 ")


async def test_a_slow_application_is_not_the_clients_fault() -> None:
    async with serving(QUICK) as server:
        server.app.gate.clear()
        sending = asyncio.create_task(server.send(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"))
        await asyncio.sleep(0.5)
        assert not sending.done()
        server.app.gate.set()
        assert (await sending).startswith(b"HTTP/1.1 200 ")


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    async with serving(QUICK) as server:
        client = socket.create_connection(server.address)
        with client:
            client.sendall(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n")
            await until(lambda: bool(server.app.requests) and not server.state.connections)


async def test_a_large_response_is_written_as_the_client_takes_it() -> None:
    async with serving() as server:
        client = socket.create_connection(server.address)
        with client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n")
            await until(lambda: len(server.state.connections) == 1 and bool(server.app.requests))
            (connection,) = server.state.connections
            await until(lambda: connection.flow.write_paused)
            assert connection.transport.get_write_buffer_size() < 1_000_000


# ── half-closed clients, pipelining and HTTP/1.0 ────────────────────────────────────────────


@pytest.mark.parametrize("path", [b"/", b"/stream"])
async def test_a_half_closed_client_gets_its_response(path: bytes) -> None:
    async with serving() as server:
        server.app.gate.clear()
        request = b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path
        sending = asyncio.create_task(server.send(request, half_close=True))
        await until(lambda: any(one.is_half_closed for one in server.app.requests))
        server.app.gate.set()
        reply = await sending
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
        assert (b"3\r\ntwo\r\n0\r\n\r\n" in reply) == (path == b"/stream")


async def test_a_half_closed_client_gets_the_responses_of_all_pipelined_requests() -> None:
    async with serving() as server:
        reply = await server.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 3, half_close=True)
        assert reply.count(b"HTTP/1.1 200 OK") == 3


async def test_a_half_closed_client_with_half_a_body_is_disconnected() -> None:
    async with serving() as server:
        head = b"POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhi"
        assert await server.send(head, half_close=True) == b""
        assert await server.app.disconnected.get() == "/"


async def test_a_stream_whose_client_closes_is_ended_although_another_request_is_pipelined() -> (
    None
):
    async with serving() as server:
        reader, writer = await server.connect()
        follow = b"GET /follow HTTP/1.1\r\nhost: a\r\n\r\n"
        writer.write(follow * 3)
        async with asyncio.timeout(SECONDS):
            await reader.readuntil(b"one\r\n")
            writer.close()
            assert await server.app.disconnected.get() == "/follow"
        assert len(server.app.requests) == 1


async def test_garbage_after_a_request_does_not_spoil_its_response() -> None:
    async with serving() as server:
        server.app.gate.clear()
        sending = asyncio.create_task(server.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n\x00garbage"))
        await until(lambda: bool(server.app.requests))
        server.app.gate.set()
        reply = await sending
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n")
        assert reply.count(b"HTTP/1.1") == 1


UPGRADE = (
    b"GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" + UPGRADE,
        UPGRADE.replace(b"dGhl", b"dGh\xff") + UPGRADE.replace(b"dGhl", b"\xfe\xff"),
    ],
    ids=["behind a request in progress", "with bytes that are not ASCII"],
)
async def test_an_impossible_upgrade_is_declined(sent: bytes) -> None:
    async with serving() as server:
        server.app.gate.clear()
        sending = asyncio.create_task(server.send(sent, half_close=True))
        await until(lambda: bool(server.app.requests))
        server.app.gate.set()
        reply = await sending
        assert reply.count(b"HTTP/1.1 200 OK") == 2
        assert b"101 Switching" not in reply


async def test_a_stream_to_an_http_1_0_client_is_not_chunked() -> None:
    async with serving() as server:
        reply = await server.send(b"GET /stream HTTP/1.0\r\n\r\n")
        head, _, body = reply.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert b"connection: close" in head.lower()
        assert body == b"onetwo"


# ── connections per address ─────────────────────────────────────────────────────────────────


async def test_connections_per_address_are_limited_and_released() -> None:
    async with serving(ConnectionLimits(connections_per_address=2)) as server:
        first, second = await server.connect(), await server.connect()
        reply = await server.send(b"")
        assert reply.startswith(b"HTTP/1.1 429 ")
        assert b'"code":"too_many_connections"' in reply
        assert b"\r\nx-request-id: req_" in reply
        for _, writer in (first, second):
            writer.close()
        await until(lambda: not server.protocol.addresses)
        again = await server.send(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
        assert again.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, network: str) -> None:
    assert client_network(address) == network
