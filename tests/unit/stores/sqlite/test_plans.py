"""How SQLite carries out the statements of the store: by indexes, without any statistics."""

import re
import sqlite3
from pathlib import Path

from holdfast.stores.open import open_store
from holdfast.testing.clock import ManualClock
from tests.unit.stores.every_statement import GROWING, every_statement

SMALL = {"search_blocks", "schedules"}
"""Tables of which all rows may be read."""
UP_TO_A_LIMIT = {
    "count_search_matches", "latest_times", "newest_entries", "recent_entries", "search_matches",
}  # fmt: skip
"""Statements that read a table in the order of its result, until a row or a page is found."""


async def test_statements_find_their_rows_by_an_index(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    store = await open_store(f"sqlite:///{path}", clock=ManualClock())
    await store.close()
    connection = sqlite3.connect(path)
    try:
        tables = {row[0] for row in connection.execute("select name from sqlite_master")} - SMALL
        found: dict[str, list[str]] = {}
        for name, statement in every_statement().items():
            if name not in GROWING | UP_TO_A_LIMIT:
                steps = _steps(connection, statement.text)
                is_page = "limit ?" in statement.text and not name.endswith("_of_key")
                if _reads_whole(statement.text, steps, tables) or (is_page and _sorts(steps)):
                    found[name] = steps
        assert found == {}
        turns = " ".join(_steps(connection, every_statement()["turn_entries"].text))
        assert "INDEX log_turn (turn=?)" in turns
        assert "INDEX log_n (session=? AND n>? AND n<?)" in turns
        for name in (one for one in every_statement() if one.startswith("list_retired_")):
            assert "INDEX sessions_retired" in _steps(connection, every_statement()[name].text)[0]
    finally:
        connection.close()


def _reads_whole(text: str, steps: list[str], tables: set[str]) -> bool:
    """Whether a statement reads all rows of a table."""
    aliases = {alias: table for table, alias in re.findall(r"(?:from|join) (\w+) (\w+)\b", text)}
    scanned = {match[1] for step in steps if (match := re.match(r"SCAN (\w+)(?! VIRTUAL)", step))}
    return bool({aliases.get(name, name) for name in scanned} & tables)


def _sorts(steps: list[str]) -> bool:
    """Whether a page is found by sorting all rows that could be in it."""
    return any("TEMP B-TREE FOR ORDER BY" in step for step in steps)


def _steps(connection: sqlite3.Connection, text: str) -> list[str]:
    count = max(map(int, re.findall(r"\?(\d+)", text)), default=0)
    return [row[3] for row in connection.execute(f"explain query plan {text}", [None] * count)]
