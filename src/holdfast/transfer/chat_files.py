"""Plain chat messages: a JSON list, an object with `messages`, or one of these a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.model.items import NewItem, write_item
from holdfast.core.openai.chat import split_messages
from holdfast.transfer.conversation import (
    Item,
    PastLife,
    PastSession,
    UnreadableSource,
    by_role,
    gather,
)


def read_chat(path: Path, key: str | None) -> Iterator[PastLife]:
    """Return the conversations in a file, under `key` or names made from the file's."""
    conversations, torn = _conversations(path)
    read = [_Conversation(messages) for messages in conversations]
    if not any(one.messages for one in read):
        raise UnreadableSource(f"{path} holds no chat messages")
    read[0].unread += torn
    for number, one in enumerate(read, 1):
        named = key or path.stem
        yield one.life(named if len(read) == 1 else f"{named}:{number}")


class _Conversation:
    """The messages that can be read, and how many cannot."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = [one for one in messages if _is_readable(one)]
        self.unread = len(messages) - len(self.messages)

    def life(self, key: str) -> PastLife:
        # Instructions belong to a turn, not to history; they are not taken over.
        instructions, values = split_messages(self.messages)
        items: list[tuple[NewItem, Item, None]] = [(write_item(one), one, None) for one in values]
        turns, hidden = gather(by_role(items))
        problems = []
        if self.unread:
            problems.append(f"{self.unread} message(s) could not be read")
        if instructions:
            problems.append("system messages are not history, and were left out")
        past = PastSession(
            source=f"chat:{key}", turns=turns, hidden=hidden, problems=tuple(problems)
        )
        return PastLife(key=key, generations=(past,))


def _is_readable(message: Any) -> bool:
    try:
        for value in split_messages([message])[1]:
            write_item(value)
    except InvalidInput:
        return False
    return True


def _conversations(path: Path) -> tuple[list[list[Any]], int]:
    """Return the lists of messages in a file, and how many of its lines are none."""
    text = _text(path)
    try:
        return [_messages(json.loads(text), path)], 0
    except RecursionError as exc:
        raise UnreadableSource(f"{path} is nested too deep") from exc
    except ValueError:
        lines = [_line(line) for line in text.splitlines() if line.strip()]
    values = [value for value in lines if value is not None]
    torn = len(lines) - len(values)
    if any(_is_message(value) for value in values):
        return [values], torn
    return [_messages(value, path) for value in values], torn


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise UnreadableSource(f"{path} is not UTF-8 text") from exc


def _line(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _messages(value: Any, path: Path) -> list[Any]:
    found = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(found, list):
        raise UnreadableSource(f"{path} holds no list of chat messages")
    return found
