"""How the server listens."""

import asyncio
import socket

import uvloop

from holdfast.cli.commands.serve import loop_factory
from holdfast.http.server.run import open_listener


async def test_a_kept_alive_connection_does_not_wait_for_a_delayed_ack() -> None:
    loop = asyncio.get_running_loop()
    listener = open_listener("127.0.0.1", 0)
    listener.setblocking(False)
    client = socket.create_connection(listener.getsockname()[:2])
    try:
        accepted, _ = await loop.sock_accept(listener)
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    finally:
        client.close()
        listener.close()


def test_the_server_uses_uvloop_if_available() -> None:
    assert loop_factory() is uvloop.new_event_loop
