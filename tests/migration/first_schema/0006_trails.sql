-- Where histories end that later requests may repeat, found by a hash of what they say.

create table trails (
  session_id {text} not null references sessions (id),
  seq {int} not null,
  record_no {int} not null,
  tenant {text} not null,
  trail {blob} not null,
  primary key (session_id, seq, record_no)
){without_rowid};

create index trails_trail on trails (tenant, trail);
