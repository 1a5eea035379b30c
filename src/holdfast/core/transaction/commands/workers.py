"""Commands of workers: renew a lease, expire a dead worker, recover its work, follow the log."""

import msgspec

from holdfast.core.ids import RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.session import Session
from holdfast.core.model.usage_sums import UsageSum
from holdfast.core.transaction.commands.command import Command, LaneLimits


class Recovered(msgspec.Struct, frozen=True):
    """A session after its recovery."""

    session: Session
    is_from_worker: bool
    """Whether a worker had left something in it; otherwise at most a wait for tools was over."""


class Recover(Command[Recovered], frozen=True, kw_only=True):
    """End or adopt what a dead worker left in one session."""

    session_id: SessionId
    worker: WorkerId
    forsaken: tuple[RunId | TurnId, ...] = ()
    """Runs and waiting turns of this live worker that have no task any more."""
    limits: LaneLimits = LaneLimits()


class Renew(Command[float], frozen=True, kw_only=True):
    """Extend a worker's lease; return when it ends, by the store's clock."""

    worker: WorkerId
    lease_seconds: float
    is_new: bool = False


class ExpireWorker(Command[bool], frozen=True, kw_only=True):
    """End a dead worker's lease for good; return whether it has ended."""

    worker: WorkerId
    alive_until: float | None = None
    """The end of its lease when it was judged dead; if it was renewed since, the worker is
    alive."""
    drop: bool = False


LogPosition = tuple[int, int]
"""Transaction and position of an entry: the order in which followers see the log."""


class IndexedItem(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An item in the index."""

    pos: int
    """The position of its entry in the log."""
    back: int
    """How many items of the entry follow it."""
    terms: str
    """The terms, separated by blanks."""
    at: float


class RemovedItems(msgspec.Struct, frozen=True, gc=False):
    """A range of a session's items that was erased, by the entry with the number `n`."""

    session: int
    n: int
    from_seq: int
    to_seq: int


class ActiveSession(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """When a session was last active; `session` is the session's number in the log."""

    session: int
    tenant: Tenant
    at: float


class IndexLog(Command[bool], frozen=True, kw_only=True):
    """Index the entries between two positions; return whether this command indexed them.

    False if another follower was first: the caller reads the position again.
    """

    worker: WorkerId
    after: LogPosition
    upto: LogPosition
    items: tuple[IndexedItem, ...] = ()
    active: tuple[ActiveSession, ...] = ()
    removed: tuple[RemovedItems, ...] = ()
    deleted: tuple[int, ...] = ()
    """Sessions that were deleted, by their numbers in the log."""
    has_more: bool = False
    """Whether the batch was full, so that more entries may follow at once."""


class SumUsage(Command[bool], frozen=True, kw_only=True):
    """Add what the entries between two positions used; return whether this command added it.

    False if another follower was first: the caller reads the position again.
    """

    worker: WorkerId
    after: LogPosition
    upto: LogPosition
    sums: tuple[UsageSum, ...] = ()
    """By hour, tenant and model."""
    has_more: bool = False
    """Whether the batch was full, so that more entries may follow at once."""
