"""A history as the messages of a Chat server.

Calls and their outputs stay side by side; what the model did in one breath is one message; two
messages of one speaker in a row become one, because many servers' templates refuse them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.providers.names import MAX_CALL_ID, fitting_call_id
from holdfast.providers.replay import referred_item

Message = dict[str, Any]
Item = dict[str, Any]

_TRACES = frozenset(
    {
        "reasoning", "web_search_call", "file_search_call", "code_interpreter_call",
        "image_generation_call", "mcp_list_tools", "tool_search_call", "tool_search_output",
        "mcp_approval_request", "mcp_approval_response", "mcp_call",
    }
)  # fmt: skip
"""What a server did for itself. Another server's model has no place for it; its words follow."""
_OUTPUT = "_output"
_CALL_OUTPUT = "_call_output"
_NOT_ARGUMENTS = frozenset({"type", "id", "call_id", "status"})


def chat_messages(
    instructions: str | None, history: Sequence[bytes], upstream: str
) -> list[Message]:
    """Return the messages of a request."""
    written: list[Message] = []
    if instructions:
        written.append({"role": "system", "content": instructions})
    for index, body in enumerate(history):
        item = msgspec.json.decode(body)
        if item.get("type") == "item_reference":
            item = msgspec.json.decode(referred_item(item.get("id"), history))
        message = _message_of(item, f"input[{index}]", upstream)
        if message is not None:
            _append(written, message)
    return written


def _message_of(item: Item, where: str, upstream: str) -> Message | None:
    kind = item.get("type") or "message"
    if kind == "message":
        return _said(item, where, upstream)
    if kind in _TRACES:
        return None
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise UnsupportedByUpstream(f"{where}.type", upstream)
    call_id = fitting_call_id(call_id, MAX_CALL_ID)
    if kind.endswith(_CALL_OUTPUT):
        return _answered(call_id, item.get("output"), where, upstream)
    return {"role": "assistant", "content": None, "tool_calls": [_called(kind, call_id, item)]}


def _said(item: Item, where: str, upstream: str) -> Message | None:
    role = item.get("role")
    content = item.get("content")
    if role == "assistant":
        return _assistant(content)
    if role in ("system", "developer"):
        return {"role": "system", "content": _plain(content)}
    if role != "user":
        raise UnsupportedByUpstream(f"{where}.role", upstream)
    if isinstance(content, str):
        return {"role": "user", "content": content}
    parts = [
        _part(part, f"{where}.content[{number}]", upstream)
        for number, part in enumerate(content or ())
    ]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return {"role": "user", "content": parts[0]["text"]}
    return {"role": "user", "content": parts}


def _assistant(content: Any) -> Message | None:
    refusals = [
        part.get("refusal") or ""
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and part.get("type") == "refusal"
    ]
    message: Message = {"role": "assistant", "content": _plain(content)}
    if refusals:
        message["refusal"] = "".join(refusals)
        message["content"] = message["content"] or message["refusal"]
    return message if message["content"] else None


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content or () if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _part(part: Any, where: str, upstream: str) -> dict[str, Any]:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str() as url}:
            detail = part.get("detail")
            image = {"url": url} if detail in (None, "auto") else {"url": url, "detail": detail}
            return {"type": "image_url", "image_url": image}
        case {"type": "input_file"} if part.get("file_url") is None:
            named = ("filename", "file_data", "file_id")
            return {"type": "file", "file": {k: part[k] for k in named if part.get(k)}}
        case {"type": "input_image" | "input_file"}:
            raise UnsupportedByUpstream(where, upstream)
        case {"type": str()}:
            # Kinds of parts that we do not know are the server's to judge.
            return dict(part)
        case _:
            raise UnsupportedByUpstream(where, upstream)


def _answered(call_id: str, output: Any, where: str, upstream: str) -> Message:
    if isinstance(output, list):
        parts = [
            _part(part, f"{where}.output[{number}]", upstream) for number, part in enumerate(output)
        ]
        is_text = all(part["type"] == "text" for part in parts)
        content: Any = "".join(part["text"] for part in parts) if is_text else parts
    elif isinstance(output, str):
        content = output
    else:
        content = msgspec.json.encode(output).decode()
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _called(kind: str, call_id: str, item: Item) -> dict[str, Any]:
    if kind == "custom_tool_call":
        custom = {"name": item.get("name"), "input": item.get("input") or ""}
        return {"id": call_id, "type": "custom", "custom": custom}
    if kind == "function_call":
        name, arguments = item.get("name"), item.get("arguments") or "{}"
    else:
        # A built-in tool of another API: to this model it was a function of that name.
        given = {k: v for k, v in item.items() if k not in _NOT_ARGUMENTS}
        name, arguments = kind.removesuffix("_call"), msgspec.json.encode(given).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _append(written: list[Message], message: Message) -> None:
    """Add a message, as part of the last one where both are one speaker's."""
    last = written[-1] if written else None
    if last is None or last["role"] != message["role"] or message["role"] == "tool":
        written.append(message)
    elif message["role"] == "assistant":
        written[-1] = _joined_assistant(last, message)
    else:
        content = _joined(last["content"], message["content"])
        written[-1] = {**last, "content": content}


def _joined_assistant(last: Message, message: Message) -> Message:
    joined = {**last, **{k: v for k, v in message.items() if k not in ("content", "tool_calls")}}
    texts = [said for said in (last["content"], message["content"]) if said]
    joined["content"] = "\n\n".join(texts) or None
    calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
    if calls:
        joined["tool_calls"] = calls
    return joined


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
