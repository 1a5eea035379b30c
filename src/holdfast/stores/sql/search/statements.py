"""Statements of the search index, which follows the log.

SQLite keeps `search_text` (FTS5) in step with `search_items` by triggers; PostgreSQL has a GIN
index on `terms` itself.
"""

from holdfast.stores.sql.plan import Statement

_ENTRY = (
    "select l.txid, l.pos, l.session, l.n, l.seq, l.at, l.items, l.body, s.tenant, s.key, "
    "s.deleted_at from log l join sessions s on s.no = l.session where "
)
# Entries behind a position, in the order of the feed (see `statements.FEED`).
BACKLOG = Statement(
    "search_backlog",
    _ENTRY + "l.txid >= ?1 and l.pos > ?2 order by l.pos limit ?3",
    postgres=_ENTRY + "(l.txid, l.pos) > (?1, ?2) and l.txid < (select txid from feed_horizon) "
    "order by l.txid, l.pos limit ?3",
)
NEWEST = Statement("search_newest", "select coalesce(max(pos), 0) from log")
CURSOR = Statement("search_cursor", "select txid, pos from cursors where view = 'search'")
# Of several followers one gets the row, which is there from the start; the others do not wait.
LOCKED_CURSOR = Statement(
    "search_cursor_locked",
    CURSOR.text,
    postgres=CURSOR.text + " for update skip locked",
)
SAVE_CURSOR = Statement(
    "save_search_cursor",
    "insert into cursors (view, txid, pos) values ('search', ?1, ?2) "
    "on conflict (view) do update set txid = excluded.txid, pos = excluded.pos",
)
_ADD = "insert into search_items (session, n, seq, role, at, terms) values (?1, ?2, ?3, ?4, ?5, "
# Terms arrive separated by blanks. PostgreSQL's own parser would split some of them again.
ADD_ITEM = Statement(
    "add_search_item",
    _ADD + "?6)",
    postgres=_ADD + "(select string_agg('''' || u.term || ''':' || least(u.place, 16383), ' ') "
    "from unnest(string_to_array(cast(?6 as text), ' ')) with ordinality as u(term, place)"
    ")::tsvector)",
)
REMOVE_ITEMS = Statement(
    "remove_search_items", "delete from search_items where session = ?1 and seq between ?2 and ?3"
)
_ACTIVE = (
    "insert into activity (session, tenant, at) select l.session, s.tenant, max(l.at) "
    "from log l join sessions s on s.no = l.session where s.deleted_at is null and {range} "
    "group by l.session, s.tenant on conflict (session) do update set at = excluded.at"
)
SAVE_ACTIVITY = Statement(
    "save_activity",
    _ACTIVE.format(range="l.txid >= ?1 and l.pos > ?2 and l.txid <= ?3 and l.pos <= ?4"),
    postgres=_ACTIVE.format(range="(l.txid, l.pos) > (?1, ?2) and (l.txid, l.pos) <= (?3, ?4)"),
)
# What happened behind the view, by session.
ACTIVITY_TAIL = Statement(
    "activity_tail",
    "select session, max(at) from log where pos > ?1 group by session",
)
ACTIVITY_OF = Statement("activity_of", "select at from activity where session = ?1")

# Each database has its own language of queries: both are given, and each reads its own.
_FOUND = "select i.id, i.session, i.n, i.seq, i.role, i.at, s.id from "
_ALLOWED = (
    "join sessions s on s.no = i.session where {match} and s.tenant = ?2 and s.is_visible = 1 "
    "and s.deleted_at is null and i.id < ?3 and (?4 = '' or s.key = ?4) "
    "and (?5 = '' or substr(s.key, 1, length(?5)) = ?5) "
    "and (cast(?6 as bigint) = 0 or i.session = ?6) "
    "and (?7 = '' or ?7 like '%|' || i.role || '|%') and i.at >= ?8 and i.at < ?9 "
    "order by i.id desc limit ?10"
)
_TABLES = "search_text join search_items i on i.id = search_text.rowid "
# PostgreSQL reads the index first and then the sessions of its matches. Left to itself it reads
# the index once for each session of a tenant. A match that is filtered out has no session.
MATCHES = Statement(
    "search_matches",
    _FOUND
    + _TABLES
    + _ALLOWED.format(match="search_text match ?1 and ?11 <> '' and ?12 > 0").replace(
        "i.id", "search_text.rowid"
    ),
    postgres="with m as materialized (select i.id, i.session, i.n, i.seq, i.role, i.at "
    "from search_items i where cast(?1 as text) <> '' and i.terms @@ cast(?11 as text)::tsquery "
    "and i.id < ?3 and (cast(?6 as bigint) = 0 or i.session = ?6) "
    "and (?7 = '' or ?7 like '%|' || i.role || '|%') and i.at >= ?8 and i.at < ?9 "
    "order by i.id desc limit ?12) "
    "select m.id, m.session, m.n, m.seq, m.role, m.at, s.id from m "
    "left join lateral (select id from sessions where no = m.session and tenant = ?2 "
    "and is_visible = 1 and deleted_at is null and (?4 = '' or key = ?4) "
    "and (?5 = '' or substr(key, 1, length(?5)) = ?5) offset 0) s on true "
    "where ?5 = '' or s.id is not null order by m.id desc limit ?10",
)
# How common a term is, up to a bound: a term of nearly every item is not counted to its end.
COUNT_MATCHES = Statement(
    "count_search_matches",
    "select count(*) from (select 1 from search_text where search_text match ?1 and ?2 <> '' "
    "limit ?3) m",
    postgres="select count(*) from (select 1 from search_items where cast(?1 as text) <> '' "
    "and terms @@ cast(?2 as text)::tsquery limit ?3) m",
)
ENTRY_ITEMS = Statement(
    "search_entry_items", "select seq, items from log where session = ?1 and n = ?2"
)
