"""An upstream in the measuring process: it can hold answers back and stream in lock-step."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from benchmarks.servers import stub

_numbers = itertools.count(1)
"""Numbers of all answers. Ids must be unique: pages with repeated ids cost more than others."""


class HeldRequest:
    """A request that waits for its answer."""

    def __init__(self, transport: asyncio.Transport, number: int, *, is_chat: bool) -> None:
        self.transport = transport
        self.is_chat = is_chat
        self.number = number

    def answer(self, text: str = stub.TEXT) -> None:
        """Send a whole answer."""
        name = f"{self.number:024d}"
        body = stub.completion(name, text) if self.is_chat else stub.response(name, text)
        self.transport.write(stub.whole(body))

    def events(self, chunks: int) -> list[bytes]:
        """Return the events of a streamed answer, one HTTP chunk each."""
        name = f"{self.number:024d}"
        return stub.chat_events(name, chunks) if self.is_chat else stub.events(name, chunks)


class Upstream:
    """Accepts Responses and Chat requests; answers at once unless `is_holding`."""

    def __init__(self, text: str = stub.TEXT) -> None:
        self.is_holding = False
        self.held: asyncio.Queue[HeldRequest] = asyncio.Queue()
        self._text = text
        self.transports: set[asyncio.Transport] = set()

    def accept(self, transport: asyncio.Transport, head: bytes) -> None:
        """Answer a request or hold it."""
        request = HeldRequest(transport, next(_numbers), is_chat=b"/chat/" in head[:64])
        if self.is_holding:
            self.held.put_nowait(request)
        else:
            request.answer(self._text)


class _Protocol(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._reader = stub.RequestReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._upstream.transports.add(self._transport)

    def connection_lost(self, _: Exception | None) -> None:
        self._upstream.transports.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        for head, _ in self._reader.read(data):
            self._upstream.accept(self._transport, head)


@asynccontextmanager
async def serving(upstream: Upstream, port: int) -> AsyncIterator[Upstream]:
    """Serve on a port for the length of a block."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Protocol(upstream), "127.0.0.1", port, backlog=2048)
    try:
        yield upstream
    finally:
        server.close()
        # A pooled connection that stays open would wait forever for an answer.
        for transport in list(upstream.transports):
            transport.abort()
