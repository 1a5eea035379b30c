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
    """Say that a worker is alive for so long; answers until when, by the store's clock."""

    worker: WorkerId
    lease_seconds: float
    is_new: bool = False


class ExpireWorker(Command[bool], frozen=True, kw_only=True):
    """Say that a worker is gone: its lease is over for good. Answers whether it is."""

    worker: WorkerId
    alive_until: float | None = None
    """Its lease as it was judged: if it was renewed since, the worker lives, and is left alone."""
    drop: bool = False
