"""Commands about one turn: accept, claim, extend, finish, cancel, and its answer."""

import msgspec

from holdfast.core.healing.policy import Heal
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.model.items import NewItem
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.schedule import ScheduleClaim
from holdfast.core.model.session import Session, Usage
from holdfast.core.model.turn import Fence, OnBusy, Outcome, Run, Source, Successor, Turn
from holdfast.core.transaction.changes import CompletionRow
from holdfast.core.transaction.commands.command import Command, LaneLimits


class Started(msgspec.Struct, frozen=True, gc=False):
    """The turn has the lane; `fence` is what its writes must carry."""

    turn: Turn
    session: Session
    run: Run
    fence: Fence
    is_rolled_over: bool = False


class Queued(msgspec.Struct, frozen=True):
    """The turn waits. Look again when woken, and no later than `check_again_at`."""

    turn: Turn
    session: Session
    check_again_at: float | None = None
    is_rolled_over: bool = False


class Repeated(msgspec.Struct, frozen=True):
    """The same request came before: this is its turn, and its last run of that step."""

    turn: Turn
    session: Session
    run: Run | None
    step: int

    @property
    def is_settled(self) -> bool:
        """Whether the request has its answer or its end, so that there is nothing to wait for."""
        is_answered = self.run is not None and self.run.outcome == "completed"
        return is_answered or not self.turn.is_open or self.turn.step > self.step


class Parent(msgspec.Struct, frozen=True, gc=False):
    """The end of an earlier answer; a new turn continues there, in place or as a fork."""

    seq: int
    record_no: int


class ImportedPrefix(msgspec.Struct, frozen=True, gc=False):
    """A history sent with a first request: its first `count` items, all complete."""

    turn_id: TurnId
    count: int
    history_hash: bytes = b""


class Accept(Command["Started | Queued | Repeated"], frozen=True, kw_only=True):
    """Accept one input: durable afterwards, started at once if the lane is free."""

    tenant: Tenant
    turn_id: TurnId
    run_id: RunId
    worker: WorkerId
    candidate_id: SessionId
    """The id of the session, should this accept have to make one."""
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
    """(after, upto): the log as the caller saw it, of which it keeps only what is `after`."""
    seen_seq: int | None = None
    """Where the settled log ended when `items` and `rewind` were worked out, if it matters."""
    parent: Parent | None = None
    """With `session_id`: go on behind this point; if it is not the head, in a fork of its own."""
    after_turn: int | None = None
    """The number of the session's last turn, behind which alone this one may come."""
    expected_id: SessionId | None = None
    """The session that the caller believes to be live; with any other nothing is stored."""
    same_as: tuple[TurnId, int] | None = None
    """The turn and step of this session that took these very tool outputs in before."""
    abandons: TurnId | None = None
    """The turn whose tool calls the client goes on without: its wait for them ends."""
    is_compared: bool = True
    """False if the input was not compared with the log; then it is refused if that may matter."""
    brought: ImportedPrefix | None = None
    """What becomes a turn of its own, completed, should the log be empty."""
    collect_seconds: float = 0.0
    """How long the turn waits for more of the same sender, also where the lane is free."""
    schedule: ScheduleClaim | None = None
    """The due time of a schedule that is claimed by this very commit."""
    limits: LaneLimits = LaneLimits()
    reset: ResetPolicy = NEVER


class Claim(Command["Started | Queued"], frozen=True, kw_only=True):
    """Start a queued turn, if the lane is free and the turn is next."""

    turn_id: TurnId
    run_id: RunId
    worker: WorkerId
    limits: LaneLimits = LaneLimits()


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A batch of a stream's events, packed; one that begins at 0 replaces the journal."""

    first: int
    last: int
    body: bytes


class Extend(Command[Session], frozen=True, kw_only=True):
    """Append finished items of a running turn, and remember its unfinished ones."""

    fence: Fence
    items: tuple[NewItem, ...] = ()
    after_seq: int | None = None
    """The head that the items follow; those of them that are in the log by now are not added."""
    partial: tuple[NewItem, ...] | None = None
    journal: JournalEntry | None = None
    shown_records: int | None = None  # as in `Finish`
    provider_state: ProviderState | None = None
    """What the provider has stored, where the items are a model's whole answer."""
    usage: Usage | None = None
    """What that answer cost."""
    merges: tuple[TurnId, ...] = ()
    """Waiting turns whose input joins the running one, behind the items."""
    outbox: tuple[OutboxMessage, ...] = ()
    """What a channel sends meanwhile."""
    tenant: Tenant | None = None  # with a key: the items are a batch that counts once by it
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class StoredCompletion(msgspec.Struct, frozen=True, gc=False):
    """That a chat completion is to be listed, under this model and metadata."""

    model: str
    metadata: bytes


class Finish(Command["Ended"], frozen=True, kw_only=True):
    """End a run with its items, its answer and its provider state, all or nothing."""

    fence: Fence
    outcome: Outcome
    items: tuple[NewItem, ...] = ()
    after_seq: int | None = None
    """The head that the items follow; those of them that are in the log by now are not added."""
    partial: tuple[NewItem, ...] = ()
    result: bytes | None = None
    usage: Usage | None = None
    counted: Usage | None = None
    """The part of `usage` that earlier writes of the run have counted."""
    error_code: str | None = None
    error_message: str | None = None
    is_retryable: bool = False
    provider_state: ProviderState | None = None
    shown_records: int | None = None
    """The last record that the model was shown the log by; newer ones may void what it made."""
    completion: StoredCompletion | None = None
    pending_calls: tuple[str, ...] = ()
    """Calls that the client's own tools must answer; the lane is kept for them."""
    hold_seconds: float = 120.0
    heals: bytes | None = None
    journal: JournalEntry | None = None
    refused_from: int | None = None
    """The first item of the input that the provider refused: the model is not shown it again."""
    left_out: tuple[int, ...] = ()
    """Earlier items that were refused: this run was answered without them."""
    history_hash: bytes = b""
    """Of the whole history, this answer included, where later requests may repeat it."""
    successor: Successor | None = None
    """The next turn of this process; it starts in the same commit if it is first in the queue."""
    outbox: tuple[OutboxMessage, ...] = ()
    """The parts of the answer that a channel sends, in order."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The run as it ended, and the start of its successor, if there was one."""

    turn: Turn
    session: Session
    run: Run
    successor: Started | None = None


class Cancel(Command[Turn], frozen=True, kw_only=True):
    """End a turn that has not ended; one that has stays as it is."""

    tenant: Tenant
    turn_id: TurnId
    reason: str = "cancelled"
    outcome: Outcome = "cancelled"
    code: str = "turn_cancelled"
    only_if_queued: bool = False
    is_retryable: bool = False


class RequestStop(Command[bool], frozen=True, kw_only=True):
    """Ask the worker of a running turn to end it with what was shown; answer whether it runs."""

    tenant: Tenant
    turn_id: TurnId
    code: str
    caller: bytes | None = None
    """The hash of the API key that asks: then the run ends only if its client stopped reading."""


class AnnotateCompletion(Command[CompletionRow], frozen=True, kw_only=True):
    """Set a stored completion's metadata."""

    tenant: Tenant
    turn_id: TurnId
    step: int
    metadata: bytes


class DropProviderState(Command[Session], frozen=True, kw_only=True):
    """Forget what a provider refused; only the current run may."""

    fence: Fence
    slot: str | None = None


class DropResponse(Command[bool], frozen=True, kw_only=True):
    """Delete what one step of a turn answered: no longer to be read, nor to be continued."""

    tenant: Tenant
    turn_id: TurnId
    step: int


class MarkDelivered(Command[None], frozen=True, kw_only=True):
    """Note that the answers of these steps of turns have reached their clients."""

    steps: tuple[tuple[TurnId, int], ...]


class RecordHeal(Command[Session], frozen=True, kw_only=True):
    """Write down what was done about a provider's failure, and drop the state that it refused.

    `number` is how many heals of the run came before; the same one is written once.
    """

    fence: Fence
    number: int = 0
    heal: Heal
    drops_state: bool = False
    slot: str | None = None
