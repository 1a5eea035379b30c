"""Rows that the schema alone protects, and rows that must be gone, on every kind of store."""

import pytest
from msgspec.structs import replace

from holdfast.core.errors import HoldfastError
from holdfast.core.transaction.commands import Delete
from holdfast.stores.sql.plan import Plan, Statement, every
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient, answered

PARTIALS = Statement("all_partials", "select body from partials")
CONTENT = Statement("all_content", "select body, items, request from log")


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


async def test_the_log_of_an_erased_session_has_nothing_that_was_said(
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
