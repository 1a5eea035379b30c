"""Batches of external runs: written in one step or in many, every store has the same afterwards."""

import re
from typing import Any

import msgspec
import pytest

from holdfast.core.errors import HoldfastError, SessionBusy
from holdfast.core.ids import Key, SessionId, TurnId
from holdfast.core.model.items import message, write_item
from holdfast.core.transaction.commands import Append, AppendBatch, Appended
from holdfast.ports.store import ItemQuery
from holdfast.stores.sql.optimistic.decisions import decide_from_cache
from holdfast.stores.sql.optimistic.plain_turns import PLANNERS
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient


class _Run:
    """An external run that adds batches to a session."""

    def __init__(self, caller: StoreClient, name: str) -> None:
        self.caller = caller
        self.key = Key(f"k{name}")
        self.turn_id = TurnId(f"turn_{name}0")
        self.candidate_id = SessionId(f"ses_{name}0")
        self.ordinal = 0
        self.last: Appended | None = None

    async def add(self, *texts: str, item_id: str | None = None) -> Appended:
        """Add a batch of messages; the first may have an id of its own."""
        items = tuple([message("user", text) for text in texts])
        if item_id is not None:
            parts = [{"type": "input_text", "text": texts[0]}]
            named = {"type": "message", "id": item_id, "role": "user", "content": parts}
            items = (write_item(named), *items[1:])
        command = AppendBatch(
            tenant=self.caller.tenant, turn_id=self.turn_id, ordinal=self.ordinal,
            worker=self.caller.worker, candidate_id=self.candidate_id, key=self.key, items=items,
            known=self.last,
        )  # fmt: skip
        self.last = await self.caller.store.submit(command)
        self.ordinal += 1
        return self.last


async def _add_batches(caller: StoreClient, name: str) -> _Run:
    await caller.enlist()
    run = _Run(caller, name)
    await run.add("one")
    await run.add("two", "three")
    await run.add("four", item_id="msg_of_a_client")
    for number in range(5):
        await run.add(f"more {number}")
    return run


async def _written(run: _Run) -> bytes:
    """Return everything that the store has of the session."""
    read, last = run.caller.read, run.last
    assert last is not None
    view = await read.session(run.caller.tenant, key=run.key)
    assert view is not None
    assert view.session == last.session
    session = view.session
    found: dict[str, Any] = {
        "session": session,
        "turns": await read.turns(session.id, limit=100),
        "items": await read.items(session, ItemQuery(limit=None)),
        "context": list(await read.context(session)),
        "events": await read.events(session.id, after=0, limit=1000),
    }
    written = msgspec.json.encode(found)
    # The ids of items are made from that of their session, and end with their place.
    return re.sub(rb'"msg_[0-9a-f]+([0-9a-f]{6})"', rb'"msg_\1"', written)


async def test_batches_are_written_as_in_the_general_path(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = await _add_batches(StoreClient(store, "d"), "d")
    for kind in (AppendBatch, Append):
        monkeypatch.setitem(PLANNERS, kind, decide_from_cache)
    general = await _add_batches(StoreClient(store, "g"), "g")
    ours, theirs = await _written(direct), await _written(general)
    assert b'"msg_000009"' in ours
    for name in (b"ses_", b"turn_", b"wrk_"):
        theirs = theirs.replace(name + b"g", name + b"d")
    assert ours == theirs.replace(b'"kg"', b'"kd"')
    assert direct.last is not None
    assert await direct.caller.texts(direct.last.session) == [
        "one", "two", "three", "four", *(f"more {number}" for number in range(5)),
    ]  # fmt: skip


async def test_a_batch_after_writes_of_others_is_decided_again(store: SqlStore) -> None:
    """What the last batch told is out of date: another writer has appended, then has the lane."""
    run = await _add_batches(StoreClient(store, "d"), "d")
    assert run.last is not None
    session_id = run.last.session.id
    other = await run.caller.start("from another", key=run.key)
    with pytest.raises(HoldfastError) as refused:
        await run.add("not now")
    assert isinstance(refused.value, SessionBusy)
    await run.caller.finish(other, "answered")
    appended = await run.add("now")
    assert appended.session.id == session_id
    texts = await run.caller.texts(appended.session)
    assert texts[-1] == "now"
    assert "not now" not in texts
    assert texts.index("from another") < texts.index("now")
