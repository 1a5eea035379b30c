"""The client under test: connects to the server whose address is the last argument."""

import asyncio
import sys

from holdfast.tools.mcp.connection import McpConnection
from holdfast.tools.settings import McpSettings


async def main() -> None:
    """List the server's tools and call the one that adds numbers, if there is one."""
    connection = McpConnection(McpSettings(name="tested", url=sys.argv[-1]))
    try:
        tools = await connection.list_tools()
        for tool in tools:
            if tool.name == "add_numbers":
                result = await connection.call(tool.name, {"a": 5, "b": 3})
                assert result.error is None, result.error
    finally:
        await connection.close()


asyncio.run(main())
