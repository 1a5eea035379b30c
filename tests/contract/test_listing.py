"""Items by name, on every store: each entry of a log can be found again, forks included."""

from functools import partial
from typing import Any, TypeVar, cast

import msgspec

from holdfast.core.ids import SessionId
from holdfast.core.model.items import NewItem, write_item
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Annotate, Fork, Hide
from holdfast.ports.store import ItemQuery, SessionQuery
from holdfast.stores.sql.plan import Plan, Statement, every
from holdfast.stores.sql.search.activity import sessions_by_activity
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.search_contract import index
from holdfast.testing.store_client import StoreClient

ResultT = TypeVar("ResultT")
ITEM_IDS = Statement("all_item_ids", "select seq, item_id from item_ids order by seq")


def named(*ids: str) -> list[NewItem]:
    return [write_item({"id": one, "role": "user", "content": one}) for one in ids]


async def session_of(caller: StoreClient, *ids: str) -> Session:
    started = await caller.start(key="k", items=named(*ids))
    return (await caller.finish(started, "done")).session


async def names(caller: StoreClient, session: Session, view: str = "visible") -> list[str]:
    query = ItemQuery(view="log" if view == "log" else "visible")
    return [one.name for one in await caller.read.listing(session, query)]


async def hide(caller: StoreClient, session: Session, seq: int) -> Session:
    return await caller.submit(
        Hide(tenant=caller.tenant, session_id=session.id, from_seq=seq, to_seq=seq)
    )


async def fork(caller: StoreClient, session: Session, after: int) -> Session:
    new_id = SessionId(caller.ids.new("ses"))
    return await caller.submit(
        Fork(tenant=caller.tenant, session_id=session.id, new_id=new_id, after_seq=after)
    )


async def rows_of_ids(store: SqlStore) -> list[tuple[int, str]]:
    def query(_now: float) -> Plan[list[tuple[int, str]]]:
        rows = yield from every(ITEM_IDS)
        return [(row[0], row[1]) for row in rows]

    return await store.query(query)


async def check_every_name_is_found(caller: StoreClient, session: Session) -> None:
    listed = await caller.read.listing(session, ItemQuery(view="log"))
    assert len({one.name for one in listed}) == len(listed)
    for one in listed:
        assert await caller.read.item(session, one.name) == one


async def test_shared_ids_are_distinguished_and_found_again(caller: StoreClient) -> None:
    session = await session_of(caller, "a", "b", "a", "a")
    assert (await names(caller, session))[:4] == ["a", "b", "a.3", "a.4"]
    await check_every_name_is_found(caller, session)
    session = await hide(caller, session, 1)
    assert (await names(caller, session))[:3] == ["b", "a", "a.4"]
    assert (await names(caller, session, "log"))[:4] == ["a.1", "b", "a", "a.4"]
    await check_every_name_is_found(caller, session)


async def test_a_fork_shares_names_with_its_parent_and_has_its_own(
    caller: StoreClient,
) -> None:
    parent = await session_of(caller, "a", "b", "c")
    child = await fork(caller, parent, 2)
    started = await caller.start(session_id=child.id, items=named("a", "x"))
    child = (await caller.finish(started, "done")).session
    assert (await names(caller, child))[:4] == ["a", "b", "a.3", "x"]
    assert (await names(caller, parent))[:3] == ["a", "b", "c"]
    assert await caller.read.item(child, "c") is None
    assert await caller.read.item(parent, "x") is None
    await check_every_name_is_found(caller, child)


async def test_the_log_says_what_hides_an_item_and_a_parents_later_records_hide_nothing(
    caller: StoreClient,
) -> None:
    parent = await session_of(caller, "a", "b", "c")
    parent = await hide(caller, parent, 1)
    child = await fork(caller, parent, 3)
    parent = await hide(caller, parent, 2)
    child = await hide(caller, child, 3)
    listed = await caller.read.listing(child, ItemQuery(view="log"))
    kinds = [(one.name, one.hidden_by.session_id if one.hidden_by else None) for one in listed]
    assert kinds == [("a", parent.id), ("b", None), ("c", child.id)]
    assert await names(caller, child) == ["b"]
    assert (await names(caller, parent))[:1] == ["c"]


async def test_an_unknown_name_finds_nothing(caller: StoreClient) -> None:
    session = await session_of(caller, "a", "b")
    for name in ("z", "a.2", "z.1", "a.99", "item.1", "", ".", "a.0"):
        assert await caller.read.item(session, name) is None


async def test_pages_have_the_same_names_as_the_whole(caller: StoreClient) -> None:
    session = await session_of(caller, "a", "a", "b", "a", "b")
    whole = await names(caller, session)
    for seq in range(1, 7):
        (one,) = await caller.read.listing(session, ItemQuery(after=seq - 1, limit=1))
        assert one.name == whole[seq - 1]


async def test_every_page_of_a_chain_of_forks_has_the_items_of_its_place(
    caller: StoreClient,
) -> None:
    session, expected = (await caller.append("0", key="k")).session, ["0"]
    # Batches of very different sizes, and entries without items between them.
    for depth, sizes in enumerate([(1, 1, 90, 1, 1), (1,), (2, 30), (), (1, 1, 1), (70, 1)]):
        if depth:
            after = len(expected) - depth % 3
            forked = await fork(caller, session, after)
            # What the parent goes on with is not the fork's.
            await caller.append("later", session_id=session.id)
            session, expected = forked, expected[:after]
        for size in sizes:
            texts = [f"{depth}.{len(expected)}.{number}" for number in range(size)]
            session = (await caller.append(*texts, session_id=session.id)).session
            expected += texts
            for _ in range(size % 7):
                annotate = Annotate(
                    tenant=caller.tenant, session_id=session.id, metadata=f"{size}".encode()
                )
                session = await caller.submit(annotate)
    # Twice: what the first reads learnt is used by the others.
    for _ in range(2):
        for limit in (1, 2, 20, 65, None):
            for after in range(0, len(expected), 3 if limit == 20 else 17):
                upto = len(expected) if limit is None else after + limit
                found = await caller.texts(session, after=after, limit=limit)
                assert found == expected[after:upto]
        for last in (1, 19, 64, 100, len(expected)):
            transcript = await caller.read.transcript(
                caller.tenant, session_id=session.id, last=last
            )
            assert transcript is not None
            bodies = msgspec.json.decode(transcript.listed)
            assert [body["content"][0]["text"] for body in bodies] == expected[-last:]


async def test_ids_that_end_with_a_place_are_found_there_and_elsewhere(
    store: SqlStore, caller: StoreClient
) -> None:
    session = await session_of(caller, "x000002", "y000002", "x000002", "y000002", "z000009")
    # The second item and the answer are where their ids say.
    assert await rows_of_ids(store) == [
        (1, "x000002"),
        (3, "x000002"),
        (4, "y000002"),
        (5, "z000009"),
    ]
    assert (await names(caller, session))[:5] == [
        "x000002", "y000002", "x000002.3", "y000002.4", "z000009",
    ]  # fmt: skip
    await check_every_name_is_found(caller, session)
    session = await hide(caller, session, 2)
    assert (await names(caller, session, "log"))[1:4] == ["y000002.2", "x000002.3", "y000002"]
    await check_every_name_is_found(caller, session)


async def test_a_fork_finds_the_item_of_an_id_in_its_own_lineage(caller: StoreClient) -> None:
    parent = await session_of(caller, "a", "b000002", "c000003")
    child = await fork(caller, parent, 2)
    started = await caller.start(session_id=child.id, items=named("b000002", "d000004"))
    child = (await caller.finish(started, "done")).session
    assert (await names(caller, child))[:4] == ["a", "b000002", "b000002.3", "d000004"]
    assert await caller.read.item(child, "c000003") is None
    assert await caller.read.item(parent, "d000004") is None
    await check_every_name_is_found(caller, child)
    await check_every_name_is_found(caller, parent)


def _noting(plan: Plan[ResultT], names: set[str]) -> Plan[ResultT]:
    """Run a plan, and note the statements that it asks for."""
    rows = None
    while True:
        try:
            asked = next(plan) if rows is None else plan.send(rows)
        except StopIteration as end:
            return cast("ResultT", end.value)
        names.add(asked[0].name)
        rows = yield asked


def _given(plan: Plan[ResultT], _now: float) -> Plan[ResultT]:
    return plan


async def _by_activity(
    caller: StoreClient, names: set[str] | None = None, **more: Any
) -> list[SessionId]:
    """Return all sessions in the order of their activity, by pages of two."""
    found: list[SessionId] = []
    seen = set() if names is None else names
    store = caller.store
    assert isinstance(store, SqlStore)
    while True:
        after = found[-1] if found else None
        query = SessionQuery(sort="activity", limit=2, after=after, **more)
        plan = _noting(sessions_by_activity(caller.tenant, query), seen)
        views = await store.query(partial(_given, plan))
        if not views:
            return found
        found += [view.session.id for view in views]


async def test_running_sessions_by_activity_are_found_by_their_lanes(
    caller: StoreClient, clock: ManualClock
) -> None:
    started: list[SessionId] = []
    for number in range(8):
        clock.advance(1)
        await caller.append("hi", key=f"idle {number}")
        if number % 2:
            started.append((await caller.start("hi", key=f"running {number}")).session.id)
        if number == 4:
            await index(caller)
    names: set[str] = set()
    assert await _by_activity(caller, names, status="running") == started[::-1]
    # The other statements are tested with the plans; this one reads idle sessions too.
    assert "list_sessions_by_activity" not in names


async def test_no_session_is_missed_behind_the_latest_activity_of_others(
    caller: StoreClient, clock: ManualClock
) -> None:
    other = StoreClient(caller.store, "other", tenant="other")
    await other.enlist()
    mine: list[SessionId] = []
    for number in range(5):
        clock.advance(1)
        mine.append((await caller.append("hi", key=f"mine {number}")).session.id)
        for each in range(3):
            await other.append("hi", key=f"other {number} {each}")
        if number == 1:
            await index(caller)
    assert await _by_activity(caller) == mine[::-1]


async def test_retired_sessions_are_found_without_reading_others(
    caller: StoreClient, clock: ManualClock
) -> None:
    retired: list[SessionId] = []
    for number in range(5):
        clock.advance(1)
        ended = await caller.converse("hello", "hi", key=f"k{number}")
        await caller.reset(ended.session)
        retired.append(ended.session.id)
        await caller.append("live", key=f"other {number}")
    await index(caller)
    names: set[str] = set()
    assert await _by_activity(caller, names, status="retired") == retired[::-1]
    assert "list_sessions_by_activity" not in names
    for order in ("asc", "desc"):
        query = SessionQuery(status="retired", order=order, limit=2)
        found: list[SessionId] = []
        while views := await caller.read.sessions(caller.tenant, query):
            found += [view.session.id for view in views]
            query = msgspec.structs.replace(query, after=found[-1])
        assert found == sorted(retired, reverse=order == "desc")
