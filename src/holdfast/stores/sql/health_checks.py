"""What a doctor asks a store: reads that look for what must not be."""

from collections.abc import Iterator

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.items import read_item
from holdfast.core.model.session import Session
from holdfast.core.projection.project import project
from holdfast.ports.store import ItemQuery
from holdfast.stores.sql.plan import Plan, Row, Statement, columns, every
from holdfast.stores.sql.queries import items

# The log of a session has every number from its fork to its head.
ITEM_GAPS = Statement(
    "item_gaps",
    "select s.id, s.head_seq - s.parent_seq, coalesce(c.n, 0) from sessions s left join "
    "(select session_id, count(*) as n from items group by session_id) c on c.session_id = s.id "
    "where s.deleted_at is null and s.head_seq - s.parent_seq <> coalesce(c.n, 0) "
    "order by s.id limit ?1",
)
TURN_GAPS = Statement(
    "turn_gaps",
    "select s.id, s.turn_count, coalesce(c.n, 0) from sessions s left join "
    "(select session_id, count(*) as n from turns group by session_id) c on c.session_id = s.id "
    "where s.deleted_at is null and s.turn_count <> coalesce(c.n, 0) order by s.id limit ?1",
)
# A run without an end that has no lane can never end by itself.
STRAY_RUNS = Statement(
    "stray_runs",
    "select r.id, r.session_id, r.turn_id from runs r join sessions s on s.id = r.session_id "
    "where r.outcome is null and (s.active_run_id is null or s.active_run_id <> r.id) "
    "order by r.id limit ?1",
)
# Runs whose owner lives, but that have been under way for very long.
LONG_RUNS = Statement(
    "long_runs",
    "select s.id, s.active_turn_id, r.started_at from sessions s "
    "join runs r on r.id = s.active_run_id join workers w on w.id = s.owner "
    "where w.alive_until > ?1 and r.started_at < ?2 order by r.started_at limit ?3",
)
# What a provider remembers of a session that is over, or of items that are not there.
STALE_STATE = Statement(
    "stale_state",
    "select s.tenant, p.session_id, p.provider, p.model, p.covers_seq, s.head_seq, s.is_live "
    "from provider_state p join sessions s on s.id = p.session_id "
    "where s.is_live = 0 or p.covers_seq > s.head_seq order by p.session_id limit ?1",
)
LATEST_TIMES = Statement(
    "latest_times",
    "select max(at) from (select max(accepted_at) as at from turns "
    "union all select max(created_at) from sessions) times",
)
FAILED_TURNS = Statement(
    "failed_turns",
    "select id, session_id, error_code, error_message from turns "
    "where outcome = 'failed' and ended_at > ?1 order by ended_at limit ?2",
)
HEALED_RUNS = Statement(
    "healed_runs",
    "select turn_id, session_id, heals from runs "
    "where heals is not null and started_at > ?1 order by started_at limit ?2",
)
SESSIONS_AFTER = Statement(
    "sessions_after",
    f"select {columns(Session)} from sessions where deleted_at is null "
    "and (is_live = 1 or ?3 = 1) and (?1 = '' or id < ?1) order by id desc limit ?2",
)
ORPHANS = Statement(
    "orphans",
    "select s.id, s.active_turn_id, s.owner from sessions s left join workers w on w.id = s.owner "
    "where s.owner is not null and (w.id is null or w.alive_until <= ?1) order by s.id limit ?2",
)
EXPIRED_HOLDS = Statement(
    "expired_holds",
    "select id, active_turn_id from sessions where hold_until <= ?1 order by id limit ?2",
)
ABANDONED_TURNS = Statement(
    "abandoned_turns",
    "select t.id, t.session_id, t.source from turns t left join workers w on w.id = t.owner "
    "join sessions s on s.id = t.session_id "
    "where t.outcome is null and (w.id is null or w.alive_until <= ?1) "
    "and (s.active_turn_id is null or s.active_turn_id <> t.id) order by t.id limit ?2",
)


class BrokenItem(msgspec.Struct, frozen=True):
    """An item that no request can be made of."""

    tenant: Tenant
    session_id: SessionId
    seq: int
    why: str


class StaleState(msgspec.Struct, frozen=True):
    """What a provider should not remember."""

    tenant: Tenant
    session_id: SessionId
    provider: str
    model: str
    covers_seq: int
    head_seq: int
    is_live: bool


class StaleHeal(msgspec.Struct, frozen=True):
    """A turn whose provider had forgotten what it was reminded of."""

    turn_id: TurnId
    session_id: SessionId
    code: str


class _Heal(msgspec.Struct):
    failure_class: str
    code: str | None = None


def rows(statement: Statement, *parameters: object) -> Plan[list[Row]]:
    """Return a check's rows."""
    return (yield from every(statement, *parameters))


def latest_time(now: float) -> Plan[tuple[float, float | None]]:
    """Return the time now, and the latest one that was written."""
    found = yield from every(LATEST_TIMES)
    return now, found[0][0]


def stale_state(limit: int) -> Plan[list[StaleState]]:
    """Return what providers remember of what is over."""
    found = yield from every(STALE_STATE, limit)
    return [StaleState(*row) for row in found]


def stale_heals(since: float, limit: int) -> Plan[list[StaleHeal]]:
    """Return turns in which a provider had forgotten its state, healed or not."""
    found = yield from every(HEALED_RUNS, since, limit)
    return [heal for row in found for heal in _stale_heals(row)]


def _stale_heals(row: Row) -> Iterator[StaleHeal]:
    try:
        heals = msgspec.json.decode(row[2], type=list[_Heal])
    except msgspec.DecodeError:
        return
    for heal in heals:
        if heal.failure_class == "stale_state":
            yield StaleHeal(row[0], row[1], heal.code or "no code")


def broken_items(
    after: str, limit: int, *, with_retired: bool
) -> Plan[tuple[str | None, list[BrokenItem]]]:
    """Return items that spoil the projections of a page of sessions, and where the page ended."""
    found = yield from every(SESSIONS_AFTER, after, limit, int(with_retired))
    broken: list[BrokenItem] = []
    for row in found:
        session = Session(*row)
        visible = yield from items(session, ItemQuery())
        spoiled = []
        for item in visible:
            try:
                read_item(item.body)
            except HoldfastError as exc:
                spoiled.append(BrokenItem(session.tenant, session.id, item.seq, exc.message))
        if not spoiled:
            # Pairs are mended by the projection itself; it must come to an end without a fault.
            project(visible)
        broken += spoiled
    return (found[-1][0] if len(found) == limit else None), broken
