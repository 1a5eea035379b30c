"""Lists of sessions and turns, facts in order, and notifications."""

import pytest

from holdfast.core.ids import Key, SessionId, TurnId
from holdfast.core.model.session import Usage
from holdfast.core.transaction.commands import ExpireWorker, Started
from holdfast.ports.store import SessionQuery, Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import LEASE_SECONDS, StoreClient


async def _ids(caller: StoreClient, **query: object) -> list[str]:
    found = await caller.read.sessions(caller.tenant, SessionQuery(**query))  # type: ignore[arg-type] # the test names fields
    return [view.session.id for view in found]


class ListingContract:
    """Promise 12, and the reading side."""

    async def test_sessions_are_listed_in_pages_from_either_end(self, caller: StoreClient) -> None:
        ids = [(await caller.reserve(f"k{n}")).id for n in range(5)]
        assert await _ids(caller, order="asc") == ids
        assert await _ids(caller) == ids[::-1]
        assert await _ids(caller, order="asc", limit=2) == ids[:2]
        assert await _ids(caller, order="asc", limit=2, after=ids[1]) == ids[2:4]
        assert await _ids(caller, limit=2, after=ids[3]) == [ids[2], ids[1]]
        assert await _ids(caller, limit=2, after=ids[0]) == []

    async def test_sessions_are_listed_by_what_they_do(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        idle = await caller.reserve("idle")
        running = await caller.start("a", key="running")
        old = await caller.reserve("old")
        fresh = await caller.reset(old)
        assert await _ids(caller, status="running") == [running.session.id]
        assert set(await _ids(caller, status="idle")) == {idle.id, fresh.id}
        assert await _ids(caller, status="retired") == [old.id]
        clock.advance(LEASE_SECONDS)
        assert await _ids(caller, status="running") == [running.session.id]
        await caller.submit(ExpireWorker(worker=caller.worker))
        assert await _ids(caller, status="running") == []

    async def test_a_status_that_is_rare_fills_its_page_all_the_same(
        self, caller: StoreClient
    ) -> None:
        running = []
        for n in range(9):
            session = await caller.reserve(f"k{n}")
            if n % 4 == 0:
                await caller.start("a", key=f"k{n}")
                running.append(session.id)
        assert await _ids(caller, status="running", limit=2) == running[::-1][:2]
        assert await _ids(caller, status="running", limit=5) == running[::-1]

    async def test_turns_are_listed_in_pages_from_either_end(self, caller: StoreClient) -> None:
        for n in range(5):
            ended = await caller.converse(f"{n}", "x", key="k")
        session_id = ended.session.id

        async def numbers(**query: object) -> list[int]:
            views = await caller.read.turns(session_id, **query)  # type: ignore[arg-type] # the test names fields
            return [view.turn.number for view in views]

        assert await numbers() == [1, 2, 3, 4, 5]
        assert await numbers(limit=2, after=1) == [2, 3]
        assert await numbers(order="desc", limit=2) == [5, 4]
        assert await numbers(order="desc", limit=2, after=4) == [3, 2]
        assert await numbers(order="desc", after=1) == []
        assert await caller.read.turns(SessionId("ses_unknown")) == []

    async def test_events_are_numbered_without_gaps_and_read_from_any_number(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.wait("b", key="k")
        await caller.extend(run, "c")
        await caller.start("d", key="k", on_busy="rollback")
        events = await caller.read.events(run.session.id, after=0, limit=100)
        assert [event.no for event in events] == list(range(1, len(events) + 1))
        assert [event.kind for event in events] == [
            "session.created", "turn.started", "turn.queued", "items.added", "turn.cancelled",
            "turn.started",
        ]  # fmt: skip
        assert await caller.read.events(run.session.id, after=2, limit=2) == events[2:4]
        assert await caller.read.events(run.session.id, after=len(events), limit=2) == []

    async def test_usage_is_the_sum_of_what_was_reported(self, caller: StoreClient) -> None:
        for usage in (Usage(1, 2, 3, 4), None, Usage(10, 20, 30, 40)):
            run = await caller.start("a", key="k")
            ended = await caller.finish(run, usage=usage)
        session = ended.session
        assert (session.input_tokens, session.cached_tokens) == (11, 22)
        assert (session.output_tokens, session.reasoning_tokens) == (33, 44)
        runs = [
            (await caller.read.runs(view.turn.id))[0]
            for view in await caller.read.turns(session.id)
        ]
        assert [run.input_tokens for run in runs] == [1, None, 10]

    async def test_the_latest_turn_is_shown_with_its_session(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await caller.start("a", key="k")
        clock.advance(2)
        await caller.finish(run, "b")
        view = await caller.read.session(caller.tenant, key=Key("k"))
        assert view is not None
        assert view.last_turn is not None
        assert view.last_turn.started_at is not None
        assert view.last_turn.ended_at == view.last_turn.started_at + 2

    async def test_what_is_not_there_is_none(self, caller: StoreClient) -> None:
        assert await caller.read.session(caller.tenant, key=Key("unknown")) is None
        assert await caller.read.session(caller.tenant, session_id=SessionId("unknown")) is None
        assert await caller.read.turn(caller.tenant, TurnId("unknown")) is None
        assert await caller.read.runs(TurnId("unknown")) == []

    async def test_reading_sees_what_was_acknowledged_anywhere(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        for n in range(5):
            one, two = (caller, other) if n % 2 else (other, caller)
            appended = await one.append(f"{n}", key="k")
            assert (await two.texts(appended.session))[-1] == f"{n}"

    async def test_waiters_wake_when_the_lane_is_free(
        self, caller: StoreClient, store: Store
    ) -> None:
        heard: list[tuple[list[str], list[str]]] = []
        store.listen(lambda woken, aborted: heard.append((list(woken), list(aborted))))
        run = await caller.start("a", key="k")
        waiting = await caller.wait("b", key="k")
        assert heard == []
        await caller.finish(run)
        assert heard == [([run.session.id], [])]
        claimed = await caller.claim(waiting.turn)
        assert isinstance(claimed, Started)
        await caller.reset(claimed.session)
        assert heard[1:] == [([run.session.id], [claimed.run.id])]

    @pytest.mark.parametrize("tenant", ["default", "größe:π"])
    async def test_a_tenants_name_is_any_text(self, store: Store, tenant: str) -> None:
        caller = StoreClient(store, "t", tenant=tenant)
        session = await caller.reserve("k")
        assert await _ids(caller) == [session.id]
