"""Remove the content of a request from an error message that repeats it, before it is logged."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

CONTENT = "[content]"
MAX_BODY = 8 * 1024 * 1024
MAX_SEARCHED = 256 * 1024
"""The most characters of a request that are compared; it takes milliseconds of the event loop."""
MIN_LENGTH = 8
"""Shorter matches are common words. They count only if they are quoted, have digits or are a whole
text of the request."""
MIN_NUMBER = 4
_CONTENT_FIELDS = frozenset(
    {
        "input", "messages", "instructions", "prompt", "system", "tools", "metadata", "user",
        "safety_identifier", "prompt_cache_key",
    }
)  # fmt: skip
_NAME_FIELDS = frozenset({"type", "role", "id", "call_id", "tool_call_id", "name", "status"})
"""Fields within content that hold names and ids; they are kept, because they help to find a
fault."""
_WORD = re.compile(r"\w+")
_EDGES = re.compile(r"\A\W+|\W+\Z")
_QUOTES = frozenset("'\"`“”«»")
_QUOTATION = re.compile(r"(?<!\w)(['\"`])[^'\"`]*\s[^'\"`]*\s[^'\"`]*\1(?!\w)")
"""At least three quoted words: text of a model or a tool, even if it is not in the request."""


class _Content(NamedTuple):
    """The content of a request, case-folded."""

    joined: str
    """All texts, as they are and JSON-escaped."""
    whole: frozenset[str]
    """Each text, from its first word to its last."""
    symbols: frozenset[str]
    """Texts without words, such as emoji."""


def strip_echo(message: str, body: Sequence[bytes]) -> str | None:
    """Return a message without the content of the request that it is about.

    Return None if the request is too large to be compared.
    """
    content = _content_of(body)
    if content is None:
        return None
    words = list(_WORD.finditer(message))
    parts: list[str] = []
    end = place = 0
    while place < len(words):
        start, last = words[place].start(), _longest_match(message, words, place, content)
        if last is not None:
            parts += [message[end:start], CONTENT]
            end, place = words[last].end(), last
        place += 1
    stripped = "".join([*parts, message[end:]])
    for symbol in content.symbols:
        stripped = stripped.replace(symbol, CONTENT)
    return _QUOTATION.sub(lambda match: f"{match[1]}{CONTENT}{match[1]}", stripped)


def _longest_match(
    message: str, words: Sequence[re.Match[str]], first: int, content: _Content
) -> int | None:
    """Return the index of the last word of the longest match that begins at a word, or None."""
    last: int | None = None
    start = words[first].start()
    for place in range(first, len(words)):
        end = words[place].end()
        part = message[start:end].casefold()
        if part not in content.joined:
            break
        if part in content.whole or _is_content(message, start, end):
            last = place
    return last


def _is_content(message: str, start: int, end: int) -> bool:
    quoted = message[start:end]
    is_quoted = message[start - 1 : start] in _QUOTES and message[end : end + 1] in _QUOTES
    has_number = len(quoted) >= MIN_NUMBER and any(character.isdigit() for character in quoted)
    return len(quoted) >= MIN_LENGTH or has_number or is_quoted


def _content_of(body: Sequence[bytes]) -> _Content | None:
    """Return the content of a request, or None if it is too long."""
    if sum(map(len, body)) > MAX_BODY:
        return None
    whole = b"".join(body)
    try:
        value = msgspec.json.decode(whole)
        fields = value if isinstance(value, dict) else {}
        contents = [
            text for name in _CONTENT_FIELDS & fields.keys() for text in _texts(fields[name])
        ]
    except (msgspec.DecodeError, UnicodeDecodeError):
        contents = [whole.decode("utf-8", "replace")]
    except RecursionError:
        return None
    if sum(map(len, contents)) > MAX_SEARCHED:
        return None
    escaped = (json.dumps(text)[1:-1] for text in contents)
    texts = [*contents, *(text for text in escaped if "\\" in text)]
    trimmed = (_EDGES.sub("", text) for text in texts)
    symbols = (text.strip() for text in contents if not text.isascii() and not _WORD.search(text))
    return _Content(
        "\0".join(texts).casefold(),
        frozenset(text.casefold() for text in trimmed if text),
        frozenset(text for text in symbols if text),
    )


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
