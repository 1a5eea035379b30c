"""How work on a database is written down: a generator that asks, and is given the rows.

It never touches a connection, so the same text runs in a thread on SQLite, awaited on
PostgreSQL, and in place in a simulation.
"""

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from holdfast.stores.sql.statement_builder import Statement

ResultT = TypeVar("ResultT")

Row = Sequence[Any]
Ask = tuple[Statement, tuple[Any, ...]]
Plan = Generator[Ask, list[Row], ResultT]


def one(statement: Statement, *parameters: Any) -> Plan[Row | None]:
    """Return the first row, or `None`."""
    rows = yield (statement, parameters)
    return rows[0] if rows else None


def every(statement: Statement, *parameters: Any) -> Plan[list[Row]]:
    """Return every row."""
    rows = yield (statement, parameters)
    return rows
