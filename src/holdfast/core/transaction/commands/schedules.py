"""Commands of schedules: save, pause, skip a due time, settle a run."""

from holdfast.core.ids import Tenant, TurnId
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.model.schedule import ScheduleRow
from holdfast.core.transaction.commands.command import Command


class SaveSchedule(Command[ScheduleRow], frozen=True, kw_only=True):
    """Create a schedule, or change the one of this name; an unchanged one stays as it is."""

    id: str
    tenant: Tenant
    name: str
    spec: bytes
    next_run_at: float | None
    period_seconds: float | None = None
    """The period of `every`: its next time is counted from the creation, by the store's clock."""
    is_from_file: bool = False


class PauseSchedule(Command[ScheduleRow], frozen=True, kw_only=True):
    """Pause a schedule, or resume it with its next due time."""

    tenant: Tenant
    name: str
    is_paused: bool
    next_run_at: float | None = None


class DeleteSchedule(Command[bool], frozen=True, kw_only=True):
    """Delete a schedule; its runs and sessions stay."""

    tenant: Tenant
    name: str


class SkipRun(Command[bool], frozen=True, kw_only=True):
    """Skip a due time and record why. False if it was not the next one."""

    id: str
    expected_at: float | None
    next_run_at: float | None
    reason: str
    is_failure: bool = False
    """Whether the run was rejected: the fifth consecutive failure pauses the schedule."""
    if_paused: tuple[OutboxMessage, ...] = ()
    """Messages to send if this pauses the schedule."""


class SettleRun(Command[ScheduleRow | None], frozen=True, kw_only=True):
    """Record how a run ended; the fifth consecutive failure pauses the schedule."""

    id: str
    turn_id: TurnId
    outcome: str
    reason: str = ""
    if_paused: tuple[OutboxMessage, ...] = ()
    """Messages to send if this pauses the schedule."""
    is_own_failure: bool = True
    """Whether a failure is the run's own; a run that lost its workers counts for nothing."""


class ForgetRun(Command[None], frozen=True, kw_only=True):
    """Delete a run whose session was deleted."""

    id: str
    scheduled_at: float
