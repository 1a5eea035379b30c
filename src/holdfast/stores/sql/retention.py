"""What is due to go, where retention is asked for."""

from holdfast.core.ids import SessionId, Tenant
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Prune
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.plan import Ask, Plan, every, one


def idle_sessions(
    seconds: float, after: SessionId, limit: int, now: float
) -> Plan[list[tuple[Tenant, SessionId]]]:
    """Return sessions in which nothing has happened for so long, by id."""
    rows = yield from every(sql.IDLE_SESSIONS, now - seconds, after, limit)
    return [(Tenant(row[0]), SessionId(row[1])) for row in rows]


def prune(command: Prune, now: float) -> Plan[tuple[Decision[bool], list[Ask]]]:
    """Return the statements that forget old traces, and whether there may be more of them."""
    before = now - command.older_than_seconds
    # Ids begin with the time they were made, so that the oldest journals come first.
    oldest_kept = f"turn_{max(int(before * 1000), 0):011x}"
    writes: list[Ask] = [
        (sql.FORGET_IDEMPOTENCY, (before,)),
        (sql.FORGET_JOURNALS, (oldest_kept,)),
        (sql.FORGET_EVENTS, (before,)),
    ]
    row = yield from one(sql.OLDEST_EVENT)
    return Decision(row is not None and row[0] < before), writes
