"""The port to tools that the gateway runs during a turn."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from holdfast.core.ids import Tenant, TurnId
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Source
from holdfast.core.tools.requested import RequestedTools
from holdfast.core.tools.tool_choice import FunctionTool


class ToolCaller(msgspec.Struct, frozen=True, kw_only=True):
    """On whose behalf a tool runs. Arguments of a call never extend what its caller may see."""

    tenant: Tenant
    session: Session
    turn_id: TurnId
    source: Source
    model: str = ""


class Tool(FunctionTool, frozen=True, kw_only=True):
    """A tool that a turn may use."""

    needs_approval: bool = False
    is_repeatable: bool = False
    """Whether the operator declared that a second run after a crash is harmless."""
    digest: str = ""
    """A digest of the description and the parameters: an approval applies to what was shown."""


class ToolImage(msgspec.Struct, frozen=True):
    """An image that a tool returned in addition to its text."""

    media_type: str
    content: bytes


class ToolResult(msgspec.Struct, frozen=True):
    """What a tool returned, or why it returned nothing."""

    output: str | None = None
    error: str | None = None
    images: tuple[ToolImage, ...] = ()
    """Images for the person in a chat; `output` mentions them to the model."""


class ListedServer(msgspec.Struct, frozen=True):
    """The tools of one server, as clients see them."""

    label: str
    tools: list[msgspec.Raw]
    error: str | None = None
    """Why the server did not list its tools."""


class ToolSet(msgspec.Struct, frozen=True):
    """The tools of one turn, by the names that the model calls."""

    tools: Mapping[str, Tool] = {}
    servers: tuple[ListedServer, ...] = ()


class Toolbox(Protocol):
    """Finds and runs tools. A tool that fails returns an error as its result; nothing is raised."""

    def check(self, tenant: Tenant, requested: RequestedTools) -> None:
        """Raise `InvalidInput` for a tool that this tenant does not have."""
        ...

    def describe(self, tenant: Tenant) -> list[dict[str, Any]]:
        """Return the tools of a tenant and the state of their servers, for operators."""
        ...

    async def open(self, caller: ToolCaller, requested: RequestedTools) -> ToolSet:
        """Return the tools that a turn may use; a server that does not start has none."""
        ...

    async def call(
        self, caller: ToolCaller, tool: Tool, arguments: dict[str, object]
    ) -> ToolResult:
        """Run a tool; cancelling the caller cancels the tool."""
        ...
