"""Plain chat messages: a JSON list, an object with `messages`, or one of these a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.chat import split_messages
from holdfast.core.errors import InvalidInput
from holdfast.core.items import write_item
from holdfast.importing.past import Item, PastLife, PastSession, UnreadableSource, by_role, gather


def read_chat(path: Path, key: str | None) -> Iterator[PastLife]:
    """Return the conversations in a file, under `key` or names made from the file's."""
    conversations = _conversations(path)
    if not any(conversations):
        raise UnreadableSource(f"{path} holds no chat messages")
    for number, messages in enumerate(conversations, 1):
        named = key or path.stem
        yield _life(named if len(conversations) == 1 else f"{named}:{number}", messages, path)


def _conversations(path: Path) -> list[list[Any]]:
    text = _text(path)
    try:
        whole = json.loads(text)
    except ValueError:
        values = [_line(line, number, path) for number, line in _lines(text)]
        if values and all(_is_message(value) for value in values):
            return [values]
        return [_messages(value, path) for value in values]
    return [_messages(whole, path)]


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise UnreadableSource(f"{path} is not UTF-8 text") from exc


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def _line(line: str, number: int, path: Path) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise UnreadableSource(f"{path}:{number} is not JSON: {exc}") from exc


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _messages(value: Any, path: Path) -> list[Any]:
    found = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(found, list) or not all(_is_message(one) for one in found):
        raise UnreadableSource(f"{path} holds no list of chat messages")
    return found


def _life(key: str, messages: list[Any], path: Path) -> PastLife:
    try:
        # Instructions belong to a turn, not to history; they are not taken over.
        instructions, values = split_messages(messages)
        items: list[tuple[Any, Item, None]] = [(write_item(one), one, None) for one in values]
    except InvalidInput as exc:
        raise UnreadableSource(f"{path}: {exc.message}") from exc
    turns, hidden = gather(by_role(items))
    problems = ("system messages are not history, and were left out",) if instructions else ()
    past = PastSession(source=f"chat:{key}", turns=turns, hidden=hidden, problems=problems)
    return PastLife(key=key, generations=(past,))
