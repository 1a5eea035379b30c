"""Every statement about schedules, with the reason it is there."""

from holdfast.stores.sql.plan import Statement

_COLUMNS = (
    "id, tenant, name, spec, is_from_file, is_paused, reason, failures, next_run_at, "
    "running_turn, created_at"
)
ADD_SCHEDULE = Statement(
    "add_schedule",
    f"insert into schedules ({_COLUMNS}) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
)
# Compare-and-set on the due time and the run: only one of two workers claims a due time.
SAVE_SCHEDULE = Statement(
    "save_schedule",
    "update schedules set spec = ?2, is_from_file = ?3, is_paused = ?4, reason = ?5, "
    "failures = ?6, next_run_at = ?7, running_turn = ?8 where id = ?1 "
    "and coalesce(next_run_at, -1) = ?9 and coalesce(running_turn, '') = ?10",
    is_fenced=True,
)
DROP_SCHEDULE = Statement("drop_schedule", "delete from schedules where id = ?1")
SCHEDULE_BY_ID = Statement("schedule_by_id", f"select {_COLUMNS} from schedules where id = ?1")
SCHEDULE_BY_NAME = Statement(
    "schedule_by_name", f"select {_COLUMNS} from schedules where tenant = ?1 and name = ?2"
)
SCHEDULES = Statement("schedules", f"select {_COLUMNS} from schedules order by tenant, name")
SCHEDULES_UPWARDS = Statement(
    "schedules_upwards",
    f"select {_COLUMNS} from schedules where tenant = ?1 and (?2 = '' or name > ?2) "
    "order by name limit ?3",
)
SCHEDULES_DOWNWARDS = Statement(
    "schedules_downwards",
    f"select {_COLUMNS} from schedules where tenant = ?1 and (?2 = '' or name < ?2) "
    "order by name desc limit ?3",
)
# What the scheduler has to check: due times, and runs that may have ended.
ACTIVE_SCHEDULES = Statement(
    "active_schedules",
    f"select {_COLUMNS} from schedules where running_turn is not null "
    "or (is_paused = 0 and next_run_at <= ?1) order by next_run_at, id",
)
SAVE_RUN = Statement(
    "save_schedule_run",
    "insert into schedule_runs (schedule_id, scheduled_at, turn_id, session_id, outcome) "
    "values (?1, ?2, ?3, ?4, ?5) on conflict (schedule_id, scheduled_at) "
    "do update set outcome = excluded.outcome, turn_id = excluded.turn_id, "
    "session_id = excluded.session_id",
)
DROP_RUN = Statement(
    "drop_schedule_run", "delete from schedule_runs where schedule_id = ?1 and scheduled_at = ?2"
)
_RUN = "select schedule_id, scheduled_at, turn_id, session_id, outcome from schedule_runs "
RUNS = Statement(
    "schedule_runs", _RUN + "where schedule_id = ?1 order by scheduled_at desc limit ?2"
)
RUN_OF_TURN = Statement("schedule_run_of_turn", _RUN + "where schedule_id = ?1 and turn_id = ?2")
