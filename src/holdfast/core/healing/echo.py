"""Remove what a request said from an error message about it, so that the message can be logged."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

CONTENT = "[content]"
MAX_BODY = 8 * 1024 * 1024
MAX_SEARCHED = 256 * 1024
"""Characters of a request that are compared: a comparison takes milliseconds of the event loop."""
MIN_LENGTH = 8
"""Shorter matches are words that everybody uses, unless they are quoted or have digits."""
MIN_NUMBER = 4
_CONTENT_FIELDS = frozenset(
    {
        "input", "messages", "instructions", "prompt", "system", "tools", "metadata", "user",
        "safety_identifier", "prompt_cache_key",
    }
)  # fmt: skip
_NAME_FIELDS = frozenset({"type", "role", "id", "call_id", "tool_call_id", "name", "status"})
"""Fields inside content that hold names and ids, which help to find a fault."""
_WORD = re.compile(r"\w+")
_QUOTES = frozenset("'\"`“”«»")
_QUOTATION = re.compile(r"(?<!\w)(['\"`])[^'\"`]*\s[^'\"`]*\s[^'\"`]*\1(?!\w)")
"""At least three words in quotes: a model's text or a tool's, if not the request's."""


def strip_echo(message: str, body: Sequence[bytes]) -> str | None:
    """Return a message without the content of the request that it is about.

    None where the request is too large to be compared.
    """
    texts = _content_of(body)
    if texts is None:
        return None
    words = list(_WORD.finditer(message))
    parts: list[str] = []
    end = place = 0
    while place < len(words):
        start, last = words[place].start(), _longest_match(message, words, place, texts)
        if last is not None and _is_content(message, start, words[last].end()):
            parts += [message[end:start], CONTENT]
            end, place = words[last].end(), last
        place += 1
    stripped = "".join([*parts, message[end:]])
    return _QUOTATION.sub(lambda found: f"{found[1]}{CONTENT}{found[1]}", stripped)


def _longest_match(
    message: str, words: Sequence[re.Match[str]], first: int, texts: str
) -> int | None:
    """Return the last word of the longest part of a message that the request has too."""
    last: int | None = None
    for place in range(first, len(words)):
        if message[words[first].start() : words[place].end()] not in texts:
            break
        last = place
    return last


def _is_content(message: str, start: int, end: int) -> bool:
    found = message[start:end]
    is_quoted = message[start - 1 : start] in _QUOTES and message[end : end + 1] in _QUOTES
    has_number = len(found) >= MIN_NUMBER and any(character.isdigit() for character in found)
    return len(found) >= MIN_LENGTH or has_number or is_quoted


def _content_of(body: Sequence[bytes]) -> str | None:
    """Return all texts of a request, as they are and escaped; None if they are too long."""
    if sum(map(len, body)) > MAX_BODY:
        return None
    whole = b"".join(body)
    try:
        value = msgspec.json.decode(whole)
        fields = value if isinstance(value, dict) else {}
        found = [text for name in _CONTENT_FIELDS & fields.keys() for text in _texts(fields[name])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = [whole.decode("utf-8", "replace")]
    except RecursionError:
        return None
    if sum(map(len, found)) > MAX_SEARCHED:
        return None
    escaped = (json.dumps(text)[1:-1] for text in found)
    return "\0".join([*found, *(text for text in escaped if "\\" in text)])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _NAME_FIELDS:
                yield from _texts(item)
