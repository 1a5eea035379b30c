"""The working copy of one session while a decision is being made."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.changes import (
    Change,
    Decision,
    Event,
    EventAdded,
    ItemPlaced,
    ItemsAdded,
    JournalAdded,
    JournalRow,
    ProviderStateDropped,
    RecordAdded,
    RunAdded,
    RunSaved,
    SessionAdded,
    SessionSaved,
    TrailAdded,
    TurnAdded,
    TurnSaved,
)
from holdfast.core.commands import JournalEntry
from holdfast.core.ids import RunId, TurnId
from holdfast.core.item_names import mint_name
from holdfast.core.items import NewItem, StoredItem
from holdfast.core.records import Record, RecordKind, Span, count_hidden, merge_spans
from holdfast.core.session import Session
from holdfast.core.trail import ItemPlaceRow, TrailRow
from holdfast.core.turn import Run, Turn

OutcomeT = TypeVar("OutcomeT")
LOG_FIELDS = frozenset(
    {"head_seq", "record_no", "event_no", "turn_count", "hidden_count", "last_user_activity_at"}
)
"""What changes in a session's row when only its log grows."""
_encode = msgspec.json.Encoder().encode


class Draft:
    """Collects the changes to one session; `decide` closes it with one fenced write of its row."""

    def __init__(self, session: Session, *, now: float, is_new: bool = False) -> None:
        self.session = session
        self.now = now
        self._is_new = is_new
        self._read_version = session.version
        self._changes: list[Change] = []
        self._aborted: list[RunId] = []
        self._wakes = False
        self._is_log_only = True

    def set(self, **fields: Any) -> None:
        """Change fields of the session."""
        if self._is_log_only and not fields.keys() <= LOG_FIELDS:
            self._is_log_only = False
        self.session = replace(self.session, **fields)

    def add(self, change: Change) -> None:
        """Write one more row."""
        self._changes.append(change)

    def append(
        self, items: Iterable[NewItem], turn_number: int, *, is_partial: bool = False
    ) -> int:
        """Append items at the head, giving each the next sequence number and an id of its own."""
        session = self.session
        seq = session.head_seq
        stored = tuple(
            StoredItem(
                session.id,
                seq + offset,
                turn_number,
                item.kind,
                item.item_id or mint_name(item.kind, session.id, seq + offset),
                item.call_id,
                item.fingerprint,
                is_partial,
                item.body,
            )
            for offset, item in enumerate(items, 1)
        )
        if stored:
            self._changes.append(ItemsAdded(stored))
            self.set(head_seq=seq + len(stored))
        return self.session.head_seq

    def hide(
        self,
        kind: RecordKind,
        span: Span,
        hidden: Sequence[Span],
        turn_id: TurnId | None = None,
        *,
        body: bytes | None = None,
    ) -> list[Span]:
        """Record that a range is hidden, beside what was `hidden` before; return what is now.

        What a provider remembers of the range would show it again, and goes with it. A range in
        which there is nothing leaves no record.
        """
        if span[0] > span[1]:
            return list(hidden)
        after = merge_spans([*hidden, span])
        self.record(kind, span, turn_id=turn_id, body=body)
        self.set(hidden_count=count_hidden(after))
        self.add(ProviderStateDropped(self.session.id, from_seq=span[0]))
        return after

    def record(
        self,
        kind: RecordKind,
        span: Span,
        *,
        turn_id: TurnId | None = None,
        undoes: int | None = None,
        body: bytes | None = None,
    ) -> int:
        """Write a record over a range and return its number."""
        no = self.session.record_no + 1
        self.set(record_no=no)
        self._changes.append(
            RecordAdded(
                Record(self.session.id, no, kind, span[0], span[1], turn_id, undoes, body, self.now)
            )
        )
        return no

    def tell(self, kind: str, turn: Turn | None = None, **detail: Any) -> None:
        """Write a fact for those who follow the session."""
        no = self.session.event_no + 1
        self.set(event_no=no)
        self._changes.append(
            EventAdded(
                Event(
                    self.session.id,
                    no,
                    self.session.tenant,
                    kind,
                    turn.id if turn else None,
                    _encode(detail) if detail else b"{}",
                    self.now,
                )
            )
        )

    def add_turn(self, turn: Turn) -> None:
        """Write a new turn."""
        self._changes.append(TurnAdded(turn))

    def save_turn(self, turn: Turn) -> None:
        """Write a turn's new state."""
        self._changes.append(TurnSaved(turn))

    def add_run(self, run: Run) -> None:
        """Write a new run."""
        self._changes.append(RunAdded(run))

    def save_run(self, run: Run) -> None:
        """Write a run's new state."""
        self._changes.append(RunSaved(run))

    def journal(self, turn: Turn, entry: JournalEntry | None) -> None:
        """Keep a batch of the stream of the turn's present step."""
        if entry is None:
            return
        row = JournalRow(
            turn.id, turn.step, entry.first, entry.last, self.session.id, entry.body
        )  # fmt: skip
        self._changes.append(JournalAdded(row))

    def leave_trail(self, trail: bytes) -> None:
        """Have the history up to the head found by later requests that repeat it.

        What was added to it here may also be referred to, item by item.
        """
        if not trail:
            return
        here = self.session
        added = [change for change in self._changes if isinstance(change, ItemsAdded)]
        for item in (item for change in added for item in change.items):
            if item.item_id is not None:
                place = ItemPlaceRow(here.tenant, item.item_id, here.id, item.seq)
                self._changes.append(ItemPlaced(place))
        row = TrailRow(here.id, here.head_seq, here.record_no, here.tenant, trail)
        self._changes.append(TrailAdded(row))

    def wake(self) -> None:
        """Have everybody who waits for this session look again."""
        self._wakes = True

    def abort(self, run_id: RunId) -> None:
        """Have the run's worker stop, wherever it is."""
        self._aborted.append(run_id)
        self._wakes = True

    def stored(self) -> Session:
        """Return the session as this draft leaves it, its version included."""
        if self._is_new:
            return self.session
        return replace(self.session, version=self._read_version + 1)

    def changes(self) -> tuple[Change, ...]:
        """Return the changes so far, the session's own row first: its fence guards the rest."""
        if self._is_new:
            return (SessionAdded(self.session), *self._changes)
        return (SessionSaved(self.stored(), self._read_version, self._is_log_only), *self._changes)

    def decide(self, outcome: OutcomeT) -> Decision[OutcomeT]:
        """Close the draft."""
        woken = (self.session.id,) if self._wakes else ()
        return Decision(outcome, self.changes(), woken, tuple(self._aborted))
