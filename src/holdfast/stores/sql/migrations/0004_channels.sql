-- Channels: what is to be sent, who may write, who receives, and which chats are known.

-- Messages to send, in the order in which they were written. One of a conversation is sent at a
-- time; `open` is the placeholder of a turn that still runs and holds nobody up.
create table outbox (
  pos {serial},
  id {text} not null unique,
  tenant {text} not null,
  channel {text} not null,
  chat {text} not null,
  thread {text} not null,
  source {text} not null,
  part {int} not null,
  session_id {text},
  state {text} not null,
  body {text} not null,
  reply_to {text} not null,
  refusals {int} not null,
  next_at {real} not null,
  created_at {real} not null,
  owner {text},
  external_id {text},
  is_maybe_duplicate {int} not null,
  error {text},
  settled_at {real},
  approval {text} not null,
  file_name {text} not null,
  file_type {text} not null,
  constraint outbox_state_is_known check (
    state in ('open', 'pending', 'sending', 'sent', 'dead', 'dropped')),
  constraint outbox_sender_is_known check (state <> 'sending' or owner is not null)
);

create index outbox_due on outbox (channel, chat, thread, pos)
  where state in ('pending', 'sending');
create index outbox_source on outbox (source, part);
create index outbox_session on outbox (session_id) where session_id is not null;
create index outbox_settled on outbox (settled_at) where settled_at is not null;
create index outbox_approval on outbox (approval) where approval <> '';
create index outbox_external on outbox (channel, external_id) where external_id is not null;

-- The bytes of files that are to be sent, beside the outbox: its rows are read and written often.
create table outbox_files (
  message_id {text} primary key references outbox (id) on delete cascade,
  content {blob} not null
){without_rowid};

-- Who may write to a channel, and who asked to. One row for each sender.
create table pairings (
  channel {text} not null,
  sender {text} not null,
  tenant {text} not null,
  name {text} not null,
  code {text} not null,
  chat {text} not null,
  created_at {real} not null,
  expires_at {real} not null,
  approved_at {real},
  primary key (channel, sender)
){without_rowid};

-- The only receiver of a polling channel, a worker whose lease says whether it lives.
create table channel_holds (
  channel {text} primary key,
  owner {text} not null,
  since {real} not null
){without_rowid};

-- Chats that wrote to a channel; a group that was moved continues under its successor's id, and
-- a direct chat may have several ids.
create table chats (
  channel {text} not null,
  chat {text} not null,
  successor {text} not null,
  first_seen_at {real} not null,
  person {text} not null,
  primary key (channel, chat)
){without_rowid};

create index chats_successor on chats (channel, successor) where successor <> '';

-- Updates that could not be handled, for an operator to look at.
create table dead_updates (
  channel {text} not null,
  update_id {text} not null,
  reason {text} not null,
  at {real} not null,
  primary key (channel, update_id)
){without_rowid};

-- Turns of bots in a chat since a person wrote there, as a JSON list of digests of their messages.
create table bot_turns (
  channel {text} not null,
  chat {text} not null,
  messages {text} not null,
  primary key (channel, chat)
){without_rowid};

-- How receiving for a channel goes, for operators.
create table receivers (
  channel {text} primary key,
  kind {text} not null,
  received_at {real},
  failing_since {real},
  failed_at {real},
  reason {text} not null,
  keeps_seconds {real} not null,
  gap_from {real},
  gap_until {real}
){without_rowid};
