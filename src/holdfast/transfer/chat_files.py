"""Reader of chat messages: a JSON list, an object with `messages`, or one of these per line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.model.items import NewItem, write_item
from holdfast.core.openai.chat import split_messages
from holdfast.transfer.imported_conversation import (
    ImportedConversation,
    ImportedSession,
    Item,
    UnreadableSource,
    group_turns,
    split_by_role,
)
from holdfast.transfer.source_files import whole_of


def read_chat(path: Path, key: str | None) -> Iterator[ImportedConversation]:
    """Yield the conversations of a file, under `key` or a key made from the file's name."""
    message_lists, bad_lines = _message_lists(path)
    conversations = [_Conversation(messages) for messages in message_lists]
    if not any(conversation.messages for conversation in conversations):
        raise UnreadableSource(f"{path} contains no chat messages")
    conversations[0].rejected += bad_lines
    base = key or path.stem
    for number, conversation in enumerate(conversations, 1):
        yield conversation.convert(base if len(conversations) == 1 else f"{base}:{number}")


class _Conversation:
    """The valid messages of one list, and how many were rejected."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = [message for message in messages if _is_valid(message)]
        self.rejected = len(messages) - len(self.messages)

    def convert(self, key: str) -> ImportedConversation:
        # Instructions belong to a turn, not to the history, so they are not imported.
        instructions, values = split_messages(self.messages)
        items: list[tuple[NewItem, Item, None]] = [
            (write_item(value), value, None) for value in values
        ]
        turns, hidden = group_turns(split_by_role(items))
        problems = []
        if self.rejected:
            problems.append(f"{self.rejected} message(s) could not be read")
        if instructions:
            problems.append("system messages are not part of the history and were skipped")
        session = ImportedSession(
            source=f"chat:{key}", turns=turns, hidden=hidden, problems=tuple(problems)
        )
        return ImportedConversation(key=key, generations=(session,))


def _is_valid(message: Any) -> bool:
    try:
        for value in split_messages([message])[1]:
            write_item(value)
    except InvalidInput:
        return False
    return True


def _message_lists(path: Path) -> tuple[list[list[Any]], int]:
    """Return the lists of messages in a file, and how many lines are not JSON."""
    text = _text(path)
    try:
        return [_messages(json.loads(text), path)], 0
    except RecursionError as exc:
        raise UnreadableSource(f"{path} is nested too deeply") from exc
    except ValueError:
        lines = [_line(line) for line in text.splitlines() if line.strip()]
    values = [value for value in lines if value is not None]
    bad_lines = len(lines) - len(values)
    if any(_is_message(value) for value in values):
        return [values], bad_lines
    return [_messages(value, path) for value in values], bad_lines


def _text(path: Path) -> str:
    try:
        return whole_of(path).decode("utf-8-sig")
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
    messages = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(messages, list):
        raise UnreadableSource(f"{path} contains no list of chat messages")
    return messages
