"""A SQLite file and connections to it, with the settings that our promises need.

WAL with `synchronous=FULL`: an acknowledged commit survives the loss of power.
"""

import contextlib
import errno
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from holdfast.core.errors import ForeignDatabase, StoreUnavailable
from holdfast.stores.sql import migrations

Connect = Callable[[], sqlite3.Connection]

BUSY_SECONDS = 5.0
RETRY_SECONDS = 0.01
CACHED_STATEMENTS = 256
FILE_IS_GONE = "the database file was moved or removed"
WAL_BYTES = 64 * 1024 * 1024
"""A checkpoint that resets a larger WAL also truncates its file to this size."""
CACHE_KIB = 1024
"""Pages that a connection keeps. The system keeps the file too: a larger cache saves few reads."""
INLINE_STEPS = 20_000
"""A statement on the event loop is interrupted after one to two times as many steps of SQLite."""
INLINE_BYTES = 64 * 1024
"""The longest value that is read on the event loop."""
ROOM_BYTES = 1024 * 1024
"""What the disk must have room for, so that the write of a turn is expected to succeed."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
CHECKPOINT_PAGES = 10_000
"""A checkpoint happens at the latest when the WAL has so many pages: 40 MB."""

# Without an adapter for these types, the sqlite3 module searches one for every parameter and raises
# and catches an exception: a third of the cost of a long row. These adapters return the value
# unchanged. Adapters are global, so those that the program has registered itself are kept.
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


def connect_to_read(path: str, *, busy_seconds: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Return a connection that leaves the bytes of the file, and the files beside it, as they are.

    The last connection to a file in WAL mode removes the files beside it only if it may write, and
    then moves a WAL into the database first. So it may write only if there is nothing to move.
    """
    path = os.path.abspath(path)
    is_settled = not os.path.exists(f"{path}-journal") and _size(f"{path}-wal") == 0
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={'rw' if is_settled else 'ro'}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
    )
    connection.execute("pragma query_only = on")
    return connection


def _size(path: str) -> int:
    """Return the size of a file; 0 if it does not exist."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


class DatabaseFile:
    """A database file: created when first opened, not created again if it is removed."""

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
            self._use_wal(connection)
            connection.execute("pragma synchronous = full")
            connection.execute("pragma foreign_keys = on")
            connection.execute(f"pragma cache_size = -{CACHE_KIB}")
            connection.execute(f"pragma wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"pragma journal_size_limit = {WAL_BYTES}")
        except BaseException:
            connection.close()
            raise
        self._is_made = True
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """Switch the file to WAL mode.

        If two connections do this at once, SQLite fails one of them without regard to its busy
        timeout, so this tries again.
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

    def check_room(self) -> None:
        """Raise if the disk has no room for a turn.

        A lease fits into the space that a log has already, so to write one shows nothing. A file
        without a name is used, which is gone with this process.
        """
        import tempfile  # not at start: it brings in every compression

        try:
            with tempfile.TemporaryFile(dir=os.path.dirname(self._path)) as file:
                os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
        except (OSError, AttributeError) as exc:
            # Any other reason, such as a folder that may not be written, is left to the write.
            if isinstance(exc, OSError) and exc.errno in _FULL:
                raise StoreUnavailable(f"the disk of the store is full: {exc.strerror}") from exc

    def identity(self) -> object:
        """Return the identity of the file at the path; None if there is none."""
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


class ManagedConnection:
    """One connection, opened on demand and checked to belong to the file at the path."""

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
        """Returns the identity of the file at the path."""
        self._is_read_only = is_read_only
        self._is_only_copy = is_only_copy
        self._connection: sqlite3.Connection | None = None
        self.file: object = None
        """The file that the connection was opened to."""
        self.impatient: sqlite3.Connection | None = None
        """The connection while it has no busy timeout, so that it never waits for a lock."""
        self.has_called = False
        """Whether SQLite has called the progress handler; to be reset before each statement."""
        self._busy_milliseconds = self._longest = 0
        """The busy timeout and the longest value, to be restored."""

    def connection(self) -> sqlite3.Connection:
        """Return the connection with its busy timeout; open it if needed."""
        if self._connection is None:
            self._connection = self._connect()
            self.file = self.identity()
            if self._is_read_only:
                self._connection.execute("pragma query_only = on")
        if self.impatient is not None:
            if self._is_read_only:
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._longest)
                self._connection.set_progress_handler(None, 0)  # or it may interrupt the next line
            self._connection.execute(f"pragma busy_timeout = {self._busy_milliseconds}")
            self.impatient = None
        return self._connection

    def at_once(self) -> sqlite3.Connection | None:
        """Return the open connection for the event loop; None if it has to be opened.

        It does not wait for locks, and fails a statement that only reads if that takes long.
        """
        connection = self._connection
        if connection is not None and self.impatient is None:
            (self._busy_milliseconds,) = connection.execute("pragma busy_timeout").fetchone()
            connection.execute("pragma busy_timeout = 0")
            if self._is_read_only:
                self._longest = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, INLINE_BYTES)
                connection.set_progress_handler(self._is_second_call, INLINE_STEPS)
            self.impatient = connection
        return connection

    def _is_second_call(self) -> bool:
        """Whether to interrupt a statement: the first call may count steps of its earlier runs."""
        is_second, self.has_called = self.has_called, True
        return is_second

    def check(self) -> None:
        """Raise if the file was removed or replaced since the connection was opened."""
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
            connection, self._connection, self.impatient = self._connection, None, None
            with contextlib.suppress(sqlite3.Error):
                connection.close()


# ── the schema that a file has ────────────────────────────────────────────────────────────────

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
