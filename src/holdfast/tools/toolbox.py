"""All tools of one gateway: find those that a request names, and run them."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.ids import Tenant
from holdfast.core.tools.requested import (
    RequestedServer,
    RequestedTools,
    function_names,
)
from holdfast.core.tools.tool_choice import BUILTIN_LABEL
from holdfast.ports.tools import ListedServer, Tool, ToolCaller, ToolResult, ToolSet
from holdfast.tools.builtin import BuiltinTools
from holdfast.tools.disabled import DisabledTools
from holdfast.tools.settings import ServerStatus


class ServerTools(Protocol):
    """The MCP servers of all tenants."""

    def preload(self) -> None:
        """Start importing the client library in a thread."""
        ...

    def has(self, tenant: Tenant, label: str) -> bool:
        """Whether a tenant has a server of this name."""
        ...

    async def tools(
        self, caller: ToolCaller, requested: RequestedServer
    ) -> tuple[list[Tool], ListedServer | None]:
        """Return the tools of a server, or an error in place of the list if it is unreachable."""
        ...

    async def call(
        self, caller: ToolCaller, tool: Tool, arguments: dict[str, object]
    ) -> ToolResult:
        """Run a tool of a server."""
        ...

    def status(self) -> "Sequence[ServerStatus]":
        """Return the state of every server."""
        ...

    async def end_orphans(self) -> None:
        """Kill the processes of servers that a killed gateway left running."""
        ...

    async def close(self) -> None:
        """End all servers."""
        ...


class GatewayTools:
    """The toolbox of a gateway; see `ports.tools.Toolbox`."""

    def __init__(self, builtin: BuiltinTools, servers: ServerTools | None = None) -> None:
        self.builtin = builtin
        self._servers = servers
        self._disabled = DisabledTools()

    def check(self, tenant: Tenant, requested: RequestedTools) -> None:
        """Raise `InvalidInput` for a tool that this tenant does not have."""
        for name in requested.builtins:
            if name not in self.builtin.names:
                known = ", ".join(self.builtin.names)
                raise InvalidInput(f"no built-in tool {name!r}; there are {known}", param="tools")
        for server in requested.servers:
            if self._servers is None or not self._servers.has(tenant, server.label):
                raise InvalidInput(
                    f"no MCP server {server.label!r} is configured; "
                    "a server with a server_url is passed on to the upstream",
                    param="tools",
                )

    def describe(self, tenant: Tenant) -> list[dict[str, Any]]:
        """Return the tools of a tenant and the state of their servers."""
        builtin = {"name": BUILTIN_LABEL, "state": "ready", "tools": len(self.builtin.names)}
        descriptions: list[dict[str, Any]] = [{**builtin, "names": list(self.builtin.names)}]
        if self._servers is not None:
            descriptions += [
                msgspec.to_builtins(each)
                for each in self._servers.status()
                if each.tenant == tenant
            ]
        return descriptions

    def server_status(self) -> "Sequence[ServerStatus]":
        """Return the state of every MCP server."""
        return self._servers.status() if self._servers is not None else ()

    async def open(self, caller: ToolCaller, requested: RequestedTools) -> ToolSet:
        """Return the tools of a turn; of two with one name, the first."""
        tools: dict[str, Tool] = {}
        listed: list[ListedServer] = []
        known = self.builtin.names
        names = known if requested.has_all_builtins else requested.builtins
        found = [self.builtin.tool(name) for name in names if name in known]
        if self._servers is not None:
            # Concurrently: several servers that fail to start cost no more time than one.
            answers = await asyncio.gather(
                *(self._servers.tools(caller, server) for server in requested.servers)
            )
            for served, listing in answers:
                found += served
                if listing is not None:
                    listed.append(listing)
        taken, disabled = function_names(requested), set[str]()
        for tool in found:
            if tool.function in taken or tool.function in tools:
                disabled.add(tool.function)
                continue
            tools[tool.function] = tool
        self._disabled.note((caller.tenant,), disabled, tools.keys(), "name is taken")
        return ToolSet(tools, tuple(listed))

    async def call(
        self, caller: ToolCaller, tool: Tool, arguments: dict[str, object]
    ) -> ToolResult:
        """Run a tool."""
        if tool.server_label == BUILTIN_LABEL:
            return await self.builtin.call(caller, tool.name, arguments)
        if self._servers is None:
            return ToolResult(error="The tool is not available any more.")
        return await self._servers.call(caller, tool, arguments)

    async def start(self) -> None:
        """Kill processes that an earlier gateway left; servers start on demand."""
        if self._servers is not None:
            await self._servers.end_orphans()

    def preload(self) -> None:
        """Import the servers' library in a thread; call it last, as the start needs the CPU."""
        if self._servers is not None:
            self._servers.preload()

    async def close(self) -> None:
        """End all servers."""
        if self._servers is not None:
            await self._servers.close()
