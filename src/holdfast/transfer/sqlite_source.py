"""Read-only access to SQLite files of other programs."""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from holdfast.transfer.imported_conversation import UnreadableSource

MAGIC = b"SQLite format 3\0"


def is_sqlite(path: Path) -> bool:
    """Return whether a file is a SQLite database."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a database read-only, in one snapshot even while others write."""
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None
        )
        try:
            connection.execute("begin")
            connection.execute("select count(*) from sqlite_master").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
    except sqlite3.Error as exc:
        raise UnreadableSource(f"{path} cannot be opened: {exc}") from exc
    return connection


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return a table's columns; none if the table does not exist."""
    quoted = table.replace('"', '""')
    return [row[1] for row in connection.execute(f'pragma table_info("{quoted}")')]
