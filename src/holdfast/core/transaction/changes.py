"""Facts to be written: a decision is a list of these and what to answer.

Each change is one row of one table, so a store needs one statement for each of them.
"""

from typing import Generic, Literal, TypeVar

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.history.history_hash import ItemPlaceRow, TrailRow
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn

OutcomeT = TypeVar("OutcomeT")
Part = Literal["log", "lane", "all"]
"""How much of a session's row changes: what an append changes, what a run does, or anything."""
TurnPart = Literal["block", "end", "all"]
"""How much of a turn's row changes: where its items are, how it ended with them, or anything."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """A fact of a session, numbered per session, for those who follow it."""

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


class TrailAdded(msgspec.Struct, frozen=True, gc=False):
    """Where a history ends that a later request may repeat."""

    row: TrailRow


class ItemPlaced(msgspec.Struct, frozen=True, gc=False):
    """Where an item is that a later request may refer to."""

    row: ItemPlaceRow


class SessionAdded(msgspec.Struct, frozen=True, gc=False):
    session: Session


class SessionSaved(msgspec.Struct, frozen=True, gc=False):
    """The session row, written only if it still has the version the decision was made on."""

    session: Session
    read_version: int
    part: Part = "all"
    """What may have changed; indexes of anything else need not be visited."""


class TurnAdded(msgspec.Struct, frozen=True, gc=False):
    turn: Turn


class TurnSaved(msgspec.Struct, frozen=True, gc=False):
    turn: Turn
    part: TurnPart = "all"
    """What may have changed; the rest is left as it is, for those who write it without a fence."""


class RunAdded(msgspec.Struct, frozen=True, gc=False):
    run: Run


class RunSaved(msgspec.Struct, frozen=True, gc=False):
    run: Run


class ItemsAdded(msgspec.Struct, frozen=True, gc=False):
    items: tuple[StoredItem, ...]


class RecordAdded(msgspec.Struct, frozen=True, gc=False):
    record: Record


class EventAdded(msgspec.Struct, frozen=True, gc=False):
    event: Event


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
    """Everything a session said, was answered or produced; ids and ends remain."""

    session_id: SessionId


class ItemErased(msgspec.Struct, frozen=True, gc=False):
    """One item's content, blanked for good."""

    session_id: SessionId
    seq: int
    body: bytes


class SummariesErased(msgspec.Struct, frozen=True, gc=False):
    """Every summary of a range that has to do with the one given: it tells what was erased."""

    session_id: SessionId
    from_seq: int
    to_seq: int


class JournalAdded(msgspec.Struct, frozen=True, gc=False):
    """A batch of a stream; the first one takes the place of an earlier attempt's journal."""

    row: JournalRow


class ResponseDropped(msgspec.Struct, frozen=True, gc=False):
    """A response that may no longer be read, and its journal with it."""

    turn_id: TurnId
    step: int
    session_id: SessionId
    at: float


Change = (
    SessionAdded
    | SessionSaved
    | TurnAdded
    | TurnSaved
    | RunAdded
    | RunSaved
    | ItemsAdded
    | RecordAdded
    | EventAdded
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
    | TrailAdded
    | ItemPlaced
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
