"""The request fields that a Response repeats, with the API's defaults filled in.

Clients parse a Response by a strict schema: nested objects are complete, and null stands only where
the schema allows it. Values that need no change stay the bytes that the client sent.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

_Fields = dict[str, msgspec.Raw]

DEFAULTS: dict[str, Any] = {
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "truncation": "disabled",
    "parallel_tool_calls": True,
    "text": {"format": {"type": "text"}},
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "temperature": 1.0,
    "reasoning": {"effort": None, "summary": None},
    "max_output_tokens": None,
    "max_tool_calls": None,
    "service_tier": "default",
    "metadata": {},
    "safety_identifier": None,
    "prompt_cache_key": None,
    "user": None,
}
"""The fields that every Response has."""
_ECHOED = frozenset(DEFAULTS) | {
    "access_programs", "image", "moderation", "prompt", "prompt_cache_options",
    "prompt_cache_retention",
}  # fmt: skip
_BUILTIN = b'"holdfast"'
_OWN_SERVER: dict[str, Any] = {
    "type": "mcp",
    "server_label": "holdfast",
    "require_approval": "never",
}
_NULL = msgspec.Raw(b"null")
_TOOL_DEFAULTS: _Fields = {
    "description": _NULL,
    "parameters": _NULL,
    "strict": msgspec.Raw(b"true"),
}
_FORMAT_DEFAULTS: _Fields = {
    "type": msgspec.Raw(b'"json_schema"'),
    "name": msgspec.Raw(b'"response"'),
    "description": _NULL,
    "schema": msgspec.Raw(b"{}"),
    "strict": msgspec.Raw(b"false"),
}

_read_object = msgspec.json.Decoder(_Fields).decode
_read_tools = msgspec.json.Decoder(list[msgspec.Raw]).decode


def echoed_fields(fields: _Fields) -> dict[str, Any]:
    """Return the fields that a Response repeats and that differ from its defaults."""
    echoed: dict[str, Any] = {}
    for name, raw in fields.items():
        if name in _ECHOED and bytes(raw) != b"null":
            complete = _COMPLETE.get(name)
            echoed[name] = raw if complete is None else complete(raw)
    return echoed


def _tools(raw: msgspec.Raw) -> Any:
    try:
        tools = [_tool(tool) for tool in _read_tools(raw)]
        return _with_builtins_as_server(tools) if _BUILTIN in bytes(raw) else tools
    except msgspec.DecodeError:
        return DEFAULTS["tools"]


def _with_builtins_as_server(tools: list[Any]) -> list[Any]:
    """Return the tools, with the built-in ones shown as one MCP server, like their calls.

    OpenAI's clients do not know the type `holdfast`. A request may name the server as well.
    """
    read = [tool if isinstance(tool, dict) else _read_object(tool) for tool in tools]
    own = [place for place, fields in enumerate(read) if _is_own(fields)]
    if not own or (len(own) == 1 and "server_label" in read[own[0]]):
        return tools
    named: _Fields = next((read[place] for place in own if "server_label" in read[place]), {})
    server: dict[str, Any] = {**_OWN_SERVER, **named}
    server.pop("allowed_tools", None)
    names = _own_names([read[place] for place in own])
    if names is not None:
        server["allowed_tools"] = names
    echoed = [tool for place, tool in enumerate(tools) if place not in own]
    echoed.insert(own[0], server)
    return echoed


def _is_own(fields: _Fields) -> bool:
    """Whether a tool is a built-in one, or the server that stands for all of them."""
    if _has_type(fields, _BUILTIN):
        return "name" in fields
    is_elsewhere = "server_url" in fields or "connector_id" in fields
    is_labelled = bytes(fields.get("server_label", b"")) == _BUILTIN
    return _has_type(fields, b'"mcp"') and is_labelled and not is_elsewhere


def _own_names(tools: Sequence[_Fields]) -> list[str] | None:
    """Return the names of the built-in tools in a request, each once, or None if it uses all."""
    names: list[str] = []
    for fields in tools:
        field = "name" if _has_type(fields, _BUILTIN) else "allowed_tools"
        found = msgspec.json.decode(fields.get(field, b"null"))
        if isinstance(found, dict):
            found = found.get("tool_names")
        if found is None:
            return None
        names += [found] if isinstance(found, str) else found
    return list(dict.fromkeys(names))


def _tool(raw: msgspec.Raw) -> Any:
    tool = _read_object(raw)
    if not _has_type(tool, b'"function"'):
        return raw
    return _completed(tool, _TOOL_DEFAULTS)


def _tool_choice(raw: msgspec.Raw) -> Any:
    if not bytes(raw).startswith(b"{"):
        return raw
    choice = _read_object(raw)
    if not _has_type(choice, b'"allowed_tools"'):
        return raw
    return _completed(choice, {"mode": msgspec.Raw(b'"auto"')})


def _text(raw: msgspec.Raw) -> Any:
    try:
        text = _without_nulls(_read_object(raw))
        form = _read_object(text["format"]) if "format" in text else None
    except msgspec.DecodeError:
        return DEFAULTS["text"]
    if form is None:
        return DEFAULTS["text"] | text
    if "type" in form and not _has_type(form, b'"json_schema"'):
        return text
    return {**text, "format": _completed(form, _FORMAT_DEFAULTS)}


def _reasoning(raw: msgspec.Raw) -> Any:
    try:
        return DEFAULTS["reasoning"] | _without_nulls(_read_object(raw))
    except msgspec.DecodeError:
        return DEFAULTS["reasoning"]


def _has_type(fields: _Fields, kind: bytes) -> bool:
    return "type" in fields and bytes(fields["type"]) == kind


def _completed(fields: _Fields, defaults: _Fields) -> _Fields:
    return {**defaults, **_without_nulls(fields)}


def _without_nulls(fields: _Fields) -> _Fields:
    return {name: raw for name, raw in fields.items() if bytes(raw) != b"null"}


_COMPLETE: dict[str, Callable[[msgspec.Raw], Any]] = {
    "tools": _tools,
    "tool_choice": _tool_choice,
    "text": _text,
    "reasoning": _reasoning,
}
