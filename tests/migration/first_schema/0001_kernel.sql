-- Sessions, their lanes, turns, runs, items and records.
-- Rows that carry content are kept by number (no without_rowid): in a tree ordered by their key,
-- finding one would read the whole content of others, and one damaged page would hide its neighbours.

create table workers (
  id {text} primary key,
  started_at {real} not null,
  alive_until {real} not null
){without_rowid};

create table sessions (
  id {text} primary key,
  tenant {text} not null,
  key {text},
  generation {int} not null,
  is_live {int} not null,
  is_visible {int} not null,
  previous_session_id {text},
  parent_id {text},
  parent_seq {int} not null,
  parent_record {int} not null,
  epoch {int} not null,
  version {int} not null,
  head_seq {int} not null,
  record_no {int} not null,
  event_no {int} not null,
  turn_count {int} not null,
  hidden_count {int} not null,
  active_turn_id {text},
  active_run_id {text},
  owner {text},
  hold_until {real},
  pending_calls {text},
  created_at {real} not null,
  last_user_activity_at {real},
  retired_at {real},
  deleted_at {real},
  input_tokens {int} not null,
  cached_tokens {int} not null,
  output_tokens {int} not null,
  reasoning_tokens {int} not null,
  metadata {blob} not null,
  -- A lane is free, or run by an owner, or held for the client's tools; nothing in between.
  constraint lane_is_whole check (
    (active_turn_id is null and active_run_id is null and owner is null
      and hold_until is null and pending_calls is null)
    or (active_turn_id is not null and active_run_id is not null and owner is not null
      and hold_until is null and pending_calls is null)
    or (active_turn_id is not null and active_run_id is null and owner is null
      and hold_until is not null and pending_calls is not null)),
  constraint only_the_living_run check (is_live = 1 or active_turn_id is null),
  constraint the_dead_stay_dead check (deleted_at is null or is_live = 0)
){without_rowid};

-- One key, one live session: the promise itself.
create unique index sessions_live_key on sessions (tenant, key) where is_live = 1 and key is not null;
create unique index sessions_generation on sessions (tenant, key, generation) where key is not null;
create index sessions_tenant on sessions (tenant, id);
create index sessions_owner on sessions (owner) where owner is not null;
create index sessions_hold on sessions (hold_until) where hold_until is not null;
create index sessions_parent on sessions (parent_id) where parent_id is not null;

create table turns (
  id {text} primary key,
  session_id {text} not null references sessions (id),
  tenant {text} not null,
  number {int} not null,
  position {int} not null,
  source {text} not null,
  owner {text} not null,
  step {int} not null,
  attempts {int} not null,
  input {blob},
  request {blob} not null,
  body_hash {blob},
  rewind_after {int},
  rewind_upto {int},
  first_seq {int},
  kept_seq {int},
  last_seq {int},
  outcome {text},
  error_code {text},
  error_message {text},
  is_retryable {int} not null,
  accepted_at {real} not null,
  started_at {real},
  ended_at {real},
  delivered_at {real},
  retry_claim {int} not null,
  constraint only_ends_are_stored check (outcome in ('completed', 'failed', 'cancelled', 'interrupted'))
);

create unique index turns_number on turns (session_id, number);
create unique index turns_waiting on turns (session_id, position) where outcome is null;
create index turns_owner on turns (owner) where outcome is null;

create table runs (
  id {text} primary key,
  turn_id {text} not null references turns (id),
  session_id {text} not null,
  generation {int} not null,
  epoch {int} not null,
  worker {text} not null,
  step {int} not null,
  first_seq {int} not null,
  last_seq {int},
  record_no {int},
  outcome {text},
  error_code {text},
  error_message {text},
  started_at {real} not null,
  ended_at {real},
  input_tokens {int},
  cached_tokens {int},
  output_tokens {int},
  reasoning_tokens {int},
  partial {blob},
  result {blob},
  heals {blob},
  late {blob}
);

create unique index runs_epoch on runs (session_id, epoch);
create index runs_turn on runs (turn_id, epoch);

create table items (
  session_id {text} not null references sessions (id),
  seq {int} not null,
  turn_number {int} not null,
  kind {text} not null,
  item_id {text},
  call_id {text},
  fingerprint {blob} not null,
  is_partial {int} not null,
  body {blob} not null,
  primary key (session_id, seq)
);

create index items_item_id on items (session_id, item_id) where item_id is not null;

create table records (
  session_id {text} not null references sessions (id),
  no {int} not null,
  kind {text} not null,
  from_seq {int} not null,
  to_seq {int} not null,
  turn_id {text},
  undoes {int},
  body {blob},
  created_at {real} not null,
  primary key (session_id, no)
){without_rowid};

create table events (
  session_id {text} not null references sessions (id),
  no {int} not null,
  tenant {text} not null,
  kind {text} not null,
  turn_id {text},
  body {blob} not null,
  at {real} not null,
  primary key (session_id, no)
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
  session_id {text} not null references sessions (id),
  slot {text} not null,
  provider {text} not null,
  account {text} not null,
  model {text} not null,
  value {blob} not null,
  covers_seq {int} not null,
  saved_at {real} not null,
  primary key (session_id, slot)
){without_rowid};
