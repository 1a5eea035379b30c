"""Translate single items of the Responses API into Chat messages, and join neighbours.

Calls and their outputs stay together. Adjacent messages of one speaker become one message, because
the templates of many servers would refuse them otherwise.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.providers.items.ids import flat_tool_name, short_call_id

Message = dict[str, Any]
Item = dict[str, Any]

_HOSTED_TRACES = frozenset(
    {
        "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call",
        "mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_approval_request",
        "mcp_approval_response", "mcp_call", "compaction", "configuration_update",
    }
)  # fmt: skip
"""Items that record a server's own work, which Chat cannot express."""
_CALL_OUTPUT = "_call_output"
UNSUPPORTED_PART = "[content that this model cannot be shown]"
"""Replaces an old content part that Chat cannot express."""
EMPTY_OUTPUT = "(no output)"
"""Replaces an empty tool output, because some servers refuse empty content."""
_EMPTY_TEXT = {"type": "text", "text": ""}
_NOT_ARGUMENTS = frozenset({"type", "id", "call_id", "status"})


def translate(item: Item, where: str, upstream: str, *, is_strict: bool) -> Message | None:
    """Return the Chat message of an item, or None if Chat cannot express the item.

    With `is_strict` (new input), raise `UnsupportedByUpstream` for content that cannot be
    expressed; otherwise (history) replace it or leave it out.
    """
    kind = item.get("type") or "message"
    if kind == "message":
        return _translate_message(item, where, upstream, is_strict)
    if kind in _HOSTED_TRACES:
        return None
    if kind == "reasoning":
        return _translate_reasoning(item)
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        if is_strict:
            raise UnsupportedByUpstream(f"{where}.type", upstream)
        return None
    call_id = short_call_id(call_id)
    if kind.endswith(_CALL_OUTPUT):
        return _translate_output(call_id, item.get("output"), where, upstream, is_strict)
    call = _translate_call(kind, call_id, item)
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _translate_message(item: Item, where: str, upstream: str, is_strict: bool) -> Message | None:
    role, content = item.get("role"), item.get("content")
    if role == "assistant":
        return _named(_assistant(content), item)
    if role in ("system", "developer"):
        text = _plain_text(content)
        return {"role": "system", "content": text} if text else None
    if role != "user":
        if is_strict:
            raise UnsupportedByUpstream(f"{where}.role", upstream)
        return None
    if isinstance(content, str):
        return _named({"role": "user", "content": content} if content else None, item)
    parts = _parts(content or (), f"{where}.content", upstream, is_strict)
    if len(parts) == 1 and parts[0]["type"] == "text":
        return _named({"role": "user", "content": parts[0]["text"]}, item)
    return _named({"role": "user", "content": parts} if parts else None, item)


def _named(message: Message | None, item: Item) -> Message | None:
    """Return a message with its participant's name, by which servers distinguish speakers."""
    name = item.get("name")
    return {**message, "name": name} if message and isinstance(name, str) and name else message


def _translate_reasoning(item: Item) -> Message | None:
    """Return readable reasoning as the field that open models use; it joins its tool calls.

    Encrypted reasoning of a Responses server is useless here.
    """
    text = _plain_text(item.get("content")) if item.get("encrypted_content") is None else ""
    return {"role": "assistant", "content": None, "reasoning_content": text} if text else None


def _translate_output(
    call_id: str, output: Any, where: str, upstream: str, is_strict: bool
) -> Message:
    content: Any
    if isinstance(output, list):
        parts = _parts(output, f"{where}.output", upstream, is_strict)
        is_text = all(part["type"] == "text" for part in parts)
        content = "".join(part["text"] for part in parts) if is_text else parts
    elif isinstance(output, str):
        content = output
    else:
        content = msgspec.json.encode(output).decode()
    return {"role": "tool", "tool_call_id": call_id, "content": content or EMPTY_OUTPUT}


def _parts(content: Sequence[Any], where: str, upstream: str, is_strict: bool) -> list[Item]:
    """Return the content parts that are not empty."""
    parts: list[Item] = []
    for number, given in enumerate(content):
        try:
            part = _part(given, f"{where}[{number}]", upstream)
        except UnsupportedByUpstream:
            if is_strict:
                raise
            part = {"type": "text", "text": UNSUPPORTED_PART}
        if part != _EMPTY_TEXT:
            parts.append(part)
    return parts


def _assistant(content: Any) -> Message | None:
    refusals = [
        part.get("refusal") or ""
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and part.get("type") == "refusal"
    ]
    message: Message = {"role": "assistant", "content": _plain_text(content)}
    if refusals:
        message["refusal"] = "".join(refusals)
        message["content"] = message["content"] or message["refusal"]
    return message if message["content"] else None


def _plain_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def _part(part: Any, where: str, upstream: str) -> Item:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": text}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str() as url}:
            detail = part.get("detail")
            image = {"url": url} if detail in (None, "auto") else {"url": url, "detail": detail}
            return {"type": "image_url", "image_url": image}
        case {"type": "input_file"} if part.get("file_url") is None:
            names = ("filename", "file_data", "file_id")
            return {"type": "file", "file": {k: part[k] for k in names if part.get(k)}}
        case {"type": "input_image" | "input_file"}:
            raise UnsupportedByUpstream(where, upstream)
        case {"type": str()}:
            # Unknown part types are left to the server.
            return dict(part)
        case _:
            raise UnsupportedByUpstream(where, upstream)


def _translate_call(kind: str, call_id: str, item: Item) -> Item:
    name = flat_tool_name(item.get("namespace"), item.get("name"))
    if kind == "custom_tool_call":
        custom = {"name": name, "input": item.get("input") or ""}
        return {"id": call_id, "type": "custom", "custom": custom}
    if kind == "function_call":
        arguments = item.get("arguments") or "{}"
    else:
        # A built-in tool of another API: show it as a function of that name.
        given = {k: v for k, v in item.items() if k not in _NOT_ARGUMENTS}
        name, arguments = kind.removesuffix("_call"), msgspec.json.encode(given).decode()
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def is_joinable(first: Message, second: Message, *, ignores_names: bool) -> bool:
    """Return whether two adjacent messages must be sent as one."""
    role = first["role"]
    if role != second["role"] or role == "tool":
        return False
    return ignores_names or first.get("name") == second.get("name")


def join(messages: Sequence[Message]) -> Message:
    """Join adjacent messages of one speaker, in a single pass."""
    if len(messages) == 1:
        return messages[0]
    first = messages[0]
    joined = _join_assistant(messages) if first["role"] == "assistant" else _join_content(messages)
    if any(message.get("name") != first.get("name") for message in messages):
        joined.pop("name", None)
    return joined


def _join_assistant(messages: Sequence[Message]) -> Message:
    joined: Message = {}
    calls: list[Item] = []
    for message in messages:
        joined |= message
        calls += message.get("tool_calls", ())
    joined["content"] = _join_texts(messages, "content") or None
    if reasoning := _join_texts(messages, "reasoning_content"):
        joined["reasoning_content"] = reasoning
    if calls:
        joined["tool_calls"] = calls
    return joined


def _join_texts(messages: Sequence[Message], field: str) -> str:
    return "\n\n".join(text for message in messages if (text := message.get(field)))


def _join_content(messages: Sequence[Message]) -> Message:
    """Join texts as paragraphs; after the first list of parts, append parts."""
    contents = [message["content"] for message in messages]
    texts: list[str] = []
    for content in contents:
        if not isinstance(content, str):
            break
        texts.append(content)
    rest = contents[len(texts) :]
    if not rest:
        return {**messages[0], "content": "\n\n".join(texts)}
    parts = _as_parts("\n\n".join(texts)) if texts else []
    for content in rest:
        parts += _as_parts(content)
    return {**messages[0], "content": parts}


def _as_parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def finish(message: Message) -> Message | None:
    """Return a joined message as it is sent, or None if nothing is left to send.

    Reasoning is sent only with the tool calls that it led to: servers that need it need it there,
    and some refuse it elsewhere.
    """
    if "reasoning_content" not in message or message.get("tool_calls"):
        return message
    if message["content"] is None:
        return None
    return {k: v for k, v in message.items() if k != "reasoning_content"}
