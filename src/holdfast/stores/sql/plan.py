"""Database work as plans: generators that yield statements and receive rows.

A plan never touches a connection, so the same code runs in a thread on SQLite, awaited on
PostgreSQL, and inline in a simulation.
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec.structs import astuple

ResultT = TypeVar("ResultT")
StructT = TypeVar("StructT", bound=msgspec.Struct)
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

    def __init__(self, run: QueryRunner, run_short: QueryRunner | None = None) -> None:
        self._run = run
        self._run_short = run_short or run
        """Runs reads that are expected to be short."""


def reading(
    query: Callable[ParametersT, Plan[ResultT]], *, is_short: bool = False
) -> Callable[Concatenate[SnapshotReader, ParametersT], Coroutine[Any, Any, ResultT]]:
    """Return a plan as a method of a `SnapshotReader`, with the same parameters."""

    def read(
        self: SnapshotReader, /, *args: ParametersT.args, **kwargs: ParametersT.kwargs
    ) -> Coroutine[Any, Any, ResultT]:
        run = self._run_short if is_short else self._run
        return run(lambda _: query(*args, **kwargs))

    return read


def columns(row: type[msgspec.Struct], prefix: str = "") -> str:
    """Return the columns of a row type, in its order."""
    return ", ".join(prefix + name for name in row.__struct_fields__)


def insert(name: str, table: str, row: type[msgspec.Struct], key: str = "") -> Statement:
    """Return the statement that adds a row; with a `key`, it replaces the row of that key."""
    fields = row.__struct_fields__
    marks = ", ".join(f"?{n}" for n in range(1, len(fields) + 1))
    text = f"insert into {table} ({', '.join(fields)}) values ({marks})"
    if key:
        others = [field for field in fields if field not in key.split(", ")]
        saved = ", ".join(f"{field} = excluded.{field}" for field in others)
        text += f" on conflict ({key}) do update set {saved}"
    return Statement(name, text)


def write_fields(statement: Statement) -> Callable[[Any], Ask]:
    """Return the writer of changes whose fields are the parameters of a statement."""
    return lambda change: (statement, astuple(change))


def row_reader(kind: type[StructT]) -> Callable[..., StructT]:
    """Return how columns become a value; databases store flags (`is_…`) as 0 and 1."""
    names = kind.__struct_fields__

    def read(*values: Any) -> StructT:
        columns = zip(names, values, strict=True)
        return kind(**{key: bool(v) if key.startswith("is_") else v for key, v in columns})

    return read


def one(statement: Statement, *parameters: Any) -> Plan[Row | None]:
    """Return the first row, or `None`."""
    rows = yield (statement, parameters)
    return rows[0] if rows else None


def every(statement: Statement, *parameters: Any) -> Plan[list[Row]]:
    """Return every row."""
    rows = yield (statement, parameters)
    return rows


def one_as(
    read: Callable[..., ResultT], statement: Statement, *parameters: Any
) -> Plan[ResultT | None]:
    """Return the value that `read` makes of the columns of the first row, or `None`."""
    rows = yield (statement, parameters)
    return read(*rows[0]) if rows else None


def every_as(
    read: Callable[..., ResultT], statement: Statement, *parameters: Any
) -> Plan[list[ResultT]]:
    """Return the values that `read` makes of the columns of every row."""
    rows = yield (statement, parameters)
    return [read(*row) for row in rows]
