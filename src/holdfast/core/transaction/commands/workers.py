"""Commands about workers: renew a lease, expire a dead worker, recover what it left."""

import msgspec

from holdfast.core.ids import RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.session import Session
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
