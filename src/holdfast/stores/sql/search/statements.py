"""Statements of the search index, which follows the log.

SQLite keeps `search_text` (FTS5) in step with `search_items` by triggers; PostgreSQL has a GIN
index on `terms` itself.
"""

from holdfast.stores.sql.plan import Statement
from holdfast.stores.sql.search.terms import BLOCK_BITS, MARK
from holdfast.stores.sql.statements import IS_LIVE, IS_RETIRED, LISTED

_ENTRY = (
    "select l.txid, l.pos, l.session, l.n, l.at, l.items, "
    "case when l.record is not null then l.body end, s.tenant, s.key, s.deleted_at "
    "from log l join sessions s on s.no = l.session where "
)
# Entries after a position, in the order of the feed (see `statements.FEED`). Only an entry with a
# record can erase items: of others the body is not read.
BACKLOG = Statement(
    "search_backlog",
    _ENTRY + "l.txid >= ?1 and l.pos > ?2 order by l.pos limit ?3",
    postgres=_ENTRY + "(l.txid, l.pos) > (?1, ?2) and l.txid < (select txid from feed_horizon) "
    "order by l.txid, l.pos limit ?3",
)
NEWEST = Statement("search_newest", "select coalesce(max(pos), 0) from log")
CURSOR = Statement("search_cursor", "select txid, pos, last_id from cursors where view = 'search'")
# Only one of several followers gets the row, which always exists; the others do not wait.
LOCKED_CURSOR = Statement(
    "search_cursor_locked",
    CURSOR.text,
    postgres=CURSOR.text + " for update skip locked",
)
SAVE_CURSOR = Statement(
    "save_search_cursor",
    "insert into cursors (view, txid, pos, last_id) values ('search', ?1, ?2, ?3) "
    "on conflict (view) do update set txid = excluded.txid, pos = excluded.pos, "
    "last_id = excluded.last_id",
)
# All items of a batch, given as JSON and numbered after the last one. One statement, because SQLite
# has FTS5 write a segment for each statement that fires a trigger, which costs more than the rest.
# Terms arrive separated by blanks. PostgreSQL's own parser would split some of them again. There
# the block of an item is a term; SQLite finds blocks by their numbers.
_ADD = "insert into search_items (id, pos, back, terms) "
ADD_ITEMS = Statement(
    "add_search_items",
    _ADD + "select ?2 + 1 + key, json_extract(value, '$[0]'), json_extract(value, '$[1]'), "
    "json_extract(value, '$[2]') from json_each(?1)",
    postgres=_ADD + "select i.id, (i.value ->> 0)::bigint, (i.value ->> 1)::bigint, "
    "(select string_agg('''' || u.term || ''':' || least(u.place, 16383), ' ') "
    "from unnest(string_to_array((i.value ->> 2) || ' "
    + MARK
    + f"b' || to_hex(i.id >> {BLOCK_BITS}), ' ')) "
    "with ordinality as u(term, place))::tsvector "
    "from (select cast(?2 as bigint) + p.no as id, p.value "
    "from json_array_elements(cast(?1 as text)::json) with ordinality as p(value, no)) i",
)
_TIMES = (
    "insert into search_blocks (block, first_at, last_at) values (?1, ?2, ?3) "
    "on conflict (block) do update set first_at = {least}(search_blocks.first_at, "
    "excluded.first_at), last_at = {greatest}(search_blocks.last_at, excluded.last_at) where true"
)
SAVE_BLOCK = Statement(
    "save_search_block",
    _TIMES.format(least="min", greatest="max"),
    postgres=_TIMES.format(least="least", greatest="greatest"),
)
# Where an item of an entry is in the index: at the first number, or, if it is not there, behind it.
HIT_PLACE = Statement(
    "hit_place",
    "select id, case when pos = ?1 and back = ?2 then 0 else 1 end from search_items "
    "where pos <= ?1 and (pos < ?1 or back >= ?2) order by pos desc, back limit 1",
)
# An item of the index, if it is a tenant's.
OWN_HIT = Statement(
    "own_hit",
    "select i.id from search_items i join log l on l.pos = i.pos join sessions s "
    "on s.no = l.session where i.id = ?2 and i.back >= 0 and s.tenant = ?1",
)
# Items of a session with these numbers, in a range of entries.
REMOVE_ITEMS = Statement(
    "remove_search_items",
    "delete from search_items where id in (select i.id from log l join search_items i "
    "on i.pos = l.pos where l.session = ?1 and l.n between ?2 and ?3 "
    "and i.back >= 0 and l.seq - i.back between ?4 and ?5)",
)
REMOVE_SESSION = Statement(
    "erase_search_items",
    "delete from search_items where pos in (select pos from log where session = ?1)",
)
# The sessions of a batch, given as JSON.
_ACTIVE = (
    "insert into activity (session, tenant, at) select {values} where true "
    "on conflict (session) do update set at = excluded.at"
)
SAVE_ACTIVITY = Statement(
    "save_activity",
    _ACTIVE.format(
        values="json_extract(value, '$[0]'), json_extract(value, '$[1]'), "
        "json_extract(value, '$[2]') from json_each(?1)"
    ),
    postgres=_ACTIVE.format(
        values="(p.value ->> 0)::bigint, p.value ->> 1, (p.value ->> 2)::double precision "
        "from json_array_elements(cast(?1 as text)::json) p"
    ),
)
REMOVE_ACTIVITY = Statement("erase_activity", "delete from activity where session = ?1")
# Activity after the view's position, by session.
ACTIVITY_TAIL = Statement(
    "activity_tail",
    # `+ 0`: otherwise SQLite reads the whole log in the order of its groups.
    "select session, max(at) from (select session + 0 as session, at from log where pos > ?1) l "
    "group by session",
)
ACTIVITY_OF = Statement("activity_of", "select at from activity where session = ?1")
ACTIVITY_OF_LANES = Statement(
    "activity_of_lanes",
    # Not a join: it might read the whole view.
    "select a.session, (select v.at from activity v where v.session = a.session) from lanes a",
)
# Sessions by last activity; ties are broken by the session's number.
_LISTED = LISTED.replace("?6", "?4")
_ANY_KEY = ("?3 = ''", "s.key = ?3")
LISTED_SESSION = Statement("listed_session", _LISTED + "and s.no = ?5")
_BY_ACTIVITY = _LISTED.replace("w.alive_until from", "w.alive_until, v.at from", 1).replace(
    "where s.tenant", "join activity v on v.session = s.no where s.tenant", 1
)
_IN_ORDER = (
    "v.tenant = ?1 and (v.at, v.session) < (?5, ?6) order by v.at desc, v.session desc limit ?7"
)
LIST_BY_ACTIVITY = Statement(
    "list_sessions_by_activity",
    f"{_BY_ACTIVITY} and {_IN_ORDER}",
    # The sessions are read in the order of their activity.
    postgres=f"select q.*, v.at from activity v cross join lateral ({_LISTED} "
    f"and s.no = v.session offset 0) q where {_IN_ORDER}",
)
# Retired sessions by the time at which they were retired.
RETIRED_AT = Statement("retired_at", "select retired_at, no from sessions where id = ?1")
LIST_RETIRED = Statement(
    "list_retired_sessions",
    _LISTED.replace(IS_LIVE, IS_RETIRED) + "and (s.retired_at, s.no) < (?5, ?6) "
    "order by s.retired_at desc, s.no desc limit ?7",
)
OF_KEY = {
    LISTED_SESSION: Statement("listed_session_of_key", LISTED_SESSION.text.replace(*_ANY_KEY)),
    LIST_BY_ACTIVITY: Statement(
        "list_sessions_by_activity_of_key", f"{_BY_ACTIVITY.replace(*_ANY_KEY)} and {_IN_ORDER}"
    ),
}
"""The same for the sessions of a key, which are found by an index."""

# The number of the newest item, and the blocks with items of a time.
BOUNDS = Statement(
    "search_bounds",
    "select c.last_id, b.first, b.last from cursors c cross join (select min(block) as first, "
    "max(block) as last from search_blocks where last_at >= ?1 and first_at < ?2) b "
    "where c.view = 'search'",
)
# The keys with a prefix, up to a limit.
KEYS_OF_PREFIX = Statement(
    "search_keys_of_prefix",
    "select distinct key from sessions where tenant = ?1 and key is not null and key >= ?2 "
    "and key < ?3 limit ?4",
)
# The sessions whose keys have a prefix.
SESSIONS_OF_PREFIX = Statement(
    "sessions_of_key_prefix",
    "select id from sessions where tenant = ?1 and key is not null and key >= ?2 and key < ?3 "
    "and is_visible = 1 and deleted_at is null and (?4 = 1 or is_live = 1) "
    "order by key, generation desc limit ?5",
)
# Each database has its own query language: both texts are passed, and each uses its own.
_OF_QUERY = "(cast(?10 as bigint) = 0 or l.session = ?10) and l.at >= ?11 and l.at < ?12"
_OF_SESSION = (
    "tenant = ?5 and is_visible = 1 and deleted_at is null and (?8 = '' or key = ?8) "
    "and (?9 = '' or substr(key, 1, length(?9)) = ?9)"
)
# Three conditions instead of one: PostgreSQL then skips matches outside of the blocks.
_TERMS = (
    "cast(?1 as text) <> '' and terms @@ cast(?2 as text)::tsquery "
    "and terms @@ cast(?3 as text)::tsquery and terms @@ cast(?4 as text)::tsquery"
)
# The only good plan for PostgreSQL: read the index, sort the matches of some blocks by number, read
# their entries and sessions until the page is full. `+ 0` and `offset 0` prevent other plans that
# are slow if its estimate is wrong: every item from the newest on until enough match, or the index
# once for each session.
MATCHES = Statement(
    "search_matches",
    "select search_text.rowid, i.pos, i.back, l.session, l.seq - i.back, l.at, s.id, s.key, "
    "s.generation from search_text join search_items i on i.id = search_text.rowid "
    "join log l on l.pos = i.pos join sessions s on s.no = l.session "
    "where search_text match ?1 and ?2 <> '' and ?3 <> '' and ?4 <> '' "
    "and search_text.rowid >= ?6 and search_text.rowid < ?7 and "
    + _OF_QUERY
    + " and "
    + _OF_SESSION
    + " order by search_text.rowid desc limit ?13",
    postgres="select m.place, m.pos, m.back, e.session, e.seq - m.back, e.at, s.id, s.key, "
    "s.generation from (select i.id + 0 as place, i.pos, i.back from search_items i where "
    + _TERMS
    + " and i.id + 0 >= ?6 and i.id + 0 < ?7 order by 1 desc offset 0) m cross join lateral ("
    "select l.session, l.seq, l.at from log l where l.pos = m.pos and "
    + _OF_QUERY
    + " offset 0) e cross join lateral ("
    "select id, key, generation from sessions where no = e.session and "
    + _OF_SESSION
    + " offset 0) s order by m.place desc limit ?13",
)
# How common a term is, up to a limit, so that a very common term is not counted completely.
COUNT_MATCHES = Statement(
    "count_search_matches",
    "select count(*) from (select 1 from search_text where search_text match ?1 and ?2 <> '' "
    "and ?3 <> '' and ?4 <> '' and rowid >= ?5 limit ?6) m",
    postgres="select count(*) from (select 1 from search_items where "
    + _TERMS
    + " and id + 0 >= ?5 limit ?6) m",
)
# The entries and records of a page, given as JSON, in one read.
PAGE_ENTRIES = Statement(
    "search_page_entries",
    "select l.pos, l.items from json_each(?1) p join log l on l.pos = p.value",
    postgres="select l.pos, l.items from jsonb_array_elements(cast(?1 as text)::jsonb) p "
    "join log l on l.pos = p.value::bigint",
)
PAGE_RECORDS = Statement(
    "search_page_records",
    "select l.session, l.body from json_each(?1) p join log l on l.session = p.value "
    "and l.record is not null order by l.session, l.record",
    postgres="select l.session, l.body from "
    "jsonb_array_elements(cast(?1 as text)::jsonb) p join log l on l.session = p.value::bigint "
    "and l.record is not null order by l.session, l.record",
)
