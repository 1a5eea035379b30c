"""Reports for operators about a whole store, across tenants: workers, lanes and usage."""

from typing import Literal, Protocol

import msgspec

from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId

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


class UsageRow(msgspec.Struct):
    """The usage of one model by one tenant in one interval."""

    start: int
    tenant: str
    model: str
    turns: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    interrupted: int = 0
    runs: int = 0
    heals: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    latencies_ms: list[int] = []
    """The durations of completed turns, from start to end, sorted."""


class UsageReport(msgspec.Struct, frozen=True):
    """Usage in a time range; `is_complete` is False if there was too much to count."""

    rows: list[UsageRow]
    is_complete: bool = True
    next_since: float | None = None
    """Where the next report continues: every interval before it is complete."""


class Reports(Protocol):
    """Reads across all tenants; the cost of each grows with its result."""

    async def workers(self) -> list[WorkerView]:
        """Return the workers, including dead ones that were not removed yet."""
        ...

    async def lanes(self, limit: int) -> list[LaneView]:
        """Return lanes in use, those with the most waiting turns first."""
        ...

    async def usage(self, since: float, until: float, interval: Interval) -> UsageReport:
        """Return usage by interval, tenant and model, oldest first.

        A report that cannot count everything ends with a complete interval if there is one.
        """
        ...
