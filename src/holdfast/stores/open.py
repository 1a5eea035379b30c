"""Open and migrate the store that a URL names."""

import os
import sqlite3
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

from holdfast.core.errors import ForeignDatabase, InvalidSetting, StoreError, StoreUnavailable
from holdfast.ports.clock import Clock
from holdfast.stores.commit.executors import InlineExecutor, ThreadExecutor
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import FileTokens, ProcessTokens
from holdfast.stores.sqlite.connection import DatabaseFile, check_usable, connect_to_read
from holdfast.stores.sqlite.driver import SqliteDriver

MEMORY = "memory:"


async def open_store(url: str, *, clock: Clock) -> SqlStore:
    """Open the store that `url` names and bring its schema up to date.

    The URL is `memory:`, `sqlite:///relative.db`, `sqlite:////absolute/path.db` or
    `postgresql://…`. A PostgreSQL store uses the database's time instead of `clock`.
    """
    if not isinstance(url, str):
        raise InvalidSetting(f"a store url is text, not {type(url).__name__}")
    if url == MEMORY:
        return await _open_memory(clock)
    if url.startswith("sqlite:"):
        return await _open_sqlite(sqlite_path(url), clock)
    check_known(url)
    return await _open_postgres(url)


async def open_store_to_read(url: str, *, clock: Clock) -> SqlStore:
    """Open a store whose schema is current, to read only: nothing in it is changed."""
    if url.startswith("postgres"):
        return await _open_postgres(url, is_read_only=True)
    if not url.startswith("sqlite:"):
        return await open_store(url, clock=clock)
    path = sqlite_path(url)
    file = DatabaseFile(str(path))
    driver = SqliteDriver(
        partial(connect_to_read, str(path)),
        identity=file.identity,
        clock=clock,
        writer=ThreadExecutor("holdfast-reader"),
    )
    return SqlStore(driver, _file_tokens(path))


def check_url(url: str) -> None:
    """Reject a URL that cannot name a store; do not check whether the store exists."""
    if url.startswith("sqlite:"):
        sqlite_path(url)
        return
    check_known(url)
    if url != MEMORY:
        from holdfast.stores.postgres.dsn import read_target

        read_target(url)


def check_known(url: str) -> None:
    """Reject a URL of an unknown kind, or one whose driver is not installed."""
    schemes = ("sqlite:", "postgresql:", "postgresql+", "postgres:")
    if url != MEMORY and not url.startswith(schemes):
        raise InvalidSetting(
            f"store url {_without_secret(url)!r} is none of memory:, sqlite:///file.db, "
            "postgresql://…"
        )
    if url.startswith("postgres") and find_spec("asyncpg") is None:
        raise InvalidSetting("PostgreSQL needs the extra: pip install 'holdfast[postgres]'")


def sqlite_path(url: str) -> Path:
    """Return the file that a SQLite URL names."""
    rest = url.removeprefix("sqlite:")
    if not rest.startswith("///") or len(rest) == 3:
        raise InvalidSetting(
            f"store url {url!r} names no file; write sqlite:///relative.db or "
            "sqlite:////absolute/path.db"
        )
    path = unquote(rest[3:].split("?", 1)[0])
    if path == ":memory:" or not path:
        raise InvalidSetting("for a store in memory, write memory:")
    try:
        is_possible = b"\0" not in path.encode()
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise InvalidSetting(f"store url {url!r} names an impossible file")
    return Path(path)


def absolute_url(url: str, directory: Path) -> str:
    """Return a store URL whose SQLite file is absolute; a relative one starts at `directory`."""
    if not url.startswith("sqlite:"):
        return url
    path = os.path.normpath(directory / sqlite_path(url))
    quoted = path.replace("%", "%25").replace("?", "%3F")
    _, mark, query = url.partition("?")
    return f"sqlite:///{quoted}{mark}{query}"


async def _open_memory(clock: Clock) -> SqlStore:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        connection.execute("pragma foreign_keys = on")
        return connection

    driver = SqliteDriver(connect, clock=clock, writer=InlineExecutor(), is_in_memory=True)
    await driver.migrate()
    return SqlStore(driver, ProcessTokens())


async def _open_sqlite(path: Path, clock: Clock) -> SqlStore:
    _make_room(path)
    check_access(path)
    try:
        check_usable(path)
    except StoreError as exc:
        raise type(exc)(f"{path}: {exc.message}") from exc
    file = DatabaseFile(str(path))
    driver = SqliteDriver(
        file.connect,
        identity=file.identity,
        check_room=file.check_room,
        clock=clock,
        writer=ThreadExecutor("holdfast-writer"),
        reader=ThreadExecutor("holdfast-reader"),
    )
    try:
        await driver.migrate()
    except (StoreUnavailable, ForeignDatabase) as exc:
        await driver.close()
        raise type(exc)(f"{path}: {exc.message}") from exc
    except BaseException:
        await driver.close()
        raise
    return SqlStore(driver, _file_tokens(path))


def _file_tokens(path: Path) -> FileTokens:
    return FileTokens(path.with_name(path.name + "-workers"))


def _make_room(path: Path) -> None:
    """Create the folder of a file that may be created."""
    if path.is_dir():
        raise StoreUnavailable(f"{path} is a folder; a store is a file")
    try:
        make_private_directory(path.parent)
    except OSError as exc:
        raise StoreUnavailable(f"cannot make the folder of {path}: {exc.strerror}") from exc
    if not path.exists() and not _may(path.parent, os.W_OK | os.X_OK):
        raise _no_access(path.parent, "create a store in it")


def check_access(path: Path) -> None:
    """Raise if a file exists that this user may not read: SQLite would not give the reason."""
    if path.exists() and not _may(path, os.R_OK):
        raise _no_access(path, "read it")


def _may(path: Path, access: int) -> bool:
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


def _no_access(path: Path, action: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} belongs to uid {path.stat().st_uid}, and uid {os.geteuid()} may not {action}: "
        "run the command as the gateway's user, or give the store's files to that user (chown)"
    )


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents, for their owner only.

    Files of a store contain conversations and key hashes. `Path.mkdir` would leave the modes of the
    parents to the umask, and anybody who can write to a parent can replace the directory.
    """
    if not path.parent.exists():
        make_private_directory(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)


async def _open_postgres(url: str, *, is_read_only: bool = False) -> SqlStore:
    from holdfast.stores.postgres import open_postgres

    return await open_postgres(url, is_read_only=is_read_only)


def _without_secret(url: str) -> str:
    """Return the URL without anything that may be a password."""
    scheme, separator, rest = url.partition("://")
    if not separator or "@" not in rest:
        return url
    return f"{scheme}://…@{rest.rpartition('@')[2]}"
