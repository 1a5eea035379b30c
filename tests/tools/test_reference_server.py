"""The reference server of the MCP project, as a process and over HTTP."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.core.tools.requested import RequestedServer
from holdfast.tools.mcp.servers import McpServers
from holdfast.tools.settings import McpSettings
from tests.clients.environments import node_with
from tests.tools.test_mcp import _caller

MANIFEST = Path(__file__).parent / "everything" / "package.json"
ENTRY = "@modelcontextprotocol/server-everything/dist/index.js"


@pytest.fixture(scope="module")
def entry() -> str:
    """The program of the server."""
    return str(node_with(MANIFEST) / ENTRY)


@asynccontextmanager
async def _served(entry: str) -> AsyncIterator[str]:
    """Run the server with streamable HTTP; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        "node", entry, "streamableHttp",
        env={**os.environ, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


async def _use(settings: McpSettings) -> None:
    servers = McpServers([settings.filled(os.environ)])
    try:
        found, listing = await servers.tools(_caller(), RequestedServer(label="everything"))
        tools = {tool.name: tool for tool in found}
        assert listing is not None
        assert tools["echo"].function == "everything__echo"
        echo = await servers.call(_caller(), tools["echo"], {"message": "hi"})
        assert echo.output == "Echo: hi"
        total = await servers.call(_caller(), tools["get-sum"], {"a": 1, "b": 2})
        assert total.output == "The sum of 1 and 2 is 3."
        picture = await servers.call(_caller(), tools["get-tiny-image"], {})
        assert "[image/png: not shown]" in (picture.output or "")
        (image,) = picture.images
        assert (image.media_type, image.content[:4]) == ("image/png", b"\x89PNG")
        wrong = await servers.call(_caller(), tools["get-sum"], {"a": "x"})
        assert wrong.error is not None
    finally:
        await servers.close()


@pytest.mark.timeout(600)  # the first run installs the server
async def test_the_reference_server_works_as_a_process(entry: str) -> None:
    await _use(McpSettings(name="everything", command="node", args=(entry, "stdio")))


@pytest.mark.timeout(600)
async def test_the_reference_server_works_over_http(entry: str) -> None:
    async with _served(entry) as url:
        await _use(McpSettings(name="everything", url=url))
