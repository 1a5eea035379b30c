"""Statements: a name, a text, and whether the rest of a commit depends on it."""

from typing import NamedTuple

import msgspec


class Statement(NamedTuple):
    """A named text; `is_fenced` ones must write exactly one row, or the transaction is void."""

    name: str
    text: str
    is_fenced: bool = False
    postgres: str = ""
    """The text for PostgreSQL, where it has to differ."""


def columns(row: type[msgspec.Struct], prefix: str = "") -> str:
    """Return the columns of a row type, in its order."""
    return ", ".join(prefix + name for name in row.__struct_fields__)
