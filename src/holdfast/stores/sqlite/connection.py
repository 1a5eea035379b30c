"""A SQLite file and connections to it, with the settings that our promises need.

WAL with `synchronous=FULL`: an acknowledged commit survives the loss of power.
"""

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

Connect = Callable[[], sqlite3.Connection]

BUSY_SECONDS = 5.0
RETRY_SECONDS = 0.01
CACHED_STATEMENTS = 256
FILE_IS_GONE = "the database file was moved or removed"
WAL_BYTES = 64 * 1024 * 1024
"""A checkpoint that empties a larger log also shrinks its file to this size."""
CHECKPOINT_PAGES = 10_000
"""The log is moved into the database at the latest when it has so many pages: 40 MB."""

# For each parameter of these types the client looks for a way to adapt it, in vain and by an
# exception: a third of what a long row costs. So there is a way, by which it stays what it is;
# adapters are the whole program's, and those that it has made for itself are left alone.
_AS_IT_IS: dict[type, Callable[[Any], Any]] = {type(None): {}.get, bytes: bytes, bool: int}
for _type, _adapter in _AS_IT_IS.items():
    if (_type, sqlite3.PrepareProtocol) not in sqlite3.adapters:
        sqlite3.register_adapter(_type, _adapter)


def create_private(path: str) -> None:
    """Create an empty file that only its owner may access, unless it exists; SQLite fills it.

    SQLite itself would use the umask; its log files get the mode of the database. `mknod` opens no
    file: closing one would drop the locks that other connections of this process hold on it.
    """
    with contextlib.suppress(OSError):
        os.mknod(path, stat.S_IFREG | 0o600)


class DatabaseFile:
    """A database on disk: made when it is first opened, never again once it was taken away."""

    def __init__(self, path: str, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._path = os.path.abspath(path)
        self._busy_seconds = busy_seconds
        self._is_made = False

    def connect(self) -> sqlite3.Connection:
        """Return a connection with the settings that our promises need."""
        if not self._is_made:
            create_private(self._path)
        connection = sqlite3.connect(
            f"file:{quote(self._path)}?mode={'rw' if self._is_made else 'rwc'}",
            uri=True,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=CACHED_STATEMENTS,
        )
        try:
            self._keep_a_log(connection)
            connection.execute("pragma synchronous = full")
            connection.execute("pragma foreign_keys = on")
            connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"pragma journal_size_limit = {WAL_BYTES}")
        except BaseException:
            connection.close()
            raise
        self._is_made = True
        return connection

    def _keep_a_log(self, connection: sqlite3.Connection) -> None:
        """Have the file written by way of a log; two that begin with it at once get in each
        other, and SQLite fails the second at once, whatever its busy timeout.
        """
        until = time.monotonic() + self._busy_seconds
        while True:
            try:
                connection.execute("pragma journal_mode = wal")
            except sqlite3.OperationalError as exc:
                is_busy = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() >= until:
                    raise
            else:
                return
            time.sleep(RETRY_SECONDS)

    def identity(self) -> object:
        """Return which file stands under the path now, if any."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


class ManagedConnection:
    """One connection: made when it is needed, checked to be still of the file that is there."""

    def __init__(
        self,
        connect: Connect,
        identity: Callable[[], object],
        *,
        is_read_only: bool = False,
        is_only_copy: bool = False,
    ) -> None:
        self._connect = connect
        self.identity = identity
        """Returns which file stands under the path now."""
        self._is_read_only = is_read_only
        self._is_only_copy = is_only_copy
        self._connection: sqlite3.Connection | None = None
        self.file: object = None
        """The file that the connection was opened to."""
        self._patience: int | None = None
        """How long the connection waits for others, while it was made not to; in milliseconds."""

    def connection(self) -> sqlite3.Connection:
        """Return the connection, opened now if there is none; it waits for others."""
        if self._connection is None:
            self._connection, self._patience = self._connect(), None
            self.file = self.identity()
            if self._is_read_only:
                self._connection.execute("pragma query_only = on")
        if self._patience is not None:
            self._connection.execute(f"pragma busy_timeout = {self._patience}")
            self._patience = None
        return self._connection

    def begin_at_once(self) -> sqlite3.Connection | None:
        """Begin to write without waiting for anybody; if that is not possible now, return none."""
        try:
            connection = self._connection if self._patience is not None else self.at_once()
            if connection is not None:
                connection.execute("begin immediate")
        except sqlite3.Error:
            return None
        return connection

    def at_once(self) -> sqlite3.Connection | None:
        """Return the open connection without a busy timeout; None if it has to be opened."""
        connection = self._connection
        if connection is not None and self._patience is None:
            (self._patience,) = connection.execute("pragma busy_timeout").fetchone()
            connection.execute("pragma busy_timeout = 0")
        return connection

    def check(self) -> None:
        """Raise if another file, or none, stands where the connection's own was."""
        if self.identity() != self.file:
            raise sqlite3.OperationalError(FILE_IS_GONE)

    def discard(self) -> None:
        """Close the connection after a fault; the next use opens a new one.

        The connection of a database in memory is the database: it is kept until it is closed.
        """
        if not self._is_only_copy:
            self.close()

    def close(self) -> None:
        """Close the connection for good."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with contextlib.suppress(sqlite3.Error):
                connection.close()
