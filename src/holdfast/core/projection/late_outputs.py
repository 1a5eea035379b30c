"""Tool outputs that came after a model had answered the synthetic output of their call.

The synthetic output stays, so that what was sent only grows; the late one is shown as a text.
"""

from typing import Any

import msgspec

from holdfast.core.model.items import NewItem, StoredItem, item_value
from holdfast.core.projection.normalize import as_text, plain_name

_MEDIA = frozenset({"input_image", "input_file"})
"""Parts of an output that a message may have too."""


def late_output(call: NewItem | StoredItem, call_id: str, output: NewItem | StoredItem) -> bytes:
    """Return a user's message with a late output; `call_id` is the id that the call was shown as.

    It says that this is what a tool returned, because no model may take it for a request.
    """
    name = item_value(call.body).get("name") or call.kind
    value = item_value(output.body).get("output")
    text, media = _text_and_media(value)
    said = f"[Output of the tool call {call_id} ({plain_name(name)}), which came late]\n{text}"
    content = [{"type": "input_text", "text": said}, *media]
    return msgspec.json.encode({"type": "message", "role": "user", "content": content})


def _text_and_media(value: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return what an output says, and the pictures and files in it."""
    if isinstance(value, dict) and value.get("type") == "computer_screenshot":
        return "", [{**value, "type": "input_image"}]
    if not isinstance(value, list):
        return as_text(value), []
    texts: list[str] = []
    media: list[dict[str, Any]] = []
    for part in value:
        is_part = isinstance(part, dict)
        if is_part and part.get("type") in _MEDIA:
            media.append(part)
        elif is_part and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            texts.append(as_text(part))
    return "".join(texts), media
