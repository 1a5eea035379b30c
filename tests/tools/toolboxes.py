"""Toolboxes for tests: tools in this process that record their calls."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast.core.ids import Tenant
from holdfast.core.tools.requested import RequestedTools
from holdfast.ports.tools import Tool, ToolCaller, ToolResult, ToolSet

Body = Callable[[dict[str, object]], Awaitable[str]]
SERVER = {"type": "mcp", "server_label": "desk"}


async def echo(arguments: dict[str, object]) -> str:
    """Return the arguments."""
    return msgspec.json.encode(arguments).decode()


class RecordingTools:
    """A toolbox with the tools of one server, `desk`; it records every call that starts."""

    def __init__(self, **bodies: Body) -> None:
        self.bodies: dict[str, Body] = bodies or {"echo": echo}
        self.safe: set[str] = set()
        self.approved: set[str] = set()
        """Tools whose calls need an approval."""
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.digest = "one"

    def check(self, tenant: Tenant, requested: RequestedTools) -> None:
        """Accept every request."""

    def describe(self, tenant: Tenant) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    async def open(self, caller: ToolCaller, requested: RequestedTools) -> ToolSet:
        """Return all tools."""
        return ToolSet({f"desk__{name}": self._tool(name) for name in self.bodies})

    def _tool(self, name: str) -> Tool:
        return Tool(
            function=f"desk__{name}",
            description=f"{name} of the desk",
            parameters=msgspec.Raw(b'{"type":"object"}'),
            server_label="desk",
            name=name,
            needs_approval=name in self.approved,
            is_repeatable=name in self.safe,
            digest=self.digest,
        )

    async def call(self, caller: ToolCaller, tool: Tool, arguments: dict[str, Any]) -> ToolResult:
        """Record the call, then run it."""
        self.calls.append((tool.name, arguments))
        return ToolResult(output=await self.bodies[tool.name](arguments))


class Gate:
    """A tool that waits until it is opened."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, arguments: dict[str, object]) -> str:
        """Signal that the call has started, and wait."""
        self.entered.set()
        await self.opened.wait()
        return "opened"
