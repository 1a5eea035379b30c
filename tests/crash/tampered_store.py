"""A Holdfast on one SQLite file whose connections a test can tamper with."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.reset_policy import NEVER
from holdfast.core.transaction.commands import Command
from holdfast.engine.clock import RandomIds, SystemClock
from holdfast.engine.embedded.api import Holdfast
from holdfast.engine.embedded.turn_handle import Item
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.ports.clock import Clock
from holdfast.stores.commit.executors import ThreadExecutor
from holdfast.stores.commit.group_commit import Result
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import FileTokens
from holdfast.stores.sqlite.connection import DatabaseFile
from holdfast.stores.sqlite.driver import SqliteDriver

BUSY_SECONDS = 0.05
Alter = Callable[[sqlite3.Connection], None]


class Driver(SqliteDriver):
    """The real driver, which records when a batch was refused."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.commit_then = None  # every batch goes through `commit` below
        self.was_refused = asyncio.Event()

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        results = await super().commit(commands)
        if any(isinstance(result, StoreUnavailable) for result in results):
            self.was_refused.set()
        return results


class TamperedStore:
    """A file, every connection to it, and the Holdfast that uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connections: list[sqlite3.Connection] = []
        self.driver: Driver
        self.hf: Holdfast
        self._alteration: Alter = lambda _: None
        self._file = DatabaseFile(str(path), busy_seconds=BUSY_SECONDS)

    def connect(self) -> sqlite3.Connection:
        """Open a connection with the current alterations."""
        connection = self._file.connect()
        self.connections.append(connection)
        self._alteration(connection)
        return connection

    def identity(self) -> object:
        """Return the identity of the file."""
        return self._file.identity()

    def alter(self, alteration: Alter) -> None:
        """Alter every connection, including future ones."""
        self._alteration = alteration
        for connection in list(self.connections):
            try:
                alteration(connection)
            except sqlite3.ProgrammingError:
                self.connections.remove(connection)  # it was closed

    async def texts(self, key: str = "k") -> list[str]:
        """Return the texts of a conversation."""
        return [text_of(item) for item in await (await self.hf.session(key)).items()]


def text_of(item: Item) -> str:
    """Return the text of a message."""
    text: str = item["content"][0]["text"]
    return text


@asynccontextmanager
async def open_tampered_store(
    path: Path, *, clock: Clock | None = None, lanes: LaneSettings | None = None
) -> AsyncIterator[TamperedStore]:
    """Open a store to tamper with; close everything at the end of the block."""
    clock = clock or SystemClock()
    tampered = TamperedStore(path)
    tampered.driver = Driver(
        tampered.connect,
        identity=tampered.identity,
        clock=clock,
        writer=ThreadExecutor("writer"),
        reader=ThreadExecutor("reader"),
    )
    await tampered.driver.migrate()
    store = SqlStore(tampered.driver, FileTokens(path.with_name(path.name + "-workers")))
    gateway = Gateway(store, clock=clock, ids=RandomIds(), settings=lanes)
    await gateway.start()
    tampered.hf = Holdfast(gateway, DEFAULT_TENANT, NEVER)
    try:
        yield tampered
    finally:
        await gateway.stop()
        await store.close()
