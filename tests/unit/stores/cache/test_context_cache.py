"""Transcripts in memory: never out of date, never too large."""

import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.compaction.records import CompactionRecord
from holdfast.core.errors import ItemNotFound
from holdfast.core.ids import SessionId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record
from holdfast.core.model.session import Session
from holdfast.core.projection.growing_list import SharedPrefix, share
from holdfast.core.transaction.changes import Entry, LogAppended
from holdfast.core.transaction.commands import Compact, Fork, Hide
from holdfast.engine.clock import SystemClock
from holdfast.stores.cache.context_cache import (
    ITEM_BYTES,
    MAX_CONTEXT_BYTES,
    MAX_LARGE,
    ContextCache,
    size_of,
)
from holdfast.stores.open import open_store
from holdfast.stores.sql.store import SqlReader, SqlStore
from holdfast.testing.store_client import StoreClient, text_of


@pytest.fixture
async def callers(tmp_path: Path) -> AsyncIterator[tuple[StoreClient, StoreClient]]:
    """Two processes, as it were, on one file."""
    async with AsyncExitStack() as stack:
        made = []
        for name in ("a", "b"):
            store = await open_store(f"sqlite:///{tmp_path / 'x.db'}", clock=SystemClock())
            stack.push_async_callback(store.close)
            made.append(StoreClient(store, name))
        await made[0].enlist()
        await made[1].enlist()
        yield made[0], made[1]


async def as_read(caller: StoreClient, session: Session) -> Sequence[StoredItem]:
    """Return a context as the store has it, past every cache."""
    store = caller.store
    assert isinstance(store, SqlStore)
    return await SqlReader(store._driver.read).context(session)


async def check_whole(caller: StoreClient, session: Session) -> None:
    """Compare what clients are shown of a session with what they are shown past every cache."""
    store = caller.store
    assert isinstance(store, SqlStore)
    afresh = SqlReader(store._driver.read)
    shown = await afresh.transcript(caller.tenant, session_id=session.id)
    assert await caller.read.transcript(caller.tenant, session_id=session.id) == shown


async def _hide(caller: StoreClient, session: Session, dice: random.Random, *, erase: bool) -> None:
    first = dice.randint(1, max(session.head_seq, 1))
    last = min(first + dice.randint(0, 2), session.head_seq)
    if first <= last:
        await caller.submit(
            Hide(tenant=caller.tenant, session_id=session.id, from_seq=first, to_seq=last,
                 erase=erase)
        )  # fmt: skip


async def _compact(caller: StoreClient, session: Session, dice: random.Random) -> None:
    run = await caller.start(session_id=session.id, source="system")
    to_seq = dice.randint(1, max(run.session.head_seq, 1))
    if to_seq <= run.session.head_seq:
        made = CompactionRecord(id=caller.ids.new("cmp"), mode="given", reason="asked", text="sum")
        with contextlib.suppress(ItemNotFound):  # what a fork has from others is not its own
            await caller.submit(Compact(fence=run.fence, to_seq=to_seq, compaction=made))
    await caller.finish(run, items=())


async def _step(caller: StoreClient, session: Session, dice: random.Random) -> SessionId | None:
    """Do something to a session; return the id of another one if that made one."""
    match dice.randrange(11):
        case 0:
            await _hide(caller, session, dice, erase=False)
        case 1:
            await _hide(caller, session, dice, erase=True)
        case 2:
            await _compact(caller, session, dice)
        case 3:
            fork = Fork(
                tenant=caller.tenant, session_id=session.id,
                new_id=SessionId(caller.ids.new("ses")),
            )  # fmt: skip
            return (await caller.submit(fork)).id
        case 9 | 10:
            last = max(session.head_seq - dice.randint(0, 2), 0)
            run = await caller.start(
                "edited", session_id=session.id, rewind=(last, session.head_seq)
            )
            await caller.finish(run, "answered again")
        case 4 | 5:
            run = await caller.start("asked", session_id=session.id)
            assert await caller.read.context(run.session) == await as_read(caller, run.session)
            await caller.finish(run, "answered")
        case _:
            await caller.converse("a", "b", session_id=session.id)
    return None


@pytest.mark.parametrize("seed", range(12))
async def test_a_context_is_always_what_the_store_has(
    callers: tuple[StoreClient, StoreClient], seed: int
) -> None:
    dice = random.Random(seed)
    known = [(await callers[0].reserve("k")).id]
    for _ in range(30):
        doer = dice.choice(callers)
        session = await doer.session(dice.choice(known))
        made = await _step(doer, session, dice)
        if made is not None:
            known.append(made)
        for caller in callers:
            for session_id in known:
                now = await caller.session(session_id)
                assert await caller.read.context(now) == await as_read(caller, now)
                await check_whole(caller, now)
            assert isinstance(caller.store, SqlStore)
            held = caller.store._transcripts
            assert held.held_bytes == sum(one.items.size for one in held._entries.values())
            roots = [one.items for name, one in held._entries.items() if name == known[0]]
            assert [items.size for items in roots] == [size_of(items) for items in roots]


async def test_a_turn_of_a_known_session_reads_nothing() -> None:
    reads = 0
    store = await open_store("memory:", clock=SystemClock())
    try:
        caller = StoreClient(store)
        await caller.enlist()
        driver_read = store._driver.read

        async def counted(query: object) -> object:
            nonlocal reads
            reads += 1
            return await driver_read(query)  # type: ignore[arg-type]  # passed through

        store._driver.read = counted  # type: ignore[assignment, method-assign]
        for number in range(5):
            run = await caller.start(f"q{number}", key="k")
            shown = await caller.read.context(run.session)
            assert [text_of(item) for item in shown][-1] == f"q{number}"
            assert len(shown) == 2 * number + 1
            await caller.finish(run, f"a{number}")
        assert reads == 0
    finally:
        await store.close()


async def test_a_context_that_was_read_once_is_shared_by_all_who_ask_for_it(
    callers: tuple[StoreClient, StoreClient],
) -> None:
    ended = await callers[0].converse("a", "b", key="k")
    session = await callers[1].session(ended.session.id)
    first = await callers[1].read.context(session)
    second = await callers[1].read.context(session)
    assert isinstance(first, SharedPrefix)
    assert isinstance(second, SharedPrefix)
    assert second.shared is first.shared
    run = await callers[1].start("c", session_id=session.id)
    third = await callers[1].read.context(run.session)
    assert [text_of(item) for item in third] == ["a", "b", "c"]
    assert [text_of(item) for item in first] == ["a", "b"]


def _item(session_id: str, seq: int, size: int) -> StoredItem:
    return StoredItem(session_id, seq, 1, "message", None, None, b"", False, b"x" * size)


def _session(like: Session, name: str) -> Session:
    return replace(like, id=SessionId(name), head_seq=1)


async def test_what_is_held_is_bounded_in_bytes_and_the_oldest_goes_first(
    callers: tuple[StoreClient, StoreClient],
) -> None:
    like = await callers[0].reserve("k")
    each = 2 * 1000 + ITEM_BYTES
    held = ContextCache(max_bytes=10 * each)
    for number in range(30):
        session = _session(like, f"s{number}")
        held.keep(session, share([_item(session.id, 1, 1000)]))
        assert held.held_bytes <= 10 * each
    assert held.find(_session(like, "s0")) is None
    assert held.find(_session(like, "s29")) is not None


async def test_a_transcript_that_would_push_out_all_others_is_not_held(
    callers: tuple[StoreClient, StoreClient],
) -> None:
    session = _session(await callers[0].reserve("k"), "s")
    held = ContextCache(max_bytes=4000)
    held.keep(session, share([_item("s", 1, 5000)]))
    assert held.find(session) is None
    assert held.held_bytes == 0
    assert session.id in held.large
    held.keep(session, share([_item("s", 1, 500)]))
    assert session.id not in held.large


async def test_a_context_that_would_block_the_loop_is_not_held_however_large_the_cache(
    callers: tuple[StoreClient, StoreClient],
) -> None:
    session = _session(await callers[0].reserve("k"), "s")
    held = ContextCache(max_bytes=100 * MAX_CONTEXT_BYTES)
    held.keep(session, share([_item("s", 1, MAX_CONTEXT_BYTES // 2 - ITEM_BYTES)]))
    assert held.find(session) is not None
    held.keep(session, share([_item("s", 1, MAX_CONTEXT_BYTES // 2)]))
    assert held.find(session) is None
    assert session.id in held.large


async def test_a_limit_of_nothing_holds_nothing(callers: tuple[StoreClient, StoreClient]) -> None:
    store = callers[0].store
    assert isinstance(store, SqlStore)
    store.limit_cache(0)
    session = await callers[0].reserve("k")
    for number in range(2):
        await callers[0].converse(f"asked {number}", "answered", session_id=session.id)
        session = await callers[0].session(session)
        assert len(await store.read.context(session)) == 2 * number + 2
        assert store._transcripts.held_bytes == 0


async def test_changes_of_one_commit_may_be_noted_in_any_order(
    callers: tuple[StoreClient, StoreClient],
) -> None:
    """A rollback hides the items of the turn before it, whose own change may be noted later."""
    new = replace(_session(await callers[0].reserve("k"), "s"), head_seq=0, record_no=0)
    one = replace(new, head_seq=1)
    two = replace(new, head_seq=2, record_no=1)
    hides = Record(two.id, 1, "rollback", 1, 1, None, None, None, 0.0)
    turn = LogAppended(one, new, (Entry(items=[_item("s", 1, 5)]),), 0.0)
    rollback = LogAppended(two, one, (Entry(items=[_item("s", 2, 5)], records=[hides]),), 0.0)
    for order in ([turn, rollback], [rollback, turn]):
        held = ContextCache()
        held.note([LogAppended(new, None, (), 0.0)])
        for change in order:
            held.note([change])
        found = held.find(two)
        assert found is not None
        assert 1 not in [item.seq for item in found.items]


async def test_a_context_that_is_forgotten_within_a_commit_leaves_nothing_to_count(
    callers: tuple[StoreClient, StoreClient],
) -> None:
    new = replace(_session(await callers[0].reserve("k"), "s"), head_seq=0, record_no=0)
    one, two = replace(new, head_seq=2), replace(new, head_seq=2, record_no=2)
    hides = Record(new.id, 1, "rollback", 1, 1, None, None, None, 0.0)
    compacts = replace(hides, no=2, kind="compaction")
    items = [_item("s", 1, 5), _item("s", 2, 7)]
    held = ContextCache()
    held.note([LogAppended(new, None, (), 0.0)])
    held.note([LogAppended(one, new, (Entry(items=items),), 0.0)])
    assert held.held_bytes == size_of(items)
    held.note([LogAppended(two, one, (Entry(records=[hides, compacts]),), 0.0)])
    assert held.held_bytes == 0


async def test_so_many_sessions_are_known_to_be_large_and_no_more(
    callers: tuple[StoreClient, StoreClient],
) -> None:
    like = await callers[0].reserve("k")
    held = ContextCache(max_bytes=4000)
    for number in range(MAX_LARGE + 3):
        session = _session(like, f"s{number}")
        held.keep(session, share([_item(session.id, 1, 5000)]))
    assert len(held.large) == MAX_LARGE
    assert SessionId("s2") not in held.large
    assert SessionId("s3") in held.large


async def test_items_that_are_erased_while_a_context_is_read_are_all_shown_or_none(
    callers: tuple[StoreClient, StoreClient],
) -> None:
    here, there = callers
    first = (await here.append("a", key="k")).session
    assert len(await here.read.context(first)) == 1
    last = (await there.append("b", session_id=first.id)).session
    await there.submit(
        Hide(tenant=there.tenant, session_id=first.id, from_seq=1, to_seq=2, erase=True)
    )
    # The session as it was before: its first item is cached here, its second one is gone.
    assert [text_of(item) for item in await here.read.context(last)] in (["a", "b"], [])
