"""What can be asked of a store. Each command is one transaction and is safe to send twice.

Ids arrive with the command, minted by the caller: after an unknown outcome the same command is
sent again with `again` set, and answers what the first one did.
"""

from typing import Generic, TypeVar

import msgspec

from holdfast.core.compaction.records import Compaction, Elision
from holdfast.core.healing.policy import Heal
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.import_rows import Imported, Order, PastTurn
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.records import RecordKind
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.session import Session, Usage
from holdfast.core.model.turn import Fence, OnBusy, Outcome, Run, Source, Successor, Turn
from holdfast.core.transaction.changes import ApiKeyRow, CompletionRow

OutcomeT = TypeVar("OutcomeT", covariant=True)


class Command(msgspec.Struct, Generic[OutcomeT], frozen=True, kw_only=True):
    """One transaction, answered with an `OutcomeT` or refused with an error."""

    again: bool = False


class LaneLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one lane."""

    max_waiting: int = 64
    max_attempts: int = 3
    max_tenant_turns: int = 0
    """Turns of one tenant that may be open at a time, in all its sessions; zero means any."""
    full_bytes: int = 0
    """The bound on what the tenant may store, if it has reached it."""
    can_run_again: bool = False
    """Whether this worker has a handler for turns that nobody waits for on a socket."""


class Started(msgspec.Struct, frozen=True, gc=False):
    """The turn has the lane; `fence` is what its writes must carry."""

    turn: Turn
    session: Session
    run: Run
    fence: Fence
    is_rolled_over: bool = False


class Queued(msgspec.Struct, frozen=True):
    """The turn waits. Look again when woken, and no later than `look_again_at`."""

    turn: Turn
    session: Session
    look_again_at: float | None = None
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
    """Where an earlier answer ended: a new turn goes on there, in place or as a fork."""

    seq: int
    record_no: int


class Brought(msgspec.Struct, frozen=True, gc=False):
    """A history that a first request brings: its first `count` items, complete in themselves."""

    turn_id: TurnId
    count: int
    trail: bytes = b""


class Accept(Command["Started | Queued | Repeated"], frozen=True, kw_only=True):
    """Take in one input: durable afterwards, and started at once where the lane is free."""

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
    same_as: tuple[TurnId, int] | None = None
    """The turn and step of this session that took these very tool outputs in before."""
    brought: Brought | None = None
    """What becomes a turn of its own, completed, should the log be empty."""
    limits: LaneLimits = LaneLimits()
    reset: ResetPolicy = NEVER


class Claim(Command["Started | Queued"], frozen=True, kw_only=True):
    """Start a queued turn, if the lane is free and the turn is next."""

    turn_id: TurnId
    run_id: RunId
    worker: WorkerId
    limits: LaneLimits = LaneLimits()


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A batch of a stream's events, packed; one that begins at 0 begins the journal anew."""

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
    tenant: Tenant | None = None  # with a key: the items are a batch that counts once by it
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class StoredCompletion(msgspec.Struct, frozen=True, gc=False):
    """That a chat completion is to be listed, under this model and metadata."""

    model: str
    metadata: bytes


class Finish(Command["Ended"], frozen=True, kw_only=True):
    """End a run, its items, its answer and what its provider remembers, all or nothing."""

    fence: Fence
    outcome: Outcome
    items: tuple[NewItem, ...] = ()
    after_seq: int | None = None
    """The head that the items follow; those of them that are in the log by now are not added."""
    partial: tuple[NewItem, ...] = ()
    result: bytes | None = None
    usage: Usage | None = None
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
    trail: bytes = b""
    """Of the whole history, this answer included, where later requests may repeat it."""
    successor: Successor | None = None
    """Who waits in this process and begins in the same commit, if nobody stands before it."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The run's end, as recorded, and the beginning of its successor's, if there was one."""

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


class Reset(Command[Session], frozen=True, kw_only=True):
    """Retire the live generation and begin the next one under the same key."""

    tenant: Tenant
    session_id: SessionId
    new_id: SessionId
    expected_id: SessionId | None = None
    reason: str = "session_reset"
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class Restore(Command[Session], frozen=True, kw_only=True):
    """Make an old generation live again, and retire the one that was."""

    tenant: Tenant
    session_id: SessionId


class Delete(Command[Session], frozen=True, kw_only=True):
    """Erase a session and leave a tombstone; with `idle_seconds`, if it was idle for so long."""

    tenant: Tenant
    session_id: SessionId
    cascade: bool = False
    idle_seconds: float | None = None


class Prune(Command[bool], frozen=True, kw_only=True):
    """Forget old journals of ended turns, idempotency keys and events; is there more of them?"""

    worker: WorkerId
    older_than_seconds: float


class Fork(Command[Session], frozen=True, kw_only=True):
    """Begin a keyless session that shares this one's history up to a point."""

    tenant: Tenant
    session_id: SessionId
    new_id: SessionId
    after_seq: int | None = None
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class Append(Command["Appended"], frozen=True, kw_only=True):
    """Add items with no run, as one short turn, if nothing runs or waits; else be refused."""

    tenant: Tenant
    turn_id: TurnId
    worker: WorkerId
    candidate_id: SessionId
    key: Key | None = None
    session_id: SessionId | None = None
    items: tuple[NewItem, ...] = ()
    source: Source = "system"
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    retry_count: int = 0
    metadata: bytes = b"{}"
    """Of the session, should this append have to make one."""
    limits: LaneLimits = LaneLimits()


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where the items stand now: they are the last ones of their turn."""

    session: Session
    turn: Turn
    is_repeat: bool = False  # if so, others may have come since


class Continue(Command["Appended"], frozen=True, kw_only=True):
    """Add a batch to a turn whose run is somebody else's, at its block, in one piece.

    The first batch begins the turn. The same (turn, ordinal) is added once. A turn stays in the
    session it began in, also when that is retired; named by its id, one may begin there too.
    """

    tenant: Tenant
    turn_id: TurnId
    ordinal: int
    """The number of the batch in its turn, from 0."""
    worker: WorkerId
    candidate_id: SessionId
    key: Key | None = None
    session_id: SessionId | None = None
    items: tuple[NewItem, ...] = ()
    source: Source = "user"
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    spare_turn_id: TurnId | None = None
    """Where others came behind the turn, begin another one of this id instead of moving it."""
    known: Appended | None = None
    """How the batch before left the turn and its session: unless that moved, nothing is read."""
    replaces_upto: int | None = None
    """These items take the place of all that is visible up to here, the head as it was seen."""


class Pop(Command["Popped"], frozen=True, kw_only=True):
    """Take the last visible item out of the view, by a record; the same `pop_id` takes one."""

    tenant: Tenant
    session_id: SessionId
    pop_id: str


class Popped(msgspec.Struct, frozen=True):
    """The item that was taken out, if there was one."""

    session: Session
    item: StoredItem | None


class Reserve(Command[Session], frozen=True, kw_only=True):
    """Return the live session of a key, making it, with its empty log, if there is none."""

    tenant: Tenant
    candidate_id: SessionId
    key: Key | None = None
    metadata: bytes = b"{}"


class Import(Command[Imported], frozen=True, kw_only=True):
    """Take over a session from elsewhere, under an id that the same source always gives it.

    What was erased here, reset here or continued here stays as it is: the past of another place
    is older than anything that was done in this one.
    """

    tenant: Tenant
    session_id: SessionId
    key: Key | None = None
    generation: int = 1
    """Its number where it comes from: the least that it gets here."""
    turns: tuple[PastTurn, ...] = ()
    order: Order = ()
    """The blocks of the log; where there are none, each turn is one, in their own order."""
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of the log that the model is not to be shown."""
    follows: tuple[SessionId, ...] = ()
    """The earlier generations of the key in the same source, the nearest last."""
    is_live: bool = True
    metadata: bytes = b"{}"
    created_at: float | None = None
    last_user_activity_at: float | None = None
    usage: Usage | None = None
    is_dry_run: bool = False
    """Only say what would be done."""


class Hide(Command[Session], frozen=True, kw_only=True):
    """Hide a range of the log from the view; with `erase`, blank its content for good."""

    tenant: Tenant
    session_id: SessionId
    from_seq: int
    to_seq: int
    kind: RecordKind = "hide"
    erase: bool = False


class Compact(Command[Session], frozen=True, kw_only=True):
    """Record what stands for the log up to an item, and which outputs are shown short.

    The range is explicit: what comes behind it while a summary is made stays as it is.
    """

    fence: Fence
    to_seq: int = 0
    compaction: Compaction | None = None
    elision: Elision | None = None
    shown_records: int | None = None  # as in `Finish`


class UndoCompaction(Command[Session], frozen=True, kw_only=True):
    """Have the log shown again as if a compaction had not been; undone twice, it is undone."""

    tenant: Tenant
    session_id: SessionId
    compaction_id: str


class Annotate(Command[Session], frozen=True, kw_only=True):
    """Set a session's metadata."""

    tenant: Tenant
    session_id: SessionId
    metadata: bytes


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


class ForgetState(Command[Session], frozen=True, kw_only=True):
    """Forget what providers remember for a session, while nothing runs in it."""

    tenant: Tenant
    session_id: SessionId


class DropResponse(Command[bool], frozen=True, kw_only=True):
    """Delete what one step of a turn answered: no longer to be read, nor to be continued."""

    tenant: Tenant
    turn_id: TurnId
    step: int


class Deliver(Command[None], frozen=True, kw_only=True):
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


class AddApiKey(Command[ApiKeyRow], frozen=True, kw_only=True):
    """Record a key by its hash; from then on every request needs a key."""

    id: str
    tenant: Tenant
    hash: bytes
    name: str = ""
    is_admin: bool = False


class RevokeApiKey(Command[ApiKeyRow], frozen=True, kw_only=True):
    """Close a key for good."""

    id: str


class Recover(Command[Session], frozen=True, kw_only=True):
    """Settle what a gone worker left in one session."""

    session_id: SessionId
    worker: WorkerId
    forsaken: tuple[RunId | TurnId, ...] = ()
    """Runs and waiting turns of this worker that no task of it cares for: lost, though it lives."""
    limits: LaneLimits = LaneLimits()


class Renew(Command[float], frozen=True, kw_only=True):
    """Say that a worker is alive for so long; answers until when, by the store's clock."""

    worker: WorkerId
    lease_seconds: float
    is_new: bool = False


class Bury(Command[bool], frozen=True, kw_only=True):
    """Say that a worker is gone: its lease is over for good. Answers whether it is."""

    worker: WorkerId
    alive_until: float | None = None
    """Its lease as it was judged: if it was renewed since, the worker lives, and is left alone."""
    drop: bool = False
