"""Pages of an export, on every store: they say of each session what reading it alone says."""

from collections.abc import Generator
from functools import partial
from typing import Any

import pytest

from holdfast.core.errors import SessionNotFound
from holdfast.core.ids import DEFAULT_TENANT, SessionId, Tenant
from holdfast.core.model.items import read_item as item_of
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Delete, Fork, Hide, Started
from holdfast.http.api.export import session_lines, whole_lines
from holdfast.http.api.session_items import log_entry
from holdfast.http.formats.sessions import session_value, turn_value
from holdfast.ports.store import ExportedSession, ExportPage, ItemQuery
from holdfast.stores.cache.lineage_cache import LineageCache
from holdfast.stores.sql import export
from holdfast.stores.sql.plan import Ask, Row
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.store_client import StoreClient

FIRST = SessionId("")


async def pages_of(caller: StoreClient, *, generations: bool = True) -> list[ExportPage]:
    """Return all pages of an export."""
    pages: list[ExportPage] = []
    after = FIRST
    while not pages or pages[-1].has_more:
        pages.append(
            await caller.read.export_page(
                DEFAULT_TENANT, after=after, generations=generations, limit=64
            )
        )
        if pages[-1].sessions:
            after = pages[-1].sessions[-1].view.session.id
    return pages


async def exported_by(caller: StoreClient) -> dict[SessionId, ExportedSession]:
    """Return every session of an export by its id."""
    found = [one for page in await pages_of(caller) for one in page.sessions]
    ids = [one.view.session.id for one in found]
    assert ids == sorted(set(ids))
    return dict(zip(ids, found, strict=True))


async def alone(caller: StoreClient, session_id: SessionId) -> list[Any]:
    """Return the values that the API has of one session."""
    read = caller.read
    view = await read.session(DEFAULT_TENANT, session_id=session_id)
    assert view is not None
    turns = [
        turn_value(turn, await read.runs(turn.turn.id))
        for turn in await read.turns(session_id, limit=10_000)
    ]
    items = await read.listing(view.session, ItemQuery(view="log"))
    return [session_value(view), *turns, *[log_entry(item) for item in items]]


def values_of(exported: ExportedSession) -> list[Any]:
    turns = [turn_value(turn.view, turn.runs) for turn in exported.turns]
    items = [log_entry(item) for item in exported.items]
    return [session_value(exported.view), *turns, *items]


async def fork(caller: StoreClient, session: Session, after: int) -> Session:
    new_id = SessionId(caller.ids.new("ses"))
    return await caller.submit(
        Fork(tenant=DEFAULT_TENANT, session_id=session.id, new_id=new_id, after_seq=after)
    )


async def leave_every_kind_of_session(caller: StoreClient) -> SessionId:
    """Leave sessions in all states; return the id of one that was erased."""
    await caller.converse("a", "b", key="plain")
    running = await caller.start("c", key="running")
    await caller.wait("d", key="running")
    await caller.extend(running, "e")
    failed = await caller.start("f", key="failed")
    await caller.finish(failed, outcome="failed", error_code="x", error_message="why")
    await caller.reserve("empty")
    hidden = (await caller.converse("g", "h", key="hidden")).session
    await caller.submit(
        Hide(tenant=DEFAULT_TENANT, session_id=hidden.id, from_seq=1, to_seq=1, erase=True)
    )
    parent = (await caller.converse("i", "j", key="parent")).session
    child = await fork(caller, parent, 1)
    await caller.converse("k", "l", session_id=child.id)
    await fork(caller, await caller.session(child), 2)
    old = (await caller.converse("m", "n", key="reset")).session
    await caller.reset(old)
    gone = (await caller.converse("o", "p", key="gone")).session
    await caller.submit(Delete(tenant=DEFAULT_TENANT, session_id=gone.id, cascade=False))
    return gone.id


async def test_an_export_says_what_reading_each_session_says(caller: StoreClient) -> None:
    gone = await leave_every_kind_of_session(caller)
    exported = await exported_by(caller)
    assert len(exported) == 10
    assert gone not in exported
    for session_id, one in exported.items():
        assert not one.is_large
        assert values_of(one) == await alone(caller, session_id)
    live = [each for page in await pages_of(caller, generations=False) for each in page.sessions]
    assert {each.view.status for each in live} == {"idle", "running"}
    assert len(live) == 9


async def test_a_session_in_parts_has_the_lines_of_the_whole_one(caller: StoreClient) -> None:
    await leave_every_kind_of_session(caller)
    for one in (await exported_by(caller)).values():
        parts = [part async for part in session_lines(caller.read, DEFAULT_TENANT, one.view)]
        assert b"".join(parts) == whole_lines(one)


async def test_the_parts_of_a_session_are_of_one_version(caller: StoreClient) -> None:
    run = await caller.start("a", key="k")
    waiting = await caller.wait("b", key="k")
    [before] = (await exported_by(caller)).values()
    parts = session_lines(caller.read, DEFAULT_TENANT, before.view)
    lines = [await anext(parts)]
    await caller.finish(run, "answer")
    claimed = await caller.claim(waiting.turn)
    assert isinstance(claimed, Started)
    await caller.finish(claimed, "another")
    await caller.converse("c", "d", key="k")
    lines += [part async for part in parts]
    assert b"".join(lines) == whole_lines(before)


async def test_a_session_that_is_erased_between_its_parts_is_told(caller: StoreClient) -> None:
    session = (await caller.converse("a", "secret", key="k")).session
    [one] = (await exported_by(caller)).values()
    parts = session_lines(caller.read, DEFAULT_TENANT, one.view)
    lines = [await anext(parts)]
    await caller.submit(Delete(tenant=DEFAULT_TENANT, session_id=session.id, cascade=False))
    with pytest.raises(SessionNotFound):
        lines += [part async for part in parts]
    assert b"secret" not in b"".join(lines)


async def test_large_sessions_come_alone_and_small_ones_together(caller: StoreClient) -> None:
    for number in range(5):
        await caller.converse("a", "b", key=f"before {number}")
    entries = export.MAX_ENTRIES + 1
    for _ in range(entries):
        await caller.append("c", key="many entries")
    await caller.append("d" * export.MAX_BYTES, key="many bytes")
    await caller.converse("e", "f", key="after")
    pages = await pages_of(caller)
    assert [[one.is_large for one in page.sessions] for page in pages] == [
        [False] * 5, [True], [True], [False],
    ]  # fmt: skip
    large = pages[1].sessions[0].view
    assert (large.session.key, large.session.turn_count) == ("many entries", entries)
    parts = [part async for part in session_lines(caller.read, DEFAULT_TENANT, large)]
    assert sum(part.count(b"\n") for part in parts) == 1 + 2 * entries
    assert len(parts) > 8  # none of them is large


async def test_only_the_sessions_of_a_tenant_are_exported_and_counted(
    caller: StoreClient, store: SqlStore
) -> None:
    foreign = StoreClient(store, "f", tenant="other")
    await foreign.enlist()
    theirs = (await foreign.converse("a", "b", key="k")).session
    mine = (await caller.converse("a", "b", key="k")).session
    old = await caller.reset(mine)
    assert set(await exported_by(caller)) == {mine.id, old.id}
    count = caller.read.count_sessions
    assert (await count(DEFAULT_TENANT, after=FIRST, generations=True))[0] == 2
    assert (await count(DEFAULT_TENANT, after=FIRST, generations=False))[0] == 1
    assert (await count(DEFAULT_TENANT, after=old.id, generations=True)) == (0, None)
    assert (await count(Tenant("other"), after=FIRST, generations=True)) == (1, theirs.id)


async def test_lines_have_no_line_ends_inside(caller: StoreClient) -> None:
    sent = b'{"role":"user",\r\n"content":\n"a"}'
    session = (await caller.finish(await caller.start(items=[item_of(sent)], key="k"))).session
    [one] = (await exported_by(caller)).values()
    assert whole_lines(one).count(b"\n") == 3
    assert b"\r" not in whole_lines(one)
    [kept] = await caller.read.items(session, ItemQuery())
    assert kept.body == sent


async def test_a_page_takes_as_many_statements_for_few_sessions_as_for_many(
    caller: StoreClient, store: SqlStore
) -> None:
    counts = []
    for size in (2, 32):
        while len(await exported_by(caller)) < size:
            await caller.converse("a", "b", key=caller.ids.new("key"))
        asked: list[str] = []
        page = await store.query(partial(first_page, asked))
        assert len(page.sessions) == size
        counts.append(asked)
    assert counts[0] == counts[1]
    assert len(counts[0]) == 6


def first_page(asked: list[str], now: float) -> Generator[Ask, list[Row], ExportPage]:
    """Read the first page and note the names of its statements."""
    del now
    plan = export.export_page(DEFAULT_TENANT, FIRST, True, 64, LineageCache())
    rows: list[Row] | None = None
    while True:
        try:
            ask = next(plan) if rows is None else plan.send(rows)
        except StopIteration as end:
            page: ExportPage = end.value
            return page
        asked.append(ask[0].name)
        rows = yield ask
