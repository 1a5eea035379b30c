"""What stands for something that cannot be shown: pictures that are gone, items that are refused.

Only a request has these; the log keeps what it was given.
"""

from typing import Any

import msgspec

from holdfast.core.model.items import OUTPUT_SUFFIX, StoredItem, item_value
from holdfast.core.model.synthetic_outputs import BLANK_PICTURE
from holdfast.core.projection.normalize import plain_name

LEFT_OUT = "[left out: the model's server could not take this]"
MEDIA = frozenset(
    {"input_image", "input_file", "input_audio", "image_url", "file", "computer_screenshot"}
)
"""Kinds of parts whose bytes lie elsewhere, or may be unreadable."""
_MEDIA_MARKS = tuple(f'"{kind}"'.encode() for kind in sorted(MEDIA))
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal"})
_ROLES = frozenset({"user", "assistant", "system", "developer"})

_encode = msgspec.json.Encoder().encode


def has_media(item: StoredItem) -> bool:
    """Whether an item may hold a picture, a file or a sound; its text is not read for it."""
    return any(mark in item.body for mark in _MEDIA_MARKS)


def placeholder(item: StoredItem) -> bytes | None:
    """Return what is shown in the place of a refused item; None when nothing is.

    Whatever was wrong with it, this is not: only what makes it an item of its kind is kept, and
    the texts around something else that may have been at fault.
    """
    value = item_value(item.body)
    match item.kind:
        case "message":
            said = _message(value)
        case "function_call":
            said = {"name": plain_name(value.get("name")), "arguments": "{}"}
        case "custom_tool_call":
            said = {"name": plain_name(value.get("name")), "input": LEFT_OUT}
        case "computer_call_output":
            said = {"output": {"type": "computer_screenshot", "image_url": BLANK_PICTURE}}
        case "shell_call_output":
            outcome = {"type": "exit", "exit_code": 0}
            said = {"output": [{"stdout": LEFT_OUT, "stderr": "", "outcome": outcome}]}
        case "apply_patch_call_output":
            said = {"status": "completed", "output": LEFT_OUT}
        case _ if item.call_id and item.kind.endswith(OUTPUT_SUFFIX):
            output = value.get("output")
            is_listed = isinstance(output, list)
            said = {"output": _spared(output, "input_text") if is_listed else LEFT_OUT}
        case _:
            return None
    called = {"call_id": item.call_id} if item.call_id else {}
    return _encode({"type": item.kind, **called, **said})


def _message(value: dict[str, Any]) -> dict[str, Any]:
    role = value.get("role")
    role = role if role in _ROLES else "user"
    part = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "content": _spared(value.get("content"), part)}


def _spared(content: Any, part: str) -> list[dict[str, str]]:
    """Return the texts of a content, if something else in it may have been at fault."""
    stand_in = {"type": part, "text": LEFT_OUT}
    texts = [_text_of(one) for one in content] if isinstance(content, list) else []
    if all(text is not None for text in texts):
        return [stand_in]
    return [stand_in if text is None else {"type": part, "text": text} for text in texts]


def _text_of(part: Any) -> str | None:
    if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS:
        return None
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else None
