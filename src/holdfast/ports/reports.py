"""Reports for operators about a whole store, across tenants: workers, lanes and usage."""

from typing import Literal, Protocol

import msgspec

from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.usage_sums import UsageSum
from holdfast.core.transaction.commands import SumUsage

Interval = Literal["day", "hour"]
INTERVAL_SECONDS: dict[Interval, int] = {"day": 86400, "hour": 3600}


class WorkerView(msgspec.Struct, frozen=True):
    """A worker, its lease, and how much work it has."""

    id: WorkerId
    started_at: float
    alive_until: float
    is_alive: bool
    runs: int
    waiting_turns: int


class LaneView(msgspec.Struct, frozen=True):
    """A lane in use: a run holds it, or a turn that waits for its client's tools."""

    session_id: SessionId
    tenant: Tenant
    key: Key | None
    turn_id: TurnId
    run_id: RunId | None
    worker: WorkerId | None
    hold_until: float | None
    waiting_turns: int
    since: float | None


class UsageReport(msgspec.Struct, frozen=True):
    """Usage in a time range of whole hours, oldest first."""

    rows: list[UsageSum]
    since: int
    until: int
    complete_until: float | None = None
    """Until when everything is counted; None if that is now."""

    @property
    def is_complete(self) -> bool:
        """Whether everything in the range is counted."""
        return self.complete_until is None or self.complete_until >= self.until


class UsageSums(Protocol):
    """Sums of usage, which a follower of the log adds up."""

    async def read_backlog(self, worker: WorkerId, limit: int) -> SumUsage | None:
        """Return the command that adds up the next entries, or None if there are none."""
        ...

    async def backlog(self) -> int:
        """Return how many positions of the log are not added up yet."""
        ...

    async def report(self, since: float, until: float, interval: Interval) -> UsageReport:
        """Return usage by interval, tenant and model.

        Its cost grows with its result. What is not added up yet is counted too, up to a limit.
        """
        ...


class Reports(Protocol):
    """Reads across all tenants; the cost of each grows with its result."""

    async def workers(self) -> list[WorkerView]:
        """Return the workers, including dead ones that were not removed yet."""
        ...

    async def lanes(self, limit: int) -> list[LaneView]:
        """Return lanes in use, those with the most waiting turns first."""
        ...

    async def usage(self, since: float, until: float, interval: Interval) -> UsageReport:
        """Return usage by interval, tenant and model."""
        ...
