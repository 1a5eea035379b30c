-- Facts in the order of their commits, for those who follow everything.
--
-- A place is a transaction's number and a position within it. What a reader may pass over for good
-- ends before the oldest transaction that is still under way: feed_horizon. Where one writer
-- commits after the other, positions alone are the order.

create table ordered_events (
  position {serial},
  txid {int} not null default {txid},
  session_id {text} not null references sessions (id),
  no {int} not null,
  tenant {text} not null,
  kind {text} not null,
  turn_id {text},
  body {blob} not null,
  at {real} not null
);

insert into ordered_events (session_id, no, tenant, kind, turn_id, body, at)
  select session_id, no, tenant, kind, turn_id, body, at from events order by at, session_id, no;

drop table events;

alter table ordered_events rename to events;

create unique index events_no on events (session_id, no);

create index events_feed on events (tenant, txid, position);

create view feed_horizon as select {horizon} as txid;
