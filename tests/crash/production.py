"""The SQLite settings of the store, read back from the connections that it opens."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.stores.open import open_store
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient


@contextmanager
def opened_connections() -> Iterator[list[sqlite3.Connection]]:
    """Collect every connection that is opened during the block."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_and_keep(*args: Any, **more: Any) -> sqlite3.Connection:
        opened.append(connect(*args, **more))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_and_keep)
        yield opened


async def _written(path: Path, pragma: str) -> set[Any]:
    """Write a turn; return the values of a pragma on the connections that may write."""
    with opened_connections() as opened:
        store = await open_store(f"sqlite:///{path}", clock=ManualClock())
        try:
            caller = StoreClient(store)
            await caller.enlist()
            await caller.converse("hi", "hello", key="k")
            return {_read(one, pragma) for one in opened if not _read(one, "query_only")}
        finally:
            await store.close()


def _read(connection: sqlite3.Connection, pragma: str) -> Any:
    return connection.execute(f"pragma {pragma}").fetchone()[0]


def pragma_of_writers(folder: Path, pragma: str) -> Any:
    """Return the value that a pragma has on every connection of a store that may write."""
    [value] = asyncio.run(_written(folder / "production.db", pragma))
    return value
