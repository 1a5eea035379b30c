"""What a Chat client asked, in the words of the Responses API."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream

Fields = Mapping[str, msgspec.Raw]
Words = dict[str, Any]

_SAME = frozenset(
    {
        "temperature", "top_p", "parallel_tool_calls", "service_tier", "user", "metadata",
        "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
        "moderation",
    }
)  # fmt: skip
_OURS = frozenset({"stream_options", "store", "stream", "messages", "model"})
_EMPTY: dict[str, tuple[Any, ...]] = {
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
"""Words that only Chat has, and the values with which they say nothing."""


def to_responses_params(chat: Fields, upstream: str) -> Words:
    """Return Chat's fields as a Responses request has them, or say which cannot be."""
    words: Words = {}
    for name, raw in chat.items():
        value = msgspec.json.decode(raw)
        if name in _OURS or value is None:
            continue
        if name in _EMPTY:
            if value not in _EMPTY[name]:
                raise UnsupportedByUpstream(name, upstream)
        elif name in _TRANSLATED:
            _TRANSLATED[name](words, value, upstream)
        else:
            # Unknown words are the server's to judge.
            words[name] = value
    if words.get("top_logprobs") == 0 and "include" not in words:
        del words["top_logprobs"]
    return words


def _max_tokens(words: Words, value: Any, _: str) -> None:
    words["max_output_tokens"] = value


def _effort(words: Words, value: Any, _: str) -> None:
    words["reasoning"] = {"effort": value}


def _verbosity(words: Words, value: Any, _: str) -> None:
    words.setdefault("text", {})["verbosity"] = value


def _format(words: Words, value: Any, upstream: str) -> None:
    if not isinstance(value, dict):
        raise UnsupportedByUpstream("response_format", upstream)
    if value.get("type") == "json_schema":
        value = {"type": "json_schema", **_inner(value, "json_schema", "response_format", upstream)}
    words.setdefault("text", {})["format"] = value


def _logprobs(words: Words, value: Any, _: str) -> None:
    if value:
        words["include"] = ["message.output_text.logprobs"]


def _top_logprobs(words: Words, value: Any, _: str) -> None:
    words["top_logprobs"] = value


def _tools(words: Words, value: Any, upstream: str) -> None:
    if not isinstance(value, list):
        raise UnsupportedByUpstream("tools", upstream)
    words["tools"] = [_tool(tool, index, upstream) for index, tool in enumerate(value)]


def _tool(tool: Any, index: int, upstream: str) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        raise UnsupportedByUpstream(f"tools[{index}].type", upstream)
    inner = dict(_inner(tool, kind, f"tools[{index}]", upstream))
    if kind == "custom" and isinstance(inner.get("format"), dict):
        inner["format"] = _grammar(inner["format"])
    if kind == "function":
        # Chat leaves strictness off where nothing is said, Responses would turn it on.
        inner.setdefault("strict", False)
        inner.setdefault("parameters", None)
    return {"type": kind, **inner}


def _inner(value: dict[str, Any], name: str, where: str, upstream: str) -> dict[str, Any]:
    """Return the object in which Chat says more, or say that it is none."""
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


def _tool_choice(words: Words, value: Any, upstream: str) -> None:
    if isinstance(value, str):
        words["tool_choice"] = value
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("function", "custom"):
        words["tool_choice"] = {"type": kind, **_inner(value, kind, "tool_choice", upstream)}
    elif kind == "allowed_tools":
        allowed = _inner(value, kind, "tool_choice", upstream)
        tools = [_allowed(tool, upstream) for tool in allowed.get("tools") or ()]
        words["tool_choice"] = {"type": kind, "mode": allowed.get("mode"), "tools": tools}
    else:
        raise UnsupportedByUpstream("tool_choice", upstream)


def _same(name: str) -> "Callable[[Words, Any, str], None]":
    def keep(words: Words, value: Any, _: str) -> None:
        words[name] = value

    return keep


_TRANSLATED: dict[str, Callable[[Words, Any, str], None]] = {
    "max_tokens": _max_tokens,
    "max_completion_tokens": _max_tokens,
    "reasoning_effort": _effort,
    "verbosity": _verbosity,
    "response_format": _format,
    "logprobs": _logprobs,
    "top_logprobs": _top_logprobs,
    "tools": _tools,
    "tool_choice": _tool_choice,
    **{name: _same(name) for name in _SAME},
}
