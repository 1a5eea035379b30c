"""A proxy to PostgreSQL that keeps its clients' connections open after the server has closed them.

So do proxies that close late, and networks that lose the last packet.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

CHUNK = 1 << 16


@asynccontextmanager
async def half_open_proxy(folder: Path, host: str) -> AsyncIterator[str]:
    """Run the proxy in front of the server whose socket is in `host`; yield its own host."""
    ends: set[asyncio.StreamWriter] = set()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(f"{host}/.s.PGSQL.5432")
        ends.update((writer, far_writer))
        back = asyncio.create_task(_forward(far_reader, writer))
        await _forward(reader, far_writer)
        far_writer.close()
        await back
        writer.close()

    server = await asyncio.start_unix_server(connect, str(folder / ".s.PGSQL.5432"))
    try:
        yield str(folder)
    finally:
        server.close()
        for end in ends:
            end.close()
        await server.wait_closed()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
