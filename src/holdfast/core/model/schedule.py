"""Schedules: what runs when, and how far each one is."""

from typing import Literal

import msgspec

from holdfast.core.ids import SessionId, Tenant, TurnId

MAX_FAILURES = 5
"""Failures in a row after which a schedule pauses."""
ISOLATED = "isolated"
RESERVED_PREFIX = "cron:"
"""Begins the keys of isolated runs; no client may name one."""


class DeliverTo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The chat that the answer of a run goes to."""

    channel: str
    to: str
    thread: str = ""


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator wrote: exactly one of `cron`, `every` and `at` says when."""

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
    """A schedule and how far it is."""

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
    """The due time that a turn is accepted for, and the one behind it."""

    schedule_id: str
    scheduled_at: float
    expected_at: float
    """The `next_run_at` that was read; with any other nothing is stored."""
    next_run_at: float | None


read_spec = msgspec.json.Decoder(ScheduleSpec).decode
write_spec = msgspec.json.Encoder().encode
