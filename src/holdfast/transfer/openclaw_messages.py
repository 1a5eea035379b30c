"""Conversion of OpenClaw's messages to items: text, images, thinking, tool calls and results."""

import json
from typing import Any

from holdfast.transfer.imported_conversation import Item

SUMMARY = "Summary of the conversation so far:\n\n"


def message_items(message: Any) -> list[Item]:
    """Return a message's items, in the order of its parts."""
    if not isinstance(message, dict):
        return []
    content = message.get("content")
    match message.get("role"):
        case "assistant":
            return _assistant_items(message, content)
        case "toolResult":
            call_id, _ = _call_ids(message.get("toolCallId"))
            output = _output(content)
            return [{"type": "function_call_output", "call_id": call_id, "output": output}]
        case _:
            return user_items(content)


def user_items(content: Any) -> list[Item]:
    """Return content as a user message."""
    parts = [_input_part(part) for part in _parts(content)]
    if not parts:
        return []
    return [{"type": "message", "role": "user", "content": parts}]


def summary_items(entry: Item) -> list[Item]:
    """Return the summary of a compaction as a user message."""
    summary = entry.get("summary")
    return user_items(SUMMARY + summary) if isinstance(summary, str) and summary else []


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def _input_part(part: Any) -> Item:
    if isinstance(part, dict) and part.get("type") == "image" and isinstance(part.get("data"), str):
        kind = part.get("mimeType") or "image/png"
        return {"type": "input_image", "image_url": f"data:{kind};base64,{part['data']}"}
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {"type": "input_text", "text": part["text"]}
    text = part if isinstance(part, str) else json.dumps(part, ensure_ascii=False)
    return {"type": "input_text", "text": text}


def _assistant_items(message: Item, content: Any) -> list[Item]:
    items: list[Item] = []
    status = "incomplete" if message.get("stopReason") in ("aborted", "error") else "completed"
    for part in _parts(content):
        if not isinstance(part, dict):
            continue
        match part.get("type"):
            case "text":
                _add_text(items, str(part.get("text", "")), status)
            case "thinking":
                items.append(_reasoning(part))
            case "toolCall":
                items.append(_call(part))
            case _:
                _add_text(items, json.dumps(part, ensure_ascii=False), status)
    return items


def _add_text(items: list[Item], text: str, status: str) -> None:
    if not text:
        return
    part = {"type": "output_text", "text": text, "annotations": []}
    if items and items[-1].get("type") == "message":
        items[-1]["content"].append(part)
        return
    items.append({"type": "message", "role": "assistant", "status": status, "content": [part]})


def _reasoning(part: Item) -> Item:
    """Return the provider's own reasoning item if the signature has it, else its text."""
    signature = part.get("thinkingSignature")
    if isinstance(signature, str):
        try:
            original = json.loads(signature)
        except (ValueError, RecursionError):
            original = None
        if isinstance(original, dict) and original.get("type") == "reasoning":
            return original
    text = str(part.get("thinking", ""))
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"type": "reasoning", "summary": summary}


def _call(part: Item) -> Item:
    call_id, item_id = _call_ids(part.get("id"))
    arguments = part.get("arguments")
    call: Item = {
        "type": "function_call",
        "call_id": call_id,
        "name": str(part.get("name", "")),
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments or {}),
        "status": "completed",
    }
    return {**call, "id": item_id} if item_id else call


def _call_ids(combined: Any) -> tuple[str, str | None]:
    """Split `call_id|item_id`; the second part is optional."""
    call_id, separator, item_id = str(combined or "").partition("|")
    return call_id, item_id if separator else None


def _output(content: Any) -> Any:
    parts = [_input_part(part) for part in _parts(content)]
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts
