"""Turns and their runs: a turn is one accepted input, a run is one attempt to answer it.

Only ends are stored. Whether an open turn is queued, running or waiting for the client's tools
follows from its session's lane, so no row can claim that a turn runs without an owner.
"""

from typing import Literal

import msgspec

from holdfast.core.ids import RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.session import Session, SessionSource

Source = SessionSource
Outcome = Literal["completed", "failed", "cancelled", "interrupted"]
TurnStatus = Literal[
    "queued", "running", "requires_action", "completed", "failed", "cancelled", "interrupted"
]
OnBusy = Literal["enqueue", "reject", "interrupt", "rollback", "steer"]
STEERING = -(10**9)
"""Added to the number of a turn that joins the running one, so that it is first in the queue."""

USER_ACTIVITY: frozenset[Source] = frozenset({"user", "console", "channel"})
"""Sources that count as user activity: behind each of them is a person."""
RUN_AGAIN: frozenset[Source] = frozenset({"console", "background", "cron", "channel"})
"""Sources without a waiting connection: their turns run again after a crash."""


def storable(message: str | None) -> str | None:
    """Return an error message as text that every store accepts, so that a turn can always end."""
    if message is None:
        return None
    return message.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class WorkerDeath(msgspec.Struct, frozen=True, gc=False):
    """How a worker ended that did not say goodbye."""

    at: float
    """When it was alive at the latest."""
    running: int
    """How many runs it had."""


class WorkerLosses(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The deaths of workers under a turn, for which it may be given up."""

    crashes: int = 0
    """Deaths that the turn may have caused."""
    deaths: int = 0
    """All deaths, whatever caused them."""
    place: int | None = None
    """How many items of the turn were finished at the last death."""
    stepped_at: float = 0.0
    """When the last step of the turn began that was not the first one of its run."""
    asked_again: int = 0
    """How often it was asked for again within an hour after it was given up."""
    asked_since: float = 0.0
    """When that hour began."""


NO_LOSSES = WorkerLosses()


class Turn(msgspec.Struct, frozen=True, gc=False):
    """The row of a turn. `input` is kept here until the turn starts and its items enter the log."""

    id: TurnId
    session_id: SessionId
    tenant: Tenant
    number: int
    position: int
    source: Source
    owner: WorkerId
    step: int = 0
    attempts: int = 0
    input: bytes | None = None
    request: bytes = b""
    body_hash: bytes | None = None
    rewind_after: int | None = None
    rewind_upto: int | None = None
    first_seq: int | None = None
    kept_seq: int | None = None
    last_seq: int | None = None
    outcome: Outcome | None = None
    error_code: str | None = None
    error_message: str | None = None
    is_retryable: bool = False
    accepted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    delivered_at: float | None = None
    retry_claim: int = 0
    merged_into: TurnId | None = None
    """The turn that was merged with this one and answered for both."""
    losses: WorkerLosses | None = None

    @property
    def is_open(self) -> bool:
        """Whether the turn has not ended."""
        return self.outcome is None

    def status(self, session: Session, *, has_live_owner: bool) -> TurnStatus:
        """Return the turn's state, given the lane of its session."""
        if self.outcome is not None:
            return self.outcome
        if session.active_turn_id != self.id:
            return "queued"
        if session.is_held:
            return "requires_action"
        return "running" if has_live_owner else "interrupted"


class Run(msgspec.Struct, frozen=True, gc=False):
    """The row of a run; its answer is the items `first_seq` to `last_seq`.

    `record_no` is the last record when it ended. `late` is what it tried to write after it had lost
    its session.
    """

    id: RunId
    turn_id: TurnId
    session_id: SessionId
    generation: int
    epoch: int
    worker: WorkerId
    step: int
    first_seq: int
    last_seq: int | None = None
    record_no: int | None = None
    outcome: Outcome | None = None
    error_code: str | None = None
    error_message: str | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    partial: bytes | None = None
    result: bytes | None = None
    heals: bytes | None = None
    late: bytes | None = None


class Successor(msgspec.Struct, frozen=True, gc=False):
    """The next owner of a lane: a waiting turn, and the id of the run that it starts."""

    turn_id: TurnId
    run_id: RunId


class Fence(msgspec.Struct, frozen=True, gc=False):
    """Identifies a run in each of its writes; the store checks it in the write's transaction."""

    session_id: SessionId
    generation: int
    run_id: RunId
    epoch: int

    def holds(self, session: Session | None) -> bool:
        """Whether the run still owns the session; every write requires it."""
        return (
            session is not None
            and session.deleted_at is None
            and session.is_live
            and session.generation == self.generation
            and session.epoch == self.epoch
            and session.active_run_id == self.run_id
        )
