"""The OpenAI Agents SDK's SQLite sessions: a row for each item, in the order they were added."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from holdfast.core.items import NewItem
from holdfast.importing.past import (
    Converter,
    Item,
    PastLife,
    PastSession,
    UnreadableSource,
    by_role,
    gather,
    seconds,
)
from holdfast.importing.sqlite_source import columns_of, open_read_only

SESSIONS, MESSAGES = "agent_sessions", "agent_messages"


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
            yield PastLife(key=name, generations=(_read(connection, name),))
    except sqlite3.DatabaseError as exc:
        raise UnreadableSource(f"{path} cannot be read: {exc}") from exc
    finally:
        connection.close()


def _read(connection: sqlite3.Connection, name: str) -> PastSession:
    row = connection.execute(
        f"select created_at from {SESSIONS} where session_id = ?", (name,)
    ).fetchone()
    converter = Converter()
    listed: list[tuple[NewItem, Item, float | None]] = []
    # The order of ids is the order of adding; the times are as coarse as a second.
    for data, at in connection.execute(
        f"select message_data, created_at from {MESSAGES} where session_id = ? order by id", (name,)
    ):
        try:
            value = json.loads(data)
        except (ValueError, TypeError, RecursionError):
            converter.problems.append("a row could not be read")
            continue
        if not isinstance(value, dict):
            converter.problems.append("a row is not an item")
            continue
        listed.extend((item, value, seconds(at)) for item in converter.items([value]))
    turns, hidden = gather(by_role(listed))
    return PastSession(
        source=f"agents-sdk:{name}",
        turns=turns,
        hidden=hidden,
        created_at=(seconds(row[0]) if row else None) or 0.0,
        problems=tuple(converter.problems),
    )
