"""What a decision writes: entries of logs, and rows beside them.

The log is the schema. Everything that changes a session appends entries to its log; the first one
is the gate: it is written only if the log still ends where the decision saw it end. All other
changes of the decision are written in the same transaction or not at all.
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
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.records import HiddenRanges, Record
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn

OutcomeT = TypeVar("OutcomeT")


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event of a session, numbered per session, for its followers."""

    session_id: SessionId
    no: int
    tenant: Tenant
    kind: str
    turn_id: TurnId | None
    body: bytes
    at: float


class IdempotencyRow(msgspec.Struct, frozen=True):
    """Which turn, and which step of it, a caller's idempotency key stands for."""

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
    """An API key, as far as it is kept."""

    id: str
    tenant: Tenant
    name: str
    hash: bytes
    is_admin: bool
    created_at: float
    revoked_at: float | None


class CompletionRow(msgspec.Struct, frozen=True):
    """A chat completion that its client asked to have stored."""

    turn_id: TurnId
    step: int
    tenant: Tenant
    session_id: SessionId
    model: str
    metadata: bytes
    created_at: float


class Entry(msgspec.Struct, gc=False):
    """One entry of a log, about at most one turn.

    `turn` is the turn as this entry leaves it; `runs` are those of its runs that changed.
    """

    turn: Turn | None = None
    is_new_turn: bool = False
    runs: list[Run] = []
    items: list[StoredItem] = []
    records: list[Record] = []
    events: list[Event] = []
    hidden: HiddenRanges | None = None
    """What is hidden once this entry is written, where it has records or begins a fork.

    The store fills it in, so that nobody has to read all records of a log.
    """

    @property
    def turn_id(self) -> TurnId | None:
        """The turn that the entry is about."""
        return self.turn.id if self.turn is not None else None


class LogAppended(msgspec.Struct, frozen=True, gc=False):
    """Entries behind the end of a log, and the session as they leave it.

    `before` is the session that was decided on; there is none where this makes the session. The
    first entry has the number `session.version - len(entries) + 1`.
    """

    session: Session
    before: Session | None
    entries: tuple[Entry, ...]
    at: float = 0.0
    """The time of the commit, by the store's clock."""


class QueueSaved(msgspec.Struct, frozen=True, gc=False):
    """A turn waits in its lane, at its position."""

    turn: Turn


class QueueDropped(msgspec.Struct, frozen=True, gc=False):
    """A turn waits no more: it started or ended."""

    turn_id: TurnId


class PartialSaved(msgspec.Struct, frozen=True, gc=False):
    """The text of a running stream so far; written only while its run holds the lane."""

    session_id: SessionId
    run_id: RunId
    body: bytes


class PartialDropped(msgspec.Struct, frozen=True, gc=False):
    """Nothing is unfinished in a run any more."""

    run_id: RunId


class TurnJoined(msgspec.Struct, frozen=True, gc=False):
    """Input that came as one turn and became a step of another, so that a repeat finds it."""

    turn_id: TurnId
    into: TurnId
    run_id: RunId
    session_id: SessionId


class RetryClaimed(msgspec.Struct, frozen=True, gc=False):
    """Retries with these counts, as bits, were answered with the turn."""

    turn_id: TurnId
    step: int
    claims: int
    at: float


class LateWriteNoted(msgspec.Struct, frozen=True, gc=False):
    """What a run tried to write after it had lost its session."""

    run_id: RunId
    turn_id: TurnId
    session_id: SessionId
    body: bytes


class StopRequestRow(msgspec.Struct, frozen=True, gc=False):
    """A run that another process asks to end."""

    run_id: RunId
    code: str
    caller: bytes | None
    requested_at: float


class StopRequested(msgspec.Struct, frozen=True, gc=False):
    """The worker of a run is asked to end it."""

    row: StopRequestRow


class HistoryHashAdded(msgspec.Struct, frozen=True, gc=False):
    """Where a history ends that a later request may repeat."""

    row: HistoryHashRow


class ItemPlaced(msgspec.Struct, frozen=True, gc=False):
    """Where an item is that a later request may refer to."""

    row: ItemPlaceRow


class IdempotencyAdded(msgspec.Struct, frozen=True, gc=False):
    row: IdempotencyRow


class ProviderStateSaved(msgspec.Struct, frozen=True, gc=False):
    session_id: SessionId
    state: ProviderState
    saved_at: float


class ProviderStateDropped(msgspec.Struct, frozen=True, gc=False):
    """All of a session's provider state, or one maker's, or what covers an item."""

    session_id: SessionId
    slot: str | None = None
    from_seq: int | None = None


class CompletionAdded(msgspec.Struct, frozen=True, gc=False):
    row: CompletionRow


class CompletionSaved(msgspec.Struct, frozen=True, gc=False):
    """A stored completion's metadata, replaced."""

    turn_id: TurnId
    step: int
    metadata: bytes


class ApiKeyAdded(msgspec.Struct, frozen=True, gc=False):
    row: ApiKeyRow


class ApiKeySaved(msgspec.Struct, frozen=True, gc=False):
    row: ApiKeyRow


class ContentErased(msgspec.Struct, frozen=True, gc=False):
    """Blank all content of a session; ids and outcomes remain."""

    session_id: SessionId


class ItemErased(msgspec.Struct, frozen=True, gc=False):
    """One item's content, blanked for good."""

    session_id: SessionId
    seq: int
    body: bytes


class SummariesErased(msgspec.Struct, frozen=True, gc=False):
    """Blank every summary of a range that overlaps the erased one."""

    session_id: SessionId
    from_seq: int
    to_seq: int


class JournalAdded(msgspec.Struct, frozen=True, gc=False):
    """A batch of a run's stream; the first one takes the place of an earlier attempt's journal."""

    row: JournalRow
    run_id: RunId


class ResponseDropped(msgspec.Struct, frozen=True, gc=False):
    """A response that may no longer be read, and its journal with it."""

    turn_id: TurnId
    step: int
    session_id: SessionId
    at: float


class OutboxAdded(msgspec.Struct, frozen=True, gc=False):
    """A message to send; it takes the place of its turn's placeholder, where there is one."""

    row: OutboxRow


class OutboxFileAdded(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a file to send, in the commit of its message."""

    message_id: str
    content: bytes


class OutboxFileDropped(msgspec.Struct, frozen=True, gc=False):
    """The bytes of a file that was sent, or will not be."""

    message_id: str


class PlaceholderOpened(msgspec.Struct, frozen=True, gc=False):
    """A message that is edited while its turn runs."""

    row: OutboxRow


class PlaceholderStopped(msgspec.Struct, frozen=True, gc=False):
    """The last text of a placeholder whose turn was stopped; nothing, if it has none."""

    id: str
    text: str
    at: float


class ApprovalEnded(msgspec.Struct, frozen=True, gc=False):
    """A note for the messages that ask for an approval: it was answered, or is not needed."""

    approval: str
    note: str
    at: float


class OutboxSaved(msgspec.Struct, frozen=True, gc=False):
    """How a message is now; written only if its state and owner are as they were read."""

    row: OutboxRow
    before: OutboxRow


class OutboxRestDropped(msgspec.Struct, frozen=True, gc=False):
    """The parts behind one that was given up are given up with it."""

    source: str
    part: int
    error: str
    at: float


class OutboxPruned(msgspec.Struct, frozen=True, gc=False):
    """Messages that were settled before a time are forgotten."""

    before: float


class CursorMoved(msgspec.Struct, frozen=True, gc=False):
    """How far a follower of the log has come; written only if it stands where it was read."""

    view: str
    before: tuple[int, int] | None
    after: tuple[int, int]


class PairingSaved(msgspec.Struct, frozen=True, gc=False):
    """A pairing as it is now; the sender's earlier one is replaced."""

    row: PairingRow


class PairingDropped(msgspec.Struct, frozen=True, gc=False):
    """A pairing is forgotten."""

    channel: str
    sender: str


class ChannelHeld(msgspec.Struct, frozen=True, gc=False):
    """Who receives for a channel; written only if the owner before is still the one."""

    channel: str
    owner: WorkerId
    before: str | None
    at: float


class ChannelReleased(msgspec.Struct, frozen=True, gc=False):
    """Nobody receives for a channel any more, if this worker did."""

    channel: str
    owner: WorkerId


class ChatSaved(msgspec.Struct, frozen=True, gc=False):
    """A chat that wrote to a channel."""

    row: ChatRow


class UpdateBuried(msgspec.Struct, frozen=True, gc=False):
    """An update that could not be handled."""

    row: DeadUpdateRow


class BotTurnsSaved(msgspec.Struct, frozen=True, gc=False):
    """Turns of bots in a chat; written only if they are still as they were read."""

    row: BotTurnsRow
    before: BotTurnsRow | None


class BotTurnsDropped(msgspec.Struct, frozen=True, gc=False):
    """A person wrote to a chat."""

    channel: str
    chat: str


class ReceiverSaved(msgspec.Struct, frozen=True, gc=False):
    """How receiving for a channel goes."""

    row: ReceiverRow


class ScheduleSaved(msgspec.Struct, frozen=True, gc=False):
    """A schedule as it is now; written only if its due time and run are as they were read."""

    row: ScheduleRow
    before: ScheduleRow | None


class ScheduleDropped(msgspec.Struct, frozen=True, gc=False):
    """A schedule is forgotten."""

    id: str


class ScheduleRunSaved(msgspec.Struct, frozen=True, gc=False):
    """A run of a schedule as it is now."""

    row: ScheduleRunRow


class ScheduleRunDropped(msgspec.Struct, frozen=True, gc=False):
    """A run of a schedule is forgotten."""

    schedule_id: str
    scheduled_at: float


Change = (
    LogAppended
    | QueueSaved
    | QueueDropped
    | PartialSaved
    | PartialDropped
    | TurnJoined
    | RetryClaimed
    | LateWriteNoted
    | StopRequested
    | IdempotencyAdded
    | ProviderStateSaved
    | ProviderStateDropped
    | CompletionAdded
    | CompletionSaved
    | ApiKeyAdded
    | ApiKeySaved
    | ContentErased
    | ItemErased
    | SummariesErased
    | JournalAdded
    | ResponseDropped
    | HistoryHashAdded
    | ItemPlaced
    | OutboxAdded
    | OutboxFileAdded
    | OutboxFileDropped
    | PlaceholderOpened
    | PlaceholderStopped
    | ApprovalEnded
    | OutboxSaved
    | OutboxRestDropped
    | OutboxPruned
    | CursorMoved
    | PairingSaved
    | PairingDropped
    | ChannelHeld
    | ChannelReleased
    | ChatSaved
    | UpdateBuried
    | BotTurnsSaved
    | BotTurnsDropped
    | ReceiverSaved
    | ScheduleSaved
    | ScheduleDropped
    | ScheduleRunSaved
    | ScheduleRunDropped
)


class Decision(msgspec.Struct, Generic[OutcomeT], frozen=True):
    """What to write and what to answer. A refusal writes nothing unless it says so."""

    outcome: OutcomeT | HoldfastError
    changes: tuple[Change, ...] = ()
    woken: tuple[SessionId, ...] = ()
    """Sessions whose waiters should look again, in every process."""
    aborted: tuple[RunId, ...] = ()
    """Runs that lost their session by this decision and should stop working."""


def refuse(error: HoldfastError) -> Decision[OutcomeT]:
    """Return the decision to do nothing and say why."""
    return Decision(error)
