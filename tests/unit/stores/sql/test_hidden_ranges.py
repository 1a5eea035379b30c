"""What entries tell of hidden ranges is what all records of the log say."""

import random

import pytest

from holdfast.core.ids import SessionId
from holdfast.core.model.records import Span, hidden_spans, merge_spans
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Fork, Hide
from holdfast.engine.clock import SystemClock
from holdfast.stores.open import open_store
from holdfast.stores.sql import lookups
from holdfast.stores.sql.lookups import MAX_RANGES, find_hidden, find_records
from holdfast.stores.sql.plan import Plan
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient


def _from_records(session: Session) -> Plan[tuple[Span, ...]]:
    found = yield from find_records(session)
    return tuple(merge_spans(span for own in found for span in hidden_spans(own)))


async def _check(store: SqlStore, session: Session) -> tuple[Span, ...]:
    told = await store.query(lambda _: find_hidden(session))
    assert told == await store.query(lambda _: _from_records(session))
    return told


async def _hide(caller: StoreClient, session: Session, first: int, last: int) -> None:
    await caller.submit(
        Hide(tenant=caller.tenant, session_id=session.id, from_seq=first, to_seq=last)
    )


async def _step(caller: StoreClient, session: Session, dice: random.Random) -> SessionId | None:
    head = session.head_seq
    match dice.randrange(4):
        case 0 if head:
            first = dice.randint(1, head)
            await _hide(caller, session, first, min(first + dice.randint(0, 3), head))
        case 1:
            new_id = SessionId(caller.ids.new("ses"))
            after = dice.randint(0, head)
            fork = Fork(tenant=caller.tenant, session_id=session.id, new_id=new_id, after_seq=after)
            return (await caller.submit(fork)).id
        case 2:
            rewind = (max(head - dice.randint(0, 3), 0), head)
            run = await caller.start("edited", session_id=session.id, rewind=rewind)
            await caller.finish(run, "answered again")
        case _:
            await caller.converse("a", "b", session_id=session.id)
    return None


@pytest.mark.parametrize("seed", range(8))
async def test_an_entry_has_the_ranges_that_all_records_hide(seed: int) -> None:
    dice = random.Random(seed)
    store = await open_store("memory:", clock=SystemClock())
    try:
        caller = StoreClient(store)
        await caller.enlist()
        known = [(await caller.reserve("k")).id]
        for _ in range(40):
            made = await _step(caller, await caller.session(dice.choice(known)), dice)
            known += [made] if made is not None else []
            for session_id in known:
                await _check(store, await caller.session(session_id))
    finally:
        await store.close()


async def test_a_log_with_more_ranges_than_an_entry_holds_is_read_whole() -> None:
    store = await open_store("memory:", clock=SystemClock())
    try:
        caller = StoreClient(store)
        await caller.enlist()
        for _ in range(MAX_RANGES + 3):
            session = (await caller.append("a", "b", key="k")).session
        for place in range(MAX_RANGES + 3):
            await _hide(caller, session, 2 * place + 1, 2 * place + 1)
        told = await _check(store, await caller.session(session.id))
        assert len(told) == MAX_RANGES + 3
    finally:
        await store.close()


async def test_the_records_of_a_log_are_not_read_to_know_what_is_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = await open_store("memory:", clock=SystemClock())
    try:
        caller = StoreClient(store)
        await caller.enlist()
        session = (await caller.append("a", "b", "c", key="k")).session
        await _hide(caller, session, 1, 1)
        await _hide(caller, session, 3, 3)
        monkeypatch.setattr(lookups, "find_records", None)
        session = await caller.session(session.id)
        assert await store.query(lambda _: find_hidden(session)) == ((1, 1), (3, 3))
    finally:
        await store.close()
