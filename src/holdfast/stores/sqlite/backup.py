"""Back up a SQLite store while it is in use, and verify the copy."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.stores.sql import migrations
from holdfast.stores.sql.health_checks import ALL_ENTRIES, broken_logs
from holdfast.stores.sqlite.connection import applied_steps, connect_to_read

PAGES_AT_ONCE = 2000

Progress = Callable[[int, int], None]


def back_up(source: Path, target: Path, progress: Progress) -> int:
    """Copy a database in one snapshot; return its size. `target` is created whole or not at all."""
    if not source.is_file():
        raise StoreUnavailable(f"there is no store at {source}")
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        _copy(source, unfinished, progress)
        _verify(unfinished)
        make_durable(unfinished)
        flush(unfinished)
        unfinished.replace(target)
        flush(target.parent)
    except sqlite3.Error as exc:
        raise StoreUnavailable(f"{source} cannot be copied to {target}: {exc}") from exc
    finally:
        unfinished.unlink(missing_ok=True)
    return target.stat().st_size


def _copy(source: Path, target: Path, progress: Progress) -> None:
    origin = connect_to_read(str(source))
    try:
        # One read transaction sees one snapshot, whatever is written meanwhile.
        origin.execute("begin")
        origin.execute("select count(*) from sqlite_master").fetchone()
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        copy = sqlite3.connect(target, isolation_level=None)
        try:
            origin.backup(
                copy,
                pages=PAGES_AT_ONCE,
                progress=lambda _, left, total: progress(total - left, total),
            )
            # A single file: no WAL that could be left behind when the copy is moved.
            copy.execute("pragma journal_mode = delete")
        finally:
            copy.close()
    finally:
        origin.close()


def _verify(copy: Path) -> None:
    connection = sqlite3.connect(f"file:{quote(str(copy.absolute()))}?mode=ro", uri=True)
    try:
        problems = [row[0] for row in connection.execute("pragma integrity_check(5)")]
        if problems != ["ok"]:
            raise StoreError(f"the copy is damaged: {problems[0]}")
        applied = applied_steps(connection)
        if not applied:
            raise StoreError("the copy is not a Holdfast store")
        migrations.reject_first_schema(applied)
        _check_logs(connection)
    finally:
        connection.close()


def _check_logs(connection: sqlite3.Connection) -> None:
    """Reject a copy in which a session lacks items that it counts."""
    if lost := len(broken_logs(connection.execute(ALL_ENTRIES.text))):
        raise StoreError(f"{lost} session(s) lack items, in the store and so in the copy")


def make_durable(copy: Path) -> None:
    """Set the journal mode of a store; after closing there is still only one file."""
    connection = sqlite3.connect(copy, isolation_level=None)
    try:
        connection.execute("pragma journal_mode = wal")
    finally:
        connection.close()


def flush(path: Path) -> None:
    """Sync a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
