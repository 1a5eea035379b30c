"""The searchable text of an item, and its role."""

from typing import Annotated, Any, Literal, NamedTuple

import msgspec

MAX_CHARACTERS = 64 * 1024
"""How much text of one item is indexed; the rest cannot be found."""
ROLES = ("user", "assistant", "system", "developer", "tool")


class ItemText(NamedTuple):
    """The text of an item; a call and its output have the role `tool`."""

    role: str
    text: str


def item_text(body: bytes) -> ItemText | None:
    """Return the text of an item, or None if it has none, such as reasoning or an erased item."""
    try:
        message = _decode_message(body)
    except msgspec.ValidationError:
        return _text_of_any(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    content = message.content
    if not isinstance(content, str):
        content = content[0].text if len(content) == 1 else "\n".join(part.text for part in content)
    return _bounded(message.role if message.role in ROLES else "user", content)


class _Part(msgspec.Struct, gc=False):
    text: Annotated[str, msgspec.Meta(min_length=1)]


class _Message(msgspec.Struct, gc=False):
    """The form of nearly every message: no other field has to be read."""

    content: str | list[_Part]
    type: Literal["message"] = "message"
    role: str = "user"


_decode_message = msgspec.json.Decoder(_Message).decode


def _text_of_any(body: bytes) -> ItemText | None:
    try:
        item = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(item, dict):
        return None
    kind = item.get("type") or "message"
    if not isinstance(kind, str):
        return None
    if kind == "message":
        role = item.get("role")
        return _bounded(role if role in ROLES else "user", _text(item.get("content")))
    if kind.endswith("_call_output") or kind == "mcp_call":
        return _bounded("tool", _text(item.get("output")) or _text(item.get("error")))
    if kind in ("function_call", "custom_tool_call", "gateway_call"):
        words = [item.get("name"), item.get("arguments"), item.get("input")]
        return _bounded("tool", " ".join(word for word in words if isinstance(word, str)))
    return None


def _bounded(role: str, text: str) -> ItemText | None:
    return ItemText(role, text[:MAX_CHARACTERS]) if text.strip() else None


def _text(content: Any) -> str:
    """Return the text of a string, or of the parts of a list that have one."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = (part.get("text") or part.get("refusal") for part in content if isinstance(part, dict))
    return "\n".join(part for part in parts if isinstance(part, str))
