"""Erasing an item leaves its text in no row of the store."""

from holdfast.core.transaction.commands import Cancel, Hide
from holdfast.stores.sql.plan import Statement, every
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient

LOG = Statement("whole_log", "select body, items from log order by pos")


async def test_the_input_of_a_turn_that_had_to_be_sent_again_is_erased_with_its_item(
    caller: StoreClient, store: SqlStore
) -> None:
    running = await caller.start("a", key="k")
    once = {"key": "k", "idempotency_key": "i", "body_hash": b"x"}
    waiting = await caller.wait("secret", **once)
    await caller.submit(
        Cancel(tenant=caller.tenant, turn_id=waiting.turn.id, outcome="interrupted")
    )
    await caller.finish(running, "b")
    again = await caller.start("secret", **once)
    assert again.turn.id == waiting.turn.id
    session = (await caller.finish(again, "c")).session
    erase = Hide(tenant=caller.tenant, session_id=session.id, from_seq=3, to_seq=3, erase=True)
    await caller.submit(erase)
    rows = await store.query(lambda _: every(LOG))
    assert not [row for row in rows if any(b"secret" in bytes(value or b"") for value in row)]
