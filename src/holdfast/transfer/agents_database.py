"""The OpenAI Agents SDK's SQLite sessions: a row for each item, in the order they were added."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.model.items import NewItem
from holdfast.transfer.conversation import (
    Converter,
    Item,
    PastLife,
    PastSession,
    UnreadableSource,
    by_role,
    gather,
    seconds,
)
from holdfast.transfer.sqlite_source import columns_of, open_read_only

SESSIONS, MESSAGES = "agent_sessions", "agent_messages"
BRANCHES, MAIN = "message_structure", "main"
"""Of sessions that branch: which branch they were left in is not stored; they open in this one."""


def is_agents_database(connection: sqlite3.Connection) -> bool:
    """Whether a database has the SDK's tables."""
    wanted = {"id", "session_id", "message_data"}
    return wanted <= set(columns_of(connection, MESSAGES))


def read_database(path: Path) -> Iterator[PastLife]:
    """Return the lives in a database of the SDK; a session's id is its key."""
    connection = open_read_only(path)
    try:
        names = connection.execute(
            f"select session_id from {SESSIONS} union select session_id from {MESSAGES} order by 1"
        ).fetchall()
        for (name,) in names:
            key = name if isinstance(name, str) else repr(name)
            yield PastLife(key=key, generations=(_read(connection, name, key),))
    except sqlite3.DatabaseError as exc:
        raise UnreadableSource(f"{path} cannot be read: {exc}") from exc
    finally:
        connection.close()


def _read(connection: sqlite3.Connection, name: object, key: str) -> PastSession:
    row = connection.execute(
        f"select created_at from {SESSIONS} where session_id = ?", (name,)
    ).fetchone()
    converter = Converter()
    if key != name:
        converter.problems.append("the session's id is not text")
    listed: list[tuple[NewItem, Item, float | None]] = []
    left: list[bool] = []
    # The order of ids is the order of adding; the times are as coarse as a second.
    rows = connection.execute(
        f"select id, message_data, created_at from {MESSAGES} where session_id = ? order by id",
        (name,),
    )
    aside = _left_in_branches(connection, name)
    for row_id, data, at in rows:
        try:
            value = json.loads(data)
        except (ValueError, TypeError, RecursionError):
            converter.problems.append("a row could not be read")
            continue
        if not isinstance(value, dict):
            converter.problems.append("a row is not an item")
            continue
        items = converter.items([value])
        listed.extend((item, value, seconds(at)) for item in items)
        left.extend(row_id in aside for _ in items)
    blocks = by_role(listed)
    for block, is_left in zip(blocks, left, strict=True):
        block.is_hidden = is_left
    turns, hidden = gather(blocks)
    return PastSession(
        source=f"agents-sdk:{key}",
        turns=turns,
        hidden=hidden,
        created_at=(seconds(row[0]) if row else None) or 0.0,
        problems=tuple(converter.problems),
    )


def _left_in_branches(connection: sqlite3.Connection, name: object) -> set[int]:
    """Return the rows that stand in other branches alone."""
    if not {"session_id", "message_id", "branch_id"} <= set(columns_of(connection, BRANCHES)):
        return set()
    rows = connection.execute(
        f"select message_id from {BRANCHES} where session_id = ? "
        "group by message_id having sum(branch_id = ?) = 0",
        (name, MAIN),
    )
    return {row_id for (row_id,) in rows}
