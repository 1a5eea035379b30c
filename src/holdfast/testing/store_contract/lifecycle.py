"""Reset, restore and delete: the generations of a key."""

import asyncio

import pytest

from holdfast.core.errors import (
    SessionChanged,
    SessionNotFound,
    SessionNotKeyed,
    SessionRetired,
)
from holdfast.core.ids import Key, SessionId
from holdfast.core.model.session import Usage
from holdfast.core.transaction.commands import Annotate, Delete, Queued, Restore, Started
from holdfast.ports.store import SessionQuery
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from holdfast.testing.store_contract.lanes import state_of
from holdfast.testing.store_contract.transcript import assert_sound, picture


class LifecycleContract:
    """Promise 11, for resets on request."""

    async def test_a_reset_begins_the_next_generation_with_nothing_but_key_and_metadata(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, "b", usage=Usage(input_tokens=5, output_tokens=7))
        await caller.submit(
            Annotate(tenant=caller.tenant, session_id=run.session.id, metadata=b'{"x":"y"}')
        )
        fresh = await caller.reset(run.session)
        view = await caller.read.session(caller.tenant, key=Key("k"))
        assert view is not None
        assert view.session == fresh
        assert (view.status, view.queued_turns, view.last_turn) == ("idle", 0, None)
        assert (fresh.key, fresh.generation, fresh.metadata) == ("k", 2, b'{"x":"y"}')
        assert fresh.previous_session_id == run.session.id
        assert (fresh.active_turn_id, fresh.last_user_activity_at) == (None, None)
        assert (fresh.input_tokens, fresh.output_tokens, fresh.item_count) == (0, 0, 0)
        assert await caller.texts(fresh) == []

    async def test_the_old_generation_stays_listed_and_readable(self, caller: StoreClient) -> None:
        ended = await caller.converse("a", "b", key="k")
        fresh = await caller.reset(ended.session)
        listed = await caller.read.sessions(
            caller.tenant, SessionQuery(key=Key("k"), generations=True)
        )
        assert {view.session.id: view.status for view in listed} == {
            fresh.id: "idle",
            ended.session.id: "retired",
        }
        assert await caller.texts(ended.session) == ["a", "b"]
        only_live = await caller.read.sessions(caller.tenant, SessionQuery(key=Key("k")))
        assert [view.session.id for view in only_live] == [fresh.id]

    async def test_every_turn_accepted_before_a_reset_ends_cancelled(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        waiting = [await caller.wait(f"{n}", key="k") for n in range(3)]
        fresh = await caller.reset(run.session)
        for turn in [run.turn, *(queued.turn for queued in waiting)]:
            assert await state_of(caller, turn) == ("cancelled", "session_reset")
        view = await caller.read.session(caller.tenant, session_id=fresh.id)
        assert view is not None
        assert view.queued_turns == 0
        later = await caller.start("b", key="k")
        assert later.session.id == fresh.id
        assert_sound(await picture(caller, run.session.id))

    async def test_a_reset_that_expects_another_session_does_nothing(
        self, caller: StoreClient
    ) -> None:
        session = await caller.reserve("k")
        fresh = await caller.reset(session, expected_id=session.id)
        before = await picture(caller, session.id), await picture(caller, fresh.id)
        with pytest.raises(SessionChanged) as refused:
            await caller.reset(fresh, expected_id=session.id)
        assert refused.value.live_id == fresh.id
        with pytest.raises(SessionChanged) as refused:
            await caller.reset(session)
        assert refused.value.live_id == fresh.id
        assert (await picture(caller, session.id), await picture(caller, fresh.id)) == before

    async def test_of_many_who_reset_at_once_one_does(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        session = await caller.reserve("k")
        outcomes = await asyncio.gather(
            *(one.reset(session) for _ in range(4) for one in (caller, other)),
            return_exceptions=True,
        )
        assert len([one for one in outcomes if not isinstance(one, BaseException)]) == 1
        assert all(
            isinstance(one, SessionChanged) for one in outcomes if isinstance(one, Exception)
        )
        view = await caller.read.session(caller.tenant, key=Key("k"))
        assert view is not None
        assert view.session.generation == 2

    async def test_arrivals_during_resets_land_in_one_generation_each(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        session = await caller.reserve("k")
        outcomes = await asyncio.gather(
            *(other.accept(f"{n}", key="k") for n in range(5)),
            caller.reset(session),
            *(other.accept(f"{n}", key="k") for n in range(5, 10)),
        )
        live = await caller.read.session(caller.tenant, key=Key("k"))
        assert live is not None
        assert live.session.generation == 2
        for outcome in outcomes:
            if isinstance(outcome, Started | Queued):
                status, code = await state_of(caller, outcome.turn)
                is_old = outcome.session.id == session.id
                assert (status, code) == ("cancelled", "session_reset") if is_old else code is None
        for session_id in (session.id, live.session.id):
            assert_sound(await picture(caller, session_id))

    async def test_a_session_without_a_key_has_nothing_to_be_reset_under(
        self, caller: StoreClient
    ) -> None:
        session = await caller.reserve()
        with pytest.raises(SessionNotKeyed):
            await caller.reset(session)
        with pytest.raises(SessionNotFound):
            await caller.submit(Restore(tenant=caller.tenant, session_id=SessionId("ses_unknown")))

    async def test_a_restored_generation_goes_on_where_it_ended(self, caller: StoreClient) -> None:
        ended = await caller.converse("a", "b", key="k")
        fresh = await caller.reset(ended.session)
        running = await caller.start("new", key="k")
        waiting = await caller.wait("newer", key="k")
        await caller.submit(Restore(tenant=caller.tenant, session_id=ended.session.id))
        for turn in (running.turn, waiting.turn):
            assert await state_of(caller, turn) == ("cancelled", "session_restored")
        again = await caller.converse("c", "d", key="k")
        assert again.session.id == ended.session.id
        assert await caller.texts(again.session) == list("abcd")
        assert await caller.texts(fresh) == ["new"]
        with pytest.raises(SessionRetired):
            await caller.accept("x", session_id=fresh.id)

    async def test_generations_are_never_numbered_twice(self, caller: StoreClient) -> None:
        first = await caller.reserve("k")
        second = await caller.reset(first)
        await caller.submit(Restore(tenant=caller.tenant, session_id=first.id))
        third = await caller.reset(await caller.session(first))
        assert (second.generation, third.generation) == (2, 3)

    async def test_restoring_the_live_generation_changes_nothing(self, caller: StoreClient) -> None:
        session = await caller.reserve("k")
        before = await picture(caller, session.id)
        await caller.submit(Restore(tenant=caller.tenant, session_id=session.id))
        assert await picture(caller, session.id) == before

    async def test_a_generation_comes_back_after_the_live_one_was_erased(
        self, caller: StoreClient
    ) -> None:
        first = await caller.reserve("k")
        second = await caller.reset(first)
        await caller.submit(Delete(tenant=caller.tenant, session_id=second.id))
        back = await caller.submit(Restore(tenant=caller.tenant, session_id=first.id))
        assert (await caller.reserve("k")).id == back.id == first.id

    async def test_an_erased_session_is_gone_for_everybody(self, caller: StoreClient) -> None:
        ended = await caller.converse("secret", "more", key="k")
        await caller.submit(Delete(tenant=caller.tenant, session_id=ended.session.id))
        assert await picture(caller, ended.session.id) == {"session": None}
        assert await caller.read.turn(caller.tenant, ended.turn.id) is None
        assert await caller.read.session(caller.tenant, key=Key("k")) is None
        assert await caller.read.sessions(caller.tenant, SessionQuery(generations=True)) == []
        with pytest.raises(SessionNotFound):
            await caller.submit(Delete(tenant=caller.tenant, session_id=ended.session.id))
        with pytest.raises(SessionNotFound):
            await caller.accept("x", session_id=ended.session.id)
        with pytest.raises(SessionNotFound):
            await caller.submit(Restore(tenant=caller.tenant, session_id=ended.session.id))

    async def test_nothing_an_erased_session_said_is_kept(self, caller: StoreClient) -> None:
        run = await caller.start("secret", key="k", request=b"secret")
        await caller.extend(run, "secret")
        waiting = await caller.wait("secret", key="k", request=b"secret")
        await caller.submit(Delete(tenant=caller.tenant, session_id=run.session.id))
        for turn in (run.turn, waiting.turn):
            for one in await caller.read.runs(turn.id):
                assert b"secret" not in (one.partial or b"") + (one.result or b"")
        assert await caller.read.events(run.session.id, after=0, limit=100) == []
        assert await caller.read.records(run.session) == []

    async def test_the_generation_before_an_erased_one_stays(self, caller: StoreClient) -> None:
        ended = await caller.converse("a", "b", key="k")
        fresh = await caller.reset(ended.session)
        await caller.submit(Delete(tenant=caller.tenant, session_id=fresh.id))
        assert await caller.texts(ended.session) == ["a", "b"]

    async def test_metadata_is_kept_as_it_was_given(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        session = await caller.reserve("k")
        clock.advance(1)
        metadata = '{"größe": "π"}'.encode()
        await caller.submit(
            Annotate(tenant=caller.tenant, session_id=session.id, metadata=metadata)
        )
        assert (await caller.session(session)).metadata == metadata
