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
from holdfast.core.commands import JournalEntry
from holdfast.core.ids import RunId, TurnId, WorkerId
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

    def __init__(self, session: Session, *, now: float, is_new: bool = False) -> None:
        self.now = now
        self.head_seq = session.head_seq
        """Where the log ends, with what was appended here."""
        self.before = session
        """The session as it was read."""
        self._fields: dict[str, Any] = {}
        self._session: Session | None = session
        self._is_new = is_new
        self._changes: list[Change] = []
        self._aborted: list[RunId] = []
        self._wakes = False

    @property
    def session(self) -> Session:
        """The session as this draft has it so far."""
        if self._session is None:
            self._session = self._made()
        return self._session

    def _made(self) -> Session:
        if self._is_new:
            return replace(self.before, **self._fields)
        return replace(self.before, version=self.before.version + 1, **self._fields)

    def set(self, **fields: Any) -> None:
        """Change fields of the session."""
        self._fields.update(fields)
        self._session = None

    @property
    def record_no(self) -> int:
        """How many records there are, with those that were written here."""
        no: int = self._fields.get("record_no", self.before.record_no)
        return no

    def take_lane(self, turn_id: TurnId, run_id: RunId, owner: WorkerId) -> int:
        """Give the lane to a run and return its epoch."""
        epoch: int = self._fields.get("epoch", self.before.epoch) + 1
        self.set(epoch=epoch, active_turn_id=turn_id, active_run_id=run_id, owner=owner)
        self._end_hold()
        return epoch

    def free_lane(self) -> None:
        """Have nobody hold the lane."""
        self.set(active_turn_id=None, active_run_id=None, owner=None)
        self._end_hold()

    def _end_hold(self) -> None:
        # Where the lane was not kept for tools, what says so is left alone, and its index too.
        if self.before.hold_until is not None:
            self.set(hold_until=None, pending_calls=None)

    def add(self, change: Change) -> None:
        """Write one more row."""
        self._changes.append(change)

    def append(
        self, items: Iterable[NewItem], turn_number: int, *, is_partial: bool = False
    ) -> int:
        """Append items at the head, giving each the next sequence number and an id of its own."""
        session_id = self.before.id
        stored = [
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
            for seq, item in enumerate(items, self.head_seq + 1)
        ]
        if stored:
            self._changes.append(ItemsAdded(tuple(stored)))
            self._fields["head_seq"] = self.head_seq = stored[-1].seq
            self._session = None
        return self.head_seq

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
        no = self.record_no + 1
        self.set(record_no=no)
        self._changes.append(
            RecordAdded(
                Record(self.before.id, no, kind, span[0], span[1], turn_id, undoes, body, self.now)
            )
        )
        return no

    def tell(self, kind: str, turn: Turn | None = None, **detail: Any) -> None:
        """Write a fact for those who follow the session."""
        no: int = self._fields.get("event_no", self.before.event_no) + 1
        self._fields["event_no"] = no
        self._session = None
        self._changes.append(
            EventAdded(
                Event(
                    self.before.id,
                    no,
                    self.before.tenant,
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

    def save_turn(self, turn: Turn, part: TurnPart = "all") -> None:
        """Write a turn's new state, or the part of it that is new."""
        self._changes.append(TurnSaved(turn, part))

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
        self._aborted.append(run_id)
        self._wakes = True

    def stored(self) -> Session:
        """Return the session as this draft leaves it, its version included."""
        if self._session is None or not self._fields:
            self._session = self._made()
        return self._session

    def changes(self) -> tuple[Change, ...]:
        """Return the changes so far, the session's own row first: its fence guards the rest."""
        if self._is_new:
            return (SessionAdded(self.session), *self._changes)
        saved = SessionSaved(self.stored(), self.before.version, self._part())
        return (saved, *self._changes)

    def _part(self) -> Part:
        changed = self._fields.keys()
        if changed <= LOG_FIELDS:
            return "log"
        return "lane" if changed <= LANE_FIELDS else "all"

    def decide(self, outcome: OutcomeT) -> Decision[OutcomeT]:
        """Close the draft."""
        woken = (self.before.id,) if self._wakes else ()
        return Decision(outcome, self.changes(), woken, tuple(self._aborted))
