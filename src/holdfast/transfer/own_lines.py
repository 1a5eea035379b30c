"""Holdfast's own export: a line for each session, each of its turns, and each entry of its log."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.ids import SessionId
from holdfast.core.model.import_rows import Order, PastTurn
from holdfast.core.model.items import NewItem
from holdfast.core.model.records import Span, merge_spans
from holdfast.transfer.conversation import (
    Converter,
    Item,
    PastLife,
    PastSession,
    UnreadableSource,
)
from holdfast.transfer.own_turns import SessionLine, TurnLine, read_session, read_turn

VERSION = 1
"""The newest form of an export that can be read."""

HEADING: Item = {"object": "session.export"}
"""The line before the sessions, when it has been looked at."""

TurnName = tuple[Any, Any]
"""Whose turn, and which: a fork's log begins with turns of the session it was made of."""


class _Entry(NamedTuple):
    turn: TurnName
    item: NewItem
    is_by_user: bool
    is_partial: bool
    is_hidden: bool


@dataclass(slots=True)
class _Session:
    told: SessionLine
    file: str
    torn: int = 0
    converter: Converter = field(default_factory=Converter)
    turns: dict[TurnName, TurnLine] = field(default_factory=dict)
    log: list[_Entry] = field(default_factory=list)
    epochs: set[int] = field(default_factory=set)
    last: Item | None = None
    is_in_doubt: bool = False
    is_over: bool = False

    @property
    def id(self) -> SessionId:
        """Its id where it comes from."""
        return SessionId(self.told.id)

    @property
    def is_retired(self) -> bool:
        """Whether its key had gone on to another one."""
        return self.told.status == "retired"

    def tear(self) -> None:
        """Count a line that cannot be read; it may have been where another session begins."""
        self.torn += 1
        self.is_in_doubt = True

    def add(self, value: Item | TurnLine | None) -> None:
        """Take a line that follows the session's own."""
        if value is None:
            self.tear()
        elif isinstance(value, TurnLine):
            self.take_turn(value)
        elif value != HEADING:
            self.take(value)

    def take_turn(self, turn: TurnLine) -> None:
        """Add what is told of a turn, if it is one of this session's."""
        epochs = [run.epoch for run in turn.runs]
        is_new = not self.epochs.intersection(epochs) and len(set(epochs)) == len(epochs)
        if turn.session_id == self.id and is_new:
            self.turns[turn.session_id, turn.number] = turn
            self.epochs.update(epochs)
        else:
            self.torn += 1

    def take(self, entry: Item) -> None:
        """Add an entry of the log, if it is one of this session's."""
        if self.is_in_doubt and not self._goes_on_with(entry):
            self.is_over = True
        if self.is_over:
            self.torn += 1
            return
        self.is_in_doubt, self.last = False, entry
        name = (entry.get("session_id"), entry.get("turn_number"))
        self.log += [
            _Entry(
                name,
                item,
                entry["item"].get("role") == "user",
                entry.get("is_partial") is True,
                entry.get("hidden_by") is not None,
            )
            for item in self.converter.items([entry["item"]])
        ]

    def _goes_on_with(self, entry: Item) -> bool:
        last = self.last or {"sequence": 0, "session_id": self.id}
        before, here = last.get("sequence"), entry.get("sequence")
        is_later = isinstance(before, int) and isinstance(here, int) and before < here
        return is_later and entry.get("session_id") in (self.id, last.get("session_id"))

    def past(self) -> PastSession:
        """Return the session as an import takes it."""
        names, entries = self._names(), self._entries()
        told = self.told
        torn = [f"{self.torn} line(s) of {self.file} could not be read"] if self.torn else []
        return PastSession(
            source=f"holdfast:{self.id}",
            session_id=self.id,
            generation=told.generation,
            turns=tuple(self._turn(name, entries.get(name, [])) for name in names),
            order=self._order(names),
            hidden=self._hidden(),
            created_at=told.created_at or 0.0,
            last_user_activity_at=told.last_user_activity_at,
            usage=told.usage.usage(),
            metadata=told.metadata,
            problems=(*torn, *self.converter.problems),
        )

    def _names(self) -> list[TurnName]:
        """Return its turns: those it shares as they come in the log, its own by their number."""
        known = dict.fromkeys(entry.turn for entry in self.log)
        shared = [name for name in known if name[0] != self.id]
        own = {name for name in (*known, *self.turns) if name[0] == self.id}
        return shared + sorted(own, key=lambda name: int(name[1]))

    def _entries(self) -> dict[TurnName, list[_Entry]]:
        found: dict[TurnName, list[_Entry]] = {}
        for entry in self.log:
            found.setdefault(entry.turn, []).append(entry)
        return found

    def _turn(self, name: TurnName, entries: list[_Entry]) -> PastTurn:
        items = [entry.item for entry in entries]
        partial = frozenset(at for at, entry in enumerate(entries) if entry.is_partial)
        told = self.turns.get(name)
        if told is not None:
            return told.past(items, partial, self.id)
        is_by_user = any(entry.is_by_user for entry in entries)
        return PastTurn(items=tuple(items), partial=partial, is_by_user=is_by_user)

    def _order(self, names: list[TurnName]) -> Order:
        places = {name: index for index, name in enumerate(names)}
        blocks = groupby(self.log, key=lambda entry: places[entry.turn])
        return tuple((index, sum(1 for _ in block)) for index, block in blocks)

    def _hidden(self) -> tuple[Span, ...]:
        places = (seq for seq, entry in enumerate(self.log, 1) if entry.is_hidden)
        return tuple(merge_spans((seq, seq) for seq in places))


def read_lines(path: Path) -> Iterator[PastLife]:
    """Return the lives in an export; generations of one key follow each other by their number."""
    by_key: dict[str, list[_Session]] = {}
    for session in _sessions(path):
        key = session.told.key
        if key is None:
            yield PastLife(key=None, generations=(session.past(),))
        else:
            by_key.setdefault(key, []).append(session)
    for key, line in by_key.items():
        line.sort(key=lambda one: (not one.is_retired, one.told.generation))
        yield PastLife(
            key=key,
            generations=tuple(one.past() for one in line),
            is_live=not line[-1].is_retired,
        )


def _sessions(path: Path) -> Iterator[_Session]:
    """Yield the sessions of an export; lines that cannot be read count with the one before."""
    here: _Session | None = None
    torn = 0
    with path.open("rb") as lines:
        for value in (_value(line, path) for line in lines if line.strip()):
            if isinstance(value, SessionLine):
                if here is not None:
                    yield here
                here, torn = _Session(value, path.name, torn), 0
            elif value != HEADING and here is None:
                torn += 1
            elif here is not None:
                here.add(value)
    if here is not None:
        yield here
    elif torn:
        raise UnreadableSource(f"{path} holds no session that can be read")


def _check_version(heading: Item, path: Path) -> Item:
    version = heading.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UnreadableSource(
            f"{path} has form {version} of an export; this Holdfast reads up to {VERSION}"
        )
    return HEADING


def _value(line: bytes, path: Path) -> Item | SessionLine | TurnLine | None:
    """Return a line of an export, if it is one."""
    try:
        value: Item = json.loads(line)
        kind = value["object"]
        if kind == "session":
            return read_session(line)
        if kind == "turn":
            return read_turn(line)
        if kind == "session.export":
            return _check_version(value, path)
        is_whole = kind == "session.item" and isinstance(value["item"], dict)
        is_placed = isinstance(value.get("turn_number"), int)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if is_whole and is_placed else None
