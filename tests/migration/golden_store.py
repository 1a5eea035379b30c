"""Golden stores: files with all kinds of data, written by released versions.

Run as `python -m tests.migration.golden_store` to write the file of this version again. Do this
only before its release: later versions must read what a released version wrote.
"""

import asyncio
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast._version import __version__
from holdfast.core.ids import SessionId
from holdfast.core.model.session import ProviderState, Usage
from holdfast.core.transaction.commands import Delete, Fork
from holdfast.stores.commit.executors import InlineExecutor
from holdfast.stores.sql import migrations
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sql.worker_locks import ProcessTokens
from holdfast.stores.sqlite.connection import DatabaseFile
from holdfast.stores.sqlite.driver import DIALECT, SqliteDriver
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient, answered

FOLDER = Path(__file__).parent / "golden"
NOW = 1_700_000_000.0


RELEASED_STEPS = {"0.1.0": 4}
"""How many steps the schema of each version has."""


def golden(version: str) -> Path:
    """Return the file that a released version wrote."""
    return FOLDER / f"log_{version}.sqlite"


def install(connection: sqlite3.Connection, steps: int) -> None:
    """Apply the first steps to an empty database, and no more."""
    connection.execute(migrations.CREATE_VERSIONS.format_map(DIALECT))
    for step in migrations.all_migrations()[:steps]:
        for statement in step.statements(DIALECT):
            connection.execute(statement)
        connection.execute(migrations.ADD_VERSION, (step.version, step.name, NOW))


async def fill(store: SqlStore, clock: ManualClock) -> None:
    """Fill a store with all kinds of data, including unfinished turns."""
    caller = StoreClient(store, "g")
    await caller.enlist(lease_seconds=10)
    await _two_generations(caller)
    await _hidden_and_forked(caller, clock)
    await _erased(caller)
    await _left_open(caller)


async def _two_generations(caller: StoreClient) -> None:
    done = await caller.converse(
        "hello", "hi there", key="reset", idempotency_key="i", body_hash=b"b"
    )
    await caller.reset(done.session)
    await caller.finish(
        await caller.start("again", key="reset"),
        "welcome back",
        usage=Usage(10, 2, 3, 1),
        provider_state=ProviderState("openai", "acct", "gpt", b"resp_1"),
    )


async def _hidden_and_forked(caller: StoreClient, clock: ManualClock) -> None:
    first = await caller.converse("one", "first", key="edited")
    await caller.converse("two", "second", key="edited")
    clock.advance(1)
    await caller.finish(await caller.start("two, but better", key="edited", rewind=(2, 4)), "third")
    await caller.submit(
        Fork(
            tenant=caller.tenant, session_id=first.session.id, new_id=SessionId("ses_fork"),
            after_seq=2,
        )
    )  # fmt: skip
    await caller.converse("elsewhere", "in a fork", session_id="ses_fork")
    broken = await caller.start("break", key="edited")
    await caller.finish(
        broken, "done so far", outcome="failed", partial=answered("and th"), error_code="boom",
        error_message="it broke", is_retryable=True,
    )  # fmt: skip


async def _erased(caller: StoreClient) -> None:
    gone = await caller.converse("secret", "gone", key="erased")
    await caller.submit(Delete(tenant=caller.tenant, session_id=gone.session.id))


async def _left_open(caller: StoreClient) -> None:
    """Leave a running turn, two that wait for it, and a lane held for the client's tools."""
    await caller.start("lost", key="open", idempotency_key="lost", body_hash=b"b")
    await caller.wait("job 1", key="open", source="background")
    await caller.wait("job 2", key="open", source="cron")
    held = await caller.start("use your tool", key="held")
    await caller.finish(held, "calling", pending_calls=("call_1",), hold_seconds=30.0)


async def make(path: Path) -> None:
    """Write a golden store to a new file."""
    with TemporaryDirectory() as folder:
        full = Path(folder) / "full.db"
        file = DatabaseFile(str(full))
        clock = ManualClock(NOW)
        driver = SqliteDriver(file.connect, clock=clock, writer=InlineExecutor())
        await driver.migrate()
        store = SqlStore(driver, ProcessTokens())
        await fill(store, clock)
        await store.close()
        connection = sqlite3.connect(full)
        connection.execute("pragma journal_mode = delete")
        connection.execute("pragma page_size = 1024")
        connection.execute("vacuum")
        connection.execute("vacuum into ?", (str(path),))
        connection.close()


if __name__ == "__main__":
    golden(__version__).unlink(missing_ok=True)
    asyncio.run(make(golden(__version__)))
