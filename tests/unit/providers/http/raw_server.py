"""A server that sends exactly the bytes of a script, and closes when the script ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from holdfast.providers.http.sse import SseEvent

Script = Callable[["RawConnection"], Awaitable[None]]


class RawConnection:
    """One connection: read requests from it, write bytes to it."""

    def __init__(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.number = number
        self._reader = reader
        self._writer = writer
        self.requests = 0

    async def request(self) -> bytes:
        """Return the next whole request; empty when the client has disconnected."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.requests += 1
        return head + await self._reader.readexactly(length)

    async def say(self, data: bytes) -> None:
        """Write bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def until_gone(self) -> None:
        """Wait until the client disconnects."""
        while await self._reader.read(1024):
            pass


class RawServer:
    """The server's address and its connections."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.connections: list[RawConnection] = []


@asynccontextmanager
async def raw_server(script: Script) -> AsyncIterator[RawServer]:
    """Run `script` for each connection, for the length of a block."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        connection = RawConnection(len(server.connections), reader, writer)
        server.connections.append(connection)
        try:
            await script(connection)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    server = RawServer(listener.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


class CollectingSink:
    """A sink that collects a body."""

    def __init__(self, came: asyncio.Event | None = None) -> None:
        self.pieces: list[bytes] = []
        self._came = came or asyncio.Event()

    def write(self, piece: bytes) -> bool:
        """Collect a piece."""
        self.pieces.append(piece)
        self._came.set()
        return True

    async def drain(self) -> None:
        """Return at once: it is never full."""


class CollectedEvents:
    """A sink that collects the events of a stream, and notes its end mark."""

    def __init__(self) -> None:
        self.events: list[SseEvent] = []
        self.is_ended = False

    def write(self, events: Sequence[SseEvent]) -> bool:
        """Collect events; an empty write would be a call for nothing."""
        assert events
        self.events += events
        return True

    async def drain(self) -> None:
        """Return at once: it is never full."""

    def end(self) -> None:
        """Note the end mark."""
        self.is_ended = True


def whole(body: bytes, *more: bytes) -> bytes:
    """Return an answer with its length."""
    lines = [b"HTTP/1.1 200 OK", b"content-length: %d" % len(body), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*pieces: bytes, kind: bytes = b"text/event-stream") -> bytes:
    """Return an answer in chunks."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n" % kind
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head + body + b"0\r\n\r\n"
