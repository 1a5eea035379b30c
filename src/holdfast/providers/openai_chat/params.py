"""What a Responses client asked, in the words of the Chat API."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream

Fields = Mapping[str, msgspec.Raw]
Words = dict[str, Any]

_SAME = frozenset(
    {
        "temperature", "top_p", "service_tier", "user", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prompt_cache_options", "presence_penalty",
        "frequency_penalty", "moderation",
    }
)  # fmt: skip
_OURS = frozenset(
    {"instructions", "include", "metadata", "stream_options", "client_metadata", "store", "stream"}
)
"""Words that are answered by ourselves, or that ask for what a Chat server always does."""
_EMPTY: dict[str, tuple[Any, ...]] = {
    "truncation": ("disabled", "auto"),
    "max_tool_calls": (),
    "prompt": (),
    "context_management": ([],),
    "image": (),
    "access_programs": ([],),
    "personality": (),
}
"""Words that only Responses has, and the values with which they say nothing."""
_BY_NEW_NAME = ("o1", "o3", "o4", "gpt-5")
"""Models that take their limit only under the newer of its two names."""


def to_chat_params(fields: Fields, model: str, upstream: str) -> Words:
    """Return Responses fields as a Chat request has them, or say which cannot be."""
    words: Words = {}
    if _wants_logprobs(fields):
        words["logprobs"] = True
    for name, raw in fields.items():
        value = msgspec.json.decode(raw)
        if name in _OURS or value is None:
            continue
        if name in _EMPTY:
            if value not in _EMPTY[name]:
                raise UnsupportedByUpstream(name, upstream)
        elif name == "max_output_tokens":
            words[limit_name(model)] = value
        elif name in _TRANSLATED:
            _TRANSLATED[name](words, value, upstream)
        else:
            # Unknown words are the server's to judge.
            words[name] = value
    return without_toolless(words)


def without_toolless(words: Words) -> Words:
    """Return a request without words about tools where it has none; servers refuse them."""
    if not words.get("tools"):
        for name in ("tools", "parallel_tool_calls", "tool_choice"):
            words.pop(name, None)
    return words


def limit_name(model: str) -> str:
    """Return what a model's server calls the limit of its output."""
    bare = model.rpartition("/")[2]
    return "max_completion_tokens" if bare.startswith(_BY_NEW_NAME) else "max_tokens"


def _wants_logprobs(fields: Fields) -> bool:
    included = msgspec.json.decode(fields["include"]) if "include" in fields else None
    return isinstance(included, list) and "message.output_text.logprobs" in included


def _text(words: Words, value: Any, upstream: str) -> None:
    if not isinstance(value, dict):
        raise UnsupportedByUpstream("text", upstream)
    form = value.get("format") or {}
    match form.get("type"):
        case "json_schema":
            inner = {k: v for k, v in form.items() if k != "type" and v is not None}
            words["response_format"] = {"type": "json_schema", "json_schema": inner}
        case "json_object":
            words["response_format"] = {"type": "json_object"}
        case None | "text":
            pass
        case _:
            raise UnsupportedByUpstream("text.format.type", upstream)
    if value.get("verbosity") is not None:
        words["verbosity"] = value["verbosity"]


def _reasoning(words: Words, value: Any, upstream: str) -> None:
    if not isinstance(value, dict):
        raise UnsupportedByUpstream("reasoning", upstream)
    if value.get("effort") is not None:
        words["reasoning_effort"] = value["effort"]
    for name in ("summary", "generate_summary"):
        if value.get(name) not in (None, "auto"):
            raise UnsupportedByUpstream(f"reasoning.{name}", upstream)


def _top_logprobs(words: Words, value: Any, _: str) -> None:
    if value:
        words["logprobs"] = True
        words["top_logprobs"] = value


def _tools(words: Words, value: Any, upstream: str) -> None:
    if not isinstance(value, list):
        raise UnsupportedByUpstream("tools", upstream)
    words["tools"] = [_tool(tool, index, upstream) for index, tool in enumerate(value)]


def _tool(tool: Any, index: int, upstream: str) -> Any:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in ("function", "custom"):
        raise UnsupportedByUpstream(f"tools[{index}].type", upstream)
    inner = {k: v for k, v in tool.items() if k != "type" and v is not None}
    form = inner.get("format")
    if kind == "custom" and isinstance(form, dict) and form.get("type") == "grammar":
        grammar = {k: v for k, v in form.items() if k != "type"}
        inner["format"] = {"type": "grammar", "grammar": grammar}
    return {"type": kind, kind: inner}


def _tool_choice(words: Words, value: Any, upstream: str) -> None:
    if isinstance(value, str):
        if value != "auto":
            words["tool_choice"] = value
        return
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("function", "custom"):
        words["tool_choice"] = {"type": kind, kind: {"name": value.get("name")}}
    elif kind == "allowed_tools":
        tools = [
            {"type": tool.get("type"), tool.get("type"): {"name": tool.get("name")}}
            for tool in value.get("tools") or ()
        ]
        words["tool_choice"] = {
            "type": kind, kind: {"mode": value.get("mode"), "tools": tools}
        }  # fmt: skip
    else:
        raise UnsupportedByUpstream("tool_choice", upstream)


def _same(name: str) -> Callable[[Words, Any, str], None]:
    def keep(words: Words, value: Any, _: str) -> None:
        words[name] = value

    return keep


def _parallel(words: Words, value: Any, _: str) -> None:
    # Calling several at once is what servers do where nothing is said.
    if value is False:
        words["parallel_tool_calls"] = False


_TRANSLATED: dict[str, Callable[[Words, Any, str], None]] = {
    "text": _text,
    "reasoning": _reasoning,
    "top_logprobs": _top_logprobs,
    "tools": _tools,
    "tool_choice": _tool_choice,
    "parallel_tool_calls": _parallel,
    **{name: _same(name) for name in _SAME},
}
