"""Convert rows of schedules to values, and changes to statements."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import astuple

from holdfast.core.model.schedule import ScheduleRow, ScheduleRunRow
from holdfast.core.transaction import changes as ch
from holdfast.stores.sql.plan import Ask, Row
from holdfast.stores.sql.schedules import statements as sql


def read_schedule(row: Row) -> ScheduleRow:
    """Return a schedule from its columns."""
    values = dict(zip(ScheduleRow.__struct_fields__, row, strict=True))
    values["spec"] = bytes(values["spec"])
    for name in ("is_from_file", "is_paused"):
        values[name] = bool(values[name])
    return ScheduleRow(**values)


def read_run(row: Row) -> ScheduleRunRow:
    """Return a run from its columns."""
    return ScheduleRunRow(**dict(zip(ScheduleRunRow.__struct_fields__, row, strict=True)))


def _save(change: ch.ScheduleSaved) -> Ask:
    row, before = change.row, change.before
    flags = (int(row.is_from_file), int(row.is_paused))
    if before is None:
        return sql.ADD_SCHEDULE, (
            row.id, row.tenant, row.name, row.spec, *flags, row.reason, row.failures,
            row.next_run_at, row.running_turn, row.created_at,
        )  # fmt: skip
    return sql.SAVE_SCHEDULE, (
        row.id, row.spec, *flags, row.reason, row.failures, row.next_run_at, row.running_turn,
        before.next_run_at if before.next_run_at is not None else -1.0, before.running_turn or "",
    )  # fmt: skip


WRITERS: dict[type, Callable[[Any], Ask]] = {
    ch.ScheduleSaved: _save,
    ch.ScheduleDropped: lambda change: (sql.DROP_SCHEDULE, astuple(change)),
    ScheduleRunRow: lambda row: (sql.SAVE_RUN, astuple(row)),
    ch.ScheduleRunDropped: lambda change: (sql.DROP_RUN, astuple(change)),
}
"""The statement that writes each change of a schedule."""
