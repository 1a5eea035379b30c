"""What a decision writes: log entries, and rows in other tables.

The log is the schema. Every change of a session appends entries to its log. The first entry is the
gate: it is written only if the log still ends where the decision read it. All other changes of the
decision are written in the same transaction or not at all. A row as a change is written to its
table.
"""

from typing import Generic, TypeVar

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.history.history_hash import HistoryHashRow, ItemPlaceRow
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.channels import (
    BotTurnsRow,
    ChatRow,
    DeadUpdateRow,
    PairingRow,
    ReceiverRow,
)
from holdfast.core.model.delivery import OutboxRow
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import HiddenRanges, Record
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.core.model.session import ProviderState, Session
from holdfast.core.model.turn import Run, Turn

OutcomeT = TypeVar("OutcomeT")


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event of a session, numbered per session, for clients that follow it."""

    session_id: SessionId
    no: int
    tenant: Tenant
    kind: str
    turn_id: TurnId | None
    body: bytes
    at: float


class IdempotencyRow(msgspec.Struct, frozen=True):
    """The turn and step that a caller's idempotency key is bound to."""

    tenant: Tenant
    key: str
    body_hash: bytes
    turn_id: TurnId
    step: int
    created_at: float


class JournalRow(msgspec.Struct, frozen=True, gc=False):
    """The row of a journal's batch: the events `first_no` to `last_no` of a response."""

    turn_id: TurnId
    step: int
    first_no: int
    last_no: int
    session_id: SessionId
    body: bytes


class ApiKeyRow(msgspec.Struct, frozen=True):
    """The stored part of an API key."""

    id: str
    tenant: Tenant
    name: str
    hash: bytes
    is_admin: bool
    created_at: float
    revoked_at: float | None


class CompletionRow(msgspec.Struct, frozen=True):
    """A chat completion that the client asked to store."""

    turn_id: TurnId
    step: int
    tenant: Tenant
    session_id: SessionId
    model: str
    metadata: bytes
    created_at: float


class Entry(msgspec.Struct, gc=False):
    """One entry of a log; it concerns at most one turn.

    `turn` is the state of the turn after this entry; `runs` are those of its runs that changed.
    """

    turn: Turn | None = None
    is_new_turn: bool = False
    runs: list[Run] = []
    items: list[StoredItem] = []
    records: list[Record] = []
    events: list[Event] = []
    hidden: HiddenRanges | None = None
    """What is hidden after this entry, if it has records or begins a fork.

    The store fills it in, so that readers need not read all records of a log.
    """

    @property
    def turn_id(self) -> TurnId | None:
        """The id of the turn that the entry concerns."""
        return self.turn.id if self.turn is not None else None


class _Change(msgspec.Struct, frozen=True, gc=False):
    """A change that is not only a row."""


class LogAppended(_Change, frozen=True):
    """Append entries to a log; `session` is the session after them.

    `before` is the session that the decision read, or None if it creates the session. The first
    entry has the number `session.version - len(entries) + 1`.
    """

    session: Session
    before: Session | None
    entries: tuple[Entry, ...]
    at: float = 0.0
    """The time of the commit, by the store's clock."""
    is_parent_ahead: bool = False
    """Whether a new fork begins before the last record of its parent, which may have erased."""


class QueueSaved(_Change, frozen=True):
    """Add a turn to its lane's queue, or update it there."""

    turn: Turn


class QueueDropped(_Change, frozen=True):
    """Remove a turn from the queue, because it started or ended."""

    turn_id: TurnId


class PartialSaved(_Change, frozen=True):
    """Save the unfinished output of a run; written only while the run holds the lane."""

    session_id: SessionId
    run_id: RunId
    body: bytes


class PartialDropped(_Change, frozen=True):
    """Delete the unfinished output of a run."""

    run_id: RunId


class TurnJoined(_Change, frozen=True):
    """Record that the input of one turn became a step of another, so that a repeat finds it."""

    turn_id: TurnId
    into: TurnId
    run_id: RunId
    session_id: SessionId


class RetryClaimed(_Change, frozen=True):
    """Record which retry counts, as bits, were answered with the turn."""

    turn_id: TurnId
    step: int
    claims: int


class LateWriteNoted(_Change, frozen=True):
    """Record what a run tried to write after it had lost its session."""

    run_id: RunId
    turn_id: TurnId
    session_id: SessionId
    body: bytes


class StopRequestRow(msgspec.Struct, frozen=True, gc=False):
    """A request of another process to end a run."""

    run_id: RunId
    code: str
    caller: bytes | None
    requested_at: float


class StopRequestDropped(_Change, frozen=True):
    """Withdraw a request to end a run."""

    run_id: RunId


class ProviderStateSaved(_Change, frozen=True):
    session_id: SessionId
    state: ProviderState
    saved_at: float


class ProviderStateDropped(_Change, frozen=True):
    """Drop a session's provider state: all of it, one owner's, or what covers an item."""

    session_id: SessionId
    slot: str | None = None
    from_seq: int | None = None


class CompletionSaved(_Change, frozen=True):
    """Replace a stored completion's metadata."""

    turn_id: TurnId
    step: int
    metadata: bytes


class ApiKeySaved(_Change, frozen=True):
    row: ApiKeyRow


class ContentErased(_Change, frozen=True):
    """Blank all content of a session; ids and outcomes remain."""

    session_id: SessionId


class ItemErased(_Change, frozen=True):
    """Blank one item's content for good."""

    session_id: SessionId
    seq: int
    body: bytes


class SummariesErased(_Change, frozen=True):
    """Blank every summary of a range that overlaps the erased one."""

    session_id: SessionId
    from_seq: int
    to_seq: int


class JournalAdded(_Change, frozen=True):
    """Add a batch of a run's stream; the first one replaces the journal of an earlier attempt."""

    row: JournalRow
    run_id: RunId


class ResponseDropped(_Change, frozen=True):
    """Delete a response together with its journal."""

    turn_id: TurnId
    step: int
    session_id: SessionId
    at: float


class OutboxAdded(_Change, frozen=True):
    """Add a message to send; it replaces its turn's placeholder, if there is one."""

    row: OutboxRow


class OutboxFileAdded(_Change, frozen=True):
    """Add the bytes of a file, in the commit of its message."""

    message_id: str
    content: bytes


class OutboxFileDropped(_Change, frozen=True):
    """Delete the bytes of a file that was sent or will not be sent."""

    message_id: str


class PlaceholderOpened(_Change, frozen=True):
    """Add a placeholder: a message that is edited while its turn runs."""

    row: OutboxRow


class PlaceholderStopped(_Change, frozen=True):
    """Set the last text of a placeholder whose turn was stopped; do nothing if there is none."""

    id: str
    text: str
    at: float


class ApprovalEnded(_Change, frozen=True):
    """Add a note to the messages of an approval request that was answered or is obsolete."""

    approval: str
    note: str
    at: float


class OutboxSaved(_Change, frozen=True):
    """Update a message; written only if its state and owner are as they were read."""

    row: OutboxRow
    before: OutboxRow


class OutboxRestDropped(_Change, frozen=True):
    """Give up the later parts of an answer, because an earlier one was given up."""

    source: str
    part: int
    error: str
    at: float


class OutboxPruned(_Change, frozen=True):
    """Delete messages that were settled before a time."""

    before: float


class CursorMoved(_Change, frozen=True):
    """Move the cursor of a log follower; written only if it is where it was read."""

    view: str
    before: tuple[int, int] | None
    after: tuple[int, int]


class PairingDropped(_Change, frozen=True):
    """Delete a pairing."""

    channel: str
    sender: str


class ChannelHeld(_Change, frozen=True):
    """Make a worker the receiver of a channel; written only if the owner is as it was read."""

    channel: str
    owner: WorkerId
    before: str | None
    at: float


class ChannelReleased(_Change, frozen=True):
    """Remove the receiver of a channel, if it is this worker."""

    channel: str
    owner: WorkerId


class BotTurnsSaved(_Change, frozen=True):
    """Save the bot turns of a chat; written only if they are as they were read."""

    row: BotTurnsRow
    before: BotTurnsRow | None


class BotTurnsDropped(_Change, frozen=True):
    """Delete the bot turns of a chat, because a person wrote there."""

    channel: str
    chat: str


class ScheduleSaved(_Change, frozen=True):
    """Save a schedule; written only if its due time and run are as they were read."""

    row: ScheduleRow
    before: ScheduleRow | None


class ScheduleDropped(_Change, frozen=True):
    """Delete a schedule."""

    id: str


class ScheduleRunDropped(_Change, frozen=True):
    """Delete a run of a schedule."""

    schedule_id: str
    scheduled_at: float


Change = (
    _Change
    | StopRequestRow
    | IdempotencyRow
    | CompletionRow
    | ApiKeyRow
    | HistoryHashRow
    | ItemPlaceRow
    | PairingRow
    | ChatRow
    | DeadUpdateRow
    | ReceiverRow
    | ScheduleRunRow
)


class Decision(msgspec.Struct, Generic[OutcomeT], frozen=True):
    """The changes to write, and the outcome to return. A refusal usually has no changes."""

    outcome: OutcomeT | HoldfastError
    changes: tuple[Change, ...] = ()
    woken: tuple[SessionId, ...] = ()
    """Sessions whose waiters should check again, in every process."""
    aborted: tuple[RunId, ...] = ()
    """Runs that lost their session by this decision and have to stop."""


def refuse(error: HoldfastError) -> Decision[OutcomeT]:
    """Return a decision that writes nothing and raises an error."""
    return Decision(error)
