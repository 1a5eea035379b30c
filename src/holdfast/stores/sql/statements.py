"""Every statement of the store, once, with the reason it is there.

Both databases run the same text: parameters are written `?1`, `?2`, and a driver that spells
them another way rewrites them. `session` is a session's number in the log, `session_no(id)`.
"""

import re

from holdfast.core.history.history_hash import HistoryHashRow, ItemPlaceRow
from holdfast.core.transaction.changes import (
    ApiKeyRow,
    CompletionRow,
    IdempotencyRow,
    JournalRow,
)
from holdfast.core.transaction.commands import MAX_HOLD_SECONDS
from holdfast.stores.sql.entries import ENDED_NEXT, ENDS, EXPIRED, IDENTITY
from holdfast.stores.sql.plan import Statement, columns, insert

LAST_ID = "\U0010ffff"
"""A text that sorts after every id."""

# ── The log ─────────────────────────────────────────────────────────────────────────────────

_ENTRY = (
    "insert into log (session, n, kind, at, turn, seq, turns, events, record, head, body, items, "
    "request) values (?1, {n}, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)"
)
# The gate: no number, and so no row, unless the log still ends where the decision saw it.
APPEND_ENTRY = Statement(
    "append_entry",
    _ENTRY.format(
        # Two index reads, however long the log is; an aggregate would scan it completely.
        n="(select n + 1 from log where session = ?1 and n = ?2 - 1 "
        "and not exists (select 1 from log where session = ?1 and n >= ?2))"
    ),
    is_fenced=True,
)
# The first entry of a session, and entries that follow another one in the same commit.
ADD_ENTRY = Statement("add_entry", _ENTRY.format(n="?2"))

ENTRIES = Statement(
    "entries",
    "select n, kind, at, turn, seq, turns, events, record, body, items, request from log "
    "where session = ?1 and n between ?2 and ?3 order by n limit ?4",
)
# Items only, oldest first; the caller knows the range of their entries.
ITEM_ENTRIES = Statement(
    "item_entries",
    "select seq, items from log where session = ?1 and n between ?2 and ?3 and items is not null "
    "order by n",
)
# The same for several sessions in one read, unordered; each range is a session, its first and its
# last entry.
_RANGE_ENTRIES = (
    "select l.session, l.seq, l.items from {ranges} join log l on l.session = {value}0{end} "
    "and l.n between {value}1{end} and {value}2{end} where l.items is not null"
)
RANGE_ENTRIES = Statement(
    "range_entries",
    _RANGE_ENTRIES.format(
        # A cross join keeps the order of the tables: there are few ranges and many log entries.
        ranges="json_each(?1) r cross",
        value="json_extract(r.value, '$[",
        end="]')",
    ),
    postgres=_RANGE_ENTRIES.format(
        ranges="json_array_elements(?1::text::json) r (value)",
        value="(r.value ->> ",
        end=")::bigint",
    ),
)
ITEM_ENTRY = Statement(
    "item_entry",
    "select n, seq, items, turn from log "
    "where session = ?1 and n >= ?2 and items is not null order by n limit 1",
)
# The counts of one entry, to find the entry of an item, a turn or an event by its number.
COUNTS = Statement("counts", "select seq, turns, events from log where session = ?1 and n = ?2")
RECORD_ENTRIES = Statement(
    "record_entries",
    "select record, body, n from log where session = ?1 and record is not null "
    "and record >= ?2 order by record",
)
RECORD_ENTRY = Statement("record_entry", "select body from log where session = ?1 and record = ?2")
FIRST_ENTRY = Statement("first_entry", "select body from log where session = ?1 and n = 1")
SAVE_BODY = Statement("save_body", "update log set body = ?3 where session = ?1 and n = ?2")
SAVE_ITEMS = Statement("save_items", "update log set items = ?3 where session = ?1 and n = ?2")
BLANK_ENTRY = Statement(
    "blank_entry",
    "update log set body = ?3, items = null, request = null, record = null "
    "where session = ?1 and n = ?2",
)

# ── Sessions ────────────────────────────────────────────────────────────────────────────────

_IDENTITY = ", ".join(f"s.{name}" for name in IDENTITY)
ADD_SESSION = Statement(
    "add_session",
    f"insert into sessions (no, {', '.join(IDENTITY)}) values (?1, "
    + ", ".join(f"?{n}" for n in range(2, len(IDENTITY) + 2))
    + ")",
)
# The columns of a session's identity that can change. The gate of its log comes before this.
SAVE_SESSION = Statement(
    "save_session",
    "update sessions set is_live = ?1, retired_at = ?2, deleted_at = ?3, metadata = ?4 "
    "where no = ?5",
    is_fenced=True,
)

_HEAD = "l.n, l.seq, l.turns, l.events, l.turn, l.head"
# `+ 0` keeps the order: sessions are found first, then the last entry of each.
_LAST = "join log l on l.session = s.no + 0 and l.n = (select max(n) from log where session = s.no)"
_OWNER = "left join lanes a on a.session = s.no left join workers w on w.id = a.owner"
_SESSION = f"select {_IDENTITY}, {_HEAD}, w.alive_until from sessions s {_LAST} {_OWNER} "
SELECT_SESSION = _SESSION
"""Selects the columns that `read_session` reads, and the lease of the lane's owner."""
# The session, and whether the owner of its lane is alive, in one read.
SESSION_BY_ID = Statement("session_by_id", _SESSION + "where s.id = ?1")
# The ancestors that store a part of a fork's history, nearest first, back to an item.
ANCESTORS = Statement(
    "ancestors",
    "select id, parent_seq from ("
    "with recursive line (depth, id, parent_id, parent_seq) as ("
    "select 0, id, parent_id, parent_seq from sessions where id = ?1 "
    "union all select line.depth + 1, s.id, s.parent_id, s.parent_seq from line "
    "join sessions s on s.id = line.parent_id where line.parent_seq >= ?2) "
    "select depth, id, parent_seq from line) as ancestors order by depth",
)
SESSION_BY_KEY = Statement(
    "session_by_key", _SESSION + "where s.tenant = ?1 and s.key = ?2 and s.is_live = 1"
)

IS_INDEXED = f"{{entry}}.kind <> {ENDED_NEXT}"
"""Whether an entry about a turn is in the index by turn; only reads with this condition use it."""
# The order of the index by turn, in which the entry that accepted the turn comes first.
_TURN_PLACE = "case when {entry}.request is null then {entry}.n else 0 end"
_LAST_OF_TURN = (
    "(select coalesce((select f.n from log f where f.session = e.session and f.n = e.n + 1 "
    f"and f.kind = {ENDED_NEXT}), e.n) from log e where e.turn = {{turn}} "
    f"and {IS_INDEXED.format(entry='e')} order by {_TURN_PLACE.format(entry='e')} desc limit 1)"
)
# With `(l.session, l.n) = (select …)` PostgreSQL may read the whole log for each turn of a batch.
LAST_ENTRY_OF_TURN = (
    _LAST_OF_TURN.replace("(select coalesce", "(select e.session as session, coalesce", 1)
    + " z join log l on l.session = z.session and l.n = z.n "
).replace("e.n) from log e", "e.n) as n from log e", 1)
"""The last entry `l` about a turn, to be selected from."""
REQUEST = (
    f"(select f.request from log f where f.turn = {{turn}} and {IS_INDEXED.format(entry='f')} "
    f"and {_TURN_PLACE.format(entry='f')} = 0)"
)
"""The request of a turn."""
IS_LAST_OF_TURN = (
    # Without the offset PostgreSQL may read the whole log into a hash.
    "(not exists (select 1 from log m where m.turn = l.turn and m.n > l.n "
    f"and {IS_INDEXED.format(entry='m')} limit 1 offset 0) and not exists (select 1 from log m "
    f"where m.session = l.session and m.n = l.n + 1 and m.kind = {ENDED_NEXT} limit 1 offset 0))"
)
"""Whether the entry `l` is the last one about its turn."""
ENTRIES_OF_TURN = (
    "from log e join log l on l.session = e.session and l.n between e.n and e.n + 1 "
    f"and (l.n = e.n or l.kind = {ENDED_NEXT}) "
    f"where e.turn = ?1 and {IS_INDEXED.format(entry='e')} "
)
"""The entries `l` about a turn, to be selected from."""

# All facts about a lane: its session and the owner's lease, the number of waiting turns and their
# positions, and the last entry of the turn that has it, with its rows outside the log.
_LANE = (
    f"select {_IDENTITY}, {_HEAD}, w.alive_until, "
    "(select count(*) from queue q where q.session = s.no), "
    "(select min(q.position) from queue q where q.session = s.no), "
    "(select max(q.position) from queue q where q.session = s.no), "
    "s.id, s.tenant, t.turn, t.body, "
    f"{REQUEST.format(turn='a.turn')}, cast(null as {{blob}}), d.step, d.delivered_at, "
    f"d.retry_claim, p.body from sessions s {_LAST} {_OWNER} "
    f"left join log t on t.session = s.no and t.n = {_LAST_OF_TURN.format(turn='a.turn')} "
    "left join deliveries d on d.turn = a.turn left join partials p on p.run = a.run "
).replace("cast(null as {blob})", "null")
LANE_BY_ID = Statement("lane_by_id", _LANE + "where s.id = ?1")
# The same with the items of the next entries, unless it is still at the entry that was seen. Only
# PostgreSQL decides batches: elsewhere each command finds out by itself.
_NEXT = (
    "(select array_agg(f.{column} order by f.n) from log f where f.session = s.no "
    "and f.n between ?2 + 1 and ?2 + 16 and f.items is not null)"
)
_IF_CHANGED = "where s.id = ?1 and l.n <> ?2"
CHANGED_LANE = Statement(
    "changed_lane",
    _LANE + _IF_CHANGED,
    postgres=_LANE.replace(
        "p.body from", f"p.body, {_NEXT.format(column='seq')}, {_NEXT.format(column='items')} from"
    )
    + _IF_CHANGED,
)
LANE_BY_KEY = Statement(
    "lane_by_key", _LANE + "where s.tenant = ?1 and s.key = ?2 and s.is_live = 1"
)

# Generations are never reused, not even after an erasure.
LAST_GENERATION = Statement(
    "last_generation", "select max(generation) from sessions where tenant = ?1 and key = ?2"
)
FORKS_OF = Statement("forks_of", _SESSION + "where s.parent_id = ?1 and s.deleted_at is null")
EVERY_FORK_OF = Statement("every_fork_of", "select id from sessions where parent_id = ?1")
LIST_FORKS = Statement(
    "list_forks",
    # Not by the index of tenants; the order is that of the index of parents.
    _SESSION + "where s.parent_id = ?1 and s.tenant || '' = ?2 and s.is_visible = 1 "
    "and s.deleted_at is null order by s.deleted_at, s.id limit ?3",
)
IS_LIVE, IS_RETIRED = "(?2 = 1 or s.is_live = 1)", "(?2 = 1 and s.is_live = 0)"
LISTED = (
    _SESSION + "where s.tenant = ?1 and s.is_visible = 1 and s.deleted_at is null "
    f"and {IS_LIVE} and ?3 = '' "
    # Excludes sessions that cannot have the status; the owner's lease is checked later.
    "and (?6 <> 'running' or a.turn is not null) and (?6 <> 'retired' or s.is_live = 0) "
)
"""Selects sessions of a tenant; the key is the third parameter, and empty unless `OF_KEY`."""
LIST_SESSIONS_UP = Statement(
    "list_sessions_up", LISTED + "and s.id > ?4 order by s.id asc limit ?5"
)
LIST_SESSIONS_DOWN = Statement(
    "list_sessions_down", LISTED + "and s.id < ?4 order by s.id desc limit ?5"
)
OF_KEY = {
    one: Statement(
        f"{one.name}_of_key",
        # No index of ids fits the texts, so that the one of keys is used.
        re.sub("(and|order by) s.id", r"\1 s.id || ''", one.text.replace("?3 = ''", "s.key = ?3")),
    )
    for one in (LIST_SESSIONS_UP, LIST_SESSIONS_DOWN)
}
"""The same lists of the sessions of a key, which are found by an index."""

# ── Lanes and queues ────────────────────────────────────────────────────────────────────────

HOLD_LANE = Statement(
    "hold_lane",
    "insert into lanes (session, turn, run, owner, hold_until) values (?1, ?2, ?3, ?4, ?5) "
    "on conflict (session) do update set turn = excluded.turn, run = excluded.run, "
    "owner = excluded.owner, hold_until = excluded.hold_until",
)
FREE_LANE = Statement("free_lane", "delete from lanes where session = ?1")
ENQUEUE = Statement(
    "enqueue",
    "insert into queue (session, position, turn, owner, input) values (?1, ?2, ?3, ?4, ?5) "
    "on conflict (turn) do update set position = excluded.position, owner = excluded.owner, "
    "input = excluded.input",
)
DEQUEUE = Statement("dequeue", "delete from queue where turn = ?1")
WAITING = Statement(
    "waiting",
    "select count(*), min(position), max(position) from queue where session = ?1",
)
TENANT_TURNS = Statement(
    "tenant_turns",
    # Not a join: it might read all sessions of the tenant.
    "select (select count(*) from lanes a "
    "where (select tenant from sessions where no = a.session) = ?1) + (select count(*) "
    "from queue q where (select tenant from sessions where no = q.session) = ?1)",
)
# Text of a stream in progress. Once the run has lost its lane there is no session, and so no row.
SAVE_PARTIAL = Statement(
    "save_partial",
    "insert into partials (run, session, body) values (?1, "
    "(select session from lanes where session = ?2 and run = ?1), ?3) "
    "on conflict (run) do update set body = excluded.body",
    is_fenced=True,
)
DROP_PARTIAL = Statement("drop_partial", "delete from partials where run = ?1")

# ── Turns and runs ──────────────────────────────────────────────────────────────────────────

_TURN = (
    "select s.id, s.tenant, l.turn, l.body, "
    f"{REQUEST.format(turn='l.turn')}, q.input, d.step, d.delivered_at, d.retry_claim "
    "from log l join sessions s on s.no = l.session left join queue q on q.turn = l.turn "
    "left join deliveries d on d.turn = l.turn "
)
# The state of a turn is in its last entry.
TURN_BY_ID = Statement(
    "turn_by_id",
    _TURN.replace("from log l ", f"from {LAST_ENTRY_OF_TURN.format(turn='?1')}", 1),
)
_TURNS_OF = _TURN.replace(
    "from log l ",
    f"from (select distinct o.session, {_LAST_OF_TURN.format(turn='o.turn')} as n "
    "from {turns}) z join log l on l.session = z.session and l.n = z.n ",
    1,
)
# Every open turn of a session.
OPEN_TURNS = Statement(
    "open_turns",
    _TURNS_OF.format(
        turns="(select session, turn from lanes where session = ?1 "
        "union all select session, turn from queue where session = ?1) o"
    ),
)
# The turns of a range of entries, each in the state of its own last entry.
TURNS_BETWEEN = Statement(
    "turns_between",
    _TURNS_OF.format(
        turns="log o where o.session = ?1 and o.n between ?2 and ?3 and o.turn is not null"
    ),
)
# Ends of turns, newest first; the caller skips turns that were reopened.
LAST_ENDED = Statement(
    "last_ended",
    f"select turn from log where session = ?1 and kind in {ENDS} order by n desc limit 16",
)
TURN_ENTRIES = Statement(
    "turn_entries",
    # Not a join: PostgreSQL might then look for the entries by session only.
    "select (select s.id from sessions s where s.no = e.session), l.body, l.n "
    + ENTRIES_OF_TURN
    + "order by l.n",
)
TURN_ITEMS = Statement(
    "turn_items",
    "select l.session, l.seq, l.items " + ENTRIES_OF_TURN + "and l.items is not null order by l.n",
)
ENTRY_TURN = Statement("entry_turn", "select turn from log where session = ?1 and n = ?2")
JOINED_TURN = Statement("joined_turn", "select joined from joined_turns where turn = ?1")
ADD_JOINED_TURN = Statement(
    "add_joined_turn",
    "insert into joined_turns (turn, joined, run, session) values (?1, ?2, ?3, ?4) "
    "on conflict (turn) do update set joined = excluded.joined, run = excluded.run",
)
# Of several runs, given as JSON: there is no index by turn.
LATE_WRITES = Statement(
    "late_writes",
    "select l.run, l.body from json_each(?1) p join late_writes l on l.run = p.value",
    postgres="select l.run, l.body from json_array_elements_text(?1::text::json) p (value) "
    "join late_writes l on l.run = p.value",
)
ADD_LATE_WRITE = Statement(
    "add_late_write",
    "insert into late_writes (run, turn, session, body) values (?1, ?2, ?3, ?4) "
    "on conflict (run) do update set body = excluded.body",
)
STOP_REQUESTS = Statement(
    "stop_requests", "select run, code, caller, requested_at from stop_requests"
)
STOP_REQUEST = Statement(
    "stop_request", "select run, code, caller, requested_at from stop_requests where run = ?1"
)
DROP_STOP_REQUEST = Statement("drop_stop_request", "delete from stop_requests where run = ?1")
ADD_STOP_REQUEST = Statement(
    "add_stop_request",
    "insert into stop_requests (run, code, caller, requested_at) values (?1, ?2, ?3, ?4) "
    "on conflict (run) do update set code = excluded.code, caller = excluded.caller, "
    "requested_at = excluded.requested_at",
)
FORGET_STOP_REQUESTS = Statement(
    "forget_stop_requests", "delete from stop_requests where requested_at < ?1"
)
PARTIAL = Statement("partial", "select body from partials where run = ?1")

# Record that an answer was delivered, and of which step, because the turn may have continued.
MARK_DELIVERED = Statement(
    "mark_delivered",
    "insert into deliveries (turn, step, delivered_at, retry_claim) values (?1, ?2, ?3, 0) "
    "on conflict (turn) do update set delivered_at = excluded.delivered_at, retry_claim = "
    "case when deliveries.step = excluded.step then deliveries.retry_claim else 0 end, "
    "step = excluded.step",
)
CLAIM_RETRY = Statement(
    "claim_retry",
    "insert into deliveries (turn, step, delivered_at, retry_claim) values (?1, ?2, null, ?3) "
    "on conflict (turn) do update set retry_claim = excluded.retry_claim, delivered_at = "
    "case when deliveries.step = excluded.step then deliveries.delivered_at end, "
    "step = excluded.step",
)
FORGET_DELIVERIES = Statement("forget_deliveries", "delete from deliveries where turn < ?1")

# ── Item ids ────────────────────────────────────────────────────────────────────────────────

ADD_ITEM_ID = Statement(
    "add_item_id",
    "insert into item_ids (session, item_id, seq) values (?1, ?2, ?3)",
)
# Clients choose the ids, so one may occur twice; names are unique.
FIRST_PLACES = Statement(
    "first_places", "select session, seq from item_ids where item_id = ?1 limit ?2"
)
# How many rows, up to two, each of several ids has; they are given as JSON.
STORED_IDS = Statement(
    "stored_ids",
    "select p.value, (select count(*) from (select 1 from item_ids i where i.item_id = p.value "
    "limit 2) q) from json_each(?1) p",
    postgres="select p.value, (select count(*) from (select 1 from item_ids i "
    "where i.item_id = p.value limit 2) q) from json_array_elements_text(?1::text::json) p (value)",
)
DROP_ITEM_ID = Statement("drop_item_id", "delete from item_ids where item_id = ?1 and session = ?2")
PLACES_OF_ITEM = Statement(
    "places_of_item",
    "select seq from item_ids where session = ?1 and item_id = ?2 and seq between ?3 and ?4 "
    "order by seq",
)

# ── Facts for followers, repeats, providers ─────────────────────────────────────────────────

# A tenant's facts after a place. SQLite commits one transaction after the other, so positions give
# the order. In PostgreSQL the transaction's number comes first, and only facts before every open
# transaction are read, so that nothing can be committed before them any more. The tables are joined
# in a way that leaves no other plan than to read entries in this order, never by session.
_FEED = (
    "from log l cross join sessions s on s.no = l.session "
    "where s.tenant = ?1 and s.is_visible = 1 and s.deleted_at is null "
)
_FEED_IN_ORDER = (
    "from log l cross join lateral (select s.id from sessions s where s.no = l.session "
    "and s.tenant = ?1 and s.is_visible = 1 and s.deleted_at is null offset 0) s where true "
)
_SETTLED = "and l.txid < (select txid from feed_horizon) "
_FEED_COLUMNS = "select s.id, l.turn, l.at, l.events, l.body, l.txid, l.pos "
FEED = Statement(
    "feed",
    _FEED_COLUMNS + _FEED + "and l.txid >= ?2 and l.pos >= ?3 order by l.pos limit ?4",
    postgres=f"{_FEED_COLUMNS}{_FEED_IN_ORDER}{_SETTLED}"
    "and (l.txid, l.pos) >= (?2, ?3) order by l.txid, l.pos limit ?4",
)
# The last entry that a feed can have, of any tenant.
LOG_END = Statement(
    "log_end",
    "select txid, pos from log where pos = (select max(pos) from log)",
    postgres=f"select l.txid, l.pos from log l where true {_SETTLED}"
    "order by l.txid desc, l.pos desc limit 1",
)
# Where an entry of a session is in the feed, and how many events the session had before it.
_BEFORE = "coalesce((select b.events from log b where b.session = l.session and b.n = l.n - 1), 0)"
ENTRY_PLACE = Statement(
    "entry_place",
    f"select l.txid, l.pos, {_BEFORE} from log l where l.session = ?1 and l.n = ?2",
)
# The entry at a position, if it is a tenant's, and how many events it has.
OWN_ENTRY = Statement(
    "own_entry",
    f"select l.txid, l.events - {_BEFORE} from log l where l.pos = ?2 "
    # Not a join: it might read all sessions.
    "and (select s.tenant from sessions s where s.no = l.session) = ?1",
)
ADD_IDEMPOTENCY = insert("add_idempotency", "idempotency", IdempotencyRow)
IDEMPOTENCY_BY_KEY = Statement(
    "idempotency_by_key",
    f"select {columns(IdempotencyRow)} from idempotency where tenant = ?1 and key = ?2",
)
FORGET_IDEMPOTENCY = Statement(
    "forget_idempotency", "delete from idempotency where created_at < ?1"
)
SAVE_PROVIDER_STATE = Statement(
    "save_provider_state",
    "insert into provider_state (session_id, slot, provider, account, model, value, covers_seq, "
    "saved_at) values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) "
    "on conflict (session_id, slot) do update set value = excluded.value, "
    "covers_seq = excluded.covers_seq, saved_at = excluded.saved_at",
)
PROVIDER_STATE = Statement(
    "provider_state",
    "select provider, account, model, value, covers_seq from provider_state "
    "where session_id = ?1 order by slot",
)
DROP_PROVIDER_STATE = Statement(
    "drop_provider_state", "delete from provider_state where session_id = ?1"
)
DROP_PROVIDER_STATE_COVERING = Statement(
    "drop_provider_state_covering",
    # Forks share the erased items, so the state of their providers is dropped too.
    "delete from provider_state where covers_seq >= ?2 and session_id in ("
    "with recursive descendants (id) as (select id from sessions where id = ?1 "
    "union all select s.id from sessions s join descendants d on s.parent_id = d.id) "
    "select id from descendants)",
)
DROP_PROVIDER_SLOT = Statement(
    "drop_provider_slot", "delete from provider_state where session_id = ?1 and slot = ?2"
)

# ── Journals of streams ─────────────────────────────────────────────────────────────────────

_JOURNAL = (
    "insert into journals (turn_id, step, first_no, last_no, session_id, body, session) "
    "values (?1, ?2, ?3, ?4, ?5, ?6, {session}) "
    # A batch whose commit reply was lost is sent again and replaces itself.
    "on conflict (turn_id, step, first_no) do update set "
    "last_no = excluded.last_no, body = excluded.body"
)
ADD_JOURNAL = Statement("add_journal", _JOURNAL.format(session="?7"))
# The same if no other statement of the commit checks that the run still has its lane.
APPEND_JOURNAL = Statement(
    "append_journal",
    _JOURNAL.format(session="(select session from lanes where session = ?7 and run = ?8)"),
    is_fenced=True,
)
# A journal that starts again replaces that of an earlier attempt.
DROP_JOURNAL_REST = Statement(
    "drop_journal_rest",
    "delete from journals where turn_id = ?1 and step = ?2 and first_no > ?3",
)
DROP_JOURNAL = Statement("drop_journal", "delete from journals where turn_id = ?1 and step = ?2")
DROP_JOURNALS_OF_TURN = Statement(
    "drop_journals_of_turn", "delete from journals where turn_id = ?1"
)
JOURNAL = Statement(
    "journal",
    # Batches follow each other without a gap: the page begins with the one that has event ?3 + 1.
    f"select {columns(JournalRow)} from journals where turn_id = ?1 and step = ?2 "
    "and first_no >= coalesce((select max(first_no) from journals "
    "where turn_id = ?1 and step = ?2 and first_no <= cast(?3 as bigint) + 1), 0) "
    "and last_no > ?3 order by first_no limit ?4",
)
ADD_DROPPED_RESPONSE = Statement(
    "add_dropped_response",
    "insert into dropped_responses (turn_id, step, session_id, dropped_at) "
    "values (?1, ?2, ?3, ?4) on conflict (turn_id, step) do nothing",
)
DROPPED_RESPONSE = Statement(
    "dropped_response", "select 1 from dropped_responses where turn_id = ?1 and step = ?2"
)
ADD_COMPLETION = insert("add_completion", "completions", CompletionRow)
SAVE_COMPLETION = Statement(
    "save_completion",
    "update completions set metadata = ?3 where turn_id = ?1 and step = ?2",
    is_fenced=True,
)
# A completion that was deleted as a response is not listed as a completion either.
_COMPLETIONS = (
    f"select {columns(CompletionRow, 'c.')} from completions c "
    "left join dropped_responses d on d.turn_id = c.turn_id and d.step = c.step "
    "where c.tenant = ?1 and d.turn_id is null "
)
COMPLETION = Statement("completion", _COMPLETIONS + "and c.turn_id = ?2 and c.step = ?3")
COMPLETIONS_UP = Statement(
    "completions_up",
    _COMPLETIONS + "and (?2 = '' or c.model = ?2) "
    "and (c.turn_id, c.step) > (?3, ?4) "
    "order by c.turn_id asc, c.step asc limit ?5",
)
COMPLETIONS_DOWN = Statement(
    "completions_down",
    _COMPLETIONS + "and (?2 = '' or c.model = ?2) "
    "and (c.turn_id, c.step) < (?3, ?4) "
    "order by c.turn_id desc, c.step desc limit ?5",
)

# ── Histories that requests may repeat ──────────────────────────────────────────────────────

# An answer may be written again if its commit reply was lost: it replaces its own row.
ADD_HISTORY_HASH = Statement(
    "add_history_hash",
    insert("add_history_hash", "history_hashes", HistoryHashRow).text
    + " on conflict (session_id, seq, record_no)"
    " do update set history_hash = excluded.history_hash",
)
HASHES_AT_ONCE = 16
FIND_HISTORY_HASHES = Statement(
    "history_hashes",
    f"select {columns(HistoryHashRow, 't.')} from history_hashes t "
    "join sessions s on s.id = t.session_id "
    "where t.tenant = ?1 and s.deleted_at is null and t.history_hash in ("
    + ", ".join(f"?{n}" for n in range(2, HASHES_AT_ONCE + 2))
    + ") order by s.id desc, t.seq desc",
)
ADD_ITEM_PLACE = insert("add_item_place", "item_places", ItemPlaceRow)
ITEM_PLACES = Statement(
    "item_places",
    "select session_id from item_places where tenant = ?1 and item_id = ?2 "
    "order by session_id desc limit 8",
)
STORED_BYTES = Statement(
    "stored_bytes",
    "select coalesce(sum(length(l.items)), 0) from log l join sessions s on s.no = l.session "
    "where s.tenant = ?1",
)

ADD_API_KEY = insert("add_api_key", "api_keys", ApiKeyRow)
REVOKE_API_KEY = Statement(
    "revoke_api_key", "update api_keys set revoked_at = ?2 where id = ?1", is_fenced=True
)
API_KEY_BY_ID = Statement(
    "api_key_by_id", f"select {columns(ApiKeyRow)} from api_keys where id = ?1"
)
API_KEYS = Statement("api_keys", f"select {columns(ApiKeyRow)} from api_keys order by id")

# ── Workers ─────────────────────────────────────────────────────────────────────────────────

ADD_WORKER = Statement(
    "add_worker", "insert into workers (id, started_at, alive_until) values (?1, ?2, ?3)"
)
WORKER_BY_ID = Statement("worker_by_id", "select alive_until from workers where id = ?1")
SAVE_WORKER = Statement(
    "save_worker", "update workers set alive_until = ?2 where id = ?1", is_fenced=True
)
# Only once: the lanes of a dead worker are freed one by one afterwards.
DECLARE_DEAD = Statement(
    "declare_dead",
    f"update workers set alive_until = {EXPIRED}, died_at = ?2, "
    # Several at once are found by the only `where`.
    "running = (select count(case when owner = ?1 then 1 end) from lanes) where id = ?1",
    is_fenced=True,
)
WORKER_DEATH = Statement(
    "worker_death", "select coalesce(died_at, 0), coalesce(running, 0) from workers where id = ?1"
)
# Cut leases from before the clock was set back: a hanging worker would keep its lanes that long.
CUT_LEASES = Statement("cut_leases", "update workers set alive_until = ?1 where alive_until > ?1")
DROP_WORKER = Statement("drop_worker", "delete from workers where id = ?1")

WORKERS = Statement("workers", "select id, alive_until from workers order by id")

# Sessions in which a worker that was declared dead still runs or waits, or with an expired hold.
# Each part has its own limit, so that paging through many orphans does not scan all of them again.
ORPHANED_SESSIONS = Statement(
    "orphaned_sessions",
    "select s.id from sessions s join ("
    "select session from (select a.session from lanes a left join workers w on w.id = a.owner "
    f"where a.owner is not null and (w.id is null or w.alive_until = {EXPIRED}) limit ?2) ran "
    "union "
    "select session from (select h.session from lanes h where h.hold_until <= ?1 limit ?2) held "
    "union "
    # Holds from before the clock was set back.
    f"select session from (select h.session from lanes h "
    f"where h.hold_until > ?1 + {MAX_HOLD_SECONDS} "
    "limit ?2) ahead "
    "union "
    "select session from (select q.session from queue q left join workers w on w.id = q.owner "
    f"where w.id is null or w.alive_until = {EXPIRED} limit ?2) waited"
    ") o on o.session = s.no limit ?2",
)
# Waiting turns only; the turn that has the lane belongs to its run or its client.
OWNED_TURNS = Statement(
    "owned_turns",
    _TURN + "where (l.session, l.n) in (select o.session, "
    f"{_LAST_OF_TURN.format(turn='o.turn')} from queue o where o.owner = ?1) "
    "order by s.id, q.position",
)
OWNED_RUNS = Statement(
    "owned_runs",
    "select s.id, a.turn, a.run from lanes a join sessions s on s.no = a.session + 0 "
    "where a.owner = ?1 order by s.id",
)
