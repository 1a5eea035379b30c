"""The rows that a decision writes: log entries split up for assertions."""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import Change, Entry, Event, LogAppended


class SessionAdded(msgspec.Struct, frozen=True):
    """A session that the decision creates."""

    session: Session


class SessionSaved(msgspec.Struct, frozen=True):
    """A session after the decision, and the number of the entry that it was based on."""

    session: Session
    read_version: int


class TurnAdded(msgspec.Struct, frozen=True):
    turn: Turn


class TurnSaved(msgspec.Struct, frozen=True):
    turn: Turn


class RunAdded(msgspec.Struct, frozen=True):
    """A run that the decision starts; its epoch is the number of its entry."""

    run: Run


class RunSaved(msgspec.Struct, frozen=True):
    run: Run


class ItemsAdded(msgspec.Struct, frozen=True):
    items: tuple[StoredItem, ...]


class RecordAdded(msgspec.Struct, frozen=True):
    record: Record


class EventAdded(msgspec.Struct, frozen=True):
    event: Event


Row = (
    Change
    | SessionAdded
    | SessionSaved
    | TurnAdded
    | TurnSaved
    | RunAdded
    | RunSaved
    | ItemsAdded
    | RecordAdded
    | EventAdded
)


def rows_of(changes: Iterable[Change]) -> list[Row]:
    """Return the changes, with each `LogAppended` replaced by its rows."""
    return [row for change in changes for row in _rows(change)]


def _rows(change: Change) -> Iterator[Row]:
    if not isinstance(change, LogAppended):
        yield change
        return
    session = change.session
    if change.before is None:
        yield SessionAdded(session)
    else:
        yield SessionSaved(session, change.before.version)
    first = session.version - len(change.entries) + 1
    for number, entry in enumerate(change.entries, first):
        yield from _entry_rows(entry, number)


def _entry_rows(entry: Entry, number: int) -> Iterator[Row]:
    if entry.items:
        yield ItemsAdded(tuple(entry.items))
    if entry.turn is not None:
        yield TurnAdded(entry.turn) if entry.is_new_turn else TurnSaved(entry.turn)
    for run in entry.runs:
        is_started = run.outcome is None and run.epoch == number
        yield RunAdded(run) if is_started else RunSaved(run)
    for record in entry.records:
        yield RecordAdded(record)
    for event in entry.events:
        yield EventAdded(event)
