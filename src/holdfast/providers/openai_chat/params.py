"""Translate the parameters of a Responses request into those of the Chat API."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.providers.items.ids import ToolName, flat_tool_name

Fields = Mapping[str, msgspec.Raw]
Params = dict[str, Any]

_UNCHANGED = frozenset(
    {
        "temperature", "top_p", "service_tier", "user", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prompt_cache_options", "presence_penalty",
        "frequency_penalty", "moderation",
    }
)  # fmt: skip
_OMITTED = frozenset(
    {"instructions", "include", "metadata", "stream_options", "client_metadata", "store", "stream"}
)
"""Fields that the gateway handles itself, or that request what a Chat server always does."""
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
}
"""Chat fields whose results a log of items cannot store, with the values that have no effect."""
_NO_COUNTERPART: dict[str, tuple[Any, ...]] = {
    **UNSUPPORTED,
    "truncation": ("disabled", "auto"),
    "max_tool_calls": (),
    "prompt": (),
    "context_management": ([],),
    "image": (),
    "access_programs": ([],),
    "personality": (),
}
"""Fields that Chat does not have, or not for us, with the values that have no effect."""
_MAX_COMPLETION_TOKENS_MODELS = ("o1", "o3", "o4", "gpt-5")
"""Models that accept their output limit only under its newer name."""
_CLIENT_TOOLS = ("function", "custom")
"""Tools that the client runs; the server hosts all others. A tuple, because a client may send any
value as type, even an unhashable one."""
_TOOL_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FORCES_A_TOOL = "required"


def not_stored(field: str) -> str:
    """Return what to do about a field whose results a log cannot store."""
    return f"a session cannot store what {field} gives; send the request without session and store"


class ChatParams(msgspec.Struct, frozen=True):
    """The parameters of a Chat request, and its flattened tool names."""

    params: Params
    tool_names: dict[str, ToolName] = {}
    """The tools that come from a namespace, by their Chat names."""


def to_chat_params(fields: Fields, model: str, upstream: str) -> ChatParams:
    """Return Responses fields as Chat parameters; raise for those without a counterpart."""
    params: Params = {}
    tools = _Tools(upstream)
    if _wants_logprobs(fields):
        params["logprobs"] = True
    for name, raw in fields.items():
        value = msgspec.json.decode(raw)
        if name in _OMITTED or value is None:
            continue
        if name in _NO_COUNTERPART:
            if value not in _NO_COUNTERPART[name]:
                raise UnsupportedByUpstream(name, upstream)
        elif name == "max_output_tokens":
            params[max_tokens_name(model)] = value
        elif name == "tools":
            params["tools"] = tools.translate(value)
        elif name == "tool_choice":
            params |= tools.choose(value)
        elif name in _TRANSLATED:
            _TRANSLATED[name](params, value, upstream)
        else:
            # Unknown fields are left to the server.
            params[name] = value
    tools.check_choice(params)
    return ChatParams(without_tool_params(params), tools.names)


def dropped_tools(tools: msgspec.Raw, upstream: str) -> Sequence[str]:
    """Return the types of hosted tools in a request."""
    value = msgspec.json.decode(tools)
    translated = _Tools(upstream)
    if value is not None:
        translated.translate(value)
    return tuple(dict.fromkeys(translated.dropped))


def without_tool_params(params: Params) -> Params:
    """Remove parameters about tools if there are no tools, because servers refuse them."""
    if not params.get("tools"):
        for name in ("tools", "parallel_tool_calls", "tool_choice"):
            params.pop(name, None)
    return params


def max_tokens_name(model: str) -> str:
    """Return the name of the output limit parameter for a model."""
    bare = model.rpartition("/")[2]
    is_new = bare.startswith(_MAX_COMPLETION_TOKENS_MODELS)
    return "max_completion_tokens" if is_new else "max_tokens"


def _wants_logprobs(fields: Fields) -> bool:
    included = msgspec.json.decode(fields["include"]) if "include" in fields else None
    return isinstance(included, list) and "message.output_text.logprobs" in included


class _Tools:
    """Translates tools and the choice among them.

    A namespace becomes its functions under flat names. A hosted tool is dropped, unless the request
    requires it.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.names: dict[str, ToolName] = {}
        self.dropped: list[str] = []

    def translate(self, tools: Any) -> list[Any]:
        """Return the tools of a Chat request."""
        if not isinstance(tools, list):
            raise UnsupportedByUpstream("tools", self._upstream)
        translated: list[Any] = []
        for index, tool in enumerate(tools):
            where = f"tools[{index}]"
            kind = tool.get("type") if isinstance(tool, dict) else None
            if kind == "namespace":
                translated += self._members(tool, where)
            elif kind in _CLIENT_TOOLS:
                translated.append(_tool(tool, kind))
            elif isinstance(kind, str) and _TOOL_TYPE.fullmatch(kind):
                self.dropped.append(kind)
            else:
                raise UnsupportedByUpstream(f"{where}.type", self._upstream)
        return translated

    def _members(self, group: Any, where: str) -> list[Any]:
        namespace, members = group.get("name"), group.get("tools")
        if not isinstance(namespace, str) or not namespace or not isinstance(members, list):
            raise UnsupportedByUpstream(where, self._upstream)
        translated: list[Any] = []
        for index, tool in enumerate(members):
            kind = tool.get("type") if isinstance(tool, dict) else None
            name = tool.get("name") if isinstance(tool, dict) else None
            if kind not in _CLIENT_TOOLS or not isinstance(name, str):
                raise UnsupportedByUpstream(f"{where}.tools[{index}].type", self._upstream)
            flat = flat_tool_name(namespace, name)
            self.names[flat] = ToolName(namespace, name)
            translated.append(_tool({**tool, "name": flat}, kind))
        return translated

    def choose(self, choice: Any) -> Params:
        """Return the tool choice of a Chat request."""
        if isinstance(choice, str):
            return {} if choice == "auto" else {"tool_choice": choice}
        kind = choice.get("type") if isinstance(choice, dict) else None
        if kind in _CLIENT_TOOLS:
            return {"tool_choice": _reference(choice, kind)}
        if kind != "allowed_tools":
            raise UnsupportedByUpstream("tool_choice", self._upstream)
        listed = choice.get("tools")
        tools = [
            _reference(tool, tool["type"])
            for tool in (listed if isinstance(listed, list) else ())
            if isinstance(tool, dict) and tool.get("type") in _CLIENT_TOOLS
        ]
        if not tools:
            raise UnsupportedByUpstream("tool_choice", self._upstream)
        allowed = {"mode": choice.get("mode"), "tools": tools}
        return {"tool_choice": {"type": kind, kind: allowed}}

    def check_choice(self, params: Params) -> None:
        """Raise if a tool is required but every tool was dropped."""
        is_forced = params.get("tool_choice") == _FORCES_A_TOOL
        if is_forced and self.dropped and not params.get("tools"):
            raise UnsupportedByUpstream("tool_choice", self._upstream)


def _tool(tool: Mapping[str, Any], kind: str) -> Any:
    inner = {k: v for k, v in tool.items() if k not in ("type", "defer_loading") and v is not None}
    form = inner.get("format")
    if kind == "custom" and isinstance(form, dict) and form.get("type") == "grammar":
        grammar = {k: v for k, v in form.items() if k != "type"}
        inner["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: inner}


def _reference(tool: Mapping[str, Any], kind: str) -> Any:
    name = flat_tool_name(tool.get("namespace"), tool.get("name"))
    return {"type": kind, kind: {"name": name}}


def _text(params: Params, value: Any, upstream: str) -> None:
    if not isinstance(value, dict):
        raise UnsupportedByUpstream("text", upstream)
    form = value.get("format") or {}
    if not isinstance(form, dict):
        raise UnsupportedByUpstream("text.format", upstream)
    match form.get("type"):
        case "json_schema":
            inner = {k: v for k, v in form.items() if k != "type" and v is not None}
            params["response_format"] = {"type": "json_schema", "json_schema": inner}
        case "json_object":
            params["response_format"] = {"type": "json_object"}
        case None | "text":
            pass
        case _:
            raise UnsupportedByUpstream("text.format.type", upstream)
    if value.get("verbosity") is not None:
        params["verbosity"] = value["verbosity"]


def _reasoning(params: Params, value: Any, upstream: str) -> None:
    if not isinstance(value, dict):
        raise UnsupportedByUpstream("reasoning", upstream)
    if value.get("effort") is not None:
        params["reasoning_effort"] = value["effort"]
    for name in ("summary", "generate_summary"):
        if value.get(name) not in (None, "auto"):
            raise UnsupportedByUpstream(f"reasoning.{name}", upstream)


def _top_logprobs(params: Params, value: Any, _: str) -> None:
    if value:
        params["logprobs"] = True
        params["top_logprobs"] = value


def _parallel_tool_calls(params: Params, value: Any, _: str) -> None:
    # Parallel calls are the default everywhere, and some servers refuse the parameter.
    if value is False:
        params["parallel_tool_calls"] = False


def _copy(name: str) -> Callable[[Params, Any, str], None]:
    def copy(params: Params, value: Any, _: str) -> None:
        params[name] = value

    return copy


_TRANSLATED: dict[str, Callable[[Params, Any, str], None]] = {
    "text": _text,
    "reasoning": _reasoning,
    "top_logprobs": _top_logprobs,
    "parallel_tool_calls": _parallel_tool_calls,
    **{name: _copy(name) for name in _UNCHANGED},
}
