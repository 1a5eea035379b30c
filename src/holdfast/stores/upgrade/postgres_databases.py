"""PostgreSQL databases as source and target of an upgrade.

The target is written in one transaction, so nobody sees an incomplete one.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import asyncpg

from holdfast.core.errors import StoreError
from holdfast.stores.postgres.clock import READ_CLOCK
from holdfast.stores.postgres.connect import Connector, close_quietly
from holdfast.stores.postgres.dialect import TYPES, in_dollars, spelled
from holdfast.stores.postgres.driver import BEGIN, BEGIN_READ, MIGRATION_LOCK
from holdfast.stores.postgres.dsn import read_target
from holdfast.stores.postgres.errors import explain
from holdfast.stores.sql import migrations
from holdfast.stores.sql.plan import Ask
from holdfast.stores.upgrade.databases import Row, refuse_target

TABLES = (
    "select table_name::text from information_schema.tables "
    "where table_schema = current_schema() and table_type = 'BASE TABLE'"
)
# The long transaction may be idle between two statements while the other database is read.
SETTINGS = {"statement_timeout": "0", "idle_in_transaction_session_timeout": "0"}
ANSWER_SECONDS = 600.0


class _Database:
    """A connection in a transaction, opened on first use."""

    begin_text: str

    def __init__(self, url: str) -> None:
        target = read_target(url)
        self.name = target.shown
        self._connector = Connector(target=target, settings=SETTINGS, answer_seconds=ANSWER_SECONDS)
        self._connection: asyncpg.Connection | None = None

    async def connection(self) -> asyncpg.Connection:
        """Return the connection, in its transaction."""
        if self._connection is None:
            self._connection = await self._connector.connect()
            await self._connection.execute(self.begin_text)
        return self._connection

    async def tables(self) -> set[str]:
        """Return the names of the tables."""
        return {row[0] for row in await self.rows(TABLES)}

    async def rows(self, text: str, *parameters: Any) -> list[Row]:
        """Return all rows of a query."""
        connection = await self.connection()
        with _errors_of(self.name):
            return [tuple(row) for row in await connection.fetch(in_dollars(text), *parameters)]

    async def close(self) -> None:
        """Close the connection; an uncommitted transaction is rolled back."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await close_quietly(connection)


class PostgresSource(_Database):
    """An old store in a database, read in one snapshot."""

    begin_text = BEGIN_READ

    async def now(self) -> float:
        """Return the database's time, which its leases are compared with."""
        now: float = (await self.rows(READ_CLOCK))[0][0]
        return now


class PostgresNewStore(_Database):
    """A new store in a database that holds none yet."""

    begin_text = BEGIN

    async def begin(self) -> None:
        """Create the schema, unless the database has an empty store."""
        connection = await self.connection()
        with _errors_of(self.name):
            # A gateway that starts here meanwhile waits for the migration lock, and so for the end.
            if not await connection.fetchval(
                "select pg_try_advisory_xact_lock($1)", MIGRATION_LOCK
            ):
                raise StoreError(f"another process is creating a store in {self.name}")
            tables = await self.tables()
            if "schema_versions" in tables:
                await self._check_empty(connection, tables)
                return
            if tables & migrations.table_names():
                raise refuse_target(self.name)
            now = await connection.fetchval(READ_CLOCK)
            for text, parameters in migrations.installation(TYPES, now):
                await connection.execute(in_dollars(text), *parameters)

    async def _check_empty(self, connection: asyncpg.Connection, tables: set[str]) -> None:
        applied = [(row[0], row[1]) for row in await connection.fetch(migrations.READ_VERSIONS)]
        # A new store has rows only in this table: the position of each view in the log.
        names = (migrations.table_names() & tables) - {"cursors"}
        if migrations.is_first_schema(applied) or migrations.pending(
            applied, migrations.all_migrations()
        ):
            raise refuse_target(self.name)
        for table in sorted(names):
            if await connection.fetchval(f"select exists (select 1 from {table})"):
                raise refuse_target(self.name)

    async def write(self, asks: Sequence[Ask]) -> None:
        """Run statements in order."""
        connection = await self.connection()
        with _errors_of(self.name):
            for statement, group in groupby(asks, key=lambda ask: ask[0]):
                await connection.executemany(spelled(statement), [ask[1] for ask in group])

    async def finish(self) -> None:
        """Commit."""
        connection = await self.connection()
        with _errors_of(self.name):
            await connection.execute("commit")
        await self.close()

    async def abandon(self) -> None:
        """Roll everything back."""
        await self.close()


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Translate PostgreSQL's exceptions into errors that name the database."""
    try:
        yield
    except StoreError:
        raise
    except Exception as exc:
        explained = explain(exc)
        if not isinstance(explained, StoreError):
            raise
        raise type(explained)(f"{name}: {explained.message}") from exc
