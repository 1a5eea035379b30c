"""An apsw connection with the part of the standard library's interface that the driver uses.

It runs the real store on a simulated disk.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import apsw

from tests.crash.recorded_disk import Disk

PATH = "a.db"


class Rows:
    """The result of a statement."""

    def __init__(self, rows: list[Any], changed: int) -> None:
        self._rows = rows
        self.rowcount = changed

    def fetchall(self) -> list[Any]:
        """Return every row."""
        return self._rows

    def fetchone(self) -> Any:
        """Return the first row."""
        return self._rows[0] if self._rows else None


class ApswConnection:
    """The methods of a connection that the driver uses, and its error types."""

    def __init__(self, disk: Disk, *, synchronous: str = "full") -> None:
        with _as_sqlite3():
            self._connection = apsw.Connection(PATH, vfs=disk.name)
            # A VFS written in Python has no shared memory, so the only connection keeps its locks.
            self.execute("pragma locking_mode = exclusive")
            self.execute("pragma journal_mode = wal")
            self.execute(f"pragma synchronous = {synchronous}")
            self.execute("pragma foreign_keys = on")
            self.execute("pragma wal_autocheckpoint = 24")

    def cursor(self) -> "ApswConnection":
        """Return the connection itself: each statement returns its own rows."""
        return self

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Carry out a statement."""
        with _as_sqlite3():
            rows = list(self._connection.execute(sql, tuple(parameters)))
            return Rows(rows, self._connection.changes())

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._connection.in_transaction)

    @property
    def total_changes(self) -> int:
        """How many rows it has changed."""
        return int(self._connection.total_changes())

    def close(self) -> None:
        """Close it."""
        with _as_sqlite3():
            self._connection.close(True)


def connect_to(disk: Disk, *, synchronous: str = "full") -> Callable[[], sqlite3.Connection]:
    """Return a function that opens the database on a disk, for the driver."""
    return lambda: cast(sqlite3.Connection, ApswConnection(disk, synchronous=synchronous))


@contextmanager
def _as_sqlite3() -> Iterator[None]:
    try:
        yield
    except apsw.ConstraintError as exc:
        raise sqlite3.IntegrityError(str(exc)) from exc
    except apsw.Error as exc:
        raise sqlite3.OperationalError(str(exc)) from exc
