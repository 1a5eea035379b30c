"""Rows that the schema alone protects, and rows that must be gone, on every kind of store."""

import pytest
from msgspec.structs import replace

from holdfast.core.errors import HoldfastError
from holdfast.core.transaction.commands import Delete
from holdfast.ports.store import ItemQuery
from holdfast.stores.sql.entries import ENDED, ENDED_NEXT, STARTED
from holdfast.stores.sql.plan import Plan, Statement, every
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient, answered, text_of

PARTIALS = Statement("all_partials", "select body from partials")
CONTENT = Statement("all_content", "select body, items, request from log")


ENTRIES = Statement("all_kinds", "select turn, kind from log order by pos")


async def _kinds(store: SqlStore, turn_id: str) -> list[int]:
    """Return the kinds of a turn's entries, in order."""

    def query(_now: float) -> Plan[list[int]]:
        rows = yield from every(ENTRIES)
        return [row[1] for row in rows if row[0] == turn_id]

    return await store.query(query)


async def _content(store: SqlStore, statement: Statement) -> bytes:
    """Return the columns of all rows, joined."""

    def query(_now: float) -> Plan[bytes]:
        rows = yield from every(statement)
        return b"".join(bytes(value) for row in rows for value in row if value is not None)

    return await store.query(query)


async def test_a_turn_id_is_accepted_once_in_all_sessions(caller: StoreClient) -> None:
    first = caller.arrival("one", key="a", request=b"{}")
    await caller.submit(first)
    copy = replace(caller.arrival("two", key="b", request=b"{}"), turn_id=first.turn_id)
    with pytest.raises(HoldfastError):
        await caller.submit(copy)
    found = await caller.read.turn(caller.tenant, first.turn_id)
    assert found is not None
    assert await caller.texts(found.turn.session_id) == ["one"]


async def test_text_in_progress_is_gone_once_its_run_has_ended(
    store: SqlStore, caller: StoreClient
) -> None:
    run = await caller.start("question", key="a")
    await caller.extend(run, items=(), partial=answered("half an answer"))
    assert b"half an answer" in await _content(store, PARTIALS)
    await caller.finish(run, "a whole answer")
    assert await _content(store, PARTIALS) == b""


async def test_the_log_of_an_erased_session_has_no_content(
    store: SqlStore, caller: StoreClient
) -> None:
    run = await caller.start("running words", key="a", request=b'{"model": "secret model"}')
    await caller.extend(run, "first words", partial=answered("half words"))
    await caller.wait("waiting words", key="a")
    assert b"words" in await _content(store, CONTENT)
    await caller.submit(Delete(tenant=caller.tenant, session_id=run.session.id))
    left = await _content(store, CONTENT)
    assert b"words" not in left
    assert b"secret" not in left


async def test_a_turn_is_found_whether_or_not_its_end_is_in_the_index(
    store: SqlStore, caller: StoreClient
) -> None:
    direct = await caller.start("one", key="a")
    await caller.finish(direct, "first answer")
    interleaved = await caller.start("two", key="a")
    waiting = await caller.wait("three", key="a")
    ended = await caller.finish(interleaved, "second answer")
    assert await _kinds(store, direct.turn.id) == [STARTED, ENDED_NEXT]
    # The entry before this end is about the turn that waits.
    assert await _kinds(store, interleaved.turn.id) == [STARTED, ENDED]
    for run, text in ((direct, "first answer"), (interleaved, "second answer")):
        found = await caller.read.turn(caller.tenant, run.turn.id)
        assert found is not None
        assert found.turn.outcome == "completed"
        (told,) = await caller.read.runs(run.turn.id)
        assert told.outcome == "completed"
        items = await caller.read.items(
            ended.session, ItemQuery(after=told.first_seq - 1, limit=1, turn_id=run.turn.id)
        )
        assert [text_of(item) for item in items] == [text]
    open_turn = await caller.read.turn(caller.tenant, waiting.turn.id)
    assert open_turn is not None
    assert open_turn.turn.outcome is None
