"""Check configured servers: start each of them and list its tools."""

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast.tools.settings import McpSettings


class ServerCheck(msgspec.Struct, frozen=True):
    """Whether a server can be used, and why not."""

    name: str
    is_ok: bool
    detail: str


async def check_servers(servers: Sequence[McpSettings]) -> list[ServerCheck]:
    """Start every server, list its tools, and end it."""
    return list(await asyncio.gather(*(_check(server) for server in servers)))


async def _check(settings: McpSettings) -> ServerCheck:
    unset = [name for name in settings.variables if name not in settings.secrets]
    if unset:
        names = ", ".join(sorted(unset))
        return ServerCheck(settings.name, False, f"not set in the environment: {names}")
    try:
        from holdfast.tools.mcp.connection import McpConnection
    except ImportError:
        return ServerCheck(settings.name, False, "needs the extra mcp: pip install 'holdfast[mcp]'")
    connection = McpConnection(settings)
    try:
        tools = await connection.list_tools()
    except Exception as exc:  # noqa: BLE001 - the operator sees any error
        return ServerCheck(settings.name, False, str(exc) or type(exc).__name__)
    finally:
        await connection.close()
    left_out = ", ".join(connection.malformed)
    note = f"; left out, because malformed: {left_out}" if left_out else ""
    return ServerCheck(settings.name, True, f"answers, {len(tools)} tool(s){note}")
