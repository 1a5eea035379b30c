"""Finding the history that a request repeats, and making sure that it still says the same."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.history.history_hash import NO_TRAIL, Step, TrailRow, follow
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.records import visible_spans
from holdfast.core.model.session import Session
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.facts import find_hidden, read_session, session_row
from holdfast.stores.sql.plan import Plan, every


def trail_end(tenant: Tenant, trails: Sequence[bytes]) -> Plan[TrailRow | None]:
    """Return where a history ends that has one of these trails, the first that is kept."""
    for start in range(0, len(trails), sql.TRAILS_AT_ONCE):
        asked = list(trails[start : start + sql.TRAILS_AT_ONCE])
        padding = [NO_TRAIL] * (sql.TRAILS_AT_ONCE - len(asked))
        rows = yield from every(sql.TRAILS, tenant, *asked, *padding)
        found = [TrailRow(*row) for row in rows]
        for trail in asked:
            for row in found:
                if row.trail == trail and (yield from _still_says(row)):
                    return row
    return None


def _still_says(row: TrailRow) -> Plan[bool]:
    """Whether nothing of the history was erased since its trail was taken."""
    found = yield from session_row(row.session_id)
    if found is None:
        return False
    session = replace(read_session(found), record_no=row.record_no)
    hidden = yield from find_hidden(session)
    trail = NO_TRAIL
    for first, last in visible_spans(hidden, 1, row.seq):
        trail = follow(trail, (yield from _steps(session, first, last)))
    return trail == row.trail


def _steps(of: Session, first: int, last: int) -> Plan[list[Step]]:
    """Read one visible range, wherever in the line of forks it is kept."""
    found: list[Step] = []
    owner: Session | None = of
    while owner is not None and last >= first:
        start = max(first, owner.parent_seq + 1)
        if start <= last:
            rows = yield from every(sql.STEPS, owner.id, start, last)
            found[:0] = [(bytes(row[0]), row[1]) for row in rows]
        last = min(last, owner.parent_seq)
        row = (yield from session_row(owner.parent_id)) if owner.parent_id else None
        owner = read_session(row) if row else None
    return found


def item_places(tenant: Tenant, item_id: str) -> Plan[list[SessionId]]:
    """Return unnamed sessions that have an item of this id."""
    rows = yield from every(sql.ITEM_PLACES, tenant, item_id)
    return [SessionId(row[0]) for row in rows]


def stored_bytes(tenant: Tenant) -> Plan[int]:
    """Return how many bytes the items of a tenant's sessions have."""
    rows = yield from every(sql.STORED_BYTES, tenant)
    return int(rows[0][0])
