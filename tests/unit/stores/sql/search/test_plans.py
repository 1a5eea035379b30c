"""How PostgreSQL carries out a search: it reads the index once, whatever its statistics say."""

import asyncpg
import pytest

from holdfast.stores.postgres.dialect import spelled
from holdfast.stores.sql.search.statements import MATCHES
from tests.unit.stores.postgres.explained import MODES, Mode, Node, explained, types_of

ITEMS, SESSIONS = 20_000, 500
FILL = f"""
insert into sessions (no, id, tenant, key, generation, is_live, is_visible, parent_seq,
  parent_record, created_at, metadata, started_by)
select n, 'ses_' || n, 't', 'k' || n, 1, 1, 1, 0, 0, 0, '', 'user'
from generate_series(1, {SESSIONS}) n;
insert into log (session, n, kind, at, seq, turns, events, head, body)
select 1 + n % {SESSIONS}, n, 1, n, n, 0, 0, '', '' from generate_series(1, {ITEMS}) n;
insert into search_items (id, pos, back, terms)
select n, n, 0,
  ('common:1 tenant:2 ' || case when n % 1000 = 0 then 'rare:3' else 'filler:3' end)::tsvector
from generate_series(1, {ITEMS}) n;
analyze sessions, log, search_items;
"""


def _scans(node: Node) -> list[Node]:
    """Return the nodes of a plan that read tables or indexes."""
    own = [node] if "Relation Name" in node or "Index Name" in node else []
    return own + [scan for child in node.get("Plans", []) for scan in _scans(child)]


@pytest.mark.parametrize("mode", MODES)
async def test_the_index_of_words_is_read_once_and_no_item_without_a_match(
    postgres_url: str, mode: Mode
) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(FILL)
        # The table is too small for the planner to prefer an index; in a store it is not.
        await connection.execute("set enable_seqscan = off")
        text = spelled(MATCHES)
        types = await types_of(connection, text)
        for word, prefix in (("common", ""), ("rare", ""), ("common", "k7")):
            terms = (f"'{word}'", "'tenant'", "'tenant'")
            values = ("unused", *terms, "t", 0, ITEMS + 1, "", prefix, 0, -1.0, 1e18, 21)
            plan = await explained(connection, text, types, values, mode)
            assert ("$2" in str(plan)) == (mode == "force_generic_plan")
            scans = _scans(plan)
            names = [(scan.get("Index Name"), scan["Actual Loops"]) for scan in scans]
            assert ("search_items_terms", 1) in names, (word, prefix)
            items = [scan for scan in scans if scan.get("Relation Name") == "search_items"]
            assert [scan["Node Type"] for scan in items] == ["Bitmap Heap Scan"]
            assert "search_items_pkey" not in dict(names)
    finally:
        await connection.close()
