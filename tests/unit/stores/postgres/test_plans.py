"""How PostgreSQL carries out reads for many turns: it reads their entries, not the log."""

import json
from typing import Any

import asyncpg
import pytest

from holdfast.stores.postgres.dialect import Parameters, read_many, spelled
from holdfast.stores.sql.health_checks import LANES
from holdfast.stores.sql.statements import TURN_BY_ID

TURNS, READ = 5_000, 20
MOST_ROWS = 8
"""How many entries of the log may be read for each turn."""
FILL = f"""
insert into sessions (no, id, tenant, key, generation, is_live, is_visible, parent_seq,
  parent_record, created_at, metadata, started_by)
select n, 'ses_' || n, 't', 'k' || n, 1, 1, 1, 0, 0, 0, '', 'user'
from generate_series(1, {TURNS}) n;
insert into log (session, n, kind, at, turn, seq, turns, events, head, body, request)
select n, 1, 1, n, 'turn_' || n, 1, 1, 1, '', '', '' from generate_series(1, {TURNS}) n;
insert into log (session, n, kind, at, turn, seq, turns, events, head, body)
select n, 2, 6, n, 'turn_' || n, 2, 1, 2, '', '' from generate_series(1, {TURNS}) n;
insert into lanes (session, turn, run, owner)
select n, 'turn_' || n, 'run_' || n, 'w' from generate_series(1, {READ}) n;
"""


def _entries_read(node: dict[str, Any]) -> int:
    """Return how many rows of the log a plan has read."""
    own = 0
    if node.get("Relation Name") == "log":
        own = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(own * node["Actual Loops"]) + sum(map(_entries_read, node.get("Plans", [])))


_TURNS_READ = ([f"turn_{number}" for number in range(1, READ + 1)],)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [(read_many(TURN_BY_ID.text, Parameters(("text",))), _TURNS_READ), (spelled(LANES), (0, 100))],
    ids=["turns", "lanes"],
)
async def test_the_last_entries_of_turns_are_found_by_an_index(
    text: str, parameters: tuple[Any, ...], postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(FILL)
        await connection.execute("analyze sessions, log, lanes")
        explained = await connection.fetchval(f"explain (analyze, format json) {text}", *parameters)
        plan = json.loads(explained)[0]["Plan"]
        assert plan["Actual Rows"] == READ
        assert _entries_read(plan) <= MOST_ROWS * READ
    finally:
        await connection.close()
