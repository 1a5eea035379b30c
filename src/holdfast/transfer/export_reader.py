"""Reader of Holdfast's JSONL export: one line per session, turn and log entry."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.core.ids import SessionId
from holdfast.core.model.import_rows import ImportedTurn, Order
from holdfast.core.model.items import NewItem
from holdfast.core.model.records import Span, merge_spans
from holdfast.transfer.export_records import SessionRecord, TurnRecord, read_session, read_turn
from holdfast.transfer.imported_conversation import (
    Converter,
    ImportedConversation,
    ImportedSession,
    Item,
    UnreadableSource,
)
from holdfast.transfer.source_files import lines_of

VERSION = 1
"""The newest export version that can be read."""

HEADER: Item = {"object": "session.export"}
"""Stands for lines about the export itself: the header once its version is checked, and cursors."""

_SESSION_ID = re.compile(r"ses_[0-9A-Za-z._~-]{1,128}")
"""Ids that URLs can name. `conv_` and the rest of a session's id is its conversation."""


class _Erased(NamedTuple):
    """The session before was erased while it was exported: its lines are void."""

    session_id: str


TurnRef = tuple[Any, Any]
"""Session id and turn number: a fork's log starts with turns of its parent."""


class _Entry(NamedTuple):
    turn: TurnRef
    item: NewItem
    is_by_user: bool
    is_partial: bool
    is_hidden: bool


@dataclass(slots=True)
class _Session:
    record: SessionRecord
    file: str
    bad_lines: int = 0
    converter: Converter = field(default_factory=Converter)
    turns: dict[TurnRef, TurnRecord] = field(default_factory=dict)
    log: list[_Entry] = field(default_factory=list)
    epochs: set[int] = field(default_factory=set)
    last_entry: Item | None = None
    is_uncertain: bool = False
    is_closed: bool = False

    @property
    def id(self) -> SessionId:
        """Its id in the exporting store."""
        return SessionId(self.record.id)

    @property
    def is_retired(self) -> bool:
        """Whether its key had a later generation."""
        return self.record.status == "retired"

    def add_bad_line(self) -> None:
        """Count an invalid line; it may have started another session."""
        self.bad_lines += 1
        self.is_uncertain = True

    def add(self, value: Item | TurnRecord | None) -> None:
        """Add a line that follows the session's line."""
        if value is None:
            self.add_bad_line()
        elif isinstance(value, TurnRecord):
            self.add_turn(value)
        elif value != HEADER:
            self.add_entry(value)

    def add_turn(self, turn: TurnRecord) -> None:
        """Add a turn of this session; reject one with a duplicate epoch."""
        epochs = [run.epoch for run in turn.runs]
        is_new = not self.epochs.intersection(epochs) and len(set(epochs)) == len(epochs)
        if turn.session_id == self.id and is_new:
            self.turns[turn.session_id, turn.number] = turn
            self.epochs.update(epochs)
        else:
            self.bad_lines += 1

    def add_entry(self, entry: Item) -> None:
        """Add a log entry; after an invalid line, only entries that continue this session."""
        if self.is_uncertain and not self._is_next(entry):
            self.is_closed = True
        if self.is_closed:
            self.bad_lines += 1
            return
        self.is_uncertain, self.last_entry = False, entry
        turn_ref = (entry.get("session_id"), entry.get("turn_number"))
        self.log += [
            _Entry(
                turn_ref,
                item,
                entry["item"].get("role") == "user",
                entry.get("is_partial") is True,
                entry.get("hidden_by") is not None,
            )
            for item in self.converter.items([entry["item"]])
        ]

    def _is_next(self, entry: Item) -> bool:
        last_entry = self.last_entry or {"sequence": 0, "session_id": self.id}
        before, after = last_entry.get("sequence"), entry.get("sequence")
        is_later = isinstance(before, int) and isinstance(after, int) and before < after
        return is_later and entry.get("session_id") in (self.id, last_entry.get("session_id"))

    def to_imported(self) -> ImportedSession:
        """Return the session for the importer."""
        refs, entries = self._turn_refs(), self._entries()
        record = self.record
        problems = list(self.converter.problems)
        if self.bad_lines:
            problems.insert(0, f"{self.bad_lines} line(s) of {self.file} could not be read")
        is_reachable = _SESSION_ID.fullmatch(self.id) is not None
        if not is_reachable:
            problems.append(f"its id {self.id!r} cannot be in a URL: it got another")
        return ImportedSession(
            source=f"holdfast:{self.id}",
            session_id=self.id if is_reachable else None,
            generation=record.generation,
            turns=tuple(self._turn(ref, entries.get(ref, [])) for ref in refs),
            order=self._order(refs),
            hidden=self._hidden(),
            created_at=record.created_at or 0.0,
            last_user_activity_at=record.last_user_activity_at,
            usage=record.usage.usage(),
            metadata=record.metadata,
            problems=tuple(problems),
        )

    def _turn_refs(self) -> list[TurnRef]:
        """Return the parent's turns in log order, then the session's own by number."""
        logged = dict.fromkeys(entry.turn for entry in self.log)
        shared = [ref for ref in logged if ref[0] != self.id]
        own = {ref for ref in (*logged, *self.turns) if ref[0] == self.id}
        return shared + sorted(own, key=lambda ref: int(ref[1]))

    def _entries(self) -> dict[TurnRef, list[_Entry]]:
        by_turn: dict[TurnRef, list[_Entry]] = {}
        for entry in self.log:
            by_turn.setdefault(entry.turn, []).append(entry)
        return by_turn

    def _turn(self, ref: TurnRef, entries: list[_Entry]) -> ImportedTurn:
        items = [entry.item for entry in entries]
        partial = frozenset(index for index, entry in enumerate(entries) if entry.is_partial)
        record = self.turns.get(ref)
        if record is not None:
            return record.to_imported(items, partial, self.id)
        is_by_user = any(entry.is_by_user for entry in entries)
        return ImportedTurn(items=tuple(items), partial=partial, is_by_user=is_by_user)

    def _order(self, refs: list[TurnRef]) -> Order:
        positions = {ref: index for index, ref in enumerate(refs)}
        blocks = groupby(self.log, key=lambda entry: positions[entry.turn])
        return tuple((index, sum(1 for _ in block)) for index, block in blocks)

    def _hidden(self) -> tuple[Span, ...]:
        hidden = (seq for seq, entry in enumerate(self.log, 1) if entry.is_hidden)
        return tuple(merge_spans((seq, seq) for seq in hidden))


def read_lines(path: Path) -> Iterator[ImportedConversation]:
    """Yield the conversations of an export, with a key's generations in order."""
    by_key: dict[str, list[_Session]] = {}
    for session in _sessions(path):
        key = session.record.key
        if key is None:
            yield ImportedConversation(key=None, generations=(session.to_imported(),))
        else:
            by_key.setdefault(key, []).append(session)
    for key, sessions in by_key.items():
        sessions.sort(key=lambda session: (not session.is_retired, session.record.generation))
        yield ImportedConversation(
            key=key,
            generations=tuple(session.to_imported() for session in sessions),
            is_live=not sessions[-1].is_retired,
        )


def _sessions(path: Path) -> Iterator[_Session]:
    """Yield the sessions of an export; an invalid line counts for the session before it."""
    current: _Session | None = None
    bad_lines = 0
    for value in (_parse_line(line, path) for line in lines_of(path) if line.strip()):
        if isinstance(value, _Erased):
            if current is not None and current.id == value.session_id:
                current = None
        elif isinstance(value, SessionRecord):
            if current is not None:
                yield current
            current, bad_lines = _Session(value, path.name, bad_lines), 0
        elif value != HEADER and current is None:
            bad_lines += 1
        elif current is not None:
            current.add(value)
    if current is not None:
        yield current
    elif bad_lines:
        raise UnreadableSource(f"{path} contains no readable session")


def _check_version(header: Item, path: Path) -> Item:
    version = header.get("version")
    if isinstance(version, int) and version > VERSION:
        raise UnreadableSource(
            f"{path} is an export of version {version}; this Holdfast reads up to {VERSION}"
        )
    return HEADER


def _parse_line(line: bytes, path: Path) -> Item | SessionRecord | TurnRecord | _Erased | None:
    """Parse a line of an export; return None if it is invalid."""
    try:
        value: Item = json.loads(line)
        kind = value["object"]
        if kind == "session":
            return read_session(line)
        if kind == "turn":
            return read_turn(line)
        if kind == "session.export":
            return _check_version(value, path)
        if kind == "session.export.cursor":
            return HEADER
        if kind == "session.export.erased":
            return _Erased(value["session_id"])
        is_item = kind == "session.item" and isinstance(value["item"], dict)
        has_turn = isinstance(value.get("turn_number"), int)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if is_item and has_turn else None
