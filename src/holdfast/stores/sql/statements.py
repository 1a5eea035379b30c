"""Every statement of the store, once, with the reason it is there.

Both databases run the same text: parameters are written `?1`, `?2`, and a driver that spells
them another way rewrites them. Column lists come from the row types, so they cannot drift.
"""

import msgspec

from holdfast.core.history.history_hash import ItemPlaceRow, TrailRow
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import (
    ApiKeyRow,
    CompletionRow,
    Event,
    IdempotencyRow,
    JournalRow,
)
from holdfast.stores.sql.statement_builder import Statement, columns, insert, update


def _insert(name: str, table: str, row: type[msgspec.Struct]) -> Statement:
    return insert(name, table, row).statement


def _update(name: str, table: str, changing: tuple[str, ...], *where: str) -> Statement:
    return update(name, table, changing, where).statement


# ── Sessions ────────────────────────────────────────────────────────────────────────────────

SESSION_CHANGING = (
    "is_live", "epoch", "version", "head_seq", "record_no", "event_no", "turn_count",
    "hidden_count", "active_turn_id", "active_run_id", "owner", "hold_until", "pending_calls",
    "last_user_activity_at", "retired_at", "deleted_at", "input_tokens", "cached_tokens",
    "output_tokens", "reasoning_tokens", "metadata",
)  # fmt: skip

ADD_SESSION = _insert("add_session", "sessions", Session)

# The fence of every write to a session: void unless the row is the one the decision was made on.
SAVE_SESSION = _update("save_session", "sessions", SESSION_CHANGING, "id", "version")

# The same where only the log grew, or a run began or ended: what is named is written, and every
# index visited that speaks of it.
LOG_CHANGING = (
    "version", "head_seq", "record_no", "event_no", "turn_count", "hidden_count",
    "last_user_activity_at",
)  # fmt: skip
SAVE_LOG = _update("save_log", "sessions", LOG_CHANGING, "id", "version")
LANE_CHANGING = (
    *LOG_CHANGING, "epoch", "active_turn_id", "active_run_id", "owner", "input_tokens",
    "cached_tokens", "output_tokens", "reasoning_tokens",
)  # fmt: skip
SAVE_LANE = _update("save_lane", "sessions", LANE_CHANGING, "id", "version")

# The session, and whether somebody living answers for its lane, in one read.
_SESSION_WITH_OWNER = (
    f"select {columns(Session, 's.')}, w.alive_until from sessions s "
    "left join workers w on w.id = s.owner "
)
SESSION_BY_ID = Statement("session_by_id", _SESSION_WITH_OWNER + "where s.id = ?1")
SESSION_BY_KEY = Statement(
    "session_by_key",
    _SESSION_WITH_OWNER + "where s.tenant = ?1 and s.key = ?2 and s.is_live = 1",
)

# All that a decision about a lane asks: its session and the owner's lease, how many wait and
# between which places, and the turn and the run that hold it. One question instead of four.
_WAITS = (
    "from turns t where t.session_id = s.id and t.outcome is null "
    "and t.id <> coalesce(s.active_turn_id, '')"
)
_LANE = (
    f"select {columns(Session, 's.')}, w.alive_until, "
    f"(select count(*) {_WAITS}), (select min(t.position) {_WAITS}), "
    f"(select max(t.position) {_WAITS}), {columns(Turn, 'a.')}, {columns(Run, 'r.')} "
    "from sessions s left join workers w on w.id = s.owner "
    "left join turns a on a.id = s.active_turn_id left join runs r on r.id = s.active_run_id "
)
LANE_BY_ID = Statement("lane_by_id", _LANE + "where s.id = ?1")
LANE_BY_KEY = Statement(
    "lane_by_key", _LANE + "where s.tenant = ?1 and s.key = ?2 and s.is_live = 1"
)

# Generations are never reused, also not after an erasure.
LAST_GENERATION = Statement(
    "last_generation", "select max(generation) from sessions where tenant = ?1 and key = ?2"
)

FORKS_OF = Statement(
    "forks_of",
    f"select {columns(Session)} from sessions where parent_id = ?1 and deleted_at is null",
)

_LISTED = (
    f"select {columns(Session, 's.')}, w.alive_until from sessions s "
    "left join workers w on w.id = s.owner "
    "where s.tenant = ?1 and s.is_visible = 1 and s.deleted_at is null "
    "and (?2 = 1 or s.is_live = 1) and (?3 = '' or s.key = ?3) "
    # What cannot have the status is left out here; whether the owner lives is judged later.
    "and (?6 <> 'running' or s.active_turn_id is not null) and (?6 <> 'retired' or s.is_live = 0) "
)
LIST_SESSIONS_UP = Statement(
    "list_sessions_up", _LISTED + "and s.id > ?4 order by s.id asc limit ?5"
)
LIST_SESSIONS_DOWN = Statement(
    "list_sessions_down", _LISTED + "and (?4 = '' or s.id < ?4) order by s.id desc limit ?5"
)

# ── Turns and runs ──────────────────────────────────────────────────────────────────────────

TURN_CHANGING = (
    "position", "owner", "step", "attempts", "input", "body_hash", "first_seq", "kept_seq",
    "last_seq", "outcome", "error_code", "error_message", "is_retryable", "started_at",
    "ended_at", "delivered_at", "retry_claim",
)  # fmt: skip

ADD_TURN = _insert("add_turn", "turns", Turn)
_PLAIN_TURN: dict[str, int | None] = {
    "input": None, "rewind_after": None, "rewind_upto": None, "error_code": None,
    "error_message": None, "is_retryable": 0, "delivered_at": None, "retry_claim": 0,
}  # fmt: skip
# As nearly all begin, or are complete when they come.
ADD_BEGUN_TURN = insert(
    "add_begun_turn", "turns", Turn, {**_PLAIN_TURN, "outcome": None, "ended_at": None}
)
ADD_DONE_TURN = insert("add_done_turn", "turns", Turn, {**_PLAIN_TURN, "body_hash": None})
SAVE_TURN = _update("save_turn", "turns", TURN_CHANGING, "id")
# What was marked on a turn meanwhile, whether it was delivered, is not for its run to know.
BLOCK_CHANGING = ("step", "first_seq", "kept_seq", "last_seq", "ended_at")
SAVE_BLOCK = _update("save_block", "turns", BLOCK_CHANGING, "id")
END_CHANGING = (*BLOCK_CHANGING, "outcome", "error_code", "error_message", "is_retryable")
END_TURN = _update("end_turn", "turns", END_CHANGING, "id")
END_TURN_WELL = update(
    "end_turn_well", "turns", END_CHANGING, ("id",),
    {"error_code": None, "error_message": None, "is_retryable": 0},
)  # fmt: skip
TURN_BY_ID = Statement("turn_by_id", f"select {columns(Turn)} from turns where id = ?1")
LATEST_TURN = Statement(
    "latest_turn",
    f"select {columns(Turn)} from turns where session_id = ?1 order by number desc limit 1",
)

# Turns that were taken elsewhere: a session that has no other ones was never spoken to here.
IMPORTED_TURNS = Statement(
    "imported_turns", "select count(*) from turns where session_id = ?1 and owner = ?2"
)

# An answer that arrived; the step says which, should the turn have gone on meanwhile.
MARK_DELIVERED = Statement(
    "mark_delivered", "update turns set delivered_at = ?3 where id = ?1 and step = ?2"
)

TENANT_TURNS = Statement(
    "tenant_turns", "select count(*) from turns where tenant = ?1 and outcome is null"
)
# A turn that was reopened ends after later ones; further back than this nobody looks for it.
LAST_ENDED_TURN = Statement(
    "last_ended_turn",
    f"select {columns(Turn)} from (select {columns(Turn)} from turns "
    "where session_id = ?1 and outcome is not null order by number desc limit 16) as ended "
    "order by ended_at desc, number desc limit 1",
)

# The queue of a lane, without the turn that holds it.
WAITING = Statement(
    "waiting",
    "select count(*), min(position), max(position) from turns "
    "where session_id = ?1 and outcome is null and id <> ?2",
)
OPEN_TURNS = Statement(
    "open_turns",
    f"select {columns(Turn)} from turns where session_id = ?1 and outcome is null "
    "order by position",
)
TURNS_UP = Statement(
    "turns_up",
    f"select {columns(Turn)} from turns where session_id = ?1 and number > ?2 "
    "order by number asc limit ?3",
)
TURNS_DOWN = Statement(
    "turns_down",
    f"select {columns(Turn)} from turns where session_id = ?1 and (?2 = 0 or number < ?2) "
    "order by number desc limit ?3",
)

RUN_CHANGING = (
    "last_seq", "record_no", "outcome", "error_code", "error_message", "ended_at", "input_tokens",
    "cached_tokens", "output_tokens", "reasoning_tokens", "partial", "result", "heals", "late",
)  # fmt: skip

ADD_RUN = _insert("add_run", "runs", Run)
ADD_BEGUN_RUN = insert("add_begun_run", "runs", Run, dict.fromkeys(RUN_CHANGING))
SAVE_RUN = _update("save_run", "runs", RUN_CHANGING, "id")
END_RUN_WELL = update(
    "end_run_well", "runs", RUN_CHANGING, ("id",),
    dict.fromkeys(("error_code", "error_message", "partial", "heals", "late")),
)  # fmt: skip
RUN_BY_ID = Statement("run_by_id", f"select {columns(Run)} from runs where id = ?1")
RUNS_OF_TURN = Statement(
    "runs_of_turn", f"select {columns(Run)} from runs where turn_id = ?1 order by epoch"
)
LAST_RUN_OF_STEP = Statement(
    "last_run_of_step",
    f"select {columns(Run)} from runs where turn_id = ?1 and step = ?2 order by epoch desc limit 1",
)

# ── Items and records ───────────────────────────────────────────────────────────────────────

ADD_ITEM = _insert("add_item", "items", StoredItem)
ADD_PLAIN_ITEM = insert("add_plain_item", "items", StoredItem, {"call_id": None, "is_partial": 0})
ITEMS_UP = Statement(
    "items_up",
    f"select {columns(StoredItem)} from items where session_id = ?1 and seq between ?2 and ?3 "
    "order by seq asc limit ?4",
)
# What a request is compared with: fingerprints, and bodies only of answers that broke off.
OUTLINE = Statement(
    "outline",
    "select seq, kind, fingerprint, case when is_partial = 1 then body end, call_id from items "
    "where session_id = ?1 and seq between ?2 and ?3 order by seq",
)
ITEMS_DOWN = Statement(
    "items_down",
    f"select {columns(StoredItem)} from items where session_id = ?1 and seq between ?2 and ?3 "
    "order by seq desc limit ?4",
)
# What was said, and nothing that would have to be made into an object for it.
BODIES = Statement(
    "bodies",
    "select body from items where session_id = ?1 and seq between ?2 and ?3 order by seq",
)
# Ids are a client's own affair and may come twice; names may not.
PLACES_OF_ITEM = Statement(
    "places_of_item",
    "select seq from items where session_id = ?1 and item_id = ?2 and seq between ?3 and ?4 "
    "order by seq",
)
SHARED_ITEM_IDS = Statement(
    "shared_item_ids",
    "select i.seq from items i where i.session_id = ?1 and i.seq between ?2 and ?3 "
    "and exists (select 1 from items j where j.session_id = ?4 and j.item_id = i.item_id "
    "and j.seq between ?5 and ?6 and j.seq <> i.seq)",
)
COMPACTION_ITEMS = Statement(
    "compaction_items",
    f"select {columns(StoredItem)} from items where session_id = ?1 and seq between ?2 and ?3 "
    "and kind = 'compaction' order by seq",
)
ERASE_ITEM = Statement(
    "erase_item",
    "update items set body = ?3, fingerprint = ?4, call_id = null "
    "where session_id = ?1 and seq = ?2",
)
ADD_RECORD = _insert("add_record", "records", Record)
RECORDS = Statement(
    "records",
    f"select {columns(Record)} from records where session_id = ?1 and no <= ?2 order by no",
)

# Those that change which items are in the view; undone compactions have an empty range.
VIEW_RECORDS = Statement(
    "view_records",
    f"select {columns(Record)} from records where session_id = ?1 and no <= ?2 "
    "and kind not in ('compaction', 'elision') and from_seq <= to_seq order by no",
)
# A summary that was erased is no record any more; bodies are read only where they count.
RECORD_HEADS = Statement(
    "record_heads",
    "select session_id, no, kind, from_seq, to_seq, undoes from records "
    "where session_id = ?1 and no <= ?2 and (kind <> 'compaction' or body is not null) order by no",
)
RECORD_BODY = Statement("record_body", "select body from records where session_id = ?1 and no = ?2")
RECORDS_OF_TURN = Statement(
    "records_of_turn",
    f"select {columns(Record)} from records "
    "where session_id = ?1 and no <= ?2 and turn_id = ?3 order by no",
)
ERASE_SUMMARIES = Statement(
    "erase_summaries",
    "update records set body = null where session_id = ?1 and kind = 'compaction' "
    "and from_seq <= ?3 and to_seq >= ?2",
)

# ── Facts for followers, repeats, providers ─────────────────────────────────────────────────

ADD_EVENT = _insert("add_event", "events", Event)
EVENTS = Statement(
    "events",
    f"select {columns(Event)} from events where session_id = ?1 and no > ?2 order by no limit ?3",
)

# A tenant's facts behind a place, as far as nothing can be committed before them any more.
_FEED = (
    "from events e join sessions s on s.id = e.session_id "
    "where e.tenant = ?1 and s.is_visible = 1 and e.txid < (select txid from feed_horizon) "
)
FEED = Statement(
    "feed",
    f"select {columns(Event, 'e.')}, e.txid, e.position "
    + _FEED
    + "and (e.txid, e.position) > (?2, ?3) order by e.txid, e.position limit ?4",
)
FEED_END = Statement(
    "feed_end",
    "select e.txid, e.position " + _FEED + "order by e.txid desc, e.position desc limit 1",
)
ADD_IDEMPOTENCY = _insert("add_idempotency", "idempotency", IdempotencyRow)
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
    # What is erased is gone for forks too, which share it, and so for their providers.
    "delete from provider_state where covers_seq >= ?2 and session_id in ("
    "with recursive heirs (id) as (select id from sessions where id = ?1 "
    "union all select s.id from sessions s join heirs h on s.parent_id = h.id) "
    "select id from heirs)",
)
DROP_PROVIDER_SLOT = Statement(
    "drop_provider_slot", "delete from provider_state where session_id = ?1 and slot = ?2"
)

# ── Journals of streams ─────────────────────────────────────────────────────────────────────

# A batch whose commit went through unheard is sent again: it takes its own place.
_ADD_JOURNAL = _insert("add_journal", "journals", JournalRow)
ADD_JOURNAL = Statement(
    "add_journal",
    _ADD_JOURNAL.text + " on conflict (turn_id, step, first_no) do update set "
    "last_no = excluded.last_no, body = excluded.body",
)
DROP_JOURNAL = Statement("drop_journal", "delete from journals where turn_id = ?1 and step = ?2")
DROP_JOURNALS_OF_ITEM = Statement(
    "drop_journals_of_item",
    "delete from journals where turn_id in "
    "(select id from turns where session_id = ?1 and first_seq <= ?2 and last_seq >= ?2)",
)
JOURNAL = Statement(
    "journal",
    f"select {columns(JournalRow)} from journals "
    "where turn_id = ?1 and step = ?2 and last_no > ?3 order by first_no limit ?4",
)
ADD_DROPPED_RESPONSE = Statement(
    "add_dropped_response",
    "insert into dropped_responses (turn_id, step, session_id, dropped_at) "
    "values (?1, ?2, ?3, ?4) on conflict (turn_id, step) do nothing",
)
DROPPED_RESPONSE = Statement(
    "dropped_response", "select 1 from dropped_responses where turn_id = ?1 and step = ?2"
)

ADD_COMPLETION = _insert("add_completion", "completions", CompletionRow)
SAVE_COMPLETION = Statement(
    "save_completion",
    "update completions set metadata = ?3 where turn_id = ?1 and step = ?2",
    is_fenced=True,
)
# A completion that was deleted as a response is gone as a completion too.
_COMPLETIONS = (
    f"select {columns(CompletionRow, 'c.')} from completions c "
    "left join dropped_responses d on d.turn_id = c.turn_id and d.step = c.step "
    "where c.tenant = ?1 and d.turn_id is null "
)
COMPLETION = Statement("completion", _COMPLETIONS + "and c.turn_id = ?2 and c.step = ?3")
COMPLETIONS_UP = Statement(
    "completions_up",
    _COMPLETIONS + "and (?2 = '' or c.model = ?2) "
    "and (c.turn_id > ?3 or (c.turn_id = ?3 and c.step > ?4)) "
    "order by c.turn_id asc, c.step asc limit ?5",
)
COMPLETIONS_DOWN = Statement(
    "completions_down",
    _COMPLETIONS + "and (?2 = '' or c.model = ?2) "
    "and (?3 = '' or c.turn_id < ?3 or (c.turn_id = ?3 and c.step < ?4)) "
    "order by c.turn_id desc, c.step desc limit ?5",
)

# ── Histories that requests may repeat ──────────────────────────────────────────────────────

# An answer may be taken up again after its commit went unheard: its place is the same.
ADD_TRAIL = Statement(
    "add_trail",
    _insert("add_trail", "trails", TrailRow).text
    + " on conflict (session_id, seq, record_no) do update set trail = excluded.trail",
)
TRAILS_AT_ONCE = 16
TRAILS = Statement(
    "trails",
    f"select {columns(TrailRow, 't.')} from trails t join sessions s on s.id = t.session_id "
    "where t.tenant = ?1 and s.deleted_at is null and t.trail in ("
    + ", ".join(f"?{n}" for n in range(2, TRAILS_AT_ONCE + 2))
    + ") order by s.id desc, t.seq desc",
)
ADD_ITEM_PLACE = _insert("add_item_place", "item_places", ItemPlaceRow)
ITEM_PLACES = Statement(
    "item_places",
    "select session_id from item_places where tenant = ?1 and item_id = ?2 "
    "order by session_id desc limit 8",
)
STORED_BYTES = Statement(
    "stored_bytes",
    "select coalesce(sum(length(i.body)), 0) from items i join sessions s on s.id = i.session_id "
    "where s.tenant = ?1",
)
# ── Retention ───────────────────────────────────────────────────────────────────────────────

IDLE_SESSIONS = Statement(
    "idle_sessions",
    "select s.tenant, s.id from sessions s where s.id > ?2 and s.deleted_at is null "
    "and s.active_turn_id is null and s.created_at < ?1 "
    "and not exists (select 1 from turns t where t.session_id = s.id "
    "and (t.outcome is null or t.accepted_at >= ?1 or t.ended_at >= ?1)) "
    "and not exists (select 1 from sessions f where f.parent_id = s.id and f.deleted_at is null) "
    "order by s.id limit ?3",
)
FORGET_JOURNALS = Statement(
    "forget_journals",
    "delete from journals where turn_id < ?1 and exists "
    "(select 1 from turns t where t.id = journals.turn_id and t.outcome is not null)",
)
# A bounded part of the oldest: whoever prunes comes again while there is more.
FORGET_EVENTS = Statement(
    "forget_events",
    "delete from events where at < ?1 and position in "
    "(select position from events order by position limit 1000)",
)
OLDEST_EVENT = Statement("oldest_event", "select at from events order by position limit 1")

STEPS = Statement(
    "steps",
    "select fingerprint, call_id from items where session_id = ?1 and seq between ?2 and ?3 "
    "order by seq",
)

ADD_API_KEY = _insert("add_api_key", "api_keys", ApiKeyRow)
REVOKE_API_KEY = Statement(
    "revoke_api_key", "update api_keys set revoked_at = ?2 where id = ?1", is_fenced=True
)
API_KEY_BY_ID = Statement(
    "api_key_by_id", f"select {columns(ApiKeyRow)} from api_keys where id = ?1"
)
API_KEYS = Statement("api_keys", f"select {columns(ApiKeyRow)} from api_keys order by id")

# ── Erasure: content goes, ids and ends stay, so that nothing late comes back to life ───────

ERASURES = (
    Statement("erase_items", "delete from items where session_id = ?1"),
    Statement("erase_completions", "delete from completions where session_id = ?1"),
    Statement("erase_records", "delete from records where session_id = ?1"),
    Statement("erase_trails", "delete from trails where session_id = ?1"),
    Statement("erase_item_places", "delete from item_places where session_id = ?1"),
    Statement("erase_journals", "delete from journals where session_id = ?1"),
    Statement("erase_events", "delete from events where session_id = ?1"),
    Statement(
        "erase_runs",
        "update runs set partial = null, result = null, heals = null, late = null, "
        "error_message = null, outcome = coalesce(outcome, 'cancelled'), "
        "error_code = case when outcome is null then 'session_deleted' else error_code end "
        "where session_id = ?1",
    ),
    Statement(
        "erase_turns",
        "update turns set input = null, request = ?2, error_message = null, "
        "outcome = coalesce(outcome, 'cancelled'), "
        "error_code = coalesce(error_code, 'session_deleted') where session_id = ?1",
    ),
)


ADD_WORKER = Statement(
    "add_worker", "insert into workers (id, started_at, alive_until) values (?1, ?2, ?3)"
)
WORKER_BY_ID = Statement("worker_by_id", "select alive_until from workers where id = ?1")
SAVE_WORKER = Statement(
    "save_worker", "update workers set alive_until = ?2 where id = ?1", is_fenced=True
)
DROP_WORKER = Statement("drop_worker", "delete from workers where id = ?1")
WORKERS = Statement("workers", "select id, alive_until from workers order by id")

# Sessions that a worker without a live lease still runs or waits in, or that were held too long.
# Each part stops by itself: page after page of many orphans must not look at all of them again.
ORPHANED_SESSIONS = Statement(
    "orphaned_sessions",
    "select id from (select s.id from sessions s left join workers w on w.id = s.owner "
    "where s.owner is not null and (w.id is null or w.alive_until <= ?1) limit ?2) ran "
    "union "
    "select id from (select h.id from sessions h where h.hold_until <= ?1 limit ?2) held "
    "union "
    "select session_id from (select t.session_id from turns t "
    "left join workers w on w.id = t.owner "
    "where t.outcome is null and (w.id is null or w.alive_until <= ?1) "
    "and not exists "
    "(select 1 from sessions h where h.id = t.session_id and h.active_turn_id = t.id) "
    "limit ?2) waited "
    "limit ?2",
)
# Turns that wait; the one that has its lane is a run's business, or its client's.
OWNED_TURNS = Statement(
    "owned_turns",
    f"select {columns(Turn, 't.')} from turns t where t.owner = ?1 and t.outcome is null "
    "and not exists "
    "(select 1 from sessions h where h.id = t.session_id and h.active_turn_id = t.id) "
    "order by t.session_id, t.position",
)
OWNED_RUNS = Statement(
    "owned_runs",
    "select id, active_turn_id, active_run_id from sessions where owner = ?1 order by id",
)
