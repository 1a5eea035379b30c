-- The tables of OpenClaw's newer database that an import reads, with a few sessions.
pragma journal_mode = wal;
create table schema_meta (key text primary key, value text) strict;
insert into schema_meta values ('schema_version', '23');
create table session_nodes (
  session_key text primary key, current_session_id text, entry_json text, entry_valid integer,
  updated_at integer, status text
) strict;
create table session_windows (
  session_id text primary key, session_key text, previous_session_id text, reason text,
  status text, started_at integer, ended_at integer
) strict;
create table transcript_events (
  session_id text, seq integer, event_json text, event_zstd blob, created_at integer,
  event_utf8_bytes integer, navigation_json text, primary key (session_id, seq)
) strict;

insert into session_nodes values
  ('agent:main:main', 'w2', '{}', 1, 1794728399000, 'done'),
  ('agent:main:reset', 'w3', '{}', 1, 1794728399000, 'done'),
  ('agent:main:fresh', 'w5', '{}', 1, 1794728399000, null);
insert into session_windows values
  ('w1', 'agent:main:main', null, 'initial', 'done', 1794728288000, 1794728289000),
  ('w2', 'agent:main:main', 'w1', 'rollover', 'done', 1794728298000, null),
  ('w3', 'agent:main:reset', null, 'initial', 'done', 1794728308000, null),
  ('w5', 'agent:main:fresh', null, 'initial', null, 1794728318000, null);
insert into transcript_events (session_id, seq, event_json, created_at) values
  ('w1', 1, '{"type":"session","version":4,"id":"w1","timestamp":"2026-11-15T07:38:08.000Z"}', 1794728288000),
  ('w1', 2, '{"type":"model_change","id":"e2","parentId":null,"provider":"openai","modelId":"gpt-5"}', 1794728288000),
  ('w1', 3, '{"type":"message","id":"e3","parentId":"e2","message":{"role":"user","content":[{"type":"text","text":"hello"}],"idempotencyKey":"k:user","__openclaw":{"senderIsOwner":true}}}', 1794728288000),
  ('w2', 1, '{"type":"session","version":4,"id":"w2","timestamp":"2026-11-15T07:38:18.000Z"}', 1794728298000),
  ('w2', 2, '{"type":"message","id":"f2","parentId":null,"message":{"role":"user","content":"after the idle hour"}}', 1794728298000),
  ('w3', 1, '{"type":"session","version":4,"id":"w3","timestamp":"2026-11-15T07:38:28.000Z"}', 1794728308000),
  ('w3', 2, '{"type":"message","id":"g2","parentId":null,"message":{"role":"user","content":"old"}}', 1794728308000),
  ('w3', 3, '{"type":"message","id":"g3","parentId":"g2","message":{"role":"assistant","content":[{"type":"text","text":"old answer"}]}}', 1794728308000),
  ('w3', 4, '{"type":"reset","id":"g4","parentId":"g3","timestamp":"2026-11-15T07:39:00.000Z"}', 1794728308000),
  ('w3', 5, '{"type":"message","id":"g5","parentId":"g4","message":{"role":"user","content":"new"}}', 1794728308000),
  ('w9', 1, '{"type":"session","version":4,"id":"w9","timestamp":"2026-11-15T07:38:48.000Z"}', 1794728328000),
  ('w9', 2, '{"type":"message","id":"h2","parentId":null,"message":{"role":"user","content":"in no index"}}', 1794728328000),
  ('w8', 1, '{"type":"session","version":4,"id":"w8","timestamp":"2026-11-15T07:38:58.000Z"}', 1794728328000),
  ('w8', 2, '{"type":"message","id":"i2","parentId":null,"message":{"role":"user","content":[{"type":"text","text":"an aborted run"}]}}', 1794728328000),
  ('w8', 3, '{"type":"message","id":"i3","parentId":"i2","message":{"role":"assistant","stopReason":"aborted","content":[{"type":"text","text":"half an ans"}]}}', 1794728328000);
