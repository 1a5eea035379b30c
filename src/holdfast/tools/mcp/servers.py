"""All configured MCP servers; each tenant has its own connections."""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.ids import Tenant
from holdfast.core.tools.requested import RequestedServer
from holdfast.engine.logging import log
from holdfast.ports.tools import ListedServer, Tool, ToolCaller, ToolResult
from holdfast.processes.process_table import kill_orphans
from holdfast.tools.disabled import DisabledTools
from holdfast.tools.mcp.naming import offered_tools
from holdfast.tools.settings import McpSettings, ServerStatus

if TYPE_CHECKING:
    from holdfast.tools.mcp.connection import McpConnection

MAX_SESSION_CONNECTIONS = 64
"""Most connections of servers with `per = "session"`; the least recently used one is closed."""
IDLE_SECONDS = 1800.0
"""A session's connection that was idle for longer is closed when another one opens."""
_Key = tuple[str, str, str]
"""Tenant, label, and the session if the connection belongs to one."""


class McpServers:
    """Starts servers on demand and runs their tools."""

    def __init__(self, settings: Sequence[McpSettings]) -> None:
        self._settings = {(each.tenant, each.name): each for each in settings}
        self._connections: dict[_Key, McpConnection] = {}
        self._loading: asyncio.Task[type[McpConnection]] | None = None
        self._disabled = DisabledTools()

    def preload(self) -> None:
        """Start importing the client library in a thread: that takes a second or more of CPU."""
        if self._loading is None:
            self._loading = asyncio.create_task(
                asyncio.to_thread(_load_connection_class), name="holdfast-mcp-load"
            )
            self._loading.add_done_callback(_log_failure)

    def has(self, tenant: Tenant, label: str) -> bool:
        """Whether a tenant has a server of this name."""
        return (tenant, label) in self._settings

    async def tools(
        self, caller: ToolCaller, requested: RequestedServer
    ) -> tuple[list[Tool], ListedServer | None]:
        """Return the tools of a server, or an error in place of the list if it is unreachable."""
        settings = self._settings.get((caller.tenant, requested.label))
        if settings is None:
            return [], None
        try:
            connection = await self._connection(settings, caller)
            listed = await connection.list_tools()
        except Exception as exc:  # noqa: BLE001 - the turn continues without this server
            log.warning(
                "mcp.server_unavailable",
                server=settings.name,
                turn_id=caller.turn_id,
                reason=str(exc)[:300] or type(exc).__name__,
            )
            unavailable = f"the server {settings.name} is not available"
            return [], ListedServer(settings.name, [], unavailable)
        tools, disabled = offered_tools(settings, listed, requested)
        # Of two tools with one name the first is offered; the second must still be logged as
        # disabled.
        offered = {tool.function for tool in tools}.difference(disabled)
        self._disabled.note((settings.tenant, settings.name), disabled, offered, "size or name")
        self._disabled.note(
            (settings.tenant, settings.name, "malformed"),
            connection.malformed,
            {tool.name for tool in tools},
            f"malformed in the list of server {settings.name}",
        )
        return tools, ListedServer(settings.name, [_shown(tool) for tool in tools])

    async def call(
        self, caller: ToolCaller, tool: Tool, arguments: dict[str, object]
    ) -> ToolResult:
        """Run a tool of a server."""
        settings = self._settings.get((caller.tenant, tool.server_label))
        if settings is None:
            return ToolResult(error="The call was not run: the server is not configured any more.")
        connection = await self._connection(settings, caller)
        return await connection.call(tool.name, arguments)

    async def _connection(self, settings: McpSettings, caller: ToolCaller) -> "McpConnection":
        connection_class = await self._connection_class()
        session_id = caller.session.id if settings.per == "session" else ""
        key = (settings.tenant, settings.name, session_id)
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = connection_class(settings)
            if session_id:
                await self._make_room(key)
        return connection

    async def _connection_class(self) -> "type[McpConnection]":
        """Return the connection class, imported without blocking the event loop."""
        self.preload()
        assert self._loading is not None
        # Shielded: a cancelled caller must not stop the import for the others.
        return await asyncio.shield(self._loading)

    async def _make_room(self, new: _Key) -> None:
        """Close session connections: idle ones, and the oldest beyond the limit."""
        idle = [
            (each.last_used, key)
            for key, each in self._connections.items()
            if key[2] and key != new and not each.calls
        ]
        surplus = sum(1 for key in self._connections if key[2]) - MAX_SESSION_CONNECTIONS
        now = monotonic()
        closing = [
            self._connections.pop(key)
            for place, (last_used, key) in enumerate(sorted(idle))
            if place < surplus or now - last_used > IDLE_SECONDS
        ]
        await asyncio.gather(*(each.close() for each in closing))

    def status(self) -> list[ServerStatus]:
        """Return the state of every server."""
        statuses: list[ServerStatus] = []
        for tenant, name in self._settings:
            connections = [
                each for key, each in self._connections.items() if key[:2] == (tenant, name)
            ]
            ready = [each for each in connections if each.is_ready]
            errors = [each.last_error for each in connections if each.last_error]
            state = "ready" if ready else "failed" if errors else "idle"
            count = max((len(each.tools) for each in ready), default=0)
            error = errors[0] if state == "failed" else None
            left_out = sorted({tool for each in ready for tool in each.malformed})
            statuses.append(
                ServerStatus(
                    name=name,
                    tenant=tenant,
                    state=state,
                    tools=count,
                    error=error,
                    left_out=left_out,
                )
            )
        return statuses

    async def end_orphans(self) -> None:
        """Kill the processes of servers that a killed gateway left running."""
        count = await asyncio.to_thread(kill_orphans)
        if count:
            log.warning("mcp.orphans_ended", count=count)

    async def close(self) -> None:
        """End all servers."""
        if self._loading is not None:
            await asyncio.wait({self._loading})
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(each.close() for each in connections))


def _load_connection_class() -> "type[McpConnection]":
    from holdfast.tools.mcp.connection import McpConnection

    return McpConnection


def _log_failure(loading: "asyncio.Task[type[McpConnection]]") -> None:
    if not loading.cancelled() and (error := loading.exception()) is not None:
        log.error("mcp.client_not_loaded", reason=str(error)[:300])


def _shown(tool: Tool) -> msgspec.Raw:
    value: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.parameters,
        "annotations": None,
    }
    return msgspec.Raw(msgspec.json.encode(value))
