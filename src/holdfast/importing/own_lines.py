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
    file: str
    torn: int = 0
    converter: Converter = field(default_factory=Converter)
    blocks: list[Block] = field(default_factory=list)
    turn: Any = None
    last: Item | None = None
    is_in_doubt: bool = False
    is_over: bool = False

    def tear(self) -> None:
        """Count a line that cannot be read; it may have been where another session begins."""
        self.torn += 1
        self.is_in_doubt = True

    def take(self, entry: Item) -> None:
        """Add an entry of the log, if it is one of this session's."""
        if self.is_in_doubt and not self._goes_on_with(entry):
            self.is_over = True
        if self.is_over:
            self.torn += 1
            return
        self.is_in_doubt, self.last = False, entry
        self._add(entry)

    def _goes_on_with(self, entry: Item) -> bool:
        last = self.last or {"sequence": 0, "session_id": self.value["id"]}
        before, here = last.get("sequence"), entry.get("sequence")
        is_later = isinstance(before, int) and isinstance(here, int) and before < here
        return is_later and entry.get("session_id") in (self.value["id"], last.get("session_id"))

    def _add(self, entry: Item) -> None:
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
        torn = [f"{self.torn} line(s) of {self.file} could not be read"] if self.torn else []
        return PastSession(
            source=f"holdfast:{self.value['id']}",
            session_id=str(self.value["id"]),
            turns=turns,
            hidden=hidden,
            created_at=float(self.value.get("created_at") or 0),
            last_user_activity_at=seconds(self.value.get("last_user_activity_at")),
            metadata=metadata if isinstance(metadata, dict) else {},
            problems=(*torn, *self.converter.problems),
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
    """Yield the sessions of an export; lines that cannot be read count with the one before."""
    here: _Session | None = None
    torn = 0
    with path.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            value = _value(line)
            if value is not None and value["object"] == "session":
                if here is not None:
                    yield here
                here, torn = _Session(value, path.name, torn), 0
            elif here is None:
                torn += value is None or value["object"] == "session.item"
            elif value is None:
                here.tear()
            elif value["object"] == "session.item":
                here.take(value)
    if here is not None:
        yield here
    elif torn:
        raise UnreadableSource(f"{path} holds no session that can be read")


def _value(line: bytes) -> Item | None:
    """Return a line of an export, if it is one."""
    try:
        value: Item = json.loads(line)
        kind = value["object"]
        is_whole = (
            kind == "session.export"
            or (kind == "session" and value["id"])
            or (kind == "session.item" and isinstance(value["item"], dict))
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if is_whole else None
