"""Translate statements for PostgreSQL: for one parameter set, or for many at once.

Many sets arrive as one array per parameter, which the statement reads as a table: a read becomes a
lateral join with it, an insert selects from it, an update or delete joins it.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from holdfast.stores.sql.plan import Statement

TYPES = {
    # Ids and keys are compared by their bytes, regardless of the database's locale.
    "text": 'text collate "C"',
    "int": "bigint",
    "real": "double precision",
    "blob": "bytea",
    "without_rowid": "",
    "log_position": "bigint generated always as identity primary key",
    "serial": "bigint generated always as identity primary key",
    "txid": "(pg_current_xact_id()::text::bigint)",
    "horizon": "pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
    "feed_index": "create index log_feed on log (txid, pos)",
    "terms": "tsvector",
    # Every search scans the pending list of the index, which by default is up to 4 MB.
    "search_dropped": "",
    "search_index": "create index search_items_terms on search_items using gin (terms) "
    "with (gin_pending_list_limit = 256)",
    "search_added": "",
    "search_removed": "",
}

_PARAMETER = re.compile(r"\?(\d+)")
_INSERT = re.compile(r"(insert into .*?) values \((.*)\)( on conflict .*)?", re.DOTALL)
_UPDATE = re.compile(r"(update \w+ set .*?) where (.*)", re.DOTALL)
_TABLE = re.compile(r"(?:insert into|update|delete from) (\w+)")
_DELETE = re.compile(r"(delete from \w+) where (.*)", re.DOTALL)


@cache
def spelled(statement: Statement) -> str:
    """Return a statement's text for PostgreSQL, with parameters written `$1`, `$2`."""
    return in_dollars(statement.postgres or statement.text)


@cache
def in_dollars(text: str) -> str:
    """Return a statement with its parameters rewritten to `$1`, `$2`."""
    return _PARAMETER.sub(r"$\1", text)


class Parameters(NamedTuple):
    """The types of a statement's parameters, and the number of the first one."""

    types: tuple[str, ...]
    first: int = 1

    def table(self, suffix: str = "") -> str:
        """Return all parameter sets as a table `b`, with a column for each parameter."""
        arrays = ", ".join(f"${n}::{name}[]" for n, name in enumerate(self.types, self.first))
        names = ", ".join(f"p{n}" for n in range(1, len(self.types) + 1))
        if suffix:
            return f"unnest({arrays}) with ordinality as b({names}, {suffix})"
        return f"unnest({arrays}) as b({names})"


@cache
def read_many(text: str, parameters: Parameters) -> str:
    """Return a read for many sets; the number of the set, from 1, precedes its own columns."""
    joined = _PARAMETER.sub(r"b.p\1", text)
    table = parameters.table("n")
    # The offset keeps PostgreSQL from joining the tables of all sets instead of looking each up.
    return f"select b.n, q.* from {table} cross join lateral ({joined} offset 0) q"


@cache
def write_many(text: str, parameters: Parameters) -> str:
    """Return a write for many sets."""
    joined = _PARAMETER.sub(r"b.p\1", text)
    table = parameters.table()
    if match := _INSERT.fullmatch(joined):
        return f"{match[1]} select {match[2]} from {table}{match[3] or ''}"
    if match := _UPDATE.fullmatch(joined):
        return f"{match[1]} from {table} where {match[2]}"
    if match := _DELETE.fullmatch(joined):
        return f"{match[1]} using {table} where {match[2]}"
    raise ValueError(f"no insert, update or delete: {text}")


@cache
def table_of(text: str) -> str:
    """Return the table that a statement writes to."""
    match = _TABLE.match(text)
    if match is None:
        raise ValueError(f"no insert, update or delete: {text}")
    return match[1]


class Written(NamedTuple):
    """A write that is part of a statement with several writes."""

    text: str
    types: tuple[str, ...]
    is_counted: bool
    """Whether the number of changed rows is needed."""
    is_one: bool = False
    """Whether there is one parameter set, which the text uses directly."""


@cache
def at_once(writes: tuple[Written, ...], also: str) -> str:
    """Return one statement that does all writes, or fails if a counted one changes too few rows.

    It also returns the value of the expression `also`.
    """
    holds, first = [], 1
    for number, write in enumerate(writes):
        # The first parameter identifies the rows and is never null.
        expected = "1" if write.is_one else f"cardinality(${first})"
        first += len(write.types)
        if write.is_counted:
            holds.append(f"(select count(*) from w{number}) = {expected}")
    # A division by zero rolls the whole statement back.
    is_whole = f"case when {' and '.join(holds) or 'true'} then 1 else 0 end"
    return f"{_parts(writes)} select 1 / {is_whole}, {also}"


@cache
def together(writes: tuple[Written, ...]) -> str:
    """Return one statement for several writes.

    They run at once and do not see each other's changes. The statement returns the row counts of
    the counted writes.
    """
    counts = [f"(select count(*) from w{n})" for n, write in enumerate(writes) if write.is_counted]
    return f"{_parts(writes)} select {', '.join(counts) or '1'}"


def _parts(writes: tuple[Written, ...]) -> str:
    parts, first = [], 1
    for number, write in enumerate(writes):
        written = _shifted(write, first)
        first += len(write.types)
        parts.append(f"w{number} as ({written}{' returning 1' if write.is_counted else ''})")
    return f"with {', '.join(parts)}"


def _shifted(write: Written, first: int) -> str:
    """Return a write whose parameters are numbered from `first`."""
    if not write.is_one:
        return write_many(write.text, Parameters(write.types, first))
    return _PARAMETER.sub(lambda match: f"${int(match[1]) + first - 1}", write.text)


def in_arrays(sets: Sequence[tuple[object, ...]]) -> list[list[object]]:
    """Return the parameters of many sets as one list for each parameter.

    A parameter that is null in every set becomes an empty list: `unnest` pads it with nulls.
    """
    count = len(sets)
    return [
        [] if column[0] is None and column.count(None) == count else list(column)
        for column in zip(*sets, strict=True)
    ]
