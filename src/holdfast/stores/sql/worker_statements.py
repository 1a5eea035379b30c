"""The statements about workers: their leases, what they answer for, and what they left behind."""

from holdfast.core.model.turn import Turn
from holdfast.stores.sql.statement_builder import Statement, columns

ADD_WORKER = Statement(
    "add_worker", "insert into workers (id, started_at, alive_until) values (?1, ?2, ?3)"
)
WORKER_BY_ID = Statement("worker_by_id", "select alive_until from workers where id = ?1")
SAVE_WORKER = Statement(
    "save_worker", "update workers set alive_until = ?2 where id = ?1", is_fenced=True
)
DROP_WORKER = Statement("drop_worker", "delete from workers where id = ?1")
WORKERS = Statement("workers", "select id, alive_until from workers order by id")

# Sessions that a worker without a live lease still runs or waits in, or that were held too long.
# Each part stops by itself: page after page of many orphans must not look at all of them again.
ORPHANED_SESSIONS = Statement(
    "orphaned_sessions",
    "select id from (select s.id from sessions s left join workers w on w.id = s.owner "
    "where s.owner is not null and (w.id is null or w.alive_until <= ?1) limit ?2) ran "
    "union "
    "select id from (select h.id from sessions h where h.hold_until <= ?1 limit ?2) held "
    "union "
    "select session_id from (select t.session_id from turns t "
    "left join workers w on w.id = t.owner "
    "where t.outcome is null and (w.id is null or w.alive_until <= ?1) "
    "and not exists "
    "(select 1 from sessions h where h.id = t.session_id and h.active_turn_id = t.id) "
    "limit ?2) waited "
    "limit ?2",
)
# Turns that wait; the one that has its lane is a run's business, or its client's.
OWNED_TURNS = Statement(
    "owned_turns",
    f"select {columns(Turn, 't.')} from turns t where t.owner = ?1 and t.outcome is null "
    "and not exists "
    "(select 1 from sessions h where h.id = t.session_id and h.active_turn_id = t.id) "
    "order by t.session_id, t.position",
)
OWNED_RUNS = Statement(
    "owned_runs",
    "select id, active_turn_id, active_run_id from sessions where owner = ?1 order by id",
)
