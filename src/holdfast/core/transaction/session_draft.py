"""The working copy of one session while a decision is being made."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.history.history_hash import ItemPlaceRow, TrailRow
from holdfast.core.ids import RunId, TurnId, WorkerId
from holdfast.core.model.item_ids import mint_name
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.records import Record, RecordKind, Span, count_hidden, merge_spans
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    Decision,
    Event,
    EventAdded,
    ItemPlaced,
    ItemsAdded,
    JournalAdded,
    JournalRow,
    Part,
    ProviderStateDropped,
    RecordAdded,
    RunAdded,
    RunSaved,
    SessionAdded,
    SessionSaved,
    TrailAdded,
    TurnAdded,
    TurnPart,
    TurnSaved,
)
from holdfast.core.transaction.commands import JournalEntry

OutcomeT = TypeVar("OutcomeT")
LOG_FIELDS = frozenset({"turn_count", "hidden_count", "last_user_activity_at"})
"""What changes in a session's row when only its log grows, beside what is numbered in it."""
LANE_FIELDS = LOG_FIELDS | {
    "epoch", "active_turn_id", "active_run_id", "owner", "input_tokens", "cached_tokens",
    "output_tokens", "reasoning_tokens",
}  # fmt: skip
"""What changes in it when a run begins or ends."""
_encode = msgspec.json.Encoder().encode


class Draft:
    """Collects the changes to one session; `decide` closes it with one fenced write of its row.

    What changes in the row is collected as well, and made into a session when somebody looks.
    """

    __slots__ = (
        "_aborted", "_changes", "_fields", "_is_new", "_session", "_wakes", "before", "event_no",
        "head_seq", "now", "record_no",
    )  # fmt: skip

    def __init__(self, session: Session, *, now: float, is_new: bool = False) -> None:
        self.now = now
        self.before = session
        """The session as it was read."""
        self.head_seq = session.head_seq
        """Where the log ends, with what was appended here."""
        self.record_no = session.record_no
        """How many records there are, with those that were written here."""
        self.event_no = session.event_no
        self._fields: dict[str, Any] = {}
        """What else is new in the row."""
        self._session: Session | None = session
        self._is_new = is_new
        self._changes: list[Change] = []
        self._aborted: tuple[RunId, ...] = ()
        self._wakes = False

    @property
    def session(self) -> Session:
        """The session as this draft has it so far."""
        if self._session is None:
            self._session = self._made()
        return self._session

    def _made(self) -> Session:
        before = self.before
        return replace(
            before,
            version=before.version if self._is_new else before.version + 1,
            head_seq=self.head_seq,
            record_no=self.record_no,
            event_no=self.event_no,
            **self._fields,
        )

    def set(self, **fields: Any) -> None:
        """Change fields of the session."""
        self._fields.update(fields)
        self._session = None

    def take_lane(self, turn_id: TurnId, run_id: RunId, owner: WorkerId) -> int:
        """Give the lane to a run and return its epoch."""
        epoch: int = self._fields.get("epoch", self.before.epoch) + 1
        self._hand_over(turn_id, run_id, owner)
        self._fields["epoch"] = epoch
        return epoch

    def free_lane(self) -> None:
        """Have nobody hold the lane."""
        self._hand_over(None, None, None)

    def _hand_over(
        self, turn_id: TurnId | None, run_id: RunId | None, owner: WorkerId | None
    ) -> None:
        fields = self._fields
        fields["active_turn_id"] = turn_id
        fields["active_run_id"] = run_id
        fields["owner"] = owner
        # Where the lane was not kept for tools, what says so is left alone, and its index too.
        if self.before.hold_until is not None:
            fields["hold_until"] = fields["pending_calls"] = None
        self._session = None

    def add(self, change: Change) -> None:
        """Write one more row."""
        self._changes.append(change)

    def append(
        self, items: Iterable[NewItem], turn_number: int, *, is_partial: bool = False
    ) -> int:
        """Append items at the head, giving each the next sequence number and an id of its own."""
        session_id, seq = self.before.id, self.head_seq
        stored: list[StoredItem] = []
        for item in items:
            seq += 1
            stored.append(
                StoredItem(
                    session_id,
                    seq,
                    turn_number,
                    item.kind,
                    item.item_id or mint_name(item.kind, session_id, seq),
                    item.call_id,
                    item.fingerprint,
                    is_partial,
                    item.body,
                )
            )
        if stored:
            self._changes.append(ItemsAdded(tuple(stored)))
            self.head_seq = seq
            self._session = None
        return seq

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
        self.add(ProviderStateDropped(self.before.id, from_seq=span[0]))
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
        self.record_no = no = self.record_no + 1
        self._session = None
        self._changes.append(
            RecordAdded(
                Record(self.before.id, no, kind, span[0], span[1], turn_id, undoes, body, self.now)
            )
        )
        return no

    def tell(self, kind: str, turn: Turn | None = None, **detail: Any) -> None:
        """Write a fact for those who follow the session."""
        self.event_no = no = self.event_no + 1
        self._session = None
        before = self.before
        turn_id = turn.id if turn is not None else None
        body = _encode(detail) if detail else b"{}"
        event = Event(before.id, no, before.tenant, kind, turn_id, body, self.now)
        self._changes.append(EventAdded(event))

    def add_turn(self, turn: Turn) -> None:
        """Write a new turn."""
        self._changes.append(TurnAdded(turn))

    def save_turn(self, turn: Turn, part: TurnPart = "all") -> None:
        """Write a turn's new state, or the part of it that is new."""
        self._changes.append(TurnSaved(turn, part))

    def add_run(self, run: Run) -> None:
        """Write a new run."""
        self._changes.append(RunAdded(run))

    def save_run(self, run: Run) -> None:
        """Write a run's new state."""
        self._changes.append(RunSaved(run))

    def journal(self, turn: Turn, entry: JournalEntry) -> None:
        """Keep a batch of the stream of the turn's present step."""
        row = JournalRow(
            turn.id, turn.step, entry.first, entry.last, self.before.id, entry.body
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
        self._aborted += (run_id,)
        self._wakes = True

    def changes(self) -> tuple[Change, ...]:
        """Return the changes so far, the session's own row first: its fence guards the rest."""
        session = self._session
        if session is None or session is self.before:
            session = self._session = self._made()
        if self._is_new:
            return (SessionAdded(session), *self._changes)
        return (SessionSaved(session, self.before.version, self._part()), *self._changes)

    def _part(self) -> Part:
        changed = self._fields.keys()
        if changed <= LOG_FIELDS:
            return "log"
        return "lane" if changed <= LANE_FIELDS else "all"

    def decide(self, outcome: OutcomeT) -> Decision[OutcomeT]:
        """Close the draft."""
        woken = (self.before.id,) if self._wakes else ()
        return Decision(outcome, self.changes(), woken, self._aborted)
