"""Inspect a PostgreSQL database without changing it."""

import time

from holdfast.core.errors import ForeignDatabase
from holdfast.stores.postgres.clock import READ_CLOCK
from holdfast.stores.postgres.connect import Connection, Connector, close_quietly
from holdfast.stores.postgres.dsn import read_target
from holdfast.stores.sql import migrations
from holdfast.stores.sql.schema_info import (
    POSTGRES_SETTINGS,
    Replication,
    StoreInspection,
    missing_from,
    steps_left,
)

COLUMNS = (
    "select table_name::text, column_name::text from information_schema.columns "
    "where table_schema = current_schema()"
)

# A subscriber of a publication is no standby, nor is a base backup; standbys of a standby are never
# waited for. A role that may not read the states of others gets nulls.
REPLICATION = """
with attached as (
  select r.pid, coalesce(r.application_name, '') as name, r.sync_state from pg_stat_replication r
  where not pg_is_in_recovery() and (r.state is null or r.state in ('streaming', 'catchup'))
  and not exists (
    select 1 from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical'))
select current_setting('synchronous_commit'),
  case when pg_is_in_recovery() then '' else current_setting('synchronous_standby_names') end,
  array(select name from attached order by pid), array(select sync_state from attached order by pid)
"""


async def read_columns(connection: Connection) -> dict[str, set[str]]:
    """Return the tables of the schema that a store would use, with their columns."""
    columns: dict[str, set[str]] = {}
    for table, column in await connection.fetch(COLUMNS):
        columns.setdefault(table, set()).add(column)
    return columns


def check_names(tables: dict[str, set[str]], applied: list[tuple[int, str]], where: str) -> None:
    """Raise if another application's tables have the names of Holdfast's tables."""
    if taken := migrations.taken_names(tables, applied):
        raise foreign(where, taken)


def foreign(where: str, tables: list[str]) -> ForeignDatabase:
    """Return the error for another application's tables with Holdfast's names."""
    return ForeignDatabase(
        f"{where} has tables of another application with the names of Holdfast's "
        f"({', '.join(tables[:3])}); use another database or schema"
    )


async def read_replication(connection: Connection) -> Replication:
    """Return what a primary says about its standbys; nothing if it is one itself."""
    ((commit, names, standbys, states),) = await connection.fetch(REPLICATION)
    return Replication(
        synchronous_commit=commit,
        standby_names=names,
        standbys=tuple(zip(standbys, states, strict=True)),
    )


async def inspect_postgres(url: str, expected: dict[str, set[str]]) -> StoreInspection:
    """Inspect the database that a URL names."""
    target = read_target(url)
    connection = await Connector(target=target).connect()
    try:
        before = time.time()
        theirs = await connection.fetchval(READ_CLOCK)
        ahead = theirs - (before + time.time()) / 2
        columns = await read_columns(connection)
        applied: list[tuple[int, str]] = []
        if columns.get("schema_versions", set()) >= migrations.VERSION_COLUMNS:
            applied = [(row[0], row[1]) for row in await connection.fetch(migrations.READ_VERSIONS)]
        settings = {
            name: await connection.fetchval("select current_setting($1)", name)
            for name in POSTGRES_SETTINGS
        }
        replication = await read_replication(connection)
    finally:
        await close_quietly(connection)
    try:
        check_names(columns, applied, target.shown)
    except ForeignDatabase as exc:
        return StoreInspection(kind="postgres", is_foreign=True, refusal=exc.message)
    pending, refusal = steps_left(applied)
    is_current = not pending and refusal is None
    return StoreInspection(
        kind="postgres",
        pending=pending,
        refusal=refusal,
        is_first_schema=migrations.is_first_schema(applied),
        missing=missing_from(columns, expected) if is_current else (),
        settings=settings,
        is_standby_wanted=target.prefers_standby,
        replication=replication,
        clock_ahead_seconds=ahead,
    )
