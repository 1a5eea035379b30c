"""SQLite files as source and target of an upgrade.

The target is written to a file next to it and renamed when it is complete.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.stores.open import make_private_directory
from holdfast.stores.sql import migrations
from holdfast.stores.sql.plan import Ask
from holdfast.stores.sqlite.backup import flush, make_durable
from holdfast.stores.sqlite.connection import connect_to_read
from holdfast.stores.sqlite.driver import DIALECT
from holdfast.stores.upgrade.databases import Row, refuse_target

_BESIDE = ("-wal", "-shm", "-journal")


class SqliteSource:
    """An old store in a file, opened for reading only."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise StoreUnavailable(f"there is no store at {path}")
        self.name = str(path)
        with _errors_of(self.name):
            self._connection = connect_to_read(str(path))
            # All queries see one snapshot, even if a process still writes.
            self._connection.execute("begin")

    async def now(self) -> float:
        """Return the machine's time, which is also the store's."""
        return time.time()

    async def tables(self) -> set[str]:
        """Return the names of the tables."""
        rows = await self.rows("select name from sqlite_master where type = 'table'")
        return {row[0] for row in rows}

    async def rows(self, text: str, *parameters: Any) -> list[Row]:
        """Return all rows of a query."""
        with _errors_of(self.name):
            rows: list[Row] = self._connection.execute(text, parameters).fetchall()
        return rows

    async def close(self) -> None:
        """Close the file."""
        self._connection.close()


class SqliteTarget:
    """A new store in a file that does not exist yet."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._unfinished = path.with_name(f".{path.name}.{os.getpid()}.upgrade")
        self._connection: sqlite3.Connection | None = None

    async def begin(self) -> None:
        """Create an unfinished file with the schema next to the target."""
        _check_free(self._path)
        with _errors_of(self.name):
            # Created for its owner only, before SQLite opens it: it will contain messages.
            os.close(os.open(self._unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._connection = sqlite3.connect(self._unfinished, isolation_level=None)
            # If the unfinished file is lost, nothing of value is lost.
            self._connection.execute("pragma journal_mode = memory")
            self._connection.execute("pragma synchronous = off")
            self._connection.execute("begin")
            for text, parameters in migrations.installation(DIALECT, time.time()):
                self._connection.execute(text, parameters)
            self._connection.execute("commit")

    async def write(self, asks: Sequence[Ask]) -> None:
        """Write statements in one transaction."""
        connection = self._connection
        assert connection is not None
        with _errors_of(self.name):
            connection.execute("begin")
            for statement, parameters in asks:
                written = connection.execute(statement.text, parameters)
                if statement.is_fenced and written.rowcount != 1:
                    raise StoreError(f"{self.name}: {statement.name} found another state")
            connection.execute("commit")

    async def finish(self) -> None:
        """Sync the file and rename it to the target."""
        connection, self._connection = self._connection, None
        assert connection is not None
        with _errors_of(self.name):
            connection.close()
            make_durable(self._unfinished)
            flush(self._unfinished)
            self._unfinished.replace(self._path)
            flush(self._path.absolute().parent)

    async def abandon(self) -> None:
        """Remove the unfinished file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        _remove(self._unfinished)


def _check_free(path: Path) -> None:
    """Reject a path that exists, and create its folder."""
    is_taken = path.exists() and (path.is_dir() or path.stat().st_size > 0)
    # SQLite would apply the WAL of a removed store to the new one.
    if is_taken or any(Path(f"{path}{suffix}").exists() for suffix in _BESIDE):
        raise refuse_target(str(path))
    try:
        make_private_directory(path.parent)
    except OSError as exc:
        raise StoreUnavailable(f"{path}: {exc.strerror}") from exc


def _remove(path: Path) -> None:
    """Remove a file and the files that SQLite puts next to it."""
    for suffix in ("", *_BESIDE):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Translate SQLite's exceptions into errors that name the file."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.InterfaceError, OverflowError) as exc:
        raise StoreError(f"{name} refused a value: {exc}") from exc
    except sqlite3.Error as exc:
        raise StoreUnavailable(f"{name}: {exc}") from exc
