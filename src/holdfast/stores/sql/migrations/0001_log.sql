-- The log is the schema: everything that happened to a session is an entry of its log.
-- Other tables say who a session is, who has its lane now, who waits, and what is looked up by key.

create table workers (
  id {text} primary key,
  started_at {real} not null,
  alive_until {real} not null
){without_rowid};

-- Who a session is. What it has done is in its log; `no` is how the log names it, made from its id.
create table sessions (
  no {int} primary key,
  id {text} not null unique,
  tenant {text} not null,
  key {text},
  generation {int} not null,
  is_live {int} not null,
  is_visible {int} not null,
  previous_session_id {text},
  parent_id {text},
  parent_seq {int} not null,
  parent_record {int} not null,
  created_at {real} not null,
  retired_at {real},
  deleted_at {real},
  metadata {blob} not null,
  started_by {text} not null,
  constraint deleted_sessions_are_not_live check (deleted_at is null or is_live = 0)
);

-- One key, one live session: the promise itself. Generations are never used twice.
create unique index sessions_live_key on sessions (tenant, key) where is_live = 1 and key is not null;
create unique index sessions_generation on sessions (tenant, key, generation) where key is not null;
create index sessions_tenant on sessions (tenant, id);
create index sessions_parent on sessions (parent_id) where parent_id is not null;

-- Entries are numbered from 1 without a gap (n), and never deleted: erasing blanks them.
-- seq, turns and events count the session's items, turns and events up to and with this entry.
create table log (
  pos {log_position},
  txid {int} not null default {txid},
  session {int} not null,
  n {int} not null,
  kind {int} not null,
  at {real} not null,
  turn {text},
  seq {int} not null,
  turns {int} not null,
  events {int} not null,
  record {int},
  head {blob} not null,
  body {blob} not null,
  items {blob},
  request {blob}
);

-- The gate of every write: two decisions on the same state cannot both be written.
create unique index log_n on log (session, n);
-- A turn is accepted once, in all sessions of all tenants; only that entry has a request.
-- An entry of kind 6 ends the turn of the entry right before it, which leads to it.
create unique index log_turn on log (turn, (case when request is null then n else 0 end))
  where turn is not null and kind <> 6;
create index log_record on log (session, record) where record is not null;
{feed_index};

create view feed_horizon as select {horizon} as txid;

-- Who has a lane: a run and its owner, or a turn that waits for its client's tools. No row: free.
create table lanes (
  session {int} primary key,
  turn {text} not null,
  run {text},
  owner {text},
  hold_until {real},
  constraint lane_is_run_or_held check (
    (run is not null and owner is not null and hold_until is null)
    or (run is null and owner is null and hold_until is not null))
);

create index lanes_hold on lanes (hold_until) where hold_until is not null;

-- Turns that wait for their lane, with the input that enters the log when they start.
create table queue (
  session {int} not null,
  position {int} not null,
  turn {text} not null unique,
  owner {text} not null,
  input {blob},
  primary key (session, position)
);

create index queue_owner on queue (owner);

-- What a running stream has said so far.
create table partials (
  run {text} primary key,
  session {int} not null,
  body {blob} not null
){without_rowid};

-- Which answers reached their clients, and which retries were answered; kept for minutes.
create table deliveries (
  turn {text} primary key,
  step {int} not null,
  delivered_at {real},
  retry_claim {int} not null
){without_rowid};

-- Input that came as one turn and became a step of another.
create table joined_turns (
  turn {text} primary key,
  joined {text} not null,
  run {text} not null,
  session {int} not null
){without_rowid};

-- What runs tried to write after they had lost their session.
create table late_writes (
  run {text} primary key,
  turn {text} not null,
  session {int} not null,
  body {blob} not null
){without_rowid};

-- Runs that another process asks to end, so that their owner keeps what was shown; kept for a minute.
create table stop_requests (
  run {text} primary key,
  code {text} not null,
  caller {blob},
  requested_at {real} not null
){without_rowid};

-- How far a view behind the log has followed it.
create table cursors (
  view {text} primary key,
  pos {int} not null
){without_rowid};

-- Where the items are that have an id, for lists and look-ups by id. Most ids begin with the time,
-- so that new rows of all sessions share a page.
create table item_ids (
  session {int} not null,
  item_id {text} not null,
  seq {int} not null,
  primary key (item_id, session, seq)
){without_rowid};

create table idempotency (
  tenant {text} not null,
  key {text} not null,
  body_hash {blob} not null,
  turn_id {text} not null,
  step {int} not null,
  created_at {real} not null,
  primary key (tenant, key)
){without_rowid};

create index idempotency_age on idempotency (created_at);

create table provider_state (
  session_id {text} not null,
  slot {text} not null,
  provider {text} not null,
  account {text} not null,
  model {text} not null,
  value {blob} not null,
  covers_seq {int} not null,
  saved_at {real} not null,
  primary key (session_id, slot)
){without_rowid};

-- The streams of responses in batches of events, and which responses were deleted.
create table journals (
  turn_id {text} not null,
  step {int} not null,
  first_no {int} not null,
  last_no {int} not null,
  session_id {text} not null,
  body {blob} not null,
  session {int} not null,
  primary key (turn_id, step, first_no)
){without_rowid};

create index journals_session on journals (session);

create table dropped_responses (
  turn_id {text} not null,
  step {int} not null,
  session_id {text} not null,
  dropped_at {real} not null,
  primary key (turn_id, step)
){without_rowid};

-- API keys, as hashes. A revoked key keeps its row: once there was one, every request needs one.
create table api_keys (
  id {text} primary key,
  tenant {text} not null,
  name {text} not null,
  hash {blob} not null,
  is_admin {int} not null,
  created_at {real} not null,
  revoked_at {real}
){without_rowid};

create unique index api_keys_hash on api_keys (hash);

-- Chat completions that their clients asked to have stored.
create table completions (
  turn_id {text} not null,
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

-- Where histories of keyless sessions end that later requests may repeat, by a hash of them.
create table history_hashes (
  session_id {text} not null,
  seq {int} not null,
  record_no {int} not null,
  tenant {text} not null,
  history_hash {blob} not null,
  primary key (session_id, seq, record_no)
){without_rowid};

create index history_hashes_hash on history_hashes (tenant, history_hash);

-- Where items of keyless sessions are, so that a request may refer to them by id alone.
create table item_places (
  tenant {text} not null,
  item_id {text} not null,
  session_id {text} not null,
  seq {int} not null,
  primary key (tenant, item_id, session_id, seq)
){without_rowid};

create index item_places_session on item_places (session_id);
