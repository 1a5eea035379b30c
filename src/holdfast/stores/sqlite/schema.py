"""The schema that a SQLite file has, read before anything is written to it."""

import os
import sqlite3
from pathlib import Path

from holdfast.core.errors import ForeignDatabase
from holdfast.stores.sql import migrations
from holdfast.stores.sqlite.connection import connect_to_read

TABLES = (
    r"select name from sqlite_master where type = 'table' and name not like 'sqlite\_%' escape '\'"
)
FOREIGN = "the file is a database of another application, not a Holdfast store; name another file"


def applied_steps(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    """Return the migrations that a database has; raise if its tables are not those of a store."""
    tables = {row[0] for row in connection.execute(TABLES).fetchall()}
    applied: list[tuple[int, str]] = []
    found = connection.execute("pragma table_info(schema_versions)").fetchall()
    columns = {row[1] for row in found}
    if columns >= migrations.VERSION_COLUMNS:
        tables.discard("schema_versions")
        applied = connection.execute(migrations.READ_VERSIONS).fetchall()
    if tables and not applied:
        raise ForeignDatabase(FOREIGN)
    return applied


def check_usable(path: Path) -> None:
    """Raise if the file has a schema that this version cannot use; change nothing.

    Opening a store sets its journal mode and moves its WAL into the file, so this comes first. What
    cannot be read is left to the opening, which explains it.
    """
    try:
        if os.stat(path).st_size == 0:
            return
        connection = connect_to_read(str(path), busy_seconds=0.0)
    except (OSError, sqlite3.Error):
        return
    try:
        migrations.pending(applied_steps(connection), migrations.all_migrations())
    except sqlite3.Error:
        return
    finally:
        connection.close()
