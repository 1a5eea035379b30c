"""A proxy to PostgreSQL that cuts a connection around a commit: before it arrives, or after it.

It does not parse the protocol. Our transactions end with the text `commit` in a message of its own,
and the proxy only searches for that.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Cut = Literal["before", "after"]
COMMIT = b"commit\0"
CHUNK = 1 << 16


class Wire:
    """Forwards everything until it is told to cut the next commit."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._next: list[Cut] = []
        self.cuts = 0

    def cut(self, *how: Cut) -> None:
        """Cut the connections of the next commits."""
        self._next.extend(how)

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            writer.close()
            return
        answered = asyncio.Event()
        muted = asyncio.Event()
        back = asyncio.create_task(_pass_back(far_reader, writer, answered, muted))
        try:
            while data := await reader.read(CHUNK):
                how = self._next.pop(0) if self._next and COMMIT in data else None
                if how is not None:
                    self.cuts += 1
                if how == "before":
                    break
                answered.clear()
                if how == "after":
                    muted.set()
                far_writer.write(data)
                await far_writer.drain()
                if how == "after":
                    await answered.wait()
                    break
        except OSError:
            pass
        finally:
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)
            for one in (writer, far_writer):
                one.close()
                with suppress(OSError):
                    await one.wait_closed()


async def _pass_back(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answered: asyncio.Event,
    muted: asyncio.Event,
) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            if not muted.is_set():
                writer.write(data)
                await writer.drain()
            answered.set()
    answered.set()
    writer.close()


@asynccontextmanager
async def wire_to(url: str, folder: Path) -> AsyncIterator[tuple[str, Wire]]:
    """Run a proxy to the database of `url`; yield its own URL and the proxy."""
    parts = urlsplit(url)
    host = parse_qs(parts.query)["host"][0]
    wire = Wire(Path(host) / ".s.PGSQL.5432")
    server = await asyncio.start_unix_server(wire.connect, str(folder / ".s.PGSQL.5432"))
    try:
        yield f"postgresql://postgres@{parts.path}?host={folder}", wire
    finally:
        server.close()
        # Python 3.12 also waits for clients here; they disconnect when their stores are closed.
        await server.wait_closed()
