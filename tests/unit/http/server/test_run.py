"""The server: what its responses say of the time, and a stop that does not wait for ever."""

import asyncio
import email.utils
import socket
from typing import Any

import pytest

from holdfast.http.server.memory_budget import MemoryBudget
from holdfast.http.server.protocol import ConnectionLimits, protocol_class
from holdfast.http.server.run import Server, ServerConfig, http_date, open_listener
from holdfast.http.server.types import Request

SECONDS = 30
REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Waiting:
    """An application whose requests wait for a gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()
        self.is_cancelled = False
        self.body_budget = MemoryBudget(0)

    async def serve(self, request: Request) -> None:
        self.asked.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        await request.answer(200, (), b"done")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no WebSocket is opened here")

    def drain(self) -> None:
        """Do nothing: requests are accepted as before."""

    async def stop(self, grace_seconds: float) -> None:
        """Do nothing: there are no turns."""


async def started(app: Waiting, *, flush_seconds: float) -> tuple[Server, socket.socket]:
    config = ServerConfig(protocol_class(app, ConnectionLimits()), flush_seconds)
    server = Server(config, app, grace_seconds=0.0)
    listener = open_listener("127.0.0.1", 0)
    await server.startup([listener])
    return server, listener


@pytest.mark.parametrize("seconds", [0.0, 951_782_400.0, 1_700_000_000.9, 4_102_444_799.0])
def test_a_date_is_written_as_the_standard_library_does(seconds: float) -> None:
    assert http_date(seconds).decode() == email.utils.formatdate(seconds, usegmt=True)


async def test_a_stop_waits_for_a_response_and_closes_idle_connections() -> None:
    app = Waiting()
    server, listener = await started(app, flush_seconds=SECONDS)
    address = listener.getsockname()
    async with asyncio.timeout(SECONDS):
        idle, idle_writer = await asyncio.open_connection(*address)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST)
        await app.asked.wait()
        stopping = asyncio.create_task(server.shutdown([listener]))
        assert await idle.read() == b""
        assert not stopping.done()
        app.gate.set()
        response = await reader.read()
        await stopping
    assert response.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert b"connection: close\r\n" in response
    assert not server.server_state.connections
    idle_writer.close()
    writer.close()


async def test_a_request_that_does_not_end_is_cancelled_by_a_stop() -> None:
    app = Waiting()
    server, listener = await started(app, flush_seconds=0.01)
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(REQUEST)
        await app.asked.wait()
        await server.shutdown([listener])
        response = await reader.read()
    assert app.is_cancelled
    assert response.startswith(b"HTTP/1.1 500")
    writer.close()
