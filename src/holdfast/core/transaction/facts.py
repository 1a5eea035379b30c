"""What a store reads before a decision, in the same transaction that writes the decision."""

import msgspec

from holdfast.core.compaction.records import RecordHead
from holdfast.core.ids import SessionId, WorkerId
from holdfast.core.model.channels import BotTurnsRow, ChannelHoldRow, PairingRow, ReceiverRow
from holdfast.core.model.delivery import OutboxRow
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record, Span
from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn, WorkerDeath
from holdfast.core.transaction.changes import (
    ApiKeyRow,
    CompletionRow,
    IdempotencyRow,
    StopRequestRow,
)


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """The queue of a lane, without the turn that holds it."""

    count: int = 0
    first_position: int | None = None
    last_position: int | None = None


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A log that contains a range, the session's own or a fork's, and the summaries in it."""

    session: Session
    upto: int
    """The last item that it shares with the session's own log."""
    line: frozenset[SessionId]
    """The session and its ancestors."""
    hidden: tuple[Span, ...] = ()
    heads: tuple[RecordHead, ...] = ()
    carriers: tuple[StoredItem, ...] = ()
    """Its `compaction` items."""
    also: tuple[int, ...] = ()
    """Items that go with the range, and its copies in earlier blocks of a moved turn."""


class Facts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The current state of one session, under its lock; what a command does not need is empty."""

    now: float
    session: Session | None = None
    has_live_owner: bool = False
    owner_death: WorkerDeath | None = None
    """How the worker of the active run died; None if it lives or said goodbye."""
    active: Turn | None = None
    active_run: Run | None = None
    waiting: Waiting = Waiting()
    turn: Turn | None = None
    """The turn that the command names, or that a repeated request belongs to."""
    run: Run | None = None
    """The run that the command names, or the last one of the repeated step."""
    repeat: IdempotencyRow | None = None
    edited: IdempotencyRow | None = None
    """The key of the message that an edit is about."""
    tenant_turns: int = 0
    """Open turns of the tenant; read only if there is a limit."""
    api_key: ApiKeyRow | None = None
    completion: CompletionRow | None = None
    imported_turns: int = 0
    """How many turns of the session, or of the key's live session, were imported."""
    created: Session | None = None
    """The session that an earlier request with the same idempotency key created."""
    next_generation: int = 1
    live_id: SessionId | None = None
    """The live session of the key, if the named session is not live."""
    live: Session | None = None
    open_turns: tuple[Turn, ...] = ()
    """Every open turn, including the active one."""
    gone_owners: frozenset[WorkerId] = frozenset()
    forks: tuple[Session, ...] = ()
    hidden: tuple[Span, ...] = ()
    instructions: Span | None = None
    """The items that give the session's instructions, if the command may replace them."""
    heads: tuple[RecordHead, ...] = ()
    """Every record of the log, including those of ancestors, without bodies."""
    logs: tuple[Log, ...] = ()
    """The logs in which a range is hidden: the session's own, and for an erasure its forks."""
    records: tuple[Record, ...] = ()
    """The session's own records, or those of the running turn."""
    is_view_changed: bool = False
    """Whether anything was hidden or shown again since the parent's answer."""
    parent_hidden: tuple[Span, ...] = ()
    """The ranges that were hidden when the parent's answer was given."""
    has_provider_state: bool = False
    turn_items: tuple[StoredItem, ...] = ()
    """The items of the named turn, if it started before, including hidden ones."""
    last_item: StoredItem | None = None
    """The last visible item, or the one that the same command hid before."""
    is_popped: bool = False
    """Whether the same command has hidden `last_item` before."""
    messages: tuple[OutboxRow, ...] = ()
    """Messages of the outbox that the command names or that are due."""
    cursor: tuple[int, int] | None = None
    """The cursor of the follower that the command names: transaction and position."""
    last_records: dict[SessionId, int] = {}
    """The last record of each session of the command's facts, except of those that were erased."""
    pairings: tuple[PairingRow, ...] = ()
    """Pairings of the channel that the command names."""
    hold: ChannelHoldRow | None = None
    """The worker that receives for the channel."""
    is_holder_alive: bool = False
    receiver: ReceiverRow | None = None
    bot_turns: BotTurnsRow | None = None
    """Turns of bots in the chat since a person last wrote there."""
    stop_request: StopRequestRow | None = None
    """The request to end the run of the turn that the command names."""
    schedule: ScheduleRow | None = None
    """The schedule that the command names."""
    schedule_run: ScheduleRunRow | None = None
