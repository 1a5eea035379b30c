"""How statements are worded: from the row types, so that their columns cannot drift.

Most rows have nothing in many of their columns. A short form says so in its text: to hand over an
empty value costs the client more than to hand over a number.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

Usual = Mapping[str, int | None]
"""Columns, and what they have in most rows."""


class Statement(NamedTuple):
    """A named text; `is_fenced` ones must change exactly one row, or the transaction is void."""

    name: str
    text: str
    is_fenced: bool = False


class Form(NamedTuple):
    """A statement with the columns that it is given, for rows that have what is usual in others."""

    statement: Statement
    given: tuple[str, ...]
    usual: Usual


def columns(row: type[msgspec.Struct], prefix: str = "") -> str:
    return ", ".join(prefix + name for name in row.__struct_fields__)


def insert(name: str, table: str, row: type[msgspec.Struct], usual: Usual | None = None) -> Form:
    """Return how a row is added; what it does not name is null."""
    said = usual or {}
    given = tuple([column for column in row.__struct_fields__ if column not in said])
    marks = {column: f"?{n}" for n, column in enumerate(given, 1)}
    marks |= {column: str(value) for column, value in said.items() if value is not None}
    text = f"insert into {table} ({', '.join(marks)}) values ({', '.join(marks.values())})"
    return Form(Statement(name, text), given, said)


def update(
    name: str,
    table: str,
    changing: tuple[str, ...],
    where: tuple[str, ...],
    usual: Usual | None = None,
) -> Form:
    """Return how a row is changed, which is found by the columns of `where`, given last."""
    said = usual or {}
    given = tuple([column for column in changing if column not in said])
    sets = [f"{column} = ?{n}" for n, column in enumerate(given, 1)]
    sets += [f"{column} = {'null' if v is None else v}" for column, v in said.items()]
    found = [f"{column} = ?{n}" for n, column in enumerate(where, len(given) + 1)]
    text = f"update {table} set {', '.join(sets)} where {' and '.join(found)}"
    return Form(Statement(name, text, is_fenced=True), given, said)
