-- Where items of unnamed sessions are, so that a request may refer to them by id alone.

create table item_places (
  tenant {text} not null,
  item_id {text} not null,
  session_id {text} not null references sessions (id),
  seq {int} not null,
  primary key (tenant, item_id, session_id, seq)
){without_rowid};

create index item_places_session on item_places (session_id);
