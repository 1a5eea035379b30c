"""Holdfast's own export: a line for each session, and one for each entry of its log."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.importing.past import (
    Block,
    Converter,
    Item,
    PastLife,
    PastSession,
    UnreadableSource,
    gather,
    seconds,
)


@dataclass(slots=True)
class _Session:
    value: Item
    converter: Converter = field(default_factory=Converter)
    blocks: list[Block] = field(default_factory=list)
    turn: Any = None

    def take(self, entry: Item) -> None:
        items = self.converter.items([entry["item"]])
        begins = entry.get("turn_number") != self.turn or not self.blocks
        self.turn = entry.get("turn_number")
        by_user = entry["item"].get("role") == "user"
        is_hidden = entry.get("hidden_by") is not None
        block = Block(
            items,
            seconds(entry.get("turn_started_at")),
            seconds(entry.get("turn_ended_at")),
            begins_turn=begins,
            is_by_user=by_user,
            is_hidden=is_hidden,
        )
        self.blocks.append(block)

    def past(self) -> PastSession:
        turns, hidden = gather(self.blocks)
        metadata = self.value.get("metadata")
        return PastSession(
            source=f"holdfast:{self.value['id']}",
            session_id=str(self.value["id"]),
            turns=turns,
            hidden=hidden,
            created_at=float(self.value.get("created_at") or 0),
            last_user_activity_at=seconds(self.value.get("last_user_activity_at")),
            metadata=metadata if isinstance(metadata, dict) else {},
            problems=tuple(self.converter.problems),
        )


def read_lines(path: Path) -> Iterator[PastLife]:
    """Return the lives in an export; generations of one key follow each other by their number."""
    by_key: dict[str, list[_Session]] = {}
    for session in _sessions(path):
        key = session.value.get("key")
        if key is None:
            yield PastLife(key=None, generations=(session.past(),))
        else:
            by_key.setdefault(str(key), []).append(session)
    for key, line in by_key.items():
        line.sort(key=lambda one: (not _is_retired(one), int(one.value.get("generation") or 0)))
        line.sort(key=lambda one: not _is_retired(one))
        yield PastLife(
            key=key,
            generations=tuple(one.past() for one in line),
            is_live=not _is_retired(line[-1]),
        )


def _is_retired(session: _Session) -> bool:
    return session.value.get("status") == "retired"


def _sessions(path: Path) -> Iterator[_Session]:
    here: _Session | None = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            value = _value(line, number, path)
            if value["object"] == "session":
                if here is not None:
                    yield here
                here = _Session(value)
            elif value["object"] == "session.item" and here is not None:
                here.take(value)
    if here is not None:
        yield here


def _value(line: bytes, number: int, path: Path) -> Item:
    try:
        value = json.loads(line)
        kind = value["object"]
        is_whole = (kind == "session" and value["id"]) or (
            kind == "session.item" and isinstance(value["item"], dict)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise UnreadableSource(f"{path}:{number} is no line of a Holdfast export") from exc
    if not is_whole and kind != "session.export":
        raise UnreadableSource(f"{path}:{number} is no line of a Holdfast export")
    found: Item = value
    return found
