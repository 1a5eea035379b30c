"""Translate Chat Completions messages into items, and back.

System and developer messages are the instructions of their turn, not history.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.errors import InvalidInput, UnsupportedByUpstream
from holdfast.core.tools.approval_words import approval_text

Message = dict[str, Any]
Item = dict[str, Any]

INSTRUCTION_ROLES = ("system", "developer")


def split_messages(messages: Sequence[Any]) -> tuple[str | None, list[Item]]:
    """Return a request's instructions and its items."""
    instructions: list[str] = []
    items: list[Item] = []
    for index, message in enumerate(messages):
        parts = read_message(message, index)
        if isinstance(parts, str):
            instructions.append(parts)
        else:
            items += parts
    return "\n\n".join(instructions) or None, _paired(items)


def read_message(message: Any, index: int) -> str | list[Item]:
    """Return the instructions or the items of a message."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidInput(f"messages[{index}] needs a role")
    role, content = message["role"], message.get("content")
    if role == "user" and isinstance(content, str) and "name" not in message:
        # Nearly every message of a user has this form.
        part = {"type": "input_text", "text": content}
        return [{"type": "message", "role": "user", "content": [part]}]
    if role in INSTRUCTION_ROLES:
        _check_content(message, index)
        return text_of(content)
    return _items_of(message, index)


def _paired(items: list[Item]) -> list[Item]:
    """Give the outputs of custom calls their own item type; Chat has one type for all outputs."""
    if len(items) < 2:
        return items
    custom = {item["call_id"] for item in items if item["type"] == "custom_tool_call"}
    return [
        {**item, "type": "custom_tool_call_output"}
        if item["type"] == "function_call_output" and item["call_id"] in custom
        else item
        for item in items
    ]


def _items_of(message: Message, index: int) -> list[Item]:
    match message["role"]:
        case "user":
            content = _input(message, index)
            return [
                {"type": "message", "role": "user", **_name(message, index), "content": content}
            ]
        case "assistant":
            _check_content(message, index)
            return _assistant_items(message, index)
        case "tool" | "function":
            call_id = message.get("tool_call_id") or message.get("name")
            if not isinstance(call_id, str):
                raise InvalidInput(f"messages[{index}] needs a tool_call_id")
            _check_content(message, index)
            output = message.get("content")
            return [{"type": "function_call_output", "call_id": call_id,
                     "output": output if isinstance(output, str) else text_of(output)}]  # fmt: skip
        case role:
            raise InvalidInput(f"messages[{index}] has an unknown role {role!r}")


def _name(message: Message, index: int) -> Item:
    """Return the name of a message's participant as a field of its item."""
    name = message.get("name")
    if name is None or name == "":
        return {}
    if not isinstance(name, str):
        raise InvalidInput(f"messages[{index}].name must be a string")
    return {"name": name}


def _input(message: Message, index: int) -> list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    if not isinstance(content, list):
        raise InvalidInput(f"messages[{index}] has no content")
    return [_input_part(part, index) for part in content]


def _input_part(part: Any, index: int) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise InvalidInput(f"messages[{index}] has a content part that is not an object")
    _check_part_type(part, index)
    match part.get("type"):
        case "text":
            if not isinstance(part.get("text", ""), str):
                raise InvalidInput(f"messages[{index}] has a text part without text")
            return {"type": "input_text", "text": part.get("text", "")}
        case "image_url":
            image = _inner(part, "image_url", index)
            return {
                "type": "input_image",
                "image_url": image.get("url"),
                "detail": image.get("detail", "auto"),
            }
        case "file":
            return {"type": "input_file", **_inner(part, "file", index)}
        case _:
            return part


def _inner(part: dict[str, Any], name: str, index: int) -> dict[str, Any]:
    """Return the nested object of a content part."""
    inner = part.get(name) or {}
    if not isinstance(inner, dict):
        raise InvalidInput(f"messages[{index}] has {name} that is not an object")
    return inner


def _check_content(message: Message, index: int) -> None:
    """Raise for content that is neither a string nor a list of parts with string texts."""
    content = message.get("content")
    if not isinstance(message.get("refusal") or "", str):
        raise InvalidInput(f"messages[{index}] has a refusal that is not text")
    if content is None or isinstance(content, str):
        return
    parts = content if isinstance(content, list) else [None]
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get("text", ""), str):
            raise InvalidInput(f"messages[{index}] has content that is neither text nor parts")
        _check_part_type(part, index)


def _check_part_type(part: dict[str, Any], index: int) -> None:
    """Raise for a part whose type is not a string: no provider accepts it, so it is not stored."""
    if not isinstance(part.get("type"), str | None):
        raise InvalidInput(f"messages[{index}] has a content part whose type is not text")


def _assistant_items(message: Message, index: int) -> list[Item]:
    items = _reasoning_items(message, index)
    text = text_of(message.get("content"))
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise InvalidInput(f"messages[{index}].tool_calls must be a list")
    legacy = message.get("function_call")
    if text or not (calls or legacy):
        part = {"type": "output_text", "text": text, "annotations": []}
        if message.get("refusal"):
            part = {"type": "refusal", "refusal": message["refusal"]}
        name = _name(message, index)
        items.append({"type": "message", "role": "assistant", **name, "content": [part]})
    items += [
        _call_item(call, f"messages[{index}].tool_calls[{n}]") for n, call in enumerate(calls)
    ]
    if legacy is not None:
        # The form before tools existed: one call, whose output names the function instead of an id.
        function = legacy.get("name") if isinstance(legacy, dict) else None
        call = {"id": function, "type": "function", "function": legacy}
        items.append(_call_item(call, f"messages[{index}].function_call"))
    return items


def _reasoning_items(message: Message, index: int) -> list[Item]:
    """Return the readable reasoning that open models return and clients send back."""
    text = message.get("reasoning_content")
    if text is None or text == "":
        return []
    if not isinstance(text, str):
        raise InvalidInput(f"messages[{index}].reasoning_content must be a string")
    part = {"type": "reasoning_text", "text": text}
    return [{"type": "reasoning", "summary": [], "content": [part]}]


def _call_item(call: Any, where: str) -> Item:
    kind = call.get("type", "function") if isinstance(call, dict) else None
    tool = call.get(kind) if isinstance(call, dict) and isinstance(kind, str) else None
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        raise InvalidInput(f"{where} has no function name")
    if not isinstance(call.get("id"), str):
        raise InvalidInput(f"{where} has no id")
    text = tool.get("input" if kind == "custom" else "arguments", "")
    if not isinstance(text, str):
        raise InvalidInput(f"{where} has arguments that are not text")
    fields = {"call_id": call["id"], "name": tool["name"]}
    if kind == "custom":
        return {"type": "custom_tool_call", **fields, "input": text}
    return {"type": "function_call", **fields, "arguments": text}


def text_of(content: Any) -> str:
    """Return the text of a message's content."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return ""


class _PlainPart(msgspec.Struct, gc=False):
    type: Literal["output_text"]
    text: str
    logprobs: tuple[()] | None = None


class _PlainMessage(msgspec.Struct, gc=False):
    """A message of one text without log probabilities, as most answers are."""

    type: Literal["message"]
    content: tuple[_PlainPart]


_read_plain_message = msgspec.json.Decoder(_PlainMessage).decode


def plain_text(items: Sequence[bytes]) -> str | None:
    """Return the text of an answer that is one plain message, or None for any other answer."""
    if len(items) != 1:
        return None
    try:
        return _read_plain_message(items[0]).content[0].text
    except msgspec.DecodeError:
        return None


def message_of(items: Iterable[bytes]) -> Message:
    """Return an answer's items as the message of a chat completion."""
    texts: list[str] = []
    refusals: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for body in items:
        item = msgspec.json.decode(body)
        if item.get("type") == "reasoning":
            reasoning.append(text_of(item.get("content")))
        elif item.get("type") == "message":
            _add_parts(item, texts, refusals)
        elif item.get("type") in ("function_call", "custom_tool_call"):
            calls.append(call_of(item))
        elif item.get("type") == "mcp_call":
            # Text before a tool call is not part of the final answer.
            texts.clear()
        elif item.get("type") == "mcp_approval_request":
            texts += ["\n\n"] if texts else []
            texts.append(approval_text(item, item.get("approval_code") or ""))
    message: Message = {
        "role": "assistant",
        "content": "".join(texts) if texts or not calls else None,
        "refusal": "".join(refusals) or None,
        "annotations": [],
    }
    if any(reasoning):
        message["reasoning_content"] = "\n\n".join(filter(None, reasoning))
    if calls:
        message["tool_calls"] = calls
    return message


def _add_parts(item: Item, texts: list[str], refusals: list[str]) -> None:
    for part in item.get("content") or ():
        if part.get("type") == "refusal":
            refusals.append(part.get("refusal", ""))
        else:
            texts.append(part.get("text", ""))


def streamed_text(items: Iterable[bytes]) -> str:
    """Return all text of an answer as a chat stream shows it; a tool call starts a paragraph."""
    text_so_far, is_after_tool = "", False
    for body in items:
        item = msgspec.json.decode(body)
        text = ""
        if item.get("type") == "message":
            text = text_of(item.get("content"))
        elif item.get("type") == "mcp_call":
            is_after_tool = True
        elif item.get("type") == "mcp_approval_request":
            text, is_after_tool = approval_text(item, item.get("approval_code") or ""), True
        if text:
            text_so_far += f"\n\n{text}" if text_so_far and is_after_tool else text
            is_after_tool = False
    return text_so_far


def call_of(item: Item) -> dict[str, Any]:
    """Return a call in the Chat format."""
    if item.get("type") == "custom_tool_call":
        custom = {"name": item.get("name"), "input": item.get("input", "")}
        return {"id": item.get("call_id"), "type": "custom", "custom": custom}
    return {
        "id": item.get("call_id"),
        "type": "function",
        "function": {"name": item.get("name"), "arguments": item.get("arguments", "")},
    }


def logprobs_of(items: Iterable[bytes]) -> dict[str, Any] | None:
    """Return the log probabilities of an answer's tokens, or None if it has none."""
    logprobs: list[Any] = []
    for body in items:
        if b'"logprobs"' in body:
            item = msgspec.json.decode(body)
            for part in item.get("content") or () if item.get("type") == "message" else ():
                logprobs += part.get("logprobs") or ()
    return {"content": logprobs, "refusal": None} if logprobs else None


def chat_usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return usage in the Chat format."""
    if usage is None:
        return None
    prompt, completion = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": usage.get("input_tokens_details") or {"cached_tokens": 0},
        "completion_tokens_details": usage.get("output_tokens_details") or {"reasoning_tokens": 0},
    }


CHAT = "a Chat server"
DROPPED = frozenset({"reasoning"})
"""Item types without a Chat form that may be left out."""


def messages_of(items: Iterable[Item]) -> list[Message]:
    """Return items as messages; calls join the assistant message before them."""
    messages: list[Message] = []
    for item in items:
        kind = item.get("type") or "message"
        if kind in DROPPED:
            continue
        if kind == "message":
            messages.append(_message(item))
        elif kind in ("function_call", "custom_tool_call"):
            _add_call(messages, call_of(item))
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
    name = {"name": item["name"]} if isinstance(item.get("name"), str) else {}
    if role == "assistant":
        refusal = "".join(
            part.get("refusal", "")
            for part in content or ()
            if isinstance(part, dict) and part.get("type") == "refusal"
        )
        message: Message = {"role": "assistant", **name, "content": text_of(content)}
        return {**message, "refusal": refusal} if refusal else message
    if isinstance(content, str):
        return {"role": role, **name, "content": content}
    parts = [_part(part) for part in content or ()]
    if all(part["type"] == "text" for part in parts):
        return {"role": role, **name, "content": "\n".join(part["text"] for part in parts)}
    return {"role": role, **name, "content": parts}


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
