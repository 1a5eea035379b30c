"""How PostgreSQL carries out statements: the rows they read do not depend on the store's size.

Plans depend on statistics, which may be missing (after a restore), old, or say nothing of a session
that is much longer than the others; and a prepared statement has one plan for all parameters.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import asyncpg
import pytest

from holdfast.stores.postgres.connect import SERVER_SETTINGS
from holdfast.stores.postgres.dialect import (
    Parameters,
    Written,
    at_once,
    in_arrays,
    read_many,
    spelled,
)
from holdfast.stores.postgres.row_locks import LOCK_SESSIONS, LOCK_SESSIONS_BY_ID
from holdfast.stores.sql.plan import Statement
from holdfast.stores.sql.queries import RUNNING
from holdfast.stores.sql.statements import LAST_ID
from tests.postgres import TEMPLATE, Databases, PostgresServer
from tests.unit.stores.every_statement import GROWING, every_statement
from tests.unit.stores.postgres.explained import MODES, Node, explained, types_of
from tests.unit.stores.postgres.skewed_store import FIRST, ONE_AT_A_TIME, PARAMETERS, REST

State = Literal["never analysed", "analysed when small", "analysed"]
STATES: Sequence[State] = ("never analysed", "analysed when small", "analysed")
SETS = 8
MOST_ROWS = 64
"""How many rows a statement may read for a set of parameters; a page has up to eight."""
MISLED = {"list_sessions_by_activity_of_key"}
"""Statements that read more if the statistics were made when there were two sessions."""


class Session:
    """A connection that explains statements."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def rows_read(self, text: str, types: Sequence[str], values: Sequence[Any]) -> int:
        """Return how many rows a prepared statement reads, in the worse of its two plans."""
        plans = [await explained(self.connection, text, types, values, mode) for mode in MODES]
        return max(map(_rows_in, plans))

    async def types_of(self, statement: Statement) -> tuple[str, ...]:
        """Return the types of a statement's parameters."""
        return await types_of(self.connection, spelled(statement))


def _rows_in(node: Node) -> int:
    """Return how many rows of tables a plan has read or compared."""
    own = node.get("Rows Removed by Join Filter", 0)
    if "Relation Name" in node and node["Node Type"] != "ModifyTable":
        own += node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return int(own * node["Actual Loops"]) + sum(map(_rows_in, node.get("Plans", [])))


@pytest.fixture
def own_database(postgres_server: PostgresServer, databases: Databases) -> Iterator[str]:
    """The URL of a database that nobody else gets: its statistics are kept as they are."""
    name = databases.create(TEMPLATE)
    yield postgres_server.url(name)
    databases.drop(name)


@asynccontextmanager
async def filled(url: str, state: State) -> AsyncIterator[Session]:
    """Fill a store, and connect to it as the store does."""
    connection = await asyncpg.connect(url, server_settings=dict(SERVER_SETTINGS))
    try:
        tables = await connection.fetch(
            "select tablename from pg_tables where schemaname = 'public'"
        )
        for (table,) in tables:
            await connection.execute(f"alter table {table} set (autovacuum_enabled = off)")
        await connection.execute(FIRST)
        if state == "analysed when small":
            await connection.execute("analyze")
        await connection.execute(REST)
        if state == "analysed":
            await connection.execute("analyze")
        yield Session(connection)
    finally:
        await connection.close()


def _forms(
    statement: Statement, types: tuple[str, ...], sets: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[str, Sequence[str], Sequence[Any], int]]:
    """Yield text, types, values and number of sets: for one set, and for all at once."""
    text = statement.postgres or statement.text
    is_read = text.startswith("select")
    is_list = text.startswith("insert") and " values (" not in text
    if is_read or is_list:
        yield spelled(statement), types, sets[1], 1
    else:
        one = Written(text, types, statement.is_fenced, is_one=True)
        yield at_once((one,), "1"), types, sets[1], 1
    is_alone = is_list or statement.name in ONE_AT_A_TIME
    if types and len(set(sets)) == len(sets) and not is_alone:
        many = at_once((Written(text, types, statement.is_fenced),), "1") if not is_read else ""
        arrays = [f"{name}[]" for name in types]
        yield many or read_many(text, Parameters(types)), arrays, in_arrays(sets), len(sets)


def test_every_statement_has_parameters_or_a_reason_why_its_work_may_grow() -> None:
    """A new statement needs parameters in `skewed_store`, or a place in `every_statement`."""
    known = PARAMETERS.keys() | GROWING
    assert known == every_statement().keys()
    assert PARAMETERS.keys().isdisjoint(GROWING)


@pytest.mark.parametrize("state", STATES)
async def test_a_statement_reads_few_rows_whatever_the_statistics_say(
    own_database: str, state: State
) -> None:
    statements = every_statement()
    too_many: dict[tuple[str, int], int] = {}
    async with filled(own_database, state) as session:
        for name, parameters in PARAMETERS.items():
            statement = statements[name]
            sets = [parameters(number) for number in range(SETS)]
            types = await session.types_of(statement)
            for text, spelled_types, values, count in _forms(statement, types, sets):
                rows = await session.rows_read(text, spelled_types, values)
                if rows > MOST_ROWS * count:
                    too_many[name, count] = rows
    if state == "analysed when small":
        too_many = {key: rows for key, rows in too_many.items() if key[0] not in MISLED}
    assert too_many == {}


NAMES: tuple[list[str], ...] = (
    ["ses_1"], ["turn_1_5", "turn_77_1"], ["big", "big"], ["k71", "k41"], ["big"], ["i31"],
    ["ses_2"], ["ses_f498"],
)  # fmt: skip


@pytest.mark.parametrize("state", STATES)
async def test_a_batch_locks_its_sessions_without_reading_others(
    own_database: str, state: State
) -> None:
    async with filled(own_database, state) as session:
        types = ["text[]"] * len(NAMES)
        assert await session.rows_read(LOCK_SESSIONS, types, NAMES) <= MOST_ROWS
        assert await session.rows_read(LOCK_SESSIONS_BY_ID, types[:1], NAMES[:1]) <= MOST_ROWS


@pytest.mark.parametrize("state", STATES)
async def test_running_sessions_are_found_by_their_lanes(own_database: str, state: State) -> None:
    async with filled(own_database, state) as session:
        await session.connection.execute("delete from lanes where session > 5")
        for statement, after in zip(RUNNING.values(), ("", LAST_ID), strict=True):
            types = await session.types_of(statement)
            values = ("big", 0, "", after, 5, "running")
            assert await session.rows_read(spelled(statement), types, values) <= MOST_ROWS


async def test_every_statement_can_be_prepared_for_one_set_and_for_many(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        session = Session(connection)
        for statement in every_statement().values():
            text = statement.postgres or statement.text
            types = await session.types_of(statement)
            if text.startswith("select") and types:
                await connection.prepare(read_many(text, Parameters(types)))
            elif types and (" values (" in text or not text.startswith("insert")):
                await connection.prepare(at_once((Written(text, types, is_counted=True),), "1"))
    finally:
        await connection.close()
