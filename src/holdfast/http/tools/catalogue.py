"""The tools that the gateway runs for a tenant, and the state of their servers."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.ids import Tenant
from holdfast.http.server.types import AnyReply, Request, json_reply
from holdfast.http.tools.mcp_server import ReadOnlyTools
from holdfast.ports.tools import Toolbox


class ToolServices(msgspec.Struct, frozen=True):
    """The gateway's tool services that the HTTP API uses."""

    toolbox: Toolbox
    approvers: tuple[str, ...] = ()
    """Who may answer every approval request, in addition to the sender of its turn."""
    builtin: ReadOnlyTools | None = None
    """The built-in tools, which MCP clients may call."""
    defaults: Callable[[Tenant, str], Sequence[str]] | None = None
    """Returns the tools that every request of a tenant for a model uses."""


class ToolsApi:
    """GET /v1/tools."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    async def list_all(self, request: Request) -> AnyReply:
        """Return the built-in tools and the configured servers."""
        return json_reply({"object": "list", "data": self._toolbox.describe(request.tenant)})
