"""Commands about workers: renew a lease, expire a dead worker, recover what it left."""

from holdfast.core.ids import RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands.command import Command, LaneLimits


class Recover(Command[Session], frozen=True, kw_only=True):
    """Settle what a gone worker left in one session."""

    session_id: SessionId
    worker: WorkerId
    forsaken: tuple[RunId | TurnId, ...] = ()
    """Runs and waiting turns of this worker that no task of it cares for: lost, though it lives."""
    limits: LaneLimits = LaneLimits()


class Renew(Command[float], frozen=True, kw_only=True):
    """Extend a worker's lease; answers when it ends, by the store's clock."""

    worker: WorkerId
    lease_seconds: float
    is_new: bool = False


class ExpireWorker(Command[bool], frozen=True, kw_only=True):
    """End a dead worker's lease for good. Answers whether it has ended."""

    worker: WorkerId
    alive_until: float | None = None
    """Its lease as it was judged: if it was renewed since, the worker lives, and is left alone."""
    drop: bool = False
