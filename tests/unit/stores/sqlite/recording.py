"""Connections that record what they are asked, and stores that use them."""

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.core.ids import DEFAULT_TENANT, Key, SessionId, TurnId, WorkerId
from holdfast.core.transaction.commands import Append
from holdfast.stores.commit.executors import ThreadExecutor
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import ProcessTokens
from holdfast.stores.sqlite.connection import DatabaseFile
from holdfast.stores.sqlite.driver import SqliteDriver
from holdfast.stores.sqlite.inline_commit import DiskLatencyGate
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import said


class RecordingConnection(sqlite3.Connection):
    """A connection that notes what it is asked, by which thread, and can be slow."""

    asked: list[tuple[str, int]]
    before: Callable[[str], None] = staticmethod(lambda _: None)

    def cursor(self, *_: Any) -> Any:
        """Return a cursor that tells what it is asked."""
        return super().cursor(TellingCursor)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor()
        return cursor.execute(sql, *parameters)

    @classmethod
    def commits(cls) -> list[bool]:
        """Whether each commit was made in this thread, since the last call."""
        here = threading.get_ident()
        found = [thread == here for sql, thread in cls.asked if sql == "commit"]
        cls.asked.clear()
        return found


class TellingCursor(sqlite3.Cursor):
    """Tells its connection what it is asked."""

    def execute(self, sql: str, *parameters: Any) -> "TellingCursor":
        connection = self.connection
        assert isinstance(connection, RecordingConnection)
        connection.asked.append((sql, threading.get_ident()))
        type(connection).before(sql)
        super().execute(sql, *parameters)
        return self


class Unhurried(DiskLatencyGate):
    """However busy the machine is, its disk is taken for quick."""

    def is_quick(self) -> bool:
        """It is."""
        return True


@asynccontextmanager
async def a_store(
    path: Path, kind: type[RecordingConnection], pace: DiskLatencyGate | None = None
) -> AsyncIterator[SqlStore]:
    """Open a store as `open_store` does, with connections of a kind."""
    file = DatabaseFile(str(path))
    file.connect().close()

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(
            path, timeout=30, isolation_level=None, factory=kind, check_same_thread=False
        )

    driver = SqliteDriver(
        connect, clock=ManualClock(), writer=ThreadExecutor("w"), reader=ThreadExecutor("r"),
        pace=pace or Unhurried(),
    )  # fmt: skip
    await driver.migrate()
    kind.asked.clear()
    store = SqlStore(driver, ProcessTokens())
    try:
        yield store
    finally:
        kind.before = staticmethod(lambda _: None)
        await store.close()


def an_append(count: int = 1, *, key: str = "k", turn: str = "turn_1", text: str = "x") -> Append:
    return Append(
        tenant=DEFAULT_TENANT,
        turn_id=TurnId(turn),
        worker=WorkerId("wrk"),
        candidate_id=SessionId(f"ses_{key}"),
        key=Key(key),
        items=said(*(text for _ in range(count))),
    )
