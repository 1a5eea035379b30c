"""Tools in a simulated process: each call is recorded outside of every process when it starts.

One tool may be repeated after a crash, the other may not.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.core.ids import Tenant
from holdfast.core.model.items import NewItem, write_item
from holdfast.core.tools.requested import RequestedTools
from holdfast.ports.tools import Tool, ToolCaller, ToolResult, ToolSet

REQUESTED = msgspec.Raw(b'[{"type":"mcp","server_label":"desk"}]')
ASKING = msgspec.Raw(b'[{"type":"mcp","server_label":"desk","require_approval":"always"}]')
"""The same tools; the one that may not be repeated needs an approval."""
PREFIX = "tool_"
"""Prefix of the ids of calls of these tools."""
_NAMES = ("write", "read")
Witness = Callable[[str], AbstractContextManager[None]]
"""Counts work that a clean stop of its process interrupts."""


@dataclass(frozen=True, slots=True)
class BegunCall:
    """A call that a tool has started."""

    call_id: str
    name: str
    session_id: str
    turn_id: str
    at: float
    """By the loop's time."""
    needs_approval: bool = False


@dataclass
class ToolWitness:
    """All calls that the tools of a world have started, across crashes."""

    calls: list[BegunCall] = field(default_factory=list)


class SimulatedTools:
    """The toolbox of one process."""

    repeatable = frozenset({"read"})
    """Tools that may run twice."""

    def __init__(self, tools: ToolWitness, witness: Witness) -> None:
        self._tools = tools
        self._witness = witness

    def check(self, tenant: Tenant, requested: RequestedTools) -> None:
        """Accept every request."""

    def describe(self, tenant: Tenant) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    async def open(self, caller: ToolCaller, requested: RequestedTools) -> ToolSet:
        """Return both tools."""
        asks = any(server.approve_all for server in requested.servers)
        return ToolSet({f"desk__{name}": self._tool(name, asks=asks) for name in _NAMES})

    def _tool(self, name: str, *, asks: bool) -> Tool:
        return Tool(
            function=f"desk__{name}",
            description=name,
            parameters=msgspec.Raw(b'{"type":"object"}'),
            server_label="desk",
            name=name,
            is_repeatable=name in self.repeatable,
            needs_approval=asks and name == "write",
        )

    async def call(self, caller: ToolCaller, tool: Tool, arguments: dict[str, Any]) -> ToolResult:
        """Record the call, then wait a while."""
        call_id = str(arguments["call"])
        begun = BegunCall(
            call_id, tool.name, caller.session.id, caller.turn_id,
            asyncio.get_running_loop().time(), tool.needs_approval,
        )  # fmt: skip
        self._tools.calls.append(begun)
        with self._witness("a tool"):
            await asyncio.sleep(0.15)
        return ToolResult(output=f"output of {call_id}")


def next_calls(
    op: str, steps: int, items: list[bytes], run_id: str, given: int
) -> tuple[NewItem, ...]:
    """Return the calls of the model's next step, two at once; empty after the last step.

    `given` is how many steps this run has had: a summary may hide their outputs from the model.
    """
    own = f"{PREFIX}{op}_"
    seen = 0
    for body in items:
        value = msgspec.json.decode(body)
        is_output = value.get("type") == "function_call_output"
        seen += is_output and str(value["call_id"]).startswith(own)
    if max(given, seen // len(_NAMES)) >= steps:
        return ()
    return tuple(_call(f"{own}{given}{name}_{run_id}", name) for name in _NAMES)


def _call(call_id: str, name: str) -> NewItem:
    arguments = msgspec.json.encode({"call": call_id}).decode()
    return write_item(
        {
            "type": "function_call", "call_id": call_id, "name": f"desk__{name}",
            "arguments": arguments,
        }
    )  # fmt: skip
