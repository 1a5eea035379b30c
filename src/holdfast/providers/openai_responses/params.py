"""Translate the parameters of a Chat request into those of the Responses API."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream

Fields = Mapping[str, msgspec.Raw]
Params = dict[str, Any]

_UNCHANGED = frozenset(
    {
        "temperature", "top_p", "parallel_tool_calls", "service_tier", "user", "metadata",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
        "moderation",
    }
)  # fmt: skip
_SET_BY_US = frozenset({"stream_options", "store", "stream", "messages", "model"})
CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "stop": ([],),
    "seed": (),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
"""Fields that Responses does not have, with the values that have no effect."""


def to_responses_params(chat: Fields, upstream: str) -> Params:
    """Return Chat fields as Responses parameters; raise for those without a counterpart."""
    params: Params = {}
    for name, raw in chat.items():
        value = msgspec.json.decode(raw)
        if name in _SET_BY_US or value is None:
            continue
        if name in CHAT_ONLY:
            if value not in CHAT_ONLY[name]:
                raise UnsupportedByUpstream(name, upstream)
        elif name in _TRANSLATED:
            _TRANSLATED[name](params, value, upstream)
        else:
            # Unknown fields are left to the server.
            params[name] = value
    if params.get("top_logprobs") == 0 and "include" not in params:
        del params["top_logprobs"]
    return params


def _max_tokens(params: Params, value: Any, _: str) -> None:
    params["max_output_tokens"] = value


def _effort(params: Params, value: Any, _: str) -> None:
    params["reasoning"] = {"effort": value}


def _verbosity(params: Params, value: Any, _: str) -> None:
    params.setdefault("text", {})["verbosity"] = value


def _format(params: Params, value: Any, upstream: str) -> None:
    if not isinstance(value, dict):
        raise UnsupportedByUpstream("response_format", upstream)
    if value.get("type") == "json_schema":
        value = {"type": "json_schema", **_inner(value, "json_schema", "response_format", upstream)}
    params.setdefault("text", {})["format"] = value


def _logprobs(params: Params, value: Any, _: str) -> None:
    if value:
        params["include"] = ["message.output_text.logprobs"]


def _top_logprobs(params: Params, value: Any, _: str) -> None:
    params["top_logprobs"] = value


def _tools(params: Params, value: Any, upstream: str) -> None:
    if not isinstance(value, list):
        raise UnsupportedByUpstream("tools", upstream)
    params["tools"] = [_tool(tool, index, upstream) for index, tool in enumerate(value)]


def _tool(tool: Any, index: int, upstream: str) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        raise UnsupportedByUpstream(f"tools[{index}].type", upstream)
    inner = dict(_inner(tool, kind, f"tools[{index}]", upstream))
    if kind == "custom" and isinstance(inner.get("format"), dict):
        inner["format"] = _grammar(inner["format"])
    if kind == "function":
        # Chat tools are not strict by default; Responses tools are.
        inner.setdefault("strict", False)
        inner.setdefault("parameters", None)
    return {"type": kind, **inner}


def _inner(value: dict[str, Any], name: str, where: str, upstream: str) -> dict[str, Any]:
    """Return a nested Chat object; raise if it is not an object."""
    inner = value.get(name) or {}
    if not isinstance(inner, dict):
        raise UnsupportedByUpstream(f"{where}.{name}", upstream)
    return inner


def _allowed(tool: Any, upstream: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        raise UnsupportedByUpstream("tool_choice.allowed_tools", upstream)
    return {"type": kind, **_inner(tool, kind, "tool_choice", upstream)}


def _grammar(form: dict[str, Any]) -> dict[str, Any]:
    nested = form.get("grammar")
    return {"type": "grammar", **nested} if isinstance(nested, dict) else form


def _tool_choice(params: Params, value: Any, upstream: str) -> None:
    if isinstance(value, str):
        params["tool_choice"] = value
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("function", "custom"):
        params["tool_choice"] = {"type": kind, **_inner(value, kind, "tool_choice", upstream)}
    elif kind == "allowed_tools":
        allowed = _inner(value, kind, "tool_choice", upstream)
        tools = [_allowed(tool, upstream) for tool in allowed.get("tools") or ()]
        params["tool_choice"] = {"type": kind, "mode": allowed.get("mode"), "tools": tools}
    else:
        raise UnsupportedByUpstream("tool_choice", upstream)


def _copy(name: str) -> "Callable[[Params, Any, str], None]":
    def copy(params: Params, value: Any, _: str) -> None:
        params[name] = value

    return copy


_TRANSLATED: dict[str, Callable[[Params, Any, str], None]] = {
    "max_tokens": _max_tokens,
    "max_completion_tokens": _max_tokens,
    "reasoning_effort": _effort,
    "verbosity": _verbosity,
    "response_format": _format,
    "logprobs": _logprobs,
    "top_logprobs": _top_logprobs,
    "tools": _tools,
    "tool_choice": _tool_choice,
    **{name: _copy(name) for name in _UNCHANGED},
}
