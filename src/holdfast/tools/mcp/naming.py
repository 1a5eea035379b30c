"""The names and texts of an MCP server's tools, as they are shown to models.

A server is not trusted: its names, descriptions and schemas are bounded, and none of its names can
be mistaken for a tool of another server.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast.core.tools.requested import RequestedServer
from holdfast.ports.tools import Tool
from holdfast.tools.settings import McpSettings

MAX_NAME = 64
MAX_TOOLS = 256
MAX_DESCRIPTION = 4096
MAX_SCHEMA_BYTES = 64 * 1024
_HASH = 8
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


class ListedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server lists it."""

    name: str
    description: str = ""
    schema: dict[str, Any] = {}
    is_read_only: bool = False
    """A hint from the server."""
    is_idempotent: bool = False
    """A hint from the server."""


def function_name(server: str, tool: str) -> str:
    """Return the name of a tool for models: `{server}__{tool}`, in characters that all accept.

    A name that had to be changed ends in a hash of the original, so that names stay distinct.
    """
    plain = f"{server}__{_OTHER.sub('_', tool)}"
    if len(plain) <= MAX_NAME and plain == f"{server}__{tool}":
        return plain
    digest = blake2b(tool.encode("utf-8", "surrogatepass"), digest_size=_HASH // 2).hexdigest()
    return f"{plain[: MAX_NAME - _HASH - 1]}_{digest}"


def offered_tools(
    settings: McpSettings, listed: Sequence[ListedTool], requested: RequestedServer
) -> tuple[list[Tool], list[str]]:
    """Return the tools of a server that a request may use, and those that cannot be offered."""
    tools: dict[str, Tool] = {}
    disabled: list[str] = []
    for each in listed[:MAX_TOOLS]:
        if settings.allow and each.name not in settings.allow:
            continue
        if not requested.allowed.matches(each.name, _is_read_only(settings, each)):
            continue
        tool = _tool(settings, each, requested)
        if tool is None or tool.function in tools:
            disabled.append(function_name(settings.name, each.name))
            continue
        tools[tool.function] = tool
    return list(tools.values()), disabled


def _tool(settings: McpSettings, listed: ListedTool, requested: RequestedServer) -> Tool | None:
    schema = msgspec.json.encode(listed.schema or {"type": "object"})
    if len(schema) > MAX_SCHEMA_BYTES or not listed.name:
        return None
    description = listed.description[:MAX_DESCRIPTION]
    trusts = settings.trust_annotations
    is_repeatable = listed.name in settings.repeatable or (
        trusts and (listed.is_idempotent or listed.is_read_only)
    )
    digest = blake2b(
        b"\0".join(
            (
                listed.name.encode("utf-8", "surrogatepass"),
                description.encode("utf-8", "replace"),
                schema,
            )
        ),
        digest_size=16,
    )
    return Tool(
        function=function_name(settings.name, listed.name),
        description=description,
        parameters=msgspec.Raw(schema),
        server_label=settings.name,
        name=listed.name,
        needs_approval=_needs_approval(settings, listed, requested),
        is_repeatable=is_repeatable,
        digest=digest.hexdigest(),
    )


def _is_read_only(settings: McpSettings, listed: ListedTool) -> bool:
    """Whether a tool only reads, according to the operator or to a trusted server."""
    is_trusted_hint = settings.trust_annotations and listed.is_read_only
    return listed.name in settings.read_only or is_trusted_hint


def _needs_approval(settings: McpSettings, listed: ListedTool, requested: RequestedServer) -> bool:
    """Whether a call needs approval: a request may ask for more approvals, never for fewer."""
    is_read_only = _is_read_only(settings, listed)
    # The server's own hints may only add an approval.
    if requested.approve_all or requested.approve.matches(
        listed.name, is_read_only, listed.is_read_only
    ):
        return True
    match settings.approval:
        case "always":
            return True
        case "writes":
            return not is_read_only
        case "never":
            return False
