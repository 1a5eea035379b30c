"""Golden stores: files with all kinds of data, written by earlier versions.

Run as `python -m tests.migration.golden_store` to write `golden/log_v0001.sqlite` again. Do this
only before a release: later versions must read what a released version wrote.
"""

import asyncio
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from holdfast.core.ids import SessionId
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.session import Usage
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


def golden(version: int) -> Path:
    """Return the file of a version."""
    return FOLDER / f"log_v{version:04}.sqlite"


def install(connection: sqlite3.Connection, version: int) -> None:
    """Migrate an empty database to a version, and no further."""
    connection.execute(migrations.CREATE_VERSIONS.format_map(DIALECT))
    for step in migrations.all_migrations()[:version]:
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


async def make(path: Path, version: int) -> None:
    """Write a golden store: today's data in the tables of a version."""
    with TemporaryDirectory() as folder:
        full = Path(folder) / "full.db"
        file = DatabaseFile(str(full))
        clock = ManualClock(NOW)
        driver = SqliteDriver(file.connect, clock=clock, writer=InlineExecutor())
        await driver.migrate()
        store = SqlStore(driver, ProcessTokens())
        await fill(store, clock)
        await store.close()
        _copy(path, version, full)


def _copy(path: Path, version: int, source: Path) -> None:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute("pragma page_size = 1024")
    install(connection, version)
    connection.execute("attach ? as source", (str(source),))
    for table, columns in tables_of(connection).items():
        if table != "schema_versions":
            names = ", ".join(columns)
            connection.execute(f"insert into {table} ({names}) select {names} from source.{table}")
    connection.commit()
    connection.execute("detach source")
    connection.execute("vacuum")
    connection.close()


def tables_of(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the tables of a database with their columns, referenced tables first."""
    rows = connection.execute(
        "select name from main.sqlite_master where type = 'table' and name not like 'sqlite_%' "
        "order by rowid"
    ).fetchall()
    return {
        name: [row[1] for row in connection.execute(f"pragma main.table_info({name})")]
        for (name,) in rows
    }


if __name__ == "__main__":
    asyncio.run(make(golden(1), 1))
