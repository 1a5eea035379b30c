"""Read the tables of the first schema, a bounded page at a time.

Columns were named after the fields of the values, in their order.
"""

from collections.abc import AsyncIterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.core.errors import StoreError
from holdfast.core.history.history_hash import ItemPlaceRow
from holdfast.core.ids import SessionId, TurnId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import (
    ApiKeyRow,
    CompletionRow,
    Event,
    IdempotencyRow,
    JournalRow,
)
from holdfast.stores.sql import migrations
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.plan import Statement
from holdfast.stores.upgrade.databases import Row, Source

PAGE = 64
"""Rows that are read at a time; each may be as large as a request."""

ValueT = TypeVar("ValueT", bound=msgspec.Struct)


_NEWER = frozenset({"merged_into", "losses", "has_failed", "started_by", "has_later_records"})
"""Fields that the first schema did not have; they have defaults."""


def _old_columns(row: type[msgspec.Struct]) -> str:
    return ", ".join(name for name in row.__struct_fields__ if name not in _NEWER)


def _page(table: str, row: type[msgspec.Struct], owner: str, number: str) -> str:
    """Return a query for the rows of one owner after a number."""
    return (
        f"select {_old_columns(row)} from {table} where {owner} = ?1 and {number} > ?2 "
        f"order by {number} limit {PAGE}"
    )


SESSIONS = f"select {_old_columns(Session)} from sessions where id > ?1 order by id limit {PAGE}"
TURNS = _page("turns", Turn, "session_id", "number")
TURN = f"select {_old_columns(Turn)} from turns where id = ?1"
RUNS = f"select {_old_columns(Run)} from runs where turn_id = ?1 order by epoch"
ITEMS = _page("items", StoredItem, "session_id", "seq")
RECORDS = _page("records", Record, "session_id", "no")
EVENTS = _page("events", Event, "session_id", "no")
LEASE = "select max(alive_until) from workers where alive_until > ?1"


class SideTable(NamedTuple):
    """A table whose rows are the same in both schemas."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    insert: Statement


def _side(name: str, row: type[msgspec.Struct], key: str, insert: Statement) -> SideTable:
    return SideTable(name, row.__struct_fields__, tuple(key.split()), insert)


JOURNALS = _side("journals", JournalRow, "turn_id step first_no", sql.ADD_JOURNAL)
SIDE_TABLES = (
    # First: a store with sessions and without keys would be open to everybody.
    _side("api_keys", ApiKeyRow, "id", sql.ADD_API_KEY),
    _side("idempotency", IdempotencyRow, "tenant key", sql.ADD_IDEMPOTENCY),
    SideTable(
        "provider_state",
        ("session_id", "slot", "provider", "account", "model", "value", "covers_seq", "saved_at"),
        ("session_id", "slot"),
        sql.SAVE_PROVIDER_STATE,
    ),
    JOURNALS,
    SideTable(
        "dropped_responses",
        ("turn_id", "step", "session_id", "dropped_at"),
        ("turn_id", "step"),
        sql.ADD_DROPPED_RESPONSE,
    ),
    _side("completions", CompletionRow, "turn_id step", sql.ADD_COMPLETION),
    SideTable(
        "trails",
        ("session_id", "seq", "record_no", "tenant", "trail"),
        ("session_id", "seq", "record_no"),
        sql.ADD_HISTORY_HASH,
    ),
    _side("item_places", ItemPlaceRow, "tenant item_id session_id seq", sql.ADD_ITEM_PLACE),
)

_FLAGS = {"is_live", "is_visible", "is_retryable", "is_partial"}
"""Fields that databases store as 0 and 1."""


def _value(kind: type[ValueT], row: Row) -> ValueT:
    names = [name for name in kind.__struct_fields__ if name not in _NEWER]
    fields = zip(names, row, strict=True)
    return kind(*(bool(value) if name in _FLAGS else value for name, value in fields))


class OldStore:
    """Reads values from a store of the first schema."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._tables: set[str] = set()

    async def check(self) -> None:
        """Reject a store that is not one, needs no upgrade, or is in use."""
        name = self._source.name
        self._tables = await self._source.tables()
        if "schema_versions" not in self._tables:
            raise StoreError(f"{name} is not a Holdfast store")
        applied = [(row[0], row[1]) for row in await self._source.rows(migrations.READ_VERSIONS)]
        if not migrations.is_first_schema(applied):
            raise StoreError(f"{name} needs no upgrade: use it as it is")
        unknown = {step for _, step in applied} - set(migrations.FIRST_SCHEMA)
        if unknown:
            raise StoreError(
                f"{name} has steps that this version does not know: {', '.join(sorted(unknown))}"
            )
        now = await self._source.now()
        ((until,),) = await self._source.rows(LEASE, now)
        if until is not None:
            raise StoreError(
                f"a process still uses {name}: stop it; if it was killed, wait "
                f"{until - now:.0f} s until its lease ends"
            )

    async def count_sessions(self) -> int:
        """Return how many sessions there are."""
        ((count,),) = await self._source.rows("select count(*) from sessions")
        return int(count)

    async def sessions(self) -> AsyncIterator[Session]:
        """Return all sessions of all tenants, by id."""
        after = ""
        while rows := await self._source.rows(SESSIONS, after):
            for row in rows:
                yield _value(Session, row)
            after = rows[-1][0]

    def turns(self, session_id: SessionId) -> AsyncIterator[Turn]:
        """Return the turns of a session, by number."""
        return self._numbered(TURNS, Turn, session_id, "number")

    async def turn(self, turn_id: TurnId) -> Turn | None:
        """Return a turn by its id."""
        rows = await self._source.rows(TURN, turn_id)
        return _value(Turn, rows[0]) if rows else None

    async def runs(self, turn_id: TurnId) -> list[Run]:
        """Return the runs of a turn, oldest first."""
        return [_value(Run, row) for row in await self._source.rows(RUNS, turn_id)]

    def items(self, session_id: SessionId) -> AsyncIterator[StoredItem]:
        """Return a session's own items, by sequence number."""
        return self._numbered(ITEMS, StoredItem, session_id, "seq")

    def records(self, session_id: SessionId) -> AsyncIterator[Record]:
        """Return a session's own records, by number."""
        return self._numbered(RECORDS, Record, session_id, "no")

    def events(self, session_id: SessionId) -> AsyncIterator[Event]:
        """Return a session's events, by number."""
        return self._numbered(EVENTS, Event, session_id, "no")

    async def _numbered(
        self, text: str, kind: type[ValueT], session_id: SessionId, number: str
    ) -> AsyncIterator[ValueT]:
        after = -1
        while rows := await self._source.rows(text, session_id, after):
            for row in rows:
                value = _value(kind, row)
                yield value
            after = getattr(value, number)

    async def side_rows(self, table: SideTable) -> AsyncIterator[list[Row]]:
        """Return pages of a table, which a store of an early version may lack."""
        if table.name not in self._tables:
            return
        key = ", ".join(table.key)
        marks = ", ".join(f"?{n}" for n in range(1, len(table.key) + 1))
        where, after = "", tuple[Any, ...]()
        while True:
            rows = await self._source.rows(
                f"select {', '.join(table.columns)} from {table.name} {where} "
                f"order by {key} limit {PAGE}",
                *after,
            )
            if not rows:
                return
            yield rows
            last = dict(zip(table.columns, rows[-1], strict=True))
            where, after = f"where ({key}) > ({marks})", tuple(last[name] for name in table.key)
