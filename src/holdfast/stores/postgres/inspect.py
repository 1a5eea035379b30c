"""Inspect a PostgreSQL database without changing it."""

import time

from holdfast.core.errors import ForeignDatabase
from holdfast.stores.postgres.clock import READ_CLOCK
from holdfast.stores.postgres.connect import Connection, Connector, close_quietly
from holdfast.stores.postgres.dsn import read_target
from holdfast.stores.sql import migrations
from holdfast.stores.sql.schema_info import (
    POSTGRES_SETTINGS,
    StoreInspection,
    missing_from,
    steps_left,
)

COLUMNS = (
    "select table_name::text, column_name::text from information_schema.columns "
    "where table_schema = current_schema()"
)


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
        clock_ahead_seconds=ahead,
    )
