"""Database work as plans: generators that yield statements and receive rows.

A plan never touches a connection, so the same code runs in a thread on SQLite, awaited on
PostgreSQL, and inline in a simulation.
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec

ResultT = TypeVar("ResultT")
ParametersT = ParamSpec("ParametersT")


class Statement(NamedTuple):
    """A named SQL text; a fenced one must write exactly one row, or the transaction is void."""

    name: str
    text: str
    is_fenced: bool = False
    postgres: str = ""
    """The text for PostgreSQL if it differs."""


Row = Sequence[Any]
Ask = tuple[Statement, tuple[Any, ...]]
Plan = Generator[Ask, list[Row], ResultT]


class LostUpdate(Exception):
    """A fenced statement changed no row: the facts of this decision are out of date."""


class QueryRunner(Protocol):
    """Runs a read in one snapshot."""

    async def __call__(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Return the result of a query, which gets the database's time."""
        ...


class SnapshotReader:
    """Runs plans, each in one snapshot; its ports say what the methods return."""

    def __init__(self, run: QueryRunner) -> None:
        self._run = run


def reading(
    query: Callable[ParametersT, Plan[ResultT]],
) -> Callable[Concatenate[SnapshotReader, ParametersT], Coroutine[Any, Any, ResultT]]:
    """Return a plan as a method of a `SnapshotReader`, with the same parameters."""

    def read(
        self: SnapshotReader, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs
    ) -> Coroutine[Any, Any, ResultT]:
        return self._run(lambda _: query(*args, **kwargs))

    return read


def columns(row: type[msgspec.Struct], prefix: str = "") -> str:
    """Return the columns of a row type, in its order."""
    return ", ".join(prefix + name for name in row.__struct_fields__)


def one(statement: Statement, *parameters: Any) -> Plan[Row | None]:
    """Return the first row, or `None`."""
    rows = yield (statement, parameters)
    return rows[0] if rows else None


def every(statement: Statement, *parameters: Any) -> Plan[list[Row]]:
    """Return every row."""
    rows = yield (statement, parameters)
    return rows
