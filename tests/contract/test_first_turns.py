"""First turns of new keys, on every kind of store: written in one step, and once for a key."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.ids import Key, SessionId
from holdfast.core.model.items import write_item
from holdfast.core.transaction.commands import Accept, Command, Delete, Import, Queued, Started
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.open import open_store
from holdfast.stores.postgres import open_postgres
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.optimistic.decisions import decide_from_cache
from holdfast.stores.sql.optimistic.plain_turns import PLANNERS
from holdfast.stores.sql.plan import Plan, Statement, every
from holdfast.stores.sql.store import SqlStore
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from tests.postgres import Databases, PostgresServer

ARRIVAL: type[Command[Any]] = Accept
NAMED = write_item({"type": "message", "id": "msg_1", "role": "user", "content": "hello"})
FIRST_TURNS: list[dict[str, Any]] = [
    {"key": "a"},
    {"key": "b", "source": "background", "request": b'{"api":"chat"}', "body_hash": b"hash"},
    {"key": "c", "source": "channel", "on_busy": "reject", "is_compared": False},
    {"key": "d", "source": "cron", "on_busy": "interrupt", "retry_count": 1},
    {"key": "e", "on_busy": "rollback"},
    {"source": "system"},
    {"key": "𝔪'; --"},
]
TABLES = {
    "sessions": "no, id, tenant, key, generation, is_live, is_visible, previous_session_id, "
    "parent_id, parent_seq, parent_record, created_at, retired_at, deleted_at, metadata, "
    "started_by",
    "log": "session, n, kind, at, turn, seq, turns, events, record, head, body, items, request",
    "lanes": "session, turn, run, owner, hold_until",
    "queue": "session, position, turn, owner, input",
    "item_ids": "session, item_id, seq",
    "idempotency": "tenant, key",
    "provider_state": "session_id, slot",
    "partials": "run, body",
}
Rows = dict[str, list[tuple[Any, ...]]]


async def rows_of(store: SqlStore) -> Rows:
    """Return what the tables contain that a turn may write to."""

    def query(_now: float) -> Plan[Rows]:
        found: Rows = {}
        for table, columns in TABLES.items():
            text = f"select {columns} from {table} order by 1, 2"
            rows = yield from every(Statement(f"all_{table}", text))
            found[table] = [
                tuple(bytes(one) if isinstance(one, memoryview) else one for one in row)
                for row in rows
            ]
        return found

    return await store.query(query)


@pytest.fixture
def twin_url(store_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Another fresh store of the same kind."""
    if store_url == "memory:":
        yield store_url
    elif store_url.startswith("sqlite:"):
        yield f"sqlite:///{tmp_path / 'twin.db'}"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        databases: Databases = request.getfixturevalue("databases")
        name = databases.take()
        yield server.url(name)
        databases.give_back(name)


@pytest.fixture
async def twin(twin_url: str, clock: ManualClock) -> AsyncIterator[SqlStore]:
    """That store, open."""
    opening = open_postgres if twin_url.startswith("postgresql:") else open_store
    store = await opening(twin_url, clock=clock)
    yield store
    await store.close()


Planner = Callable[[Accept, float, LaneCache], Planned | None]


class Recorded:
    """A planner, and whether it planned each arrival without reading."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.was_planned: list[bool] = []

    def __call__(self, command: Accept, now: float, lanes: LaneCache) -> Planned | None:
        planned = self._planner(command, now, lanes)
        self.was_planned.append(planned is not None)
        return planned


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """What becomes of arrivals."""
    planner = Recorded(PLANNERS[Accept])
    monkeypatch.setitem(PLANNERS, ARRIVAL, planner)
    return planner


async def test_first_turns_leave_the_rows_that_they_leave_after_reading(
    store: SqlStore, twin: SqlStore, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = StoreClient(store), StoreClient(twin)
    outcomes: list[list[Any]] = [[], []]
    for number, client in enumerate((here, there)):
        if client is there:
            monkeypatch.setitem(PLANNERS, ARRIVAL, decide_from_cache)
        await client.enlist()
        for fields in FIRST_TURNS:
            started = await client.start("hello", **fields)
            outcomes[number] += (started, await client.finish(started, "hi"))
        outcomes[number].append(await client.start(items=(NAMED,), key="named"))
        # The next turn of each is decided on the lane that the first one left.
        outcomes[number].append(await client.start("and now?", key="a"))
        outcomes[number].append(await client.wait("and then?", key="named"))
    assert recorded.was_planned[: len(FIRST_TURNS) + 2] == [True] * (len(FIRST_TURNS) + 2)
    assert outcomes[0] == outcomes[1]
    assert await rows_of(store) == await rows_of(twin)


async def test_a_key_that_another_process_has_met_is_not_met_again(
    caller: StoreClient, other: StoreClient, recorded: Recorded, store_url: str
) -> None:
    await caller.start("mine", key="first")
    run = await other.start("theirs", key="k")
    known = await caller.start("busy", key="second")
    late = await caller.wait("late", key="k")
    # Memory has no other process: there it is a lane that another worker has.
    assert recorded.was_planned[-1] is (store_url != "memory:")
    assert (late.session.id, late.turn.number) == (run.session.id, 2)
    await other.finish(run, "answer")
    assert await caller.texts(run.session) == ["theirs", "answer"]
    # What was decided on other sessions stands, and the next key is looked up again.
    ended = await caller.finish(known, "done")
    assert ended.session.active_turn_id is None
    await caller.start("more", key="third")
    assert not recorded.was_planned[-1]
    await caller.start("more", key="fourth")
    assert recorded.was_planned[-1]


async def test_a_key_whose_session_was_erased_gets_the_next_generation(
    caller: StoreClient, recorded: Recorded
) -> None:
    first = await caller.converse("one", "two", key="k")
    await caller.submit(Delete(tenant=caller.tenant, session_id=first.session.id))
    await caller.start("hello", key="other")
    fresh = await caller.start("again", key="k")
    assert recorded.was_planned == [True, True, True]
    assert (fresh.session.generation, fresh.fence.generation) == (2, 2)
    assert fresh.session.id != first.session.id


async def test_a_key_of_which_a_later_generation_was_imported_goes_on_behind_it(
    caller: StoreClient,
) -> None:
    imported = await caller.submit(
        Import(
            tenant=caller.tenant,
            session_id=SessionId("ses_imported"),
            key=Key("k"),
            generation=3,
            is_live=False,
        )
    )
    assert imported is not None
    fresh = await caller.start("hello", key="k")
    assert fresh.session.generation == 4


async def test_the_keys_of_tenants_are_different(caller: StoreClient, store: SqlStore) -> None:
    stranger = StoreClient(store, "s", tenant="stranger")
    mine, theirs = await caller.start("mine", key="k"), await stranger.start("theirs", key="k")
    assert (mine.session.generation, theirs.session.generation) == (1, 1)
    assert mine.session.id != theirs.session.id


async def test_processes_that_meet_the_same_keys_agree_on_their_sessions(
    caller: StoreClient, other: StoreClient
) -> None:
    keys = [f"key {number}" for number in range(24)]
    outcomes = await asyncio.gather(
        *(caller.accept("here", key=key) for key in keys),
        *(other.accept("there", key=key) for key in reversed(keys)),
    )
    sessions: dict[str | None, set[str]] = {}
    for outcome in outcomes:
        sessions.setdefault(outcome.session.key, set()).add(outcome.session.id)
    assert sorted(key or "" for key in sessions) == sorted(keys)
    assert all(len(ids) == 1 for ids in sessions.values())
    kinds = [type(outcome) for outcome in outcomes]
    assert (kinds.count(Started), kinds.count(Queued)) == (len(keys), len(keys))


async def test_first_turns_that_come_together_begin_a_session_each(
    caller: StoreClient, recorded: Recorded
) -> None:
    outcomes = await asyncio.gather(*(caller.start(f"{n}", key=f"k{n}") for n in range(40)))
    assert len({outcome.session.id for outcome in outcomes}) == 40
    assert all(recorded.was_planned)
    for number, outcome in enumerate(outcomes):
        ended = await caller.finish(outcome, "answer")
        assert await caller.texts(ended.session) == [f"{number}", "answer"]


async def test_a_first_turn_that_comes_again_finds_itself(caller: StoreClient) -> None:
    command = caller.arrival("hello", key="k")
    first = await caller.submit(command)
    again = await caller.submit(replace(command, again=True))
    assert isinstance(first, Started)
    assert isinstance(again, Started)
    assert (again.turn.id, again.session.id) == (first.turn.id, first.session.id)


async def test_a_batch_with_a_key_that_is_not_new_is_decided_again_as_a_whole(
    caller: StoreClient, other: StoreClient
) -> None:
    known = await caller.start("one", key="known")
    theirs = await other.converse("theirs", "answer", key="theirs")
    await caller.start("new", key="first")
    work: list[Awaitable[Any]] = [
        caller.finish(known, "two"),
        caller.start("mine too", key="theirs"),
        *(caller.start(f"{n}", key=f"k{n}") for n in range(4)),
    ]
    outcomes = await asyncio.gather(*work)
    assert outcomes[0].session.active_turn_id is None
    assert await caller.texts(known.session) == ["one", "two"]
    assert outcomes[1].session.id == theirs.session.id
    assert await caller.texts(theirs.session) == ["theirs", "answer", "mine too"]
    assert len({outcome.session.id for outcome in outcomes}) == 6
