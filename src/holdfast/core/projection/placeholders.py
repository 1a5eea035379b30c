"""Placeholders for items that cannot be sent: images that are gone, items a server rejected.

Only requests contain them; the log keeps what it was given.
"""

from typing import Any

import msgspec

from holdfast.core.model.items import OUTPUT_SUFFIX, ROLES, StoredItem, item_value
from holdfast.core.model.synthetic_outputs import BLANK_PICTURE
from holdfast.core.projection.normalize import plain_name

LEFT_OUT = "[left out: the model's server could not take this]"
MEDIA = frozenset(
    {"input_image", "input_file", "input_audio", "image_url", "file", "computer_screenshot"}
)
"""Kinds of parts whose bytes are stored elsewhere, or may be unreadable."""
_MEDIA_MARKS = tuple(f'"{kind}"'.encode() for kind in sorted(MEDIA))
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal"})

_encode = msgspec.json.Encoder().encode


def has_media(item: StoredItem) -> bool:
    """Whether an item may contain an image, a file or audio; it is not parsed for that."""
    return any(mark in item.body for mark in _MEDIA_MARKS)


def placeholder(item: StoredItem) -> bytes | None:
    """Return the placeholder of a rejected item; None where the item is left out.

    It keeps only what makes it an item of its kind, and the texts around parts that may have
    caused the rejection.
    """
    value = item_value(item.body)
    match item.kind:
        case "message":
            fields = _message(value)
        case "function_call":
            fields = {"name": plain_name(value.get("name")), "arguments": "{}"}
        case "custom_tool_call":
            fields = {"name": plain_name(value.get("name")), "input": LEFT_OUT}
        case "computer_call_output":
            fields = {"output": {"type": "computer_screenshot", "image_url": BLANK_PICTURE}}
        case "shell_call_output":
            outcome = {"type": "exit", "exit_code": 0}
            fields = {"output": [{"stdout": LEFT_OUT, "stderr": "", "outcome": outcome}]}
        case "apply_patch_call_output":
            fields = {"status": "completed", "output": LEFT_OUT}
        case _ if item.call_id and item.kind.endswith(OUTPUT_SUFFIX):
            output = value.get("output")
            is_listed = isinstance(output, list)
            fields = {"output": _kept_texts(output, "input_text") if is_listed else LEFT_OUT}
        case _:
            return None
    called = {"call_id": item.call_id} if item.call_id else {}
    return _encode({"type": item.kind, **called, **fields})


def _message(value: dict[str, Any]) -> dict[str, Any]:
    role = value.get("role")
    role = role if role in ROLES else "user"
    part = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "content": _kept_texts(value.get("content"), part)}


def _kept_texts(content: Any, part: str) -> list[dict[str, str]]:
    """Return the texts of a content, if another part of it may have caused the rejection."""
    stand_in = {"type": part, "text": LEFT_OUT}
    texts = [_text_of(each) for each in content] if isinstance(content, list) else []
    if all(text is not None for text in texts):
        return [stand_in]
    return [stand_in if text is None else {"type": part, "text": text} for text in texts]


def _text_of(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        return None
    text = part.get("text", part.get("refusal"))
    return text if isinstance(text, str) else None
