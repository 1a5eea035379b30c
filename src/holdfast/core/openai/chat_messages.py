"""Items as Chat messages: what a server that speaks only Chat can be shown of a transcript."""

from collections.abc import Iterable
from typing import Any

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.core.openai.chat import Item, Message, call_of, text_of

CHAT = "a Chat server"
DROPPED = frozenset({"reasoning"})
"""Kinds that Chat has no words for and that may be left out without changing what was said."""


def messages_of(items: Iterable[Item]) -> list[Message]:
    """Return the messages that say what the items say; calls join the answer they belong to."""
    messages: list[Message] = []
    for item in items:
        kind = item.get("type") or "message"
        if kind in DROPPED:
            continue
        if kind == "message":
            messages.append(_message(item))
        elif kind in ("function_call", "custom_tool_call"):
            _add_call(messages, _call(item, kind))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item.get("call_id"),
                    "content": _output(item.get("output")),
                }
            )
        else:
            raise UnsupportedByUpstream(f"an item of type {kind!r}", CHAT)
    return messages


def _message(item: Item) -> Message:
    role, content = item.get("role", "user"), item.get("content")
    if role == "assistant":
        refusal = "".join(
            part.get("refusal", "")
            for part in content or ()
            if isinstance(part, dict) and part.get("type") == "refusal"
        )
        message: Message = {"role": "assistant", "content": text_of(content)}
        return {**message, "refusal": refusal} if refusal else message
    if isinstance(content, str):
        return {"role": role, "content": content}
    parts = [_part(part) for part in content or ()]
    if all(part["type"] == "text" for part in parts):
        return {"role": role, "content": "\n".join(part["text"] for part in parts)}
    return {"role": role, "content": parts}


def _part(part: Item) -> Item:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part.get("text", "")}
        case "input_image":
            return _image(part)
        case "input_file":
            return {"type": "file", "file": {k: v for k, v in part.items() if k != "type"}}
        case "input_audio" | "image_url" | "file" | "refusal":
            return part
        case kind:
            raise UnsupportedByUpstream(f"a content part of type {kind!r}", CHAT)


def _image(part: Item) -> Item:
    url = part.get("image_url")
    if not isinstance(url, str):
        raise UnsupportedByUpstream("an image without an image_url", CHAT)
    image = {"url": url}
    if isinstance(part.get("detail"), str):
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _call(item: Item, kind: str) -> Item:
    if kind == "function_call":
        return call_of(item)
    custom = {"name": item.get("name"), "input": item.get("input", "")}
    return {"id": item.get("call_id"), "type": "custom", "custom": custom}


def _add_call(messages: list[Message], call: Item) -> None:
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
        messages[-1]["content"] = messages[-1]["content"] or None
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _output(output: Any) -> Any:
    if isinstance(output, str):
        return output
    parts = [_part(part) for part in output or () if isinstance(part, dict)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts
