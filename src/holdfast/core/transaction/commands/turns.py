"""Commands about one turn: accept, claim, extend, finish, cancel, and its answer."""

import msgspec

from holdfast.core.healing.policy import Heal
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.model.items import NewItem
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.schedule import ScheduleClaim
from holdfast.core.model.session import ProviderState, Session, Usage
from holdfast.core.model.turn import Fence, OnBusy, Outcome, Run, Source, Successor, Turn
from holdfast.core.transaction.changes import CompletionRow
from holdfast.core.transaction.commands.command import Command, LaneLimits


class Started(msgspec.Struct, frozen=True, gc=False):
    """The turn has the lane; its writes must carry `fence`."""

    turn: Turn
    session: Session
    run: Run
    fence: Fence
    is_rolled_over: bool = False


class Queued(msgspec.Struct, frozen=True):
    """The turn waits. Check again when woken, and no later than `check_again_at`."""

    turn: Turn
    session: Session
    check_again_at: float | None = None
    is_rolled_over: bool = False


class Repeated(msgspec.Struct, frozen=True):
    """The request is a repeat: its turn, and the last run of that step."""

    turn: Turn
    session: Session
    run: Run | None
    step: int

    @property
    def is_settled(self) -> bool:
        """Whether the request has an answer or its turn has ended, so that nobody has to wait."""
        is_answered = self.run is not None and self.run.outcome == "completed"
        return is_answered or not self.turn.is_open or self.turn.step > self.step


class Parent(msgspec.Struct, frozen=True, gc=False):
    """The end of an earlier answer; a new turn continues there, in its session or in a fork."""

    seq: int
    record_no: int


class ImportedPrefix(msgspec.Struct, frozen=True, gc=False):
    """The history in a first request: its first `count` items, all complete."""

    turn_id: TurnId
    count: int
    history_hash: bytes = b""


class Accept(Command["Started | Queued | Repeated"], frozen=True, kw_only=True):
    """Accept one input: it is durable afterwards, and starts at once if the lane is free."""

    tenant: Tenant
    turn_id: TurnId
    run_id: RunId
    worker: WorkerId
    candidate_id: SessionId
    """The id of the session, if this command creates it."""
    key: Key | None = None
    session_id: SessionId | None = None
    items: tuple[NewItem, ...] = ()
    request: bytes = b""
    source: Source = "user"
    on_busy: OnBusy = "enqueue"
    is_internal: bool = False
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    retry_count: int = 0
    rewind: tuple[int, int] | None = None
    """(after, upto): hide the items after `after`, up to `upto`, the head that the caller saw."""
    seen_seq: int | None = None
    """The end of the settled log when `items` and `rewind` were computed; if it moved, refuse."""
    parent: Parent | None = None
    """With `session_id`: continue after this point; if it is not the head, in a new fork."""
    after_turn: int | None = None
    """The number of the session's last turn that the caller expects; with any other, refuse."""
    expected_id: SessionId | None = None
    """The session that the caller expects to be live; with any other nothing is stored."""
    same_as: tuple[TurnId, int] | None = None
    """The turn and step of this session that already got these tool outputs."""
    abandons: TurnId | None = None
    """The held turn whose tool calls the client abandons; its wait for them ends."""
    supersedes: TurnId | None = None
    """The turn that a history takes the place of by a rollback; it must still hold the lane."""
    is_compared: bool = True
    """False if the input was not compared with the log; it is refused if the comparison matters."""
    has_streams: bool = True
    """Whether this worker has streams: a client may have stopped one and sent its request again."""
    brought: ImportedPrefix | None = None
    """The prefix that becomes a separate, completed turn if the log is empty."""
    collect_seconds: float = 0.0
    """How long the turn waits for more messages of the same sender, even if the lane is free."""
    schedule: ScheduleClaim | None = None
    """The due time of a schedule that this commit claims."""
    limits: LaneLimits = LaneLimits()
    reset: ResetPolicy = NEVER


class Claim(Command["Started | Queued"], frozen=True, kw_only=True):
    """Start a queued turn, if the lane is free and the turn is next."""

    turn_id: TurnId
    run_id: RunId
    worker: WorkerId
    limits: LaneLimits = LaneLimits()


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A packed batch of a stream's events; one that starts at 0 replaces the journal."""

    first: int
    last: int
    body: bytes


class Extend(Command[Session], frozen=True, kw_only=True):
    """Append finished items of a running turn, and save its unfinished ones."""

    fence: Fence
    items: tuple[NewItem, ...] = ()
    after_seq: int | None = None
    """The head that the items follow; items that are already in the log are not added again."""
    partial: tuple[NewItem, ...] | None = None
    journal: JournalEntry | None = None
    shown_records: int | None = None  # as in `Finish`
    provider_state: ProviderState | None = None
    """What the provider has stored, if the items are a model's whole answer."""
    usage: Usage | None = None
    """The usage of that answer."""
    merges: tuple[TurnId, ...] = ()
    """Waiting turns whose input joins the running one, after the items."""
    outbox: tuple[OutboxMessage, ...] = ()
    """Messages that a channel sends before the turn ends."""
    tenant: Tenant | None = None  # with a key, the items are a batch that is added once
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class StoredCompletion(msgspec.Struct, frozen=True, gc=False):
    """The model and metadata under which a chat completion is listed."""

    model: str
    metadata: bytes


class Finish(Command["Ended"], frozen=True, kw_only=True):
    """End a run with its items, its answer and its provider state, atomically."""

    fence: Fence
    outcome: Outcome
    items: tuple[NewItem, ...] = ()
    after_seq: int | None = None
    """The head that the items follow; items that are already in the log are not added again."""
    partial: tuple[NewItem, ...] = ()
    result: bytes | None = None
    usage: Usage | None = None
    counted: Usage | None = None
    """The part of `usage` that earlier writes of the run have already counted."""
    error_code: str | None = None
    error_message: str | None = None
    is_retryable: bool = False
    provider_state: ProviderState | None = None
    shown_records: int | None = None
    """The last record that the model's context includes; newer ones may invalidate its output."""
    completion: StoredCompletion | None = None
    pending_calls: tuple[str, ...] = ()
    """Calls that the client's own tools must answer; the lane is held for them."""
    hold_seconds: float = 120.0
    heals: bytes | None = None
    journal: JournalEntry | None = None
    refused_from: int | None = None
    """The first item of the input that the provider refused; it is hidden from the model."""
    left_out: tuple[int, ...] = ()
    """Earlier items that were left out because the provider refused them; they are hidden."""
    placeholders: frozenset[int] = frozenset()
    """Those of them that are replaced by placeholders instead: outputs of tools."""
    history_hash: bytes = b""
    """The hash of the whole history, including this answer, if later requests may repeat it."""
    successor: Successor | None = None
    """The next waiting turn of this process; it starts in the same commit if it is first in
    line."""
    outbox: tuple[OutboxMessage, ...] = ()
    """The parts of the answer that a channel sends, in order."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The ended run, and the start of its successor, if there is one."""

    turn: Turn
    session: Session
    run: Run
    successor: Started | None = None


class Cancel(Command[Turn], frozen=True, kw_only=True):
    """End an open turn; a turn that has ended is not changed."""

    tenant: Tenant
    turn_id: TurnId
    reason: str = "cancelled"
    outcome: Outcome = "cancelled"
    code: str = "turn_cancelled"
    only_if_queued: bool = False
    is_retryable: bool = False


class RequestStop(Command[bool], frozen=True, kw_only=True):
    """Ask the worker of a running turn to end it with what was shown; return whether it runs."""

    tenant: Tenant
    turn_id: TurnId
    code: str
    caller: bytes | None = None
    """The hash of an API key: if set, the run ends only if the client with this key stopped
    reading."""


class SettleStop(Command[bool], frozen=True, kw_only=True):
    """Grant or withdraw a request to end a run if its client stopped; return whether it ends.

    Of the run's worker, which grants, and the process that asked, which withdraws after it has
    waited long enough, the first one decides for both.
    """

    tenant: Tenant
    turn_id: TurnId
    caller: bytes
    is_granted: bool


class AnnotateCompletion(Command[CompletionRow], frozen=True, kw_only=True):
    """Set a stored completion's metadata."""

    tenant: Tenant
    turn_id: TurnId
    step: int
    metadata: bytes


class DropResponse(Command[bool], frozen=True, kw_only=True):
    """Delete the response of one step of a turn: it can no longer be read or continued."""

    tenant: Tenant
    turn_id: TurnId
    step: int


class MarkDelivered(Command[None], frozen=True, kw_only=True):
    """Record that the answers of these steps have reached their clients."""

    steps: tuple[tuple[TurnId, int], ...]


class RecordHeal(Command[Session], frozen=True, kw_only=True):
    """Record how a provider's failure was handled, and drop the state that it refused.

    `number` is how many heals the run had before; the same one is written once.
    """

    fence: Fence
    number: int = 0
    heal: Heal
    drops_state: bool = False
    slot: str | None = None
