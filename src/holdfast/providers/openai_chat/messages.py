"""A history as the messages of a Chat server.

Calls and their outputs stay side by side; what the model did in one breath is one message; two
messages of one speaker in a row become one, because many servers' templates refuse them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream
from holdfast.providers.items.ids import short_call_id
from holdfast.providers.items.replay import find_referred

Message = dict[str, Any]
Item = dict[str, Any]

_TRACES = frozenset(
    {
        "reasoning", "web_search_call", "file_search_call", "code_interpreter_call",
        "image_generation_call", "mcp_list_tools", "tool_search_call", "tool_search_output",
        "mcp_approval_request", "mcp_approval_response", "mcp_call", "compaction",
        "configuration_update",
    }
)  # fmt: skip
"""What a server did for itself. Another server's model has no place for it; its words follow."""
_OUTPUT = "_output"
_CALL_OUTPUT = "_call_output"
UNSHOWN = "[something that this model cannot be shown]"
CARRY_ON = "(no answer)"
"""Stands where a server wants somebody to speak and nobody did."""
NOTHING_SAID = "(nothing)"
_SOURCES = "\0sources"
"""Where a message's note about what it was made of is kept while it is written."""
_NOTHING = {"type": "text", "text": ""}
_NOT_ARGUMENTS = frozenset({"type", "id", "call_id", "status"})


class ChatForm(msgspec.Struct, frozen=True, kw_only=True):
    """How a history is written for one server."""

    upstream: str
    is_strict: bool = False
    """Whether what has no place in Chat is refused (new input), or left out (what lies behind)."""
    alternates: bool = False
    """Whether user and assistant must take turns without exception."""

    def messages(self, instructions: str | None, history: Sequence[bytes]) -> list[Message]:
        """Return the messages of a request."""
        written = self._write(instructions, history)
        return [{k: v for k, v in one.items() if k != _SOURCES} for one in written]

    def sources(self, instructions: str | None, history: Sequence[bytes]) -> list[tuple[int, ...]]:
        """Return for each message the places in the history that it was made of."""
        return [one.get(_SOURCES, ()) for one in self._write(instructions, history)]

    def _write(self, instructions: str | None, history: Sequence[bytes]) -> list[Message]:
        written: list[Message] = []
        if instructions:
            written.append({"role": "system", "content": instructions})
        for index, body in enumerate(history):
            item = msgspec.json.decode(body)
            if item.get("type") == "item_reference":
                found = find_referred(item.get("id"), history)
                if found is None:
                    continue
                item = msgspec.json.decode(found)
            message = self._message_of(item, f"input[{index}]")
            if message is not None:
                _append(written, {**message, _SOURCES: (index,)})
        if all(message["role"] == "system" for message in written):
            # No server takes a request in which nobody has said anything.
            written.append({"role": "user", "content": NOTHING_SAID})
        return _alternating(written) if self.alternates else written

    def _message_of(self, item: Item, where: str) -> Message | None:
        try:
            return self._translated(item, where)
        except UnsupportedByUpstream:
            if self.is_strict:
                raise
            return None

    def _translated(self, item: Item, where: str) -> Message | None:
        kind = item.get("type") or "message"
        if kind == "message":
            return self._said(item, where)
        if kind in _TRACES:
            return None
        call_id = item.get("call_id")
        if not isinstance(call_id, str):
            raise UnsupportedByUpstream(f"{where}.type", self.upstream)
        call_id = short_call_id(call_id)
        if kind.endswith(_CALL_OUTPUT):
            return self._answered(call_id, item.get("output"), where)
        return {"role": "assistant", "content": None, "tool_calls": [_called(kind, call_id, item)]}

    def _said(self, item: Item, where: str) -> Message | None:
        role, content = item.get("role"), item.get("content")
        if role == "assistant":
            return _assistant(content)
        if role in ("system", "developer"):
            told = _plain(content)
            return {"role": "system", "content": told} if told else None
        if role != "user":
            raise UnsupportedByUpstream(f"{where}.role", self.upstream)
        if isinstance(content, str):
            return {"role": "user", "content": content} if content else None
        parts = self._parts(content or (), f"{where}.content")
        if len(parts) == 1 and parts[0]["type"] == "text":
            return {"role": "user", "content": parts[0]["text"]}
        return {"role": "user", "content": parts} if parts else None

    def _answered(self, call_id: str, output: Any, where: str) -> Message:
        if isinstance(output, list):
            parts = self._parts(output, f"{where}.output")
            is_text = all(part["type"] == "text" for part in parts)
            content: Any = "".join(part["text"] for part in parts) if is_text else parts
        elif isinstance(output, str):
            content = output
        else:
            content = msgspec.json.encode(output).decode()
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    def _parts(self, content: Sequence[Any], where: str) -> list[dict[str, Any]]:
        """Return what can be shown of a content; empty texts say nothing."""
        parts: list[dict[str, Any]] = []
        for number, given in enumerate(content):
            try:
                part = _part(given, f"{where}[{number}]", self.upstream)
            except UnsupportedByUpstream:
                if self.is_strict:
                    raise
                part = {"type": "text", "text": UNSHOWN}
            if part != _NOTHING:
                parts.append(part)
        return parts


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
        written[-1] = {**last, "content": content, _SOURCES: _sources(last, message)}


def _joined_assistant(last: Message, message: Message) -> Message:
    joined = {**last, **{k: v for k, v in message.items() if k not in ("content", "tool_calls")}}
    texts = [said for said in (last["content"], message["content"]) if said]
    joined["content"] = "\n\n".join(texts) or None
    joined[_SOURCES] = _sources(last, message)
    calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
    if calls:
        joined["tool_calls"] = calls
    return joined


def _sources(first: Message, second: Message) -> tuple[int, ...]:
    return (*first.get(_SOURCES, ()), *second.get(_SOURCES, ()))


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_parts(first), *_as_parts(second)]


def _as_parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _alternating(messages: list[Message]) -> list[Message]:
    """Return messages in which user and assistant take turns, the user first.

    A system's word in between is passed on by the user. Tool traffic stands outside of this.
    """
    joined: list[Message] = []
    for place, message in enumerate(messages):
        is_late_system = message["role"] == "system" and place > 0
        _append(joined, {**message, "role": "user"} if is_late_system else message)
    written: list[Message] = []
    expected = "user"
    for message in joined:
        role = message["role"]
        is_spoken = role in ("user", "assistant") and not message.get("tool_calls")
        if is_spoken and role != expected:
            written.append({"role": expected, "content": CARRY_ON})
        elif is_spoken:
            expected = "assistant" if role == "user" else "user"
        written.append(message)
    return written
