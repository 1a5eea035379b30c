"""Inspect a store without opening or changing it."""

import shutil
import sqlite3
from pathlib import Path

from holdfast.core.errors import ForeignDatabase, StoreUnavailable
from holdfast.stores.open import MEMORY, check_access, check_known, sqlite_path
from holdfast.stores.sql import migrations
from holdfast.stores.sql.schema_info import StoreInspection, missing_from, steps_left
from holdfast.stores.sqlite.connection import applied_steps, connect_to_read
from holdfast.stores.sqlite.driver import DIALECT

VERIFIED_BYTES = 64 * 1024**2
"""The largest file whose structure is checked always: it takes some 0.2 s."""


async def inspect_store(url: str, *, is_deep: bool = False) -> StoreInspection:
    """Inspect the store of a URL; the structure of a large file only if `is_deep`."""
    if url == MEMORY:
        return StoreInspection(kind="memory")
    if url.startswith("sqlite:"):
        return _inspect_file(sqlite_path(url), is_deep=is_deep)
    check_known(url)
    from holdfast.stores.postgres.inspect import inspect_postgres

    return await inspect_postgres(url, wanted_columns())


def wanted_columns() -> dict[str, set[str]]:
    """Return the tables and columns of a fresh install."""
    connection = sqlite3.connect(":memory:")
    try:
        for text, parameters in migrations.installation(DIALECT, 0.0):
            connection.execute(text, parameters)
        return _columns(connection)
    finally:
        connection.close()


def _columns(connection: sqlite3.Connection) -> dict[str, set[str]]:
    columns: dict[str, set[str]] = {}
    for table, column in connection.execute(
        "select m.name, c.name from sqlite_master m, pragma_table_info(m.name) c "
        "where m.type = 'table' and m.name not like 'sqlite_%' "
        "and m.name not like 'search_text%'"
    ):
        columns.setdefault(table, set()).add(column)
    return columns


def _inspect_file(path: Path, *, is_deep: bool) -> StoreInspection:
    if not path.exists():
        return StoreInspection(kind="sqlite", exists=False, path=str(path))
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a folder; a store is a file")
    check_access(path)
    connection: sqlite3.Connection | None = None
    try:
        connection = connect_to_read(str(path))
        return _examine(connection, path, is_deep=is_deep)
    except sqlite3.OperationalError as exc:
        raise StoreUnavailable(f"{path} cannot be opened: {exc}") from exc
    except sqlite3.DatabaseError as exc:
        return StoreInspection(kind="sqlite", damage=(str(exc),), path=str(path))
    finally:
        if connection is not None:
            connection.close()


def _examine(connection: sqlite3.Connection, path: Path, *, is_deep: bool) -> StoreInspection:
    is_small = (_size(path) or 0) <= VERIFIED_BYTES
    checked = _damage(connection, by_table=not is_small) if is_small or is_deep else []
    try:
        applied = applied_steps(connection)
    except ForeignDatabase as exc:
        return StoreInspection(kind="sqlite", is_foreign=True, refusal=exc.message, path=str(path))
    columns = _columns(connection)
    pending, refusal = steps_left(applied)
    is_current = not pending and refusal is None
    (mode,) = connection.execute("pragma journal_mode").fetchone()
    usage = shutil.disk_usage(path.absolute().parent)
    return StoreInspection(
        kind="sqlite",
        pending=pending,
        refusal=refusal,
        is_first_schema=migrations.is_first_schema(applied),
        missing=missing_from(columns, wanted_columns()) if is_current else (),
        damage=tuple(checked),
        is_verified=is_small or is_deep,
        settings={"journal_mode": str(mode)},
        path=str(path),
        free_bytes=usage.free,
        total_bytes=usage.total,
        wal_bytes=_size(Path(f"{path}-wal")),
    )


def _damage(connection: sqlite3.Connection, *, by_table: bool) -> list[str]:
    """Return what is wrong with the structure of a file; of a large one, a table at a time.

    Commits go on meanwhile, but the write-ahead log of the file grows while a statement reads.
    """
    checks = ["pragma quick_check(10)"]
    if by_table:
        tables = connection.execute(
            "select name from sqlite_master where type = 'table' and rootpage > 0 order by name"
        )
        checks = [f"pragma quick_check('{name}')" for (name,) in tables.fetchall()]
    lines = [row[0] for check in checks for row in connection.execute(check)]
    return [line for line in lines if line != "ok"]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
