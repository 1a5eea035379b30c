"""Commands about a transcript without a run of ours: append, pop, hide, compact."""

import msgspec

from holdfast.core.compaction.records import CompactionRecord, Elision
from holdfast.core.ids import Key, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.records import RecordKind
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Fence, Source, Turn
from holdfast.core.transaction.commands.command import Command, LaneLimits


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
    """Where the items are in the log: they are the last ones of their turn."""

    session: Session
    turn: Turn
    is_repeat: bool = False  # if so, others may have come since


class AppendBatch(Command["Appended"], frozen=True, kw_only=True):
    """Append a batch to the block of a turn that an external loop runs.

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
    expected_id: SessionId | None = None
    """The session that the caller believes to be live; with any other nothing is stored."""
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
    compaction: CompactionRecord | None = None
    elision: Elision | None = None
    shown_records: int | None = None  # as in `Finish`


class UndoCompaction(Command[Session], frozen=True, kw_only=True):
    """Show the log again as without the compaction; a second undo changes nothing."""

    tenant: Tenant
    session_id: SessionId
    compaction_id: str
