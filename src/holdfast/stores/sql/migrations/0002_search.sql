-- Views behind the log: what can be found by words, and when a session was last active.
-- A follower writes them in the background; its position is in `cursors`.

alter table cursors add column txid {int} not null default 0;
insert into cursors (view, pos, txid) values ('search', 0, 0);

create table search_items (
  id {serial},
  session {int} not null,
  n {int} not null,
  seq {int} not null,
  role {text} not null,
  at {real} not null,
  terms {terms} not null
);

create index search_items_seq on search_items (session, seq);
{search_index};
{search_added};
{search_removed};

create table activity (
  session {int} primary key,
  tenant {text} not null,
  at {real} not null
);

create index activity_tenant on activity (tenant, at, session);
