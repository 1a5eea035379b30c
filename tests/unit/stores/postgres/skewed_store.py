"""A store with many short sessions, a long one and many forks, and parameters for statements."""

import json
from collections.abc import Callable
from typing import Any

SESSIONS, ENTRIES, FORKS, RETIRED = 3_000, 3_000, 500, 8
"""Short sessions of three turns, entries of session 1, its forks, and retired sessions.

The last half of the forks is a chain.
"""

_SESSION = (
    "insert into sessions (no, id, tenant, key, generation, is_live, is_visible, parent_id, "
    "parent_seq, parent_record, created_at, metadata, started_by) select "
)
_ENTRY = (
    "insert into log (session, n, kind, at, turn, seq, turns, events, record, head, body, items, "
    "request) select s, n, case when n % 2 = 1 then 3 else 6 end, n, "
    "'turn_' || s || '_' || (n + 1) / 2, n, (n + 1) / 2, n, "
    "case when s = 1 and n % 300 = 0 then n / 300 end, '', '', '', "
    "case when n % 2 = 1 then ''::bytea end "
)
FIRST = f"""
insert into workers select 'w' || n, 0, 1e18 from generate_series(1, 3) n;
{_SESSION} n, 'ses_' || n, 'big', 'k' || n, 1, 1, 1, null, 0, 0, n, '', 'user'
  from generate_series(-1, 0) n;
{_ENTRY} from generate_series(-1, 0) s, generate_series(1, 6) n;
insert into item_ids select 0, 'item_0_' || n, n from generate_series(1, 6) n;
insert into idempotency values ('big', 'i0', '', 'turn_0_1', 1, 0);
insert into provider_state values ('ses_0', 'x', 'p', 'a', 'm', '', 1, 0);
insert into journals values ('turn_0_1', 0, 1, 2, 'ses_0', '', 0);
insert into deliveries values ('turn_0_1', 0, 1, 0);
insert into activity select n, 'big', n from generate_series(-1, 0) n;
insert into completions values ('turn_0_1', 1, 'big', 'ses_0', 'm', '', 0);
"""
"""A store that was just begun."""
REST = f"""
{_SESSION} n, 'ses_' || n, case when n % 10 = 0 then 't' || n % 90 else 'big' end,
  case when n % 5 > 0 then 'k' || n end, 1, 1, 1, null, 0, 0, n, '', 'user'
  from generate_series(1, {SESSIONS}) n;
{_SESSION} 100000 + n, 'ses_f' || n, 'big', null, 1, 1, 1,
  case when n <= {FORKS // 2} then 'ses_1' else 'ses_f' || n - 1 end, 10, 0, n, '', 'user'
  from generate_series(1, {FORKS}) n;
{_SESSION} 200000 + n, 'ses_r' || n, 'big', 'k' || n, 0, 0, 1, null, 0, 0, n, '', 'user'
  from generate_series(1, {RETIRED}) n;
update sessions set retired_at = no where is_live = 0;
{_ENTRY} from generate_series(1, 6) n, generate_series(2, {SESSIONS}) s;
{_ENTRY} from generate_series(1, {ENTRIES}) n, generate_series(1, 1) s;
insert into log (session, n, kind, at, seq, turns, events, head, body)
  select no, 1, 1, no, 0, 0, 1, '', '' from sessions where no > {SESSIONS};
insert into lanes (session, turn, run, owner)
  select n, 'turn_' || n || '_3', 'run_' || n, 'w1' from generate_series(1, 500) n;
insert into queue (session, position, turn, owner, input)
  select 2 + n % 500, n, 'turn_' || 1000 + n || '_2', 'w1', '' from generate_series(1, 1000) n;
insert into partials select 'run_' || n, n, '' from generate_series(1, 500) n;
insert into item_ids select s, 'item_' || s || '_' || n, n
  from generate_series(2, {SESSIONS}) s, generate_series(1, 4) n;
insert into item_ids select 1, 'item_1_' || n, n from generate_series(1, {ENTRIES}) n;
insert into item_ids select s, 'common', 1 from generate_series(2, {SESSIONS}) s;
insert into idempotency select 'big', 'i' || n, '', 'turn_' || n || '_1', 1, n
  from generate_series(1, {SESSIONS}) n;
insert into provider_state select 'ses_' || n, 'x', 'p', 'a', 'm', '', 1, 0
  from generate_series(1, {SESSIONS}) n;
insert into journals select 'turn_' || s || '_1', 0, 1, 10, 'ses_' || s, '', s
  from generate_series(2, {SESSIONS}) s;
insert into journals select 'turn_1_1', 0, 1 + 10 * n, 10 + 10 * n, 'ses_1', '', 1
  from generate_series(0, 1000) n;
insert into deliveries select 'turn_' || s || '_1', 0, s, 0 from generate_series(2, {SESSIONS}) s;
insert into joined_turns select 'joined_' || s, 'turn_' || s || '_1', 'run', s
  from generate_series(2, {SESSIONS}) s;
insert into late_writes select 'late_' || s, 'turn_' || s || '_1', s, ''
  from generate_series(2, {SESSIONS}) s;
insert into dropped_responses select 'turn_' || s || '_1', 1, 'ses_' || s, 0
  from generate_series(2, {SESSIONS}, 2) s;
insert into activity select n, case when n % 10 = 0 then 't' || n % 90 else 'big' end, n
  from generate_series(1, {SESSIONS}) n;
insert into completions select 'turn_' || s || '_1', 1, 'big', 'ses_' || s, 'm', '', 0
  from generate_series(1, {SESSIONS}) s;
insert into history_hashes select 'ses_' || s, 1, 0, 'big', s::text::bytea
  from generate_series(1, {SESSIONS}) s;
insert into item_places select 'big', 'item_' || s || '_1', 'ses_' || s, 1
  from generate_series(1, {SESSIONS}) s;
insert into schedules select 'sch' || n, 'big', 'n' || n, '', 0, 0, '', 0, n, null, 0
  from generate_series(1, {SESSIONS}) n;
insert into schedule_runs select 'sch1', n, 'turn_' || n || '_1', 'ses_' || n, 'completed'
  from generate_series(1, {SESSIONS}) n;
insert into chats select 'c', 'chat' || n, 'next' || n, 0, '' from generate_series(1, {SESSIONS}) n;
insert into api_keys select 'key' || n, 'big', 'n', n::text::bytea, 0, 0, null
  from generate_series(1, {SESSIONS}) n;
insert into outbox (id, tenant, channel, chat, thread, source, part, session_id, state, body,
  reply_to, refusals, next_at, created_at, external_id, is_maybe_duplicate, settled_at, approval,
  file_name, file_type)
  select 'out' || n, 'big', 'c', 'chat' || n, '', 'turn_' || n || '_1', 1, 'ses_' || n,
  case when n % 30 = 0 then 'pending' else 'sent' end, '', '', 0, n, n, 'x' || n, 0, n,
  case when n % 3 = 0 then 'ap' || n else '' end, '', '' from generate_series(1, {SESSIONS}) n;
insert into outbox_files select 'out' || n, '' from generate_series(1, {SESSIONS}) n;
insert into pairings select 'c', 'sender' || n, 'big', '', '', '', 0, 0, 0
  from generate_series(1, {SESSIONS}) n;
insert into bot_turns select 'c', 'chat' || n, '[]' from generate_series(1, {SESSIONS}) n;
insert into dead_updates select 'c', 'u' || n, '', 0 from generate_series(1, {SESSIONS}) n;
insert into channel_holds select 'c' || n, 'w1', 0 from generate_series(1, 300) n;
insert into receivers select 'c' || n, 'k', 0, null, null, '', 0, null, null
  from generate_series(1, 300) n;
insert into search_items select pos, pos, 0,
  ('common:1 word' || pos || ':2')::tsvector from log where session > 1;
insert into usage_sums
  select 3600, 3600 * n, 'big', 'm' || m, 1, 1, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, ''
  from generate_series(0, 500) n, generate_series(1, 5) m;
insert into search_blocks select n, n, n from generate_series(1, 5) n;
"""
"""What the store becomes."""

_NEW = ("big", 1, 1, 1, None, None, 0, 0, 0.0, None, None, b"", "user")


def _entry(n: int) -> tuple[Any, ...]:
    return n + 2000, 7, 3, 0.0, f"turn_new_{n}", 1, 1, 1, None, b"", b"", b"", b""


def _session(n: int) -> tuple[Any, ...]:
    return 900000 + n, f"ses_new_{n}", "big", f"new_{n}", *_NEW[1:]


def _message(name: str) -> tuple[Any, ...]:
    return (
        name, "big", "c", "chat1", "", name, 1, "ses_1", "pending", "", "", 0, 0.0, 0.0, None, None,
        0, None, None, "", "", "",
    )  # fmt: skip


_CHANNELS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "add_dead_update": lambda n: ("c", f"u{n + 1}", "", 0.0),
    "add_message": lambda n: _message(f"new_{n}"),
    "add_outbox_file": lambda n: (f"out{n + 1}", b""),
    "bot_turns": lambda n: ("c", f"chat{n + 1}"),
    "channel_hold": lambda n: (f"c{n + 1}",),
    "drop_bot_turns": lambda n: ("c", f"chat{n + 1}"),
    "drop_channel_hold": lambda n: (f"c{n + 1}", "w1"),
    "drop_outbox_file": lambda n: (f"out{n + 1}",),
    "drop_pairing": lambda n: ("c", f"sender{n + 1}"),
    "drop_rest": lambda n: (f"turn_{n * 30 + 30}_1", 0, "", 0.0),
    "end_approval": lambda n: (f"ap{n * 3 + 3}", "", 0.0),
    "erase_messages": lambda n: (f"ses_{n + 1}",),
    "erase_turn_files": lambda n: (f"ses_{n + 1}", f"turn_{n + 1}_1", 1, ""),
    "erase_turn_messages": lambda n: (f"ses_{n + 1}", f"turn_{n + 1}_1", 1, ""),
    "message": lambda n: (f"out{n + 1}",),
    "message_place": lambda n: (f"out{n + 1}",),
    "move_channel_hold": lambda n: (f"c{n + 1}", "w2", 0.0, "w1"),
    "open_placeholder": lambda n: _message(f"out{n + 1}"),
    "open_requests": lambda n: ("big", "c", f"ap{n}", 5),
    "outbox_file": lambda n: (f"out{n + 1}",),
    "receiver": lambda n: (f"c{n + 1}",),
    "save_bot_turns": lambda n: ("c", f"chat{n + 1}", "[1]", "[]"),
    "save_chat": lambda n: ("c", f"chat{n + 1}", "", 0.0, ""),
    "save_message": lambda n: (
        f"out{3 * n + 1}", "sent", "", 0, 0.0, 0.0, None, None, 0, None, None, "sent", "", "",
    ),
    "save_pairing": lambda n: ("c", f"sender{n + 1}", "big", "", "", "", 0.0, 0.0, None),
    "save_receiver": lambda n: (f"c{n + 1}", "k", None, None, None, "", 0.0, None, None),
    "sent_message": lambda n: ("big", "c", f"chat{n + 1}", f"x{n + 1}"),
    "start_bot_turns": lambda n: ("c", f"new{n}", "[]"),
    "stop_placeholder": lambda n: (f"out{n + 1}", "", 0.0),
    "take_channel_hold": lambda n: (f"new{n}", "w1", 0.0),
    "waiting_message": lambda n: ("c", f"chat{n * 30 + 30}", ""),
}  # fmt: skip
_SCHEDULES: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "add_schedule": lambda n: (f"new{n}", "big", f"new{n}", b"", 0, 0, "", 0, 0.0, None, 0.0),
    "drop_schedule": lambda n: (f"sch{n + 1}",),
    "drop_schedule_run": lambda n: ("sch1", n + 1.0),
    "schedule_run_of_turn": lambda n: ("sch1", f"turn_{SESSIONS - n}_1"),
    "save_schedule": lambda n: (f"sch{n + 1}", b"", 0, 0, "", 0, 0.0, None, n + 1.0, ""),
    "save_schedule_run": lambda n: ("sch1", n + 1.0, f"turn_{n}_1", None, "completed"),
}
_VIEWS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "add_search_items": lambda n: (json.dumps([[n + 1, 0, "new"]]), 10**6 + n),
    "count_search_matches": lambda n: ("x", f"'word{n + 20}'", "'common'", "'common'", 0, 5),
    "erase_search_items": lambda n: (n + 5,),
    "entry_place": lambda n: (1, 300 * n + 1),
    "hit_place": lambda n: (500 * n, n),
    "own_entry": lambda n: ("big", 500 * n + 5),
    "own_hit": lambda n: ("big", n + 5),
    "follower_cursor": lambda n: ("search",),
    "move_cursor": lambda n: ("search", 0, 1, 0, 0),
    "remove_search_items": lambda n: (n + 5, 1, 6, 1, 6),
    "save_activity": lambda n: (json.dumps([[n + 5, "big", 1.0]]),),
    "save_search_block": lambda n: (n + 1, 0.0, 0.0),
    "save_search_cursor": lambda n: (0, 1, 0),
    "search_bounds": lambda n: (float(n), 1e18),
    "search_keys_of_prefix": lambda n: ("big", f"k{n * 100 + 101}", f"k{n * 100 + 103}", 5),
    "search_matches": lambda n: (
        "x", f"'word{n + 20}'", "'common'", "'common'", "big", 0, 10**6, "", "", 0, -1.0, 1e18, 5,
    ),
    "search_page_entries": lambda n: (json.dumps([n + 20, n + 40]),),
    "search_page_records": lambda n: (json.dumps([1, n + 5]),),
    "sessions_of_key_prefix": lambda n: (
        "big", f"k{n * 100 + 101}", f"k{n * 100 + 103}", n % 2, 5,
    ),
    "earlier_end": lambda n: (f"turn_1_{n * 100 + 1}", 10**6),
    "save_usage": lambda n: (3600, 3600 * n, "big", f"m{n}", *[1] * 12, b""),
    "usage_backlog": lambda n: (0, 500 * n, 5),
    "usage_between": lambda n: (3600, 3600 * n, 3600 * n + 7200),
    "usage_of_tenant": lambda n: (3600, 3600 * n, "big"),
    "usage_tail": lambda n: (0, 500 * n, 5),
    "start_cursor": lambda n: (f"new{n}", 0, 0),
}  # fmt: skip

ONE_AT_A_TIME = {"remove_search_items"}
"""Statements that only the follower of the log runs, for one set of parameters."""
_CHECKS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "newest_entries": lambda n: (n + 10,),
    "unknown_logs": lambda n: (500 * n, 500 * n + 8),
    "stray_turns": lambda n: (500 * n, 500 * n + 8),
    "written_sessions": lambda n: (500 * n, 500 * n + 8),
    "lost_entries": lambda n: (500 * n, 500 * n + 8),
    "last_indexed": lambda n: (),
    "lost_ends": lambda n: (f"item_{n + 5}", 0, 0, 5),
    "session_page": lambda n: (f"ses_{n + 1}", 5),
    "sessions_of": lambda n: (json.dumps([n + 1, n + 2, n + 3]),),
    "log_parts": lambda n: (json.dumps([[1, 300 * n + 1, 300 * n + 5], [n + 5, 1, 6]]),),
    "lanes_of": lambda n: (json.dumps([n + 1, n + 2]),),
    "item_ids_of": lambda n: (json.dumps([[f"item_{n + 5}_1", n + 5, 1]]),),
    "state_of": lambda n: (json.dumps([f"ses_{n + 1}", f"ses_{n + 2}"]),),
    "latest_times": lambda n: (n + 5,),
}
PARAMETERS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "append_entry": _entry,
    "add_entry": _entry,
    "entries": lambda n: (1, 300 * n + 1, 300 * n + 5, 5),
    "item_entries": lambda n: (1, 300 * n + 1, 300 * n + 5),
    "range_entries": lambda n: (json.dumps([[1, 300 * n + 1, 300 * n + 5], [n + 5, 1, 6]]),),
    "item_entry": lambda n: (1, 300 * n + 1),
    "counts": lambda n: (1, 300 * n + 1),
    "record_entries": lambda n: (1, n + 2),
    "record_entry": lambda n: (1, n + 1),
    "first_entry": lambda n: (n + 1,),
    "save_body": lambda n: (1, n + 500, b""),
    "save_items": lambda n: (1, n + 500, b""),
    "blank_entry": lambda n: (1, n + 500, b""),
    "add_session": _session,
    "add_first_session": _session,
    "save_session": lambda n: (1, None, None, b"", n + 1),
    "session_by_id": lambda n: (f"ses_{n + 1}",),
    "session_of_lane": lambda n: (f"ses_{n + 1}",),
    "ancestors": lambda n: (f"ses_f{FORKS // 2 + 1 + n % 4}", n),
    "session_by_key": lambda n: ("big", f"k{n * 10 + 1}"),
    "lane_by_id": lambda n: (f"ses_{n + 1}",),
    "changed_lane": lambda n: (f"ses_{n + 1}", 0),
    "lane_by_key": lambda n: ("big", f"k{n * 10 + 1}"),
    "last_generation": lambda n: ("big", f"k{n * 10 + 1}"),
    "forks_of": lambda n: (f"ses_f{FORKS - 10 + n}",),
    "every_fork_of": lambda n: (f"ses_f{FORKS - 10 + n}",),
    "list_forks": lambda n: ("ses_1" if n == 1 else f"ses_f{FORKS - 10 + n}", "big", 5),
    "list_sessions_up": lambda n: ("big", 1, "", f"ses_{n}", 5, ""),
    "list_sessions_down": lambda n: ("big", 1, "", f"ses_{n}", 5, ""),
    "list_retired_sessions_up": lambda n: ("big", 1, "", f"ses_{n}", 5, "retired"),
    "list_retired_sessions_down": lambda n: ("big", 1, "", f"ses_{n + 5}", 5, "retired"),
    "list_retired_sessions": lambda n: ("big", 1, "", "retired", 1e18, n, 5),
    "retired_at": lambda n: (f"ses_r{n + 1}",),
    "list_sessions_up_of_key": lambda n: ("big", 1, f"k{n * 10 + 1}", "", 5, ""),
    "list_sessions_down_of_key": lambda n: ("big", 1, f"k{n * 10 + 1}", "", 5, ""),
    "listed_session": lambda n: ("big", 1, "", "", n + 1),
    "listed_session_of_key": lambda n: ("big", 1, f"k{n * 10 + 1}", "", n * 10 + 1),
    "busy_sessions_with": lambda n: ("big", f"item_{n + 2}_1"),
    "list_sessions_by_activity": lambda n: ("big", 1, "", "", 2e3 + n, 0, 5),
    "list_sessions_by_activity_of_key": lambda n: ("big", 1, f"k{n * 10 + 1}", "", 1e18, 0, 5),
    "hold_lane": lambda n: (n + 1, f"turn_{n + 1}_3", "run", "w1", None),
    "free_lane": lambda n: (n + 1,),
    "lanes": lambda n: (n, 5),
    "enqueue": lambda n: (n + 1, 5000, f"turn_new_{n}", "w1", b""),
    "dequeue": lambda n: (f"turn_{1001 + n}_2",),
    "waiting": lambda n: (n + 2,),
    "save_partial": lambda n: (f"run_{n + 2}", n + 2, b""),
    "drop_partial": lambda n: (f"run_{n + 2}",),
    "partial": lambda n: (f"run_{n + 2}",),
    "turn_by_id": lambda n: (f"turn_1_{n * 100 + 1}",),
    "open_turns": lambda n: (n + 1,),
    "turns_between": lambda n: (1, 300 * n + 1, 300 * n + 5),
    "last_ended": lambda n: (n % 2 + 1,),
    "turn_entries": lambda n: (f"turn_1_{n * 100 + 1}",),
    "turn_items": lambda n: (f"turn_1_{n * 100 + 1}",),
    "entry_turn": lambda n: (1, n + 500),
    "joined_turn": lambda n: (f"joined_{n + 2}",),
    "add_joined_turn": lambda n: (f"joined_new_{n}", "turn", "run", 1),
    "late_writes": lambda n: (json.dumps([f"late_{n + 5}", "run_1"]),),
    "add_late_write": lambda n: (f"late_new_{n}", "turn", 1, b""),
    "add_stop_request": lambda n: (f"run_{n}", "code", None, 0.0),
    "stop_request": lambda n: (f"run_{n}",),
    "worker_death": lambda n: (f"w{n}",),
    "drop_stop_request": lambda n: (f"run_{n}",),
    "mark_delivered": lambda n: (f"turn_{n + 2}_1", 1, 1.0),
    "claim_retry": lambda n: (f"turn_{n + 2}_1", 1, 1),
    "add_item_id": lambda n: (1, f"item_new_{n}", 1),
    "first_places": lambda n: ("common", n + 2),
    "stored_ids": lambda n: (json.dumps(["common", f"item_{n + 5}_1", "unknown"]),),
    "log_sizes": lambda n: (json.dumps([[n + 5, 6], [n + 15, 6]]),),
    "logs": lambda n: (json.dumps([[n + 5, 6], [n + 15, 6]]),),
    "queues": lambda n: (json.dumps([[n + 2, 6], [n + 15, 6]]),),
    "log_of_turns": lambda n: (1, 300 * n + 1, 300 * n + 5, 300 * n + 100),
    "count_sessions": lambda n: ("big", 1, f"ses_{n}", 5),
    "drop_item_id": lambda n: (f"item_{n + 5}_1", n + 5),
    "places_of_item": lambda n: (n + 5, "common", 1, 10),
    "feed": lambda n: ("big", 0, 500 * n, 5),
    "log_end": lambda n: (),
    "search_backlog": lambda n: (0, 500 * n, 5),
    "search_newest": lambda n: (),
    "search_cursor": lambda n: (),
    "search_cursor_locked": lambda n: (),
    "activity_tail": lambda n: (10**9 + n,),
    "activity_of": lambda n: (n + 5,),
    "erase_activity": lambda n: (n + 5,),
    "add_idempotency": lambda n: ("big", f"new_{n}", b"", "turn", 1, 0.0),
    "idempotency_by_key": lambda n: ("big", f"i{n + 1}"),
    "save_provider_state": lambda n: (f"ses_{n + 2}", "x", "p", "a", "m", b"", 1, 0.0),
    "provider_state": lambda n: (f"ses_{n + 2}",),
    "drop_provider_state": lambda n: (f"ses_{n + 2}",),
    "drop_provider_state_covering": lambda n: (f"ses_f{FORKS - 3 + n % 3}", n),
    "drop_provider_slot": lambda n: (f"ses_{n + 2}", "x"),
    "add_journal": lambda n: (f"turn_{n + 2}_1", 0, 100, 110, f"ses_{n + 2}", b"", n + 2),
    "append_journal": lambda n: (
        f"turn_{n + 2}_3",
        0,
        100,
        110,
        f"ses_{n + 2}",
        b"",
        n + 2,
        f"run_{n + 2}",
    ),
    "drop_journal_rest": lambda n: (f"turn_{n + 2}_1", 0, 5),
    "drop_journal": lambda n: (f"turn_{n + 2}_1", 0),
    "drop_journals_of_turn": lambda n: (f"turn_{n + 2}_1",),
    "journal": lambda n: ("turn_1_1", 0, 1000 * n, 5),
    "add_dropped_response": lambda n: (f"turn_new_{n}", 1, "ses", 0.0),
    "dropped_response": lambda n: (f"turn_{n + 2}_1", 1),
    "add_completion": lambda n: (f"turn_new_{n}", 1, "big", "ses", "m", b"", 0.0),
    "save_completion": lambda n: (f"turn_{n + 2}_1", 1, b""),
    "completion": lambda n: ("big", f"turn_{n + 2}_1", 1),
    "completions_up": lambda n: ("big", "", f"turn_2{n}", 1, 5),
    "completions_down": lambda n: ("big", "", f"turn_2{n}", 1, 5),
    "add_history_hash": lambda n: (f"ses_new_{n}", 1, 0, "big", b"x"),
    "history_hashes": lambda n: ("big", *(str(n * 16 + one).encode() for one in range(1, 17))),
    "add_item_place": lambda n: ("big", f"item_new_{n}", "ses", 1),
    "item_places": lambda n: ("big", f"item_{n + 2}_1"),
    "pruned_upto": lambda n: (),
    "save_pruned_upto": lambda n: (1,),
    "entries_to_prune": lambda n: (1000 * n, 5),
    "add_api_key": lambda n: (f"new_{n}", "big", "n", f"new {n}".encode(), 0, 0.0, None),
    "revoke_api_key": lambda n: (f"key{n + 1}", 0.0),
    "api_key_by_id": lambda n: (f"key{n + 1}",),
    "add_worker": lambda n: (f"new_{n}", 0.0, 0.0),
    "worker_by_id": lambda n: (f"w{n % 3 + 1}",),
    "save_worker": lambda n: ("w1", 1.0),
    "drop_worker": lambda n: ("w1",),
    "erase_queue": lambda n: (2500 + n,),
    "erase_journals": lambda n: (2500 + n,),
    "erase_completions": lambda n: (f"ses_{2500 + n}",),
    "erase_history_hashes": lambda n: (f"ses_{2500 + n}",),
    "erase_item_places": lambda n: (f"ses_{2500 + n}",),
    "schedule_by_id": lambda n: (f"sch{n + 1}",),
    "schedule_by_name": lambda n: ("big", f"n{n + 1}"),
    "schedules_upwards": lambda n: ("big", "", n + 1),
    "schedules_downwards": lambda n: ("big", "", n + 1),
    "schedule_runs": lambda n: ("sch1", n + 1),
    "chat": lambda n: ("c", f"chat{n + 1}"),
    "predecessor": lambda n: ("c", f"next{n + 1}"),
    "last_record": lambda n: (f"ses_{n + 1}",),
    "recent_entries": lambda n: (1000 * (n + 1), 5),
    **_CHANNELS,
    **_CHECKS,
    **_SCHEDULES,
    **_VIEWS,
}
"""Parameters of statements, in several sets, by the statements' names."""
