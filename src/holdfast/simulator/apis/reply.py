"""Compose the model's answer: scripted, requested in the message, or a description of its input."""

import json
import re
from dataclasses import dataclass
from typing import Any

from holdfast.simulator.state.json import Json
from holdfast.simulator.state.scenario import Script

_REQUESTED_CALL = re.compile(r"\bcall ([A-Za-z_][\w.-]*)\s*(?=(\{.*)?)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSummary:
    """A summary of the model's input."""

    messages: int
    """The number of user and assistant messages with text; tool traffic is not counted."""
    last_text: str
    """The last text of a message or a tool output."""
    ends_with_output: bool = False
    """Whether the last item is the output of a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool the model may call."""

    name: str
    schema: Json
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool; for custom tools `arguments` is plain text."""

    name: str
    arguments: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The content of one answer."""

    text: str = ""
    reasoning: str | None = None
    refusal: str | None = None
    calls: tuple[ToolCall, ...] = ()
    between_seconds: float = 0.0


def describe(summary: ContextSummary) -> str:
    """Return the default answer, which describes the input so that tests can assert it."""
    return f"Messages seen: {summary.messages}. Last text: {summary.last_text}"


def compose(
    summary: ContextSummary, tools: list[OfferedTool], forced: str | None, script: Script | None
) -> ModelReply:
    """Return the model's answer.

    `forced` is the tool that must be called (`*`: any of them). A script comes first, then a
    message that says `call NAME {…}`, then the default text.
    """
    if script is not None:
        return _scripted(summary, tools, script)
    if not summary.ends_with_output:
        calls = _asked_for(summary.last_text, tools) or _forced(tools, forced)
        if calls:
            return ModelReply(calls=calls, reasoning="A tool is needed.")
    return ModelReply(text=describe(summary), reasoning="Counting what I was shown.")


def _scripted(summary: ContextSummary, tools: list[OfferedTool], script: Script) -> ModelReply:
    custom = {tool.name for tool in tools if tool.is_custom}
    calls = tuple(
        ToolCall(
            name=call.name,
            arguments=call.arguments
            if isinstance(call.arguments, str)
            else json.dumps(call.arguments),
            is_custom=call.name in custom,
        )
        for call in script.tool_calls
    )
    text = script.text
    if script.words is not None:
        text = " ".join(f"word{number}" for number in range(1, script.words + 1))
    if text is None:
        text = "" if calls or script.refusal else describe(summary)
    return ModelReply(
        text=text,
        reasoning=script.reasoning or "Following the script.",
        refusal=script.refusal,
        calls=calls,
        between_seconds=script.between_seconds,
    )


def _asked_for(text: str, tools: list[OfferedTool]) -> tuple[ToolCall, ...]:
    if not tools or "call " not in text:
        return ()
    known = {tool.name: tool for tool in tools}
    calls = []
    for found in _REQUESTED_CALL.finditer(text):
        tool = known.get(found[1])
        if tool is not None:
            calls.append(_call(tool, _leading_object(found[2] or "")))
    return tuple(calls)


def _forced(tools: list[OfferedTool], forced: str | None) -> tuple[ToolCall, ...]:
    if forced is None:
        return ()
    chosen = next((tool for tool in tools if forced in ("*", tool.name)), None)
    return (_call(chosen, None),) if chosen else ()


def _call(tool: OfferedTool, given: Json | None) -> ToolCall:
    arguments = _sample(tool.schema) if given is None else given
    return ToolCall(name=tool.name, arguments=json.dumps(arguments), is_custom=tool.is_custom)


def _leading_object(text: str) -> Json | None:
    if not text.startswith("{"):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


_SAMPLES: dict[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "null": None,
}


def _sample(schema: Any, definitions: Json | None = None) -> Any:
    """Return the simplest value that a JSON schema allows."""
    if not isinstance(schema, dict):
        return {}
    known: Json = schema.get("$defs") or schema.get("definitions") or definitions or {}
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    other = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    if other:
        return _sample(other[0], known)
    if "$ref" in schema:
        # Removing its own name keeps a recursive definition from recursing forever.
        name = str(schema["$ref"]).rpartition("/")[2]
        rest = {key: value for key, value in known.items() if key != name}
        return _sample(known.get(name, {}), rest)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        return {name: _sample(properties.get(name, {"type": "string"}), known) for name in required}
    return _SAMPLES.get(kind)


def words_of(text: str) -> list[str]:
    """Return `text` in pieces that join to it again: the deltas of a stream."""
    return re.findall(r"\S+\s*|\s+", text)
