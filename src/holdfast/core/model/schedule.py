"""Schedules: what runs when, and the state of each one."""

from typing import Literal

import msgspec

from holdfast.core.ids import SessionId, Tenant, TurnId

MAX_FAILURES = 5
"""Consecutive failures after which a schedule pauses."""
ISOLATED = "isolated"
RESERVED_PREFIX = "cron:"
"""The prefix of the keys of isolated runs; clients cannot use it."""


class DeliverTo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The chat that receives the answer of a run."""

    channel: str
    to: str
    thread: str = ""


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration of a schedule; exactly one of `cron`, `every` and `at` is set."""

    name: str
    prompt: str
    cron: str = ""
    every: str = ""
    at: str = ""
    timezone: str = "UTC"
    model: str = ""
    instructions: str = ""
    tools: tuple[str, ...] = ()
    session: str = ISOLATED
    deliver: DeliverTo | None = None
    missed: Literal["once", "skip"] = "once"
    timeout_seconds: float = 3600.0
    keep_runs: int = 20


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and its state."""

    id: str
    tenant: Tenant
    name: str
    spec: bytes
    is_from_file: bool
    is_paused: bool
    reason: str
    """Why it is paused, or what happened to its last due time."""
    failures: int
    next_run_at: float | None
    running_turn: TurnId | None
    created_at: float


class ScheduleRunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a schedule; `outcome` is empty until it has ended."""

    schedule_id: str
    scheduled_at: float
    turn_id: TurnId
    session_id: SessionId | None
    outcome: str


class ScheduleClaim(msgspec.Struct, frozen=True):
    """The due time that a turn is accepted for, and the next one."""

    schedule_id: str
    scheduled_at: float
    expected_at: float
    """The `next_run_at` that was read; if it has changed, nothing is stored."""
    next_run_at: float | None


def next_period(created_at: float, period_seconds: float, after: float) -> float:
    """Return the first whole period since `created_at` that ends after `after`."""
    return created_at + max(int((after - created_at) // period_seconds) + 1, 1) * period_seconds


read_spec = msgspec.json.Decoder(ScheduleSpec).decode
write_spec = msgspec.json.Encoder().encode
