"""Changes as statements: what a short form leaves out is what the row has there."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import astuple, replace

from holdfast.core.ids import DEFAULT_TENANT, SessionId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.session import begin_session
from holdfast.core.model.turn import Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    ItemsAdded,
    RunAdded,
    RunSaved,
    SessionAdded,
    TurnAdded,
    TurnSaved,
)
from holdfast.stores.sql import migrations
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.change_writer import writes
from holdfast.stores.sql.statement_builder import columns
from holdfast.stores.sqlite.driver import DIALECT
from tests.unit.core.scenes import a_run, a_turn

SESSION = begin_session(SessionId("ses_1"), DEFAULT_TENANT, now=1.0)
TURN = a_turn(input=None)
BEGUN = replace(TURN, attempts=1, first_seq=1, kept_seq=2, last_seq=2, body_hash=b"h")
DONE = replace(BEGUN, body_hash=None, outcome="completed", ended_at=2.0)
RUN = a_run(SESSION, TURN)
ENDED = replace(RUN, last_seq=3, record_no=0, outcome="completed", ended_at=2.0, result=b"r")
ITEM = StoredItem("ses_1", 1, 1, "message", "msg_1", None, b"f", False, b"{}")

TURN_CHANGES: list[dict[str, Any]] = [
    {}, {"input": b"i"}, {"rewind_after": 1}, {"rewind_upto": 2}, {"outcome": "failed"},
    {"error_code": "e"}, {"error_message": "m"}, {"is_retryable": True}, {"ended_at": 9.0},
    {"delivered_at": 9.0}, {"retry_claim": 2}, {"body_hash": b"x"}, {"first_seq": None},
]  # fmt: skip
RUN_CHANGES: list[dict[str, Any]] = [
    {}, {"error_code": "e"}, {"error_message": "m"}, {"partial": b"p"}, {"heals": b"[]"},
    {"late": b"l"}, {"result": None}, {"outcome": None}, {"input_tokens": 7}, {"last_seq": 9},
]  # fmt: skip


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for step in migrations.all_migrations():
        for statement in step.statements(DIALECT):
            connection.execute(statement)
    carry_out(connection, SessionAdded(SESSION))
    yield connection
    connection.close()


def carry_out(database: sqlite3.Connection, change: Change) -> str:
    """Write a change; return the name of the statement that did."""
    ((statement, parameters),) = writes((change,))
    assert database.execute(statement.text, parameters).rowcount == 1
    return statement.name


def stored(database: sqlite3.Connection, table: str, row: type[Any]) -> tuple[Any, ...]:
    (found,) = database.execute(f"select {columns(row)} from {table}").fetchall()
    return tuple(found)


@pytest.mark.parametrize("fields", TURN_CHANGES, ids=lambda fields: "".join(fields) or "plain")
@pytest.mark.parametrize("plain", [BEGUN, DONE], ids=["begun", "done"])
def test_a_turn_is_added_whole(
    database: sqlite3.Connection, plain: Turn, fields: dict[str, Any]
) -> None:
    turn = replace(plain, **fields)
    carry_out(database, TurnAdded(turn))
    assert stored(database, "turns", Turn) == astuple(turn)


@pytest.mark.parametrize("fields", TURN_CHANGES, ids=lambda fields: "".join(fields) or "plain")
def test_the_end_of_a_turn_is_written_whole(
    database: sqlite3.Connection, fields: dict[str, Any]
) -> None:
    before = replace(BEGUN, error_code="old", error_message="old", is_retryable=True)
    carry_out(database, TurnAdded(before))
    ended = replace(DONE, **fields)
    carry_out(database, TurnSaved(ended, "end"))
    changed = {name: getattr(ended, name) for name in sql.END_CHANGING}
    assert stored(database, "turns", Turn) == astuple(replace(before, **changed))


@pytest.mark.parametrize("fields", RUN_CHANGES, ids=lambda fields: "".join(fields) or "plain")
@pytest.mark.parametrize("plain", [RUN, ENDED], ids=["begun", "ended"])
def test_a_run_is_added_whole(
    database: sqlite3.Connection, plain: Run, fields: dict[str, Any]
) -> None:
    carry_out(database, TurnAdded(TURN))
    run = replace(plain, **fields)
    carry_out(database, RunAdded(run))
    assert stored(database, "runs", Run) == astuple(run)


@pytest.mark.parametrize("fields", RUN_CHANGES, ids=lambda fields: "".join(fields) or "plain")
def test_the_end_of_a_run_is_written_whole(
    database: sqlite3.Connection, fields: dict[str, Any]
) -> None:
    carry_out(database, TurnAdded(TURN))
    carry_out(database, RunAdded(replace(RUN, partial=b"old", heals=b"old", late=b"old")))
    ended = replace(ENDED, **fields)
    carry_out(database, RunSaved(ended))
    assert stored(database, "runs", Run) == astuple(ended)


@pytest.mark.parametrize(
    "fields", [{}, {"call_id": "c"}, {"is_partial": True}, {"item_id": None}], ids=str
)
def test_an_item_is_added_whole(database: sqlite3.Connection, fields: dict[str, Any]) -> None:
    item = replace(ITEM, **fields)
    carry_out(database, ItemsAdded((item,)))
    assert stored(database, "items", StoredItem) == astuple(item)


def test_what_is_as_usual_is_written_in_short(database: sqlite3.Connection) -> None:
    assert carry_out(database, TurnAdded(BEGUN)) == "add_begun_turn"
    assert carry_out(database, RunAdded(RUN)) == "add_begun_run"
    assert carry_out(database, RunSaved(ENDED)) == "end_run_well"
    assert carry_out(database, TurnSaved(DONE, "end")) == "end_turn_well"
    assert carry_out(database, ItemsAdded((ITEM,))) == "add_plain_item"
    later = replace(DONE, id=TURN.id + "2", number=TURN.number + 1)
    assert carry_out(database, TurnAdded(later)) == "add_done_turn"
