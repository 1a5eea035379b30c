-- Views behind the log: what can be found by words, and when a session was last active.
-- A follower writes them in the background; its position is in `cursors`.

alter table cursors add column txid {int} not null default 0;
alter table cursors add column last_id {int} not null default 0;
insert into cursors (view, pos, txid) values ('search', 0, 0);

-- Items are numbered by the follower, without a gap, and no number is used twice.
create table search_items (
  id {int} primary key,
  pos {int} not null,
  back {int} not null,
  terms {terms} not null
);

-- Not by session: new rows then always go to the end of the index.
create index search_items_pos on search_items (pos);
{search_index};
{search_added};
{search_removed};

-- The times of 4,096 items each, by the upper bits of their numbers.
create table search_blocks (
  block {int} primary key,
  first_at {real} not null,
  last_at {real} not null
);

create table activity (
  session {int} primary key,
  tenant {text} not null,
  at {real} not null
);

create index activity_tenant on activity (tenant, at, session);
