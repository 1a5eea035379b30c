-- The journals of responses: their streams' events in batches, and which responses were deleted.

create table journals (
  turn_id {text} not null references turns (id),
  step {int} not null,
  first_no {int} not null,
  last_no {int} not null,
  session_id {text} not null,
  body {blob} not null,
  primary key (turn_id, step, first_no)
){without_rowid};

create index journals_session on journals (session_id);

create table dropped_responses (
  turn_id {text} not null references turns (id),
  step {int} not null,
  session_id {text} not null,
  dropped_at {real} not null,
  primary key (turn_id, step)
){without_rowid};
