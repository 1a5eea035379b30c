"""Reader of the OpenAI Agents SDK's SQLite sessions: one row per item, in insertion order."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.model.items import NewItem
from holdfast.transfer.imported_conversation import (
    Converter,
    ImportedConversation,
    ImportedSession,
    Item,
    UnreadableSource,
    group_turns,
    seconds,
    split_by_role,
)
from holdfast.transfer.sqlite_source import columns_of, open_read_only

SESSIONS, MESSAGES = "agent_sessions", "agent_messages"
BRANCHES, MAIN = "message_structure", "main"
"""The SDK does not store which branch was active; sessions open in `main`."""


def is_agents_database(connection: sqlite3.Connection) -> bool:
    """Return whether a database has the SDK's tables."""
    required = {"id", "session_id", "message_data"}
    return required <= set(columns_of(connection, MESSAGES))


def read_database(path: Path) -> Iterator[ImportedConversation]:
    """Yield the conversations of a database; a session's id becomes its key."""
    connection = open_read_only(path)
    try:
        names = connection.execute(
            f"select session_id from {SESSIONS} union select session_id from {MESSAGES} order by 1"
        ).fetchall()
        for (name,) in names:
            key = name if isinstance(name, str) else repr(name)
            yield ImportedConversation(key=key, generations=(_read(connection, name, key),))
    except sqlite3.DatabaseError as exc:
        raise UnreadableSource(f"{path} cannot be read: {exc}") from exc
    finally:
        connection.close()


def _read(connection: sqlite3.Connection, name: object, key: str) -> ImportedSession:
    row = connection.execute(
        f"select created_at from {SESSIONS} where session_id = ?", (name,)
    ).fetchone()
    converter = Converter()
    if key != name:
        converter.problems.append("the session's id is not text")
    converted: list[tuple[NewItem, Item, float | None]] = []
    hidden_flags: list[bool] = []
    # Row ids give the order of insertion; the times only have seconds.
    rows = connection.execute(
        f"select id, message_data, created_at from {MESSAGES} where session_id = ? order by id",
        (name,),
    )
    other_branches = _rows_outside_main(connection, name)
    for row_id, data, at in rows:
        try:
            value = json.loads(data)
        except (ValueError, TypeError, RecursionError):
            converter.problems.append("a row is not valid JSON")
            continue
        if not isinstance(value, dict):
            converter.problems.append("a row is not an item")
            continue
        items = converter.items([value])
        converted.extend((item, value, seconds(at)) for item in items)
        hidden_flags.extend(row_id in other_branches for _ in items)
    blocks = split_by_role(converted)
    for block, is_hidden in zip(blocks, hidden_flags, strict=True):
        block.is_hidden = is_hidden
    turns, hidden = group_turns(blocks)
    return ImportedSession(
        source=f"agents-sdk:{key}",
        turns=turns,
        hidden=hidden,
        created_at=(seconds(row[0]) if row else None) or 0.0,
        problems=tuple(converter.problems),
    )


def _rows_outside_main(connection: sqlite3.Connection, name: object) -> set[int]:
    """Return the rows that only other branches contain."""
    if not {"session_id", "message_id", "branch_id"} <= set(columns_of(connection, BRANCHES)):
        return set()
    rows = connection.execute(
        f"select message_id from {BRANCHES} where session_id = ? "
        "group by message_id having sum(branch_id = ?) = 0",
        (name, MAIN),
    )
    return {row_id for (row_id,) in rows}
