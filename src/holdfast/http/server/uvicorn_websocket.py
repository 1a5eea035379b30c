"""WebSocket connections by uvicorn's protocol; imported with the first of them."""

import asyncio
import logging
from collections import Counter
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from holdfast.http.server.connection import ServerState, WebSocketFactory
from holdfast.http.server.protocol import client_network


def websocket_factory(
    application: Any, addresses: Counter[str], body_bytes: int
) -> WebSocketFactory:
    """Return what makes a WebSocket connection of `application`, counted in `addresses`."""

    class CountedWebSocket(WebSocketsSansIOProtocol):
        _network = ""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            peer = transport.get_extra_info("peername")
            self._network = client_network(str(peer[0]) if peer else "")
            addresses[self._network] += 1

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            addresses[self._network] -= 1
            if not addresses[self._network]:
                del addresses[self._network]

    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        # Callers are identified by API key; forwarded addresses are not trusted.
        proxy_headers=False,
        lifespan="off",
        ws=CountedWebSocket,
        ws_max_size=body_bytes,
    )
    logging.getLogger("uvicorn.error").addFilter(_without_client_errors)

    def connect(state: ServerState) -> asyncio.Protocol:
        return CountedWebSocket(config, state, {})  # type: ignore[arg-type] # has what it reads

    return connect


def _without_client_errors(record: logging.LogRecord) -> bool:
    """Drop reports of refused handshakes, and tracebacks of text that is not UTF-8.

    Clients cause both. A refused handshake is in the access log.
    """
    if "without completing handshake" in str(record.msg):
        return False
    if record.exc_info and "Invalid UTF-8" in str(record.msg):
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
