-- Chat completions that their clients asked to have stored, so that they can be listed.

create table completions (
  turn_id {text} not null references turns (id),
  step {int} not null,
  tenant {text} not null,
  session_id {text} not null,
  model {text} not null,
  metadata {blob} not null,
  created_at {real} not null,
  primary key (turn_id, step)
){without_rowid};

create index completions_tenant on completions (tenant, turn_id, step);
create index completions_session on completions (session_id);
