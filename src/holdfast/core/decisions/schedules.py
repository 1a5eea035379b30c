"""Schedules: due times are claimed by compare-and-set, in the commit that accepts their turn."""

from msgspec.structs import replace

from holdfast.core.errors import Conflict, HoldfastError, NotFound
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.model.schedule import (
    MAX_FAILURES,
    ScheduleRow,
    ScheduleRunRow,
    next_period,
)
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import (
    Change,
    Decision,
    OutboxAdded,
    ScheduleDropped,
    ScheduleRunDropped,
    ScheduleSaved,
    refuse,
)
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.outgoing import message_row


class ScheduleNotFound(NotFound):
    """No schedule has this name."""

    code = "schedule_not_found"


class ScheduleChanged(Conflict):
    """The due time was claimed, skipped or changed meanwhile."""

    code = "schedule_changed"


class ScheduleBusy(Conflict):
    """The schedule cannot run now: it is paused, or its last run is still in progress."""

    code = "schedule_busy"


def unclaimable(command: cmd.Accept, facts: Facts) -> HoldfastError | None:
    """Return an error if the due time of a scheduled turn is no longer the next one, or None."""
    claim = command.schedule
    if claim is None:
        return None
    row = facts.schedule
    if row is None or row.is_paused or row.next_run_at != claim.expected_at:
        return ScheduleChanged(f"schedule {claim.schedule_id} is not due at {claim.expected_at}")
    return None


def save_schedule(command: cmd.SaveSchedule, facts: Facts) -> Decision[ScheduleRow]:
    """Create or change a schedule."""
    stored = facts.schedule
    if stored is not None and stored.spec == command.spec:
        return Decision(stored)
    created_at = stored.created_at if stored is not None else facts.now
    next_run_at = command.next_run_at
    if command.period_seconds is not None:
        next_run_at = next_period(created_at, command.period_seconds, facts.now)
    if stored is not None:
        row = replace(
            stored, spec=command.spec, next_run_at=next_run_at, is_paused=False, reason="",
            failures=0, is_from_file=command.is_from_file,
        )  # fmt: skip
        return Decision(row, (ScheduleSaved(row, stored),))
    row = ScheduleRow(
        id=command.id, tenant=command.tenant, name=command.name, spec=command.spec,
        is_from_file=command.is_from_file, is_paused=False, reason="", failures=0,
        next_run_at=next_run_at, running_turn=None, created_at=created_at,
    )  # fmt: skip
    return Decision(row, (ScheduleSaved(row, None),))


def pause_schedule(command: cmd.PauseSchedule, facts: Facts) -> Decision[ScheduleRow]:
    """Pause or resume."""
    stored = facts.schedule
    if stored is None:
        return refuse(ScheduleNotFound(f"no schedule {command.name}"))
    if stored.is_paused == command.is_paused:
        return Decision(stored)
    row = replace(stored, is_paused=command.is_paused, reason="paused by an operator")
    if not command.is_paused:
        row = replace(row, next_run_at=command.next_run_at, reason="", failures=0)
    return Decision(row, (ScheduleSaved(row, stored),))


def delete_schedule(command: cmd.DeleteSchedule, facts: Facts) -> Decision[bool]:
    """Delete a schedule."""
    if facts.schedule is None:
        return Decision(command.again)
    return Decision(True, (ScheduleDropped(facts.schedule.id),))


def skip_run(command: cmd.SkipRun, facts: Facts) -> Decision[bool]:
    """Advance to the next due time without a run; a run that was not accepted counts as failed."""
    stored = facts.schedule
    if stored is None or stored.next_run_at != command.expected_at:
        is_done = stored is not None and stored.next_run_at == command.next_run_at
        return Decision(command.again and is_done)
    row = replace(stored, next_run_at=command.next_run_at, reason=command.reason)
    if command.is_failure:
        row = _count_failure(row)
    source = f"{stored.id}-{command.expected_at}"
    notices = _notices(stored, row, command.if_paused, source=source, now=facts.now)
    return Decision(True, (ScheduleSaved(row, stored), *notices))


def settle_run(command: cmd.SettleRun, facts: Facts) -> Decision[ScheduleRow | None]:
    """Record the end of a run and count consecutive failures."""
    stored = facts.schedule
    if stored is None or stored.running_turn != command.turn_id:
        return Decision(stored if command.again else None)
    reason = stored.reason if stored.is_paused else command.reason
    row = replace(stored, running_turn=None, reason=reason)
    if command.outcome == "completed":
        row = replace(row, failures=0)
    elif command.is_own_failure:
        row = _count_failure(row)
    changes: list[Change] = [ScheduleSaved(row, stored)]
    if facts.schedule_run is not None:
        run: ScheduleRunRow = replace(facts.schedule_run, outcome=command.outcome)
        changes.append(run)
    changes += _notices(stored, row, command.if_paused, source=command.turn_id, now=facts.now)
    return Decision(row, tuple(changes))


def _count_failure(row: ScheduleRow) -> ScheduleRow:
    """Count a failure; the fifth consecutive one pauses the schedule."""
    row = replace(row, failures=row.failures + 1)
    if row.failures < MAX_FAILURES or row.is_paused:
        return row
    reason = f"paused after {row.failures} failures in a row: {row.reason}"
    return replace(row, is_paused=True, reason=reason)


def _notices(
    schedule: ScheduleRow,
    row: ScheduleRow,
    messages: tuple[OutboxMessage, ...],
    *,
    source: str,
    now: float,
) -> list[Change]:
    """Return the messages to send because a schedule was paused."""
    if not row.is_paused or schedule.is_paused:
        return []
    return [
        OutboxAdded(
            message_row(
                message, tenant=schedule.tenant, source=f"pause_{source}-{index}", part=0, now=now
            )
        )
        for index, message in enumerate(messages)
    ]


def forget_run(command: cmd.ForgetRun, _: Facts) -> Decision[None]:
    """Delete a run."""
    return Decision(None, (ScheduleRunDropped(command.id, command.scheduled_at),))
