"""What stands for something that cannot be shown: pictures that are gone, items that are refused.

Only a request has these; the log keeps what it was given.
"""

from typing import Any

import msgspec

from holdfast.core.interrupted import BLANK_PICTURE, OUTPUT_OF
from holdfast.core.items import OUTPUT_SUFFIX, StoredItem, item_value

LEFT_OUT = "[left out: the model's server could not take this]"
MEDIA = frozenset(
    {"input_image", "input_file", "input_audio", "image_url", "file", "computer_screenshot"}
)
"""Kinds of parts whose bytes lie elsewhere, or may be unreadable."""
_MEDIA_MARKS = tuple(f'"{kind}"'.encode() for kind in sorted(MEDIA))
_EMPTY_MARKS = (b'""', b'"content":[]', b'"content": []', b'"content":null', b'"content": null')
_TEXTS = ("text", "refusal")

_encode = msgspec.json.Encoder().encode


def has_media(item: StoredItem) -> bool:
    """Whether an item may hold a picture, a file or a sound; its text is not read for it."""
    return any(mark in item.body for mark in _MEDIA_MARKS)


def placeholder(item: StoredItem) -> bytes | None:
    """Return what is shown in the place of a refused item; None when nothing can be.

    Texts around a picture stay; an item that holds none is replaced as a whole.
    """
    value = item_value(item.body)
    if item.kind == "message":
        part = "output_text" if value.get("role") == "assistant" else "input_text"
        return _encode({**value, "content": _spared(value.get("content"), part)})
    if item.kind.endswith(OUTPUT_SUFFIX) and item.call_id:
        return _encode({**value, "output": _output(item.kind, value.get("output"))})
    if item.kind in OUTPUT_OF and item.call_id:
        return _encode(_emptied(item.kind, value))
    return None


def _spared(content: Any, part: str) -> list[Any]:
    stand_in = {"type": part, "text": LEFT_OUT}
    if not isinstance(content, list):
        return [stand_in]
    kept = [stand_in if _is_media(one) else one for one in content]
    return kept if stand_in in kept else [stand_in]


def _output(kind: str, output: Any) -> Any:
    if kind == "computer_call_output":
        return {"type": "computer_screenshot", "image_url": BLANK_PICTURE}
    if kind == "shell_call_output":
        return [{"stdout": LEFT_OUT, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    return _spared(output, "input_text") if isinstance(output, list) else LEFT_OUT


def _emptied(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return a call without its arguments: it stays, because its output does."""
    if kind == "function_call":
        return {**value, "arguments": "{}"}
    return {**value, "input": LEFT_OUT} if kind == "custom_tool_call" else value


def _is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in MEDIA


def without_emptiness(body: bytes) -> bytes | None:
    """Return a message without parts that say nothing; None when nothing is left of it.

    The bytes of one that has no such part, which is nearly every one, are only looked over.
    """
    if not any(mark in body for mark in _EMPTY_MARKS):
        return body
    value = item_value(body)
    content = value.get("content")
    if not isinstance(content, list):
        return body if content else None
    kept = [part for part in content if not _is_empty(part)]
    if len(kept) == len(content) and kept:
        return body
    return _encode({**value, "content": kept}) if kept else None


def _is_empty(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    said = [part[name] for name in _TEXTS if name in part]
    return bool(said) and not any(said)
