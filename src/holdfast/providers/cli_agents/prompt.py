"""Write a call as the prompt of an agent: the new items, or the whole history as one message."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.errors import UnsupportedByUpstream

IMAGE = "[image]"
NOT_SHOWN = "[content that this agent cannot be shown]"
HISTORY = (
    "This conversation was begun elsewhere. Its messages so far follow, oldest first, one JSON "
    "object per line. They are history: do not answer them again.\n"
)
NEXT = "\nThe history ends here. Answer the next message:\n"
"""It ends in a line feed, like the history, because some agents join the texts of a message."""
_DATA_URL = re.compile(r"data:(image/[a-z.+-]+);base64,(.*)", re.DOTALL)
_encode = msgspec.json.Encoder().encode


class ImagePart(msgspec.Struct, frozen=True):
    """An image: its media type and content in base64, or its URL."""

    media_type: str = ""
    data: str = ""
    url: str = ""


Part = str | ImagePart
Prompt = list[Part]
"""Texts and images, in order."""


def new_prompt(items: Sequence[bytes]) -> Prompt:
    """Return the prompt for an agent whose session has everything before these items."""
    values = [msgspec.json.decode(item) for item in items]
    prompt: Prompt = []
    for value in values:
        prompt += _parts(value.get("content")) if _is_users(value) else [_line(value)]
    return prompt


def _is_users(value: dict[str, object]) -> bool:
    return value.get("type", "message") == "message" and value.get("role", "user") == "user"


def whole_prompt(items: Sequence[bytes]) -> Prompt:
    """Return the prompt for a new session of an agent: the history, then the new items."""
    first_new = len(items)
    values = [msgspec.json.decode(item) for item in items]
    while first_new and values[first_new - 1].get("role") == "user":
        first_new -= 1
    if first_new == len(items):
        first_new = max(len(items) - 1, 0)
    earlier = [value for value in values[:first_new] if value.get("type") != "reasoning"]
    if not earlier:
        return new_prompt(items)
    lines = "\n".join(_line(value) for value in earlier)
    images = [part for value in earlier for part in _images(value.get("content"))]
    return [f"{HISTORY}{lines}\n", *images, NEXT, *new_prompt(items[first_new:])]


def check_items(items: Sequence[bytes], upstream: str, *, with_images: bool) -> None:
    """Raise for new input that an agent cannot process."""
    for number, item in enumerate(items):
        content = msgspec.json.decode(item).get("content")
        for place, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            is_image = kind == "input_image" and with_images and bool(part.get("image_url"))
            if kind not in ("input_text", "output_text", "text", "refusal") and not is_image:
                raise UnsupportedByUpstream(f"input[{number}].content[{place}]", upstream)


def _parts(content: Any) -> Prompt:
    if isinstance(content, str):
        return [content]
    parts: Prompt = []
    for part in content if isinstance(content, list) else ():
        shown = _part(part)
        # Adjacent texts stay separate: each part is its own paragraph.
        parts.append(shown)
    return parts or [""]


def _part(part: Any) -> Part:
    if not isinstance(part, dict):
        return NOT_SHOWN
    text = part.get("text", part.get("refusal"))
    if isinstance(text, str):
        return text
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return _image(part["image_url"])
    return NOT_SHOWN


def _image(url: str) -> ImagePart:
    match = _DATA_URL.fullmatch(url)
    return ImagePart(match[1], match[2]) if match else ImagePart(url=url)


def _images(content: Any) -> Prompt:
    return [part for part in _parts(content) if isinstance(part, ImagePart)]


def _line(value: dict[str, Any]) -> str:
    """Return an item of the history as one JSON line, so that its text cannot escape from it."""
    if value.get("type", "message") != "message":
        return _encode(value).decode()
    texts = [part if isinstance(part, str) else IMAGE for part in _parts(value.get("content"))]
    return _encode({"role": value.get("role"), "text": "\n\n".join(texts)}).decode()
