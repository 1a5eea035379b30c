"""Append entries to a log through another connection."""

import asyncpg

from holdfast.core.transaction.changes import Entry, Event
from holdfast.stores.sql.entries import pack_entry, session_no


async def append_foreign_entry(
    connection: asyncpg.Connection, session_id: str, *events: Event
) -> None:
    """Append an entry that only has `events`, in an open transaction."""
    body = pack_entry(Entry(events=list(events)))
    await connection.execute(
        "insert into log (session, n, kind, at, seq, turns, events, head, body) "
        "select session, n + 1, 1, at, seq, turns, events + $2, head, $3 from log "
        "where session = $1 order by n desc limit 1",
        session_no(session_id), len(events), body,
    )  # fmt: skip
