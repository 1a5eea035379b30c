"""The working copy of one session while a decision is made; it becomes entries of its log."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.history.history_hash import HistoryHashRow, ItemPlaceRow
from holdfast.core.ids import RunId, TurnId, WorkerId
from holdfast.core.model.item_ids import mint_name
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.records import Record, RecordKind, Span, count_hidden, merge_spans
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    Decision,
    Entry,
    Event,
    IdempotencyRow,
    JournalAdded,
    JournalRow,
    LogAppended,
    PartialDropped,
    ProviderStateDropped,
    QueueDropped,
    QueueSaved,
)
from holdfast.core.transaction.commands import JournalEntry

OutcomeT = TypeVar("OutcomeT")
MAX_ENTRY_ITEMS = 64
MAX_ENTRY_BYTES = 256 * 1024
"""Beyond these limits an entry ends and the next one begins, so that a page reads little excess."""
_encode = msgspec.json.Encoder().encode


class Draft:
    """Collects the changes of a decision to one session; `decide` closes it.

    Each entry concerns at most one turn, so a change of another turn opens a new entry. The number
    of an entry is the session's version after it. The epoch of a run is the number of the entry
    that started it.
    """

    __slots__ = (
        "_aborted", "_entries", "_entry_bytes", "_fields", "_is_new", "_others", "_session",
        "_version", "_wakes", "before", "event_no", "head_seq",
        "is_parent_ahead", "now", "partial_run", "record_no", "turns_may_wait",
    )  # fmt: skip

    def __init__(self, session: Session, *, now: float, is_new: bool = False) -> None:
        self.now = now
        self.before = session
        """The session as it was read."""
        self.head_seq = session.head_seq
        """The last sequence number of the log, including items appended here."""
        self.record_no = session.record_no
        """The number of the last record, including those written here."""
        self.event_no = session.event_no
        self.partial_run = session.active_run_id
        """The run whose unfinished output may be stored; it is deleted when the run ends."""
        self.turns_may_wait = True
        """Whether a turn that is saved here may be in the queue."""
        self.is_parent_ahead = False
        """As in `LogAppended`."""
        self._fields: dict[str, Any] = {}
        """Changed fields of the session, other than the counters."""
        self._session: Session | None = session
        self._is_new = is_new
        self._version = 0 if is_new else session.version
        """The number of the last entry before this draft."""
        self._entries: list[Entry] = []
        self._entry_bytes = 0
        self._others: list[Change] = []
        self._aborted: tuple[RunId, ...] = ()
        self._wakes = False

    @property
    def session(self) -> Session:
        """The session with the changes of this draft so far."""
        if self._session is None:
            self._session = replace(
                self.before,
                # A draft that changes anything writes at least one entry.
                version=self._version + (len(self._entries) or 1),
                head_seq=self.head_seq,
                record_no=self.record_no,
                event_no=self.event_no,
                **self._fields,
            )
        return self._session

    def set(self, **fields: Any) -> None:
        """Change fields of the session."""
        self._fields.update(fields)
        self._session = None

    # ── the lane ────────────────────────────────────────────────────────────────────────────

    def take_lane(self, turn_id: TurnId, run_id: RunId, owner: WorkerId) -> int:
        """Give the lane to a run and return its epoch: the number of the entry that starts it."""
        self._entry(turn_id)
        epoch = self._version + len(self._entries)
        self._session = None
        self._fields.update(
            epoch=epoch, active_turn_id=turn_id, active_run_id=run_id, owner=owner,
            hold_until=None, pending_calls=None, has_failed=False,
        )  # fmt: skip
        return epoch

    def raise_epoch(self) -> None:
        """Fence every run that was started before: their epochs are lower."""
        self._entry()
        self.set(epoch=self._version + len(self._entries))

    def free_lane(self) -> None:
        """Clear the fields of the session that belong to the lane."""
        self._session = None
        self._fields.update(
            active_turn_id=None, active_run_id=None, owner=None, hold_until=None, pending_calls=None
        )

    # ── entries ─────────────────────────────────────────────────────────────────────────────

    def _entry(self, turn_id: TurnId | None = None) -> Entry:
        """Return the entry to write to: the last one, unless it concerns another turn."""
        if self._entries:
            entry = self._entries[-1]
            if turn_id is None or entry.turn is None or entry.turn.id == turn_id:
                return entry
        return self._open_entry()

    def _open_entry(self) -> Entry:
        entry = Entry()
        self._entries.append(entry)
        self._entry_bytes = 0
        self._session = None
        return entry

    def append(
        self, items: Iterable[NewItem], turn_number: int, *, is_partial: bool = False
    ) -> int:
        """Append items at the head; each gets the next sequence number and, if needed, an id."""
        session_id, seq = self.before.id, self.head_seq
        entry: Entry | None = None
        for item in items:
            seq += 1
            if (
                entry is None
                or len(entry.items) >= MAX_ENTRY_ITEMS
                or self._entry_bytes >= MAX_ENTRY_BYTES
            ):
                entry = self._entry_for_items(turn_number) if self._entries else self._open_entry()
            entry.items.append(
                StoredItem(
                    session_id,
                    seq,
                    turn_number,
                    item.kind,
                    item.item_id or mint_name(item.kind, session_id, seq, self.now),
                    item.call_id,
                    item.fingerprint,
                    is_partial,
                    item.body,
                )
            )
            self._entry_bytes += len(item.body)
        if seq != self.head_seq:
            self.head_seq = seq
            self._session = None
        return seq

    def _entry_for_items(self, turn_number: int) -> Entry:
        """Return an entry that is not full and whose items, if any, belong to the same turn."""
        entry = self._entries[-1]
        is_other = (entry.turn is not None and entry.turn.number != turn_number) or (
            bool(entry.items) and entry.items[-1].turn_number != turn_number
        )
        is_full = len(entry.items) >= MAX_ENTRY_ITEMS or self._entry_bytes >= MAX_ENTRY_BYTES
        return self._open_entry() if is_other or is_full else entry

    def save_turn(
        self,
        turn: Turn,
        run: Run | None = None,
        event: str | None = None,
        *,
        is_new: bool = False,
        **detail: Any,
    ) -> None:
        """Write the state of a turn, and optionally of its run, with an event."""
        entry = self._entry(turn.id)
        entry.turn = turn
        if is_new:
            entry.is_new_turn = True
        if run is not None:
            if entry.runs:
                self.save_run(run)
            else:
                entry.runs.append(run)
        if event is not None:
            self._session, before = None, self.before
            self.event_no = no = self.event_no + 1
            body = _encode(detail) if detail else b"{}"
            entry.events.append(Event(before.id, no, before.tenant, event, turn.id, body, self.now))

    def save_run(self, run: Run) -> None:
        """Write the state of a run to the entry of its turn."""
        runs = self._entry(run.turn_id).runs
        for index, known in enumerate(runs):
            if known.id == run.id:
                runs[index] = run
                return
        runs.append(run)

    def add_event(self, kind: str, turn: Turn | None = None, **detail: Any) -> None:
        """Write an event for followers of the session."""
        entry = self._entry(turn.id if turn is not None else None)
        if turn is not None and entry.turn is None:
            # Every entry about a turn contains its state, so the last entry has the current one.
            entry.turn = turn
        self._session, before = None, self.before
        self.event_no = no = self.event_no + 1
        turn_id, body = turn.id if turn is not None else None, _encode(detail) if detail else b"{}"
        entry.events.append(Event(before.id, no, before.tenant, kind, turn_id, body, self.now))

    def hide(
        self,
        kind: RecordKind,
        span: Span,
        hidden: Sequence[Span],
        turn_id: TurnId | None = None,
        *,
        body: bytes | None = None,
    ) -> list[Span]:
        """Hide a range in addition to the `hidden` ones; return the ranges that are hidden now.

        Provider state that contains the range is dropped, because it would still show it. An empty
        range leaves no record.
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
        entry = self._entry()
        self.record_no = no = self.record_no + 1
        self._session = None
        entry.records.append(
            Record(self.before.id, no, kind, span[0], span[1], turn_id, undoes, body, self.now)
        )
        return no

    # ── beside the log ──────────────────────────────────────────────────────────────────────

    def add(self, change: Change) -> None:
        """Add a change outside the log."""
        self._others.append(change)

    def bind_key(
        self, key: str | None, body_hash: bytes | None, turn_id: TurnId, step: int = 0
    ) -> None:
        """Bind a caller's idempotency key, if there is one, in the commit of what it stands for."""
        if key is not None:
            tenant = self.before.tenant
            row = IdempotencyRow(tenant, key, body_hash or b"", turn_id, step, self.now)
            self._others.append(row)

    def journal(self, turn: Turn, entry: JournalEntry, run_id: RunId) -> None:
        """Add a batch of the stream of the turn's current step."""
        row = JournalRow(
            turn.id, turn.step, entry.first, entry.last, self.before.id, entry.body
        )  # fmt: skip
        self._others.append(JournalAdded(row, run_id))

    def index_history(self, history_hash: bytes) -> None:
        """Index the history up to the head, so that later requests that repeat it find it.

        Later requests may also refer to the items that were appended here, by their ids.
        """
        if not history_hash:
            return
        here = self.session
        for entry in self._entries:
            for item in entry.items:
                if item.item_id is not None:
                    place = ItemPlaceRow(here.tenant, item.item_id, here.id, item.seq)
                    self._others.append(place)
        row = HistoryHashRow(here.id, here.head_seq, here.record_no, here.tenant, history_hash)
        self._others.append(row)

    def wake(self) -> None:
        """Wake all callers that wait for this session."""
        self._wakes = True

    def abort(self, run_id: RunId) -> None:
        """Tell the run's worker, in any process, to stop the run."""
        self._aborted += (run_id,)
        self._wakes = True

    # ── the end ─────────────────────────────────────────────────────────────────────────────

    def changes(self) -> tuple[Change, ...]:
        """Return the changes so far, the log first: its gate guards the others."""
        if not self._entries:
            if not self._fields and not self._is_new:
                return tuple(self._others)
            self._open_entry()
        session = self._session or self.session
        before = None if self._is_new else self.before
        entries, is_ahead = tuple(self._entries), self.is_parent_ahead
        appended = LogAppended(session, before, entries, self.now, is_ahead)
        return (appended, *self._lane_rows(session), *self._others)

    def _lane_rows(self, session: Session) -> list[Change]:
        """Return the changes of the queue, and drop the unfinished output of an ended run."""
        turns: dict[TurnId, tuple[Turn, bool]] = {}
        for entry in self._entries:
            turn = entry.turn
            if turn is not None:
                is_new = entry.is_new_turn or (turn.id in turns and turns[turn.id][1])
                turns[turn.id] = (turn, is_new)
        rows: list[Change] = []
        for turn, is_new in turns.values():
            if turn.outcome is None and session.active_turn_id != turn.id:
                rows.append(QueueSaved(turn))
            elif not is_new and self.turns_may_wait and self.before.active_turn_id != turn.id:
                rows.append(QueueDropped(turn.id))
        left = self.partial_run
        if left is not None and left != session.active_run_id:
            rows.append(PartialDropped(left))
        return rows

    def decide(self, outcome: OutcomeT) -> Decision[OutcomeT]:
        """Close the draft."""
        woken = (self.before.id,) if self._wakes else ()
        return Decision(outcome, self.changes(), woken, self._aborted)
