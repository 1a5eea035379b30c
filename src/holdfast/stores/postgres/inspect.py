"""Inspect a PostgreSQL database without changing it."""

import time

from holdfast.stores.postgres.connect import Connector, close_quietly
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
CLOCK = "select extract(epoch from clock_timestamp())::double precision"


async def inspect_postgres(url: str, wanted: dict[str, set[str]]) -> StoreInspection:
    """Inspect the database that a URL names."""
    connection = await Connector(target=read_target(url)).connect()
    try:
        before = time.time()
        theirs = await connection.fetchval(CLOCK)
        ahead = theirs - (before + time.time()) / 2
        found: dict[str, set[str]] = {}
        for table, column in await connection.fetch(COLUMNS):
            found.setdefault(table, set()).add(column)
        applied: list[tuple[int, str]] = []
        if "schema_versions" in found:
            applied = [(row[0], row[1]) for row in await connection.fetch(migrations.READ_VERSIONS)]
        settings = {
            name: await connection.fetchval("select current_setting($1)", name)
            for name in POSTGRES_SETTINGS
        }
    finally:
        await close_quietly(connection)
    pending, refusal = steps_left(applied)
    is_current = not pending and refusal is None
    return StoreInspection(
        kind="postgres",
        pending=pending,
        refusal=refusal,
        is_first_schema=migrations.is_first_schema(applied),
        missing=missing_from(found, wanted) if is_current else (),
        settings=settings,
        clock_ahead_seconds=ahead,
    )
