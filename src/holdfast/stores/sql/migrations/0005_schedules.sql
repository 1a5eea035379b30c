-- Schedules, and the runs that they had.

create table schedules (
  id {text} primary key,
  tenant {text} not null,
  name {text} not null,
  spec {blob} not null,
  is_from_file {int} not null,
  is_paused {int} not null,
  reason {text} not null,
  failures {int} not null,
  next_run_at {real},
  running_turn {text},
  created_at {real} not null
){without_rowid};

create unique index schedules_name on schedules (tenant, name);
create index schedules_due on schedules (next_run_at) where is_paused = 0;

create table schedule_runs (
  schedule_id {text} not null,
  scheduled_at {real} not null,
  turn_id {text} not null,
  session_id {text},
  outcome {text} not null,
  primary key (schedule_id, scheduled_at)
){without_rowid};
