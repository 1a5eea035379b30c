"""Items in the form that every server takes, whatever form they came in.

Servers and clients send messages without a content, texts that are null, arguments that are no
text, names with letters that others refuse. The log keeps them so; a request has them mended.
"""

import re
from typing import Annotated, Any, Literal

import msgspec

from holdfast.core.model.items import ROLES, item_value

MAX_NAME = 64
NOT_SHOWN_HERE = "[something that cannot be shown here]"
"""Stands in an assistant's message for what no assistant can have said."""
_ODD_LETTERS = re.compile(r"[^A-Za-z0-9_-]")
_TEXTS = frozenset({"input_text", "output_text", "text"})
_THOUGHTS = frozenset(
    {"summary_text", "reasoning_text", "thinking", "redacted_thinking", "reasoning"}
)
_MADE = frozenset({"output_text", "refusal"})
_SAID = frozenset({"input_text", "input_image", "input_file", "input_audio"})

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str | msgspec.UnsetType = msgspec.UNSET
    refusal: str | msgspec.UnsetType = msgspec.UNSET


class _Message(msgspec.Struct, gc=False):
    content: str | list[_Part]
    role: str


class _Call(msgspec.Struct, gc=False):
    name: Name
    arguments: str


class _Custom(msgspec.Struct, gc=False):
    name: Name
    input: str


class _Output(msgspec.Struct, gc=False):
    output: str | list[_Part]


_read_message = msgspec.json.Decoder(_Message).decode
_READ: dict[str, Any] = {
    "function_call": msgspec.json.Decoder(_Call).decode,
    "custom_tool_call": msgspec.json.Decoder(_Custom).decode,
    "function_call_output": msgspec.json.Decoder(_Output).decode,
    "custom_tool_call_output": msgspec.json.Decoder(_Output).decode,
}
_encode = msgspec.json.Encoder().encode
Kind = Literal["input_text", "output_text"]


def normalize_item(kind: str, body: bytes) -> bytes | None:
    """Return an item's body as every server takes it; None where nothing is left to be said.

    The bytes of one that is in order, which is nearly every one, are given back as they are.
    """
    if kind == "message":
        return body if is_valid_message(body) else _mended_message(item_value(body))
    read = _READ.get(kind)
    if read is None:
        return body
    try:
        found = read(body)
    except msgspec.DecodeError:
        found = None
    if isinstance(found, _Output) and not isinstance(found.output, str):
        found = found if all(_is_part(part, _SAID) for part in found.output) else None
    return body if found is not None else _mended(kind, item_value(body))


def plain_name(name: Any) -> str:
    """Return the name of a tool in letters that every server takes."""
    return _ODD_LETTERS.sub("_", str(name or "tool"))[:MAX_NAME]


def as_text(value: Any, otherwise: str = "") -> str:
    """Return a value that should have been a text as one."""
    if value is None:
        return otherwise
    return value if isinstance(value, str) else _encode(value).decode()


def is_valid_message(body: bytes) -> bool:
    """Whether the body of a message needs no change for any server."""
    try:
        found = _read_message(body)
    except msgspec.DecodeError:
        return False
    content = found.content
    if not content or found.role not in ROLES:
        return False
    if not isinstance(content, str):
        is_made = found.role == "assistant"
        kind, kinds = ("output_text", _MADE) if is_made else ("input_text", _SAID)
        for part in content:
            # Nearly every part is a text that says something.
            is_text = part.type == kind and part.text and part.refusal is msgspec.UNSET
            if not is_text and not _is_part(part, kinds):
                return False
    return True


def _is_part(part: _Part, kinds: frozenset[str]) -> bool:
    """Whether a part is one of its kind, and says something if it is a text."""
    if part.type in _TEXTS:
        return part.type in kinds and bool(part.text) and part.refusal is msgspec.UNSET
    if part.type == "refusal":
        return part.type in kinds and bool(part.refusal)
    # Kinds that we do not know are the server's to judge.
    return kinds is _SAID


def _mended_message(value: dict[str, Any]) -> bytes | None:
    if value.get("role") not in ROLES:
        return None  # nobody whom every server knows said it
    is_made = value.get("role") == "assistant"
    kind: Kind = "output_text" if is_made else "input_text"
    content = value.get("content")
    if isinstance(content, str):
        return _encode(value) if content else None
    parts = _parts(content, kind)
    return _encode({**value, "content": parts}) if parts else None


def _parts(content: Any, kind: Kind) -> list[Any]:
    """Return the parts of a content that say something, each as it should be."""
    listed = content if isinstance(content, list) else [content]
    found = (_part(one, kind) for one in listed)
    return [one for one in found if one is not None]


def _part(part: Any, kind: Kind) -> dict[str, Any] | None:
    if not isinstance(part, dict):
        text = as_text(part)
        return {"type": kind, "text": text} if text else None
    named = part.get("type")
    if named in _TEXTS or named == "refusal" or not isinstance(named, str):
        return _text_part(part, kind)
    if kind == "output_text":
        return None if named in _THOUGHTS else {"type": kind, "text": NOT_SHOWN_HERE}
    return part


def _text_part(part: dict[str, Any], kind: Kind) -> dict[str, Any] | None:
    if part.get("type") == "refusal" and kind == "output_text":
        refusal = as_text(part.get("refusal") or part.get("text"))
        return {**part, "refusal": refusal} if refusal else None
    text = as_text(part.get("text") or part.get("refusal"))
    if not text:
        return None
    if part.get("type") == kind and "refusal" not in part:
        return {**part, "text": text}
    return {"type": kind, "text": text}


def _mended(kind: str, value: dict[str, Any]) -> bytes:
    mended: dict[str, Any]
    match kind:
        case "function_call":
            name = plain_name(value.get("name"))
            mended = {"name": name, "arguments": as_text(value.get("arguments"), "{}")}
        case "custom_tool_call":
            mended = {"name": plain_name(value.get("name")), "input": as_text(value.get("input"))}
        case _:
            output = value.get("output")
            is_listed = isinstance(output, list)
            mended = {"output": _parts(output, "input_text") if is_listed else as_text(output)}
            mended["output"] = mended["output"] or ""
    return _encode({**value, **mended})
