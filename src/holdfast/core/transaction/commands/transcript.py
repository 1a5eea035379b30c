"""Commands about a transcript without a run of the gateway: append, pop, hide, compact."""

import msgspec

from holdfast.core.compaction.records import CompactionRecord, Elision
from holdfast.core.ids import Key, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.records import RecordKind
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Fence, Source, Turn
from holdfast.core.transaction.commands.command import Command, LaneLimits


class Append(Command["Appended"], frozen=True, kw_only=True):
    """Append items as one completed turn; refused if a turn runs or waits."""

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
    """The metadata of the session, if this command creates it."""
    limits: LaneLimits = LaneLimits()


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The turn that has the items, as its last ones."""

    session: Session
    turn: Turn
    is_repeat: bool = False  # then later items may follow


class AppendBatch(Command["Appended"], frozen=True, kw_only=True):
    """Append a batch to the block of a turn that an external loop runs.

    The first batch starts the turn. The same (turn, ordinal) is added once. A turn stays in the
    session in which it started, even if that is retired; a turn may also start in a retired session
    that is named by its id.
    """

    tenant: Tenant
    turn_id: TurnId
    ordinal: int
    """The number of the batch within its turn, from 0."""
    worker: WorkerId
    candidate_id: SessionId
    key: Key | None = None
    session_id: SessionId | None = None
    items: tuple[NewItem, ...] = ()
    source: Source = "user"
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    spare_turn_id: TurnId | None = None
    """If later items follow the turn's block, start a turn of this id instead of moving the
    block."""
    known: Appended | None = None
    """The result of the previous batch; if the session has not changed since, nothing is read."""
    expected_id: SessionId | None = None
    """The session that the caller expects to be live; with any other nothing is stored."""
    replaces_upto: int | None = None
    """Replace everything visible up to this item, which must be the head, by these items."""
    limits: LaneLimits = LaneLimits()


class Pop(Command["Popped"], frozen=True, kw_only=True):
    """Hide the last visible item by a record; the same `pop_id` hides only one."""

    tenant: Tenant
    session_id: SessionId
    pop_id: str


class Popped(msgspec.Struct, frozen=True):
    """The item that was hidden, or None if there was none."""

    session: Session
    item: StoredItem | None


class Hide(Command[Session], frozen=True, kw_only=True):
    """Hide a range of the log from the view; with `erase`, blank its content for good."""

    tenant: Tenant
    session_id: SessionId
    from_seq: int
    to_seq: int
    kind: RecordKind = "hide"
    erase: bool = False
    also: tuple[int, ...] = ()
    """Items outside the range that go with it, such as the call of an output."""


class Compact(Command[Session], frozen=True, kw_only=True):
    """Record the summary that replaces the log up to an item, and which outputs are truncated.

    The range is explicit: items that are added while the summary is written stay as they are.
    """

    fence: Fence
    to_seq: int = 0
    compaction: CompactionRecord | None = None
    elision: Elision | None = None
    shown_records: int | None = None  # as in `Finish`


class UndoCompaction(Command[Session], frozen=True, kw_only=True):
    """Show the log as before the compaction; a second undo changes nothing."""

    tenant: Tenant
    session_id: SessionId
    compaction_id: str
