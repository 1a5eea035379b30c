"""Normalizes items to a form that every server accepts.

Servers and clients send messages without content, texts that are null, arguments that are not
text or no JSON object, names with characters that others reject. The log keeps them; a request has
them repaired.
"""

import re
from typing import Annotated, Any, Literal

import msgspec

from holdfast.core.model.items import ROLES, item_value

MAX_NAME = 64
AGENT_TOOL_CALL = "agent_tool_call"
"""The kind of an item in which a command-line agent did something with a tool of its own."""
MAX_SHOWN = 500
"""How much of such a tool's arguments and output other models are shown."""
MALFORMED = "malformed_arguments"
"""The field in which arguments are sent that are no JSON object."""
NOT_SHOWN_HERE = "[something that cannot be shown here]"
"""Replaces, in an assistant's message, a part that no assistant can have produced."""
_INVALID_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
_TEXTS = frozenset({"input_text", "output_text", "text"})
_REASONING_PARTS = frozenset(
    {"summary_text", "reasoning_text", "thinking", "redacted_thinking", "reasoning"}
)
_OUTPUT_PARTS = frozenset({"output_text", "refusal"})
_INPUT_PARTS = frozenset({"input_text", "input_image", "input_file", "input_audio"})

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


class _ValidPart(msgspec.Struct, gc=False):
    text: Annotated[str, msgspec.Meta(min_length=1)]
    refusal: msgspec.UnsetType = msgspec.UNSET


class _InputText(_ValidPart, tag_field="type", tag="input_text"):
    pass


class _OutputText(_ValidPart, tag_field="type", tag="output_text"):
    pass


class _ValidMessage(msgspec.Struct, tag_field="role", gc=False):
    pass


class _UserText(_ValidMessage, tag="user"):
    content: Annotated[list[_InputText], msgspec.Meta(min_length=1)]


class _AssistantText(_ValidMessage, tag="assistant"):
    content: Annotated[list[_OutputText], msgspec.Meta(min_length=1)]


_read_message = msgspec.json.Decoder(_Message).decode
_read_object = msgspec.json.Decoder(dict[str, Any]).decode
read_valid_text = msgspec.json.Decoder(_UserText | _AssistantText).decode
"""Read a message of texts that needs no change for any server, as nearly every one is.

Raises `DecodeError` for others, which need not be invalid: see `is_valid_message`.
"""
_READ: dict[str, Any] = {
    "function_call": msgspec.json.Decoder(_Call).decode,
    "custom_tool_call": msgspec.json.Decoder(_Custom).decode,
    "function_call_output": msgspec.json.Decoder(_Output).decode,
    "custom_tool_call_output": msgspec.json.Decoder(_Output).decode,
}
_encode = msgspec.json.Encoder().encode
Kind = Literal["input_text", "output_text"]


def normalize_item(kind: str, body: bytes) -> bytes | None:
    """Return an item's body in a form that every server accepts; None where nothing is left.

    A valid body, which is nearly every one, is returned as it is.
    """
    if kind == "message":
        return body if is_valid_message(body) else _repaired_message(item_value(body))
    if kind == AGENT_TOOL_CALL:
        return _described(item_value(body))
    read = _READ.get(kind)
    if read is None:
        return body
    try:
        parsed = read(body)
    except msgspec.DecodeError:
        parsed = None
    if isinstance(parsed, _Output) and not isinstance(parsed.output, str):
        parsed = parsed if all(_is_part(part, _INPUT_PARTS) for part in parsed.output) else None
    elif isinstance(parsed, _Call) and valid_arguments(parsed.arguments) is not parsed.arguments:
        parsed = None
    return body if parsed is not None else _repaired(kind, item_value(body))


def _described(call: dict[str, Any]) -> bytes:
    """Return the call of an agent's own tool as a short text, which every server accepts."""
    name, arguments, output = (as_text(call.get(k)) for k in ("name", "arguments", "output"))
    text = f"[I used my tool {name[:MAX_NAME]} with {_shortened(arguments)}: {_shortened(output)}]"
    content = [{"type": "output_text", "text": text}]
    return _encode({"type": "message", "role": "assistant", "content": content})


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def plain_name(name: Any) -> str:
    """Return the name of a tool in characters that every server accepts."""
    return _INVALID_CHARACTERS.sub("_", str(name or "tool"))[:MAX_NAME]


def as_text(value: Any, otherwise: str = "") -> str:
    """Return a value that should have been text as text."""
    if value is None:
        return otherwise
    return value if isinstance(value, str) else _encode(value).decode()


def valid_arguments(text: str) -> str:
    """Return the arguments of a call as a JSON object, unchanged if they are one.

    Models write invalid ones, above all where a token limit cuts them off, and some servers refuse
    every history with such a call.
    """
    try:
        _read_object(text)
    except (msgspec.DecodeError, RecursionError):
        return _encode({MALFORMED: text}).decode() if text.strip() else "{}"
    return text


def is_valid_message(body: bytes) -> bool:
    """Whether the body of a message needs no change for any server."""
    try:
        message = _read_message(body)
    except msgspec.DecodeError:
        return False
    content = message.content
    if not content or message.role not in ROLES:
        return False
    if not isinstance(content, str):
        is_assistant = message.role == "assistant"
        kind, kinds = (
            ("output_text", _OUTPUT_PARTS) if is_assistant else ("input_text", _INPUT_PARTS)
        )
        for part in content:
            # Nearly every part is a non-empty text.
            is_text = part.type == kind and part.text and part.refusal is msgspec.UNSET
            if not is_text and not _is_part(part, kinds):
                return False
    return True


def _is_part(part: _Part, kinds: frozenset[str]) -> bool:
    """Whether a part is valid: of one of these kinds, and not an empty text."""
    if part.type in _TEXTS:
        return part.type in kinds and bool(part.text) and part.refusal is msgspec.UNSET
    if part.type == "refusal":
        return part.type in kinds and bool(part.refusal)
    # The server judges kinds that are unknown here.
    return kinds is _INPUT_PARTS


def _repaired_message(value: dict[str, Any]) -> bytes | None:
    if value.get("role") not in ROLES:
        return None  # not a role that every server knows
    is_assistant = value.get("role") == "assistant"
    kind: Kind = "output_text" if is_assistant else "input_text"
    content = value.get("content")
    if isinstance(content, str):
        return _encode(value) if content else None
    parts = _parts(content, kind)
    return _encode({**value, "content": parts}) if parts else None


def _parts(content: Any, kind: Kind) -> list[Any]:
    """Return the non-empty parts of a content, each in its valid form."""
    listed = content if isinstance(content, list) else [content]
    parts = (_part(each, kind) for each in listed)
    return [part for part in parts if part is not None]


def _part(part: Any, kind: Kind) -> dict[str, Any] | None:
    if not isinstance(part, dict):
        text = as_text(part)
        return {"type": kind, "text": text} if text else None
    named = part.get("type")
    if not isinstance(named, str) or named in _TEXTS or named == "refusal":
        return _text_part(part, kind)
    if kind == "output_text":
        return None if named in _REASONING_PARTS else {"type": kind, "text": NOT_SHOWN_HERE}
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


def _repaired(kind: str, value: dict[str, Any]) -> bytes:
    repaired: dict[str, Any]
    match kind:
        case "function_call":
            arguments = valid_arguments(as_text(value.get("arguments"), "{}"))
            repaired = {"name": plain_name(value.get("name")), "arguments": arguments}
        case "custom_tool_call":
            repaired = {"name": plain_name(value.get("name")), "input": as_text(value.get("input"))}
        case _:
            output = value.get("output")
            is_listed = isinstance(output, list)
            repaired = {"output": _parts(output, "input_text") if is_listed else as_text(output)}
            repaired["output"] = repaired["output"] or ""
    return _encode({**value, **repaired})
