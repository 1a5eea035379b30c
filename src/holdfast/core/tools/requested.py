"""The tools of a request: which of them the gateway runs, and how upstreams see those.

`{"type":"mcp","server_label":…}` names a configured server, `{"type":"holdfast","name":…}` a
built-in tool. Responses show built-in tools as those of a server `holdfast`, which a request may
name as well. A server with a URL of its own is left to the upstream.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InvalidInput
from holdfast.core.model.request import TurnRequest
from holdfast.core.tools.tool_choice import BUILTIN_LABEL, FunctionTool, ToolChoice

_MARKS = (b'"mcp"', b'"holdfast"')
_SECRETS = ("authorization", "headers")

_encode = msgspec.json.Encoder().encode


class _Tool(msgspec.Struct):
    type: str | None = None
    server_label: Any = None
    server_url: Any = None
    connector_id: Any = None
    name: Any = None
    allowed_tools: Any = None
    require_approval: Any = None


class ToolFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for tools of a server; every condition that is set must match."""

    names: frozenset[str] | None = None
    is_read_only: bool | None = None
    """Whether the tools only read."""

    def matches(self, name: str, *is_read_only: bool) -> bool:
        """Whether a tool matches; `is_read_only` has all statements on whether it only reads."""
        if self.names is not None and name not in self.names:
            return False
        return self.is_read_only is None or self.is_read_only in is_read_only


NO_TOOLS = ToolFilter(names=frozenset())


class RequestedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A configured MCP server that a request uses."""

    label: str
    allowed: ToolFilter = ToolFilter()
    """The tools that the request allows, among those that the operator allows."""
    approve_all: bool = False
    """Whether the request requires an approval for every call."""
    approve: ToolFilter = NO_TOOLS
    """Tools whose calls the request requires approvals for."""


class RequestedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a request, sorted by who runs them."""

    servers: tuple[RequestedServer, ...] = ()
    builtins: tuple[str, ...] = ()
    has_all_builtins: bool = False
    """Whether it uses all built-in tools."""
    others: tuple[msgspec.Raw, ...] = ()
    """Tools of the client and of the upstream, unchanged."""

    @property
    def labels(self) -> frozenset[str]:
        """The labels of the gateway's servers that the request uses, including the built-in one."""
        own = [BUILTIN_LABEL] if self.builtins or self.has_all_builtins else []
        return frozenset((*own, *(server.label for server in self.servers)))


def read_tools(request: TurnRequest) -> RequestedTools | None:
    """Return the tools of a request, or None if the gateway runs none of them."""
    raw = _raw_tools(request)
    if raw is None or not any(mark in raw for mark in _MARKS):
        return None
    try:
        listed = msgspec.json.decode(raw, type=list[msgspec.Raw] | None) or []
        tools = [msgspec.json.decode(each, type=_Tool) for each in listed]
    except msgspec.DecodeError:
        return None  # invalid: the provider reports the error
    servers: list[RequestedServer] = []
    builtins: list[str] = []
    others: list[msgspec.Raw] = []
    has_all = False
    for index, (tool, sent) in enumerate(zip(tools, listed, strict=True)):
        if tool.type == "holdfast":
            builtins.append(_text(tool.name, f"tools[{index}].name"))
        elif tool.type == "mcp" and tool.server_url is None and tool.connector_id is None:
            server = _server(tool, index)
            if server.label != BUILTIN_LABEL:
                servers.append(server)
            elif server.allowed.is_read_only is False:
                continue  # built-in tools only read
            elif server.allowed.names is None:
                has_all = True
            else:
                builtins += sorted(server.allowed.names)
        else:
            others.append(sent)
    if len(others) == len(listed):
        return None
    return RequestedTools(
        servers=tuple(servers),
        builtins=tuple(dict.fromkeys(builtins)),
        has_all_builtins=has_all,
        others=tuple(others),
    )


def hosted_servers(request: TurnRequest) -> list[str]:
    """Return the MCP servers of a request that only its upstream could run."""
    raw = _raw_tools(request)
    try:
        tools = msgspec.json.decode(raw or b"[]", type=list[_Tool] | None) or []
    except msgspec.DecodeError:
        return []  # invalid: the provider reports the error
    return [
        str(tool.server_label)
        for tool in tools
        if tool.type == "mcp" and (tool.server_url is not None or tool.connector_id is not None)
    ]


class _Named(msgspec.Struct):
    name: Any = None
    function: Any = None


def function_names(requested: RequestedTools) -> frozenset[str]:
    """Return the names of the client's own functions among the tools of a request."""
    names: set[str] = set()
    for raw in requested.others:
        tool = msgspec.json.decode(raw, type=_Named)
        inner = tool.function
        name = inner.get("name") if isinstance(inner, dict) else tool.name
        if isinstance(name, str):
            names.add(name)
    return frozenset(names)


def _raw_tools(request: TurnRequest) -> bytes | None:
    raw = request.fields.get("tools")
    if raw is None:
        raw = request.chat_fields.get("tools")
    return bytes(raw) if raw is not None else None


def _server(tool: _Tool, index: int) -> RequestedServer:
    label = _text(tool.server_label, f"tools[{index}].server_label")
    where = f"tools[{index}]"
    approval, approve = tool.require_approval, NO_TOOLS
    if isinstance(approval, Mapping):
        if approval.get("always") is not None:
            approve = _filter(approval["always"], f"{where}.require_approval.always")
    elif approval not in (None, "always", "never"):
        raise InvalidInput(
            "must be 'always', 'never' or an object", param=f"{where}.require_approval"
        )
    allowed = tool.allowed_tools
    if isinstance(allowed, list):
        allowed = {"tool_names": allowed}
    return RequestedServer(
        label=label,
        allowed=_filter({} if allowed is None else allowed, f"{where}.allowed_tools"),
        approve_all=approval == "always",
        approve=approve,
    )


def _filter(value: Any, param: str) -> ToolFilter:
    """Return OpenAI's filter of tools: `{"tool_names": […], "read_only": true}`."""
    if not isinstance(value, Mapping):
        raise InvalidInput("must be a list of tool names or a filter of tools", param=param)
    names, is_read_only = value.get("tool_names"), value.get("read_only")
    if is_read_only is not None and not isinstance(is_read_only, bool):
        raise InvalidInput("must be true or false", param=f"{param}.read_only")
    if names is None:
        return ToolFilter(is_read_only=is_read_only)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidInput("must be a list of tool names", param=param)
    return ToolFilter(names=frozenset(names), is_read_only=is_read_only)


def _text(value: Any, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{param} must be text", param=param)
    return value


def add_tools(request: TurnRequest, names: Sequence[str]) -> TurnRequest:
    """Return a request that also uses these tools: `memory_search`, or `mcp:github`."""
    if not names:
        return request
    raw = _raw_tools(request)
    sent = msgspec.json.decode(raw) if raw is not None else []
    if not isinstance(sent, list):
        return request  # invalid: the provider reports the error
    added = [tool_of(name) for name in names]
    tools = msgspec.Raw(_encode([*sent, *(tool for tool in added if tool not in sent)]))
    if request.api == "chat":
        return replace(request, chat_fields={**request.chat_fields, "tools": tools})
    return replace(request, fields={**request.fields, "tools": tools})


def tool_of(name: str) -> dict[str, str]:
    """Return a tool in the form of a request, given its name in a configuration."""
    label = name.removeprefix("mcp:")
    if label != name:
        return {"type": "mcp", "server_label": label}
    return {"type": "holdfast", "name": name}


def redact_tools(request: TurnRequest) -> TurnRequest:
    """Return the request without the credentials of its tools, which are never stored."""
    raw = _raw_tools(request)
    if raw is None or not any(f'"{name}"'.encode() in raw for name in _SECRETS):
        return request
    try:
        listed = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return request
    if not isinstance(listed, list):
        return request
    tools = [_redacted(tool) for tool in listed]
    return _with_fields(request, {"tools": msgspec.Raw(_encode(tools))})


def _redacted(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "mcp":
        return tool
    return {name: value for name, value in tool.items() if name not in _SECRETS}


# ── what upstreams are shown ────────────────────────────────────────────────────────────────


def show_functions(
    request: TurnRequest,
    requested: RequestedTools,
    functions: Sequence[FunctionTool],
    *,
    is_first: bool = True,
) -> TurnRequest:
    """Return the request with the gateway's tools as functions.

    A forced tool choice applies to the first model call of a turn; later ones may answer freely.
    """
    is_chat = "tools" not in request.fields
    tools = [*requested.others, *(_function(tool, is_chat=is_chat) for tool in functions)]
    if not tools:
        return without_tools(request)
    fields: dict[str, msgspec.Raw | None] = {"tools": msgspec.Raw(_encode(tools))}
    raw = (request.chat_fields if is_chat else request.fields).get("tool_choice")
    if raw is not None:
        choice = ToolChoice(
            functions,
            requested.labels,
            is_chat=is_chat,
            has_others=bool(requested.others),
        ).translate(msgspec.json.decode(raw), is_first=is_first)
        fields["tool_choice"] = msgspec.Raw(_encode(choice))
    if "max_tool_calls" in request.fields:
        fields["max_tool_calls"] = None  # counted by the gateway
    return _with_fields(request, fields)


def without_tools(request: TurnRequest) -> TurnRequest:
    """Return the request without any tools, so that the model has to answer."""
    names = ("tools", "tool_choice", "parallel_tool_calls", "max_tool_calls")
    return _with_fields(request, dict.fromkeys(names))


def _with_fields(request: TurnRequest, changed: Mapping[str, msgspec.Raw | None]) -> TurnRequest:
    """Return the request with fields replaced, or removed where the value is None."""
    is_chat = "tools" not in request.fields
    fields = dict(request.chat_fields if is_chat else request.fields)
    for name, raw in changed.items():
        if raw is None:
            fields.pop(name, None)
        else:
            fields[name] = raw
    return replace(request, chat_fields=fields) if is_chat else replace(request, fields=fields)


def _function(tool: FunctionTool, *, is_chat: bool) -> dict[str, Any]:
    inner: dict[str, Any] = {
        "name": tool.function,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,
    }
    return {"type": "function", "function": inner} if is_chat else {"type": "function", **inner}
