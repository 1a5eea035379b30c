"""Messages and finish reasons of model calls, as in the GenAI semantic conventions."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.ports.provider import Answer

MAX_CONTENT_BYTES = 64 * 1024
"""The most content of one span; older messages are omitted."""
_FINISH_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}
_MESSAGE_PARTS = frozenset({"input_text", "output_text", "text"})


def finish_reason(answer: Answer) -> str:
    """Return why the model stopped."""
    if answer.status == "incomplete":
        reason = answer.incomplete_reason or "unknown"
        return _FINISH_REASONS.get(reason, reason)
    kinds = {msgspec.json.decode(item).get("type") for item in answer.items}
    return "tool_call" if any(str(kind).endswith("_call") for kind in kinds) else "stop"


def input_messages(items: Sequence[bytes]) -> str:
    """Return the newest items of a request as messages."""
    return _encode([_message(item) for item in _newest(items)])


def output_messages(answer: Answer) -> str:
    """Return an answer as one message."""
    parts = [part for item in _newest(answer.items) for part in _message(item)["parts"]]
    message = {"role": "assistant", "parts": parts, "finish_reason": finish_reason(answer)}
    return _encode([message])


def _newest(items: Sequence[bytes]) -> list[bytes]:
    """Return the last items, as many as fit into one span."""
    kept: list[bytes] = []
    size = 0
    for item in reversed(items):
        size += len(item)
        if size > MAX_CONTENT_BYTES:
            break
        kept.append(item)
    return kept[::-1]


def _message(item: bytes) -> dict[str, Any]:
    value = msgspec.json.decode(item)
    kind = value.get("type") or "message"
    if kind == "message":
        return {"role": value.get("role", "user"), "parts": _parts(value.get("content"))}
    if kind == "function_call":
        call = {
            "type": "tool_call",
            "id": value.get("call_id"),
            "name": value.get("name"),
            "arguments": value.get("arguments"),
        }
        return {"role": "assistant", "parts": [call]}
    if kind == "function_call_output":
        result = {
            "type": "tool_call_response",
            "id": value.get("call_id"),
            "response": value.get("output"),
        }
        return {"role": "tool", "parts": [result]}
    return {"role": "assistant", "parts": [{"type": kind}]}


def _parts(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    if not isinstance(content, list):
        return []
    return [
        {"type": "text", "content": part.get("text")}
        if isinstance(part.get("type"), str) and part["type"] in _MESSAGE_PARTS
        else {"type": part.get("type")}
        for part in content
        if isinstance(part, dict)
    ]


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()
