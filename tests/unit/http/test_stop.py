"""A stop of the server: nothing that a client has sent is lost."""

import socket

from holdfast.http.request.auth import DEFAULT_BODY_BYTES
from holdfast.http.server.protocol import ConnectionLimits
from holdfast.http.server.run import Server, open_listener, server_config
from tests.in_process import open_gateway

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def test_connections_that_wait_to_be_accepted_are_served() -> None:
    async with open_gateway() as gateway:
        application = gateway.server.application
        config = server_config(
            application, ConnectionLimits(), body_bytes=DEFAULT_BODY_BYTES, grace_seconds=60.0
        )
        server = Server(config, application, grace_seconds=60.0)
        listener = open_listener("127.0.0.1", 0)
        address = listener.getsockname()
        await server.startup(sockets=[listener])
        # The loop does not run meanwhile: these wait in the kernel when the stop begins.
        clients = [socket.create_connection(address, timeout=10) for _ in range(5)]
        for client in clients:
            client.sendall(REQUEST)
        await server.shutdown([listener])
        for client in clients:
            with client:
                assert client.recv(65536).startswith(b"HTTP/1.1 200")
