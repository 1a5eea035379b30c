"""Identity: one key has one live session, compared byte for byte, within one tenant."""

import asyncio

import pytest

from holdfast.core.errors import NotFound, SessionNotFound, SessionRetired
from holdfast.core.history.history_hash import EMPTY_HISTORY, extend_hash
from holdfast.core.ids import Key, SessionId, Tenant
from holdfast.core.model.items import write_item
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import (
    Annotate,
    Cancel,
    Command,
    Delete,
    Fork,
    Hide,
    Queued,
    Reset,
    Restore,
    Started,
    StoredCompletion,
)
from holdfast.ports.store import CompletionQuery, SessionQuery, Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient, said
from holdfast.testing.store_contract.transcript import assert_sound, picture

ANSWER = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "b"}],
}
LOOKALIKES = (
    "agent:main:direct:michael",
    "agent:main:direct:Michael",
    "agent:main:direct:michael ",
    " agent:main:direct:michael",
    "agent:main:direct:michaël",
    "agent:main:direct:michae\u0308l",
    "agent:main:direct:micha%65l",
    "agent:main:direct:michae\u200bl",
    "agent:main:direct:mich_el",
    "agent:main:direct:%",
    "../../etc/passwd",
    "'; drop table sessions; --",
    "𝔪𝔦𝔠𝔥𝔞𝔢𝔩 🦞",
    "k" * 511 + "1",
    "k" * 511 + "2",
)


class IdentityContract:
    """Promise 1, and which tenant owns a session."""

    async def test_a_new_key_gets_a_session_with_an_empty_log(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        session = await caller.reserve("k")
        assert (session.key, session.generation, session.is_live) == ("k", 1, True)
        assert (session.head_seq, session.turn_count, session.created_at) == (0, 0, clock.now())
        assert await caller.texts(session) == []

    async def test_a_known_key_is_found_and_nothing_is_written(self, caller: StoreClient) -> None:
        session = await caller.reserve("k")
        before = await picture(caller, session.id)
        assert await caller.reserve("k") == session
        assert await picture(caller, session.id) == before

    async def test_many_first_contacts_at_once_make_one_session_and_a_turn_each(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        outcomes = await asyncio.gather(
            *(one.accept(f"{n}", key="k") for n in range(10) for one in (caller, other))
        )
        assert len({outcome.session.id for outcome in outcomes}) == 1
        assert sorted(outcome.turn.number for outcome in outcomes) == list(range(1, 21))
        kinds = [type(outcome) for outcome in outcomes]
        assert (kinds.count(Started), kinds.count(Queued)) == (1, 19)
        assert_sound(await picture(caller, outcomes[0].session.id))

    async def test_many_reservations_at_once_agree(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        found = await asyncio.gather(
            *(one.reserve("k") for _ in range(10) for one in (caller, other))
        )
        assert len({session.id for session in found}) == 1

    async def test_keys_that_differ_in_any_byte_are_different(self, caller: StoreClient) -> None:
        sessions = [await caller.reserve(key) for key in LOOKALIKES]
        assert len({session.id for session in sessions}) == len(LOOKALIKES)
        for key, session in zip(LOOKALIKES, sessions, strict=True):
            view = await caller.read.session(caller.tenant, key=Key(key))
            assert view is not None
            assert (view.session.id, view.session.key) == (session.id, key)
            listed = await caller.read.sessions(caller.tenant, SessionQuery(key=Key(key)))
            assert [one.session.id for one in listed] == [session.id]

    async def test_without_a_key_every_arrival_is_a_session_of_its_own(
        self, caller: StoreClient
    ) -> None:
        first, second = await caller.start("a"), await caller.start("b")
        assert first.session.id != second.session.id
        assert first.session.key is None

    async def test_an_id_is_taken_as_it_is(self, caller: StoreClient) -> None:
        session = await caller.reserve("k")
        started = await caller.start("a", session_id=session.id)
        assert started.session.id == session.id
        with pytest.raises(SessionNotFound):
            await caller.accept("b", session_id="ses_unknown")

    async def test_a_retired_id_is_refused_and_names_the_live_one(
        self, caller: StoreClient
    ) -> None:
        session = await caller.reserve("k")
        fresh = await caller.reset(session)
        before = await picture(caller, session.id), await picture(caller, fresh.id)
        with pytest.raises(SessionRetired) as refused:
            await caller.accept("a", session_id=session.id)
        assert refused.value.live_id == fresh.id
        with pytest.raises(SessionRetired):
            await caller.append("a", session_id=session.id)
        assert (await picture(caller, session.id), await picture(caller, fresh.id)) == before

    async def test_tenants_do_not_share_keys(self, caller: StoreClient, store: Store) -> None:
        stranger = StoreClient(store, "s", tenant="stranger")
        mine, theirs = await caller.reserve("k"), await stranger.reserve("k")
        assert mine.id != theirs.id
        assert theirs.generation == 1

    async def test_a_foreign_session_is_as_if_it_did_not_exist(
        self, caller: StoreClient, store: Store
    ) -> None:
        ended = await caller.converse("a", "b", key="k")
        before = await picture(caller, ended.session.id)
        stranger = StoreClient(store, "s", tenant="stranger")
        for command in _by_id(stranger.tenant, ended.session, ended.turn):
            with pytest.raises(NotFound) as foreign:
                await store.submit(command)
            unknown = _unknown(foreign.value, ended.session, ended.turn)
            assert "unknown" in unknown
        with pytest.raises(SessionNotFound):
            await stranger.accept("x", session_id=ended.session.id)
        with pytest.raises(SessionNotFound):
            await stranger.append("x", session_id=ended.session.id)
        with pytest.raises(SessionNotFound):
            await stranger.accept("x", session_id=ended.session.id, is_internal=True)
        assert await stranger.read.session(stranger.tenant, session_id=ended.session.id) is None
        assert await stranger.read.turn(stranger.tenant, ended.turn.id) is None
        assert await stranger.read.sessions(stranger.tenant, SessionQuery(generations=True)) == []
        assert await picture(caller, ended.session.id) == before

    async def test_nothing_is_read_in_the_name_of_another_tenant(
        self, caller: StoreClient, store: Store
    ) -> None:
        asked, item = said("a")[0], write_item({**ANSWER, "id": "msg_1"})
        history_hash = extend_hash(
            EMPTY_HISTORY, [(one.fingerprint, one.call_id) for one in (asked, item)]
        )
        run = await caller.start(items=[asked])
        completion = StoredCompletion("m", b"{}")
        ended = await caller.finish(
            run, items=(item,), completion=completion, history_hash=history_hash
        )

        async def found(tenant: Tenant) -> dict[str, object]:
            read, turn_id, session_id = store.read, ended.turn.id, ended.session.id
            return {
                "response": await read.response(tenant, turn_id, 0),
                "completion": await read.completion(tenant, turn_id, 0),
                "completions": await read.completions(tenant, CompletionQuery()),
                "bytes": await read.stored_bytes(tenant),
                "places": await read.item_places(tenant, "msg_1"),
                "history_hash": await read.find_history(tenant, [history_hash]),
                "outline": await read.outline(tenant, session_id=session_id),
                "session": await read.find_session(tenant, session_id=session_id),
                "transcript": await read.transcript(tenant, session_id=session_id),
            }

        assert all((await found(caller.tenant)).values())
        assert not any((await found(Tenant("stranger"))).values())

    async def test_a_busy_session_is_found_by_an_item_of_its_own_tenant(
        self, store: Store, caller: StoreClient
    ) -> None:
        item = write_item({**ANSWER, "id": "mcpr_1q"})
        idle = await caller.start("idle", items=[item])
        await caller.finish(idle)
        busy = await caller.start("busy", items=[item, item])
        find = store.read.busy_sessions_with
        assert await find(caller.tenant, "mcpr_1q") == [busy.session.id]
        assert await find(caller.tenant, "mcpr_2q") == []
        assert await find(Tenant("stranger"), "mcpr_1q") == []
        await caller.finish(busy)
        assert await find(caller.tenant, "mcpr_1q") == []

    async def test_a_key_whose_session_was_erased_goes_on_with_the_next_generation(
        self, caller: StoreClient
    ) -> None:
        session = await caller.reserve("k")
        await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
        fresh = await caller.reserve("k")
        assert (fresh.id != session.id, fresh.generation) == (True, 2)

    async def test_an_erased_session_is_told_from_one_that_never_was(
        self, caller: StoreClient
    ) -> None:
        session = await caller.reserve("k")
        assert await caller.read.any_session(session.id) == session
        await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
        erased = await caller.read.any_session(session.id)
        assert erased is not None
        assert erased.deleted_at is not None
        assert await caller.read.any_session(SessionId("ses_unknown")) is None


def _by_id(tenant: Tenant, session: Session, turn: Turn) -> list[Command[object]]:
    """Return every command that names a session or turn by its id."""
    return [
        Reset(tenant=tenant, session_id=session.id, new_id=SessionId("ses_new")),
        Restore(tenant=tenant, session_id=session.id),
        Delete(tenant=tenant, session_id=session.id),
        Fork(tenant=tenant, session_id=session.id, new_id=SessionId("ses_new")),
        Hide(tenant=tenant, session_id=session.id, from_seq=1, to_seq=1),
        Annotate(tenant=tenant, session_id=session.id, metadata=b"{}"),
        Cancel(tenant=tenant, turn_id=turn.id),
    ]


def _unknown(error: NotFound, session: Session, turn: Turn) -> str:
    """Return the message without ids: it must not reveal more than the id that was sent."""
    return error.message.replace(session.id, "unknown").replace(turn.id, "unknown")


class InternalTurnContract:
    """Internal turns: they see the key's history and do not change its session."""

    async def test_an_internal_turn_sees_what_was_finished_and_changes_nothing(
        self, caller: StoreClient
    ) -> None:
        ended = await caller.converse("a", "b", key="k")
        running = await caller.start("c", key="k")
        before = await picture(caller, ended.session.id)
        inside = await caller.start("think", key="k", is_internal=True)
        assert inside.session.id != ended.session.id
        assert await caller.texts(inside.session) == ["a", "b", "think"]
        await caller.finish(inside, "thought")
        assert await picture(caller, ended.session.id) == before
        await caller.finish(running, "d")
        assert await caller.texts(ended.session) == ["a", "b", "c", "d"]

    async def test_an_internal_turn_leaves_no_visible_row(self, caller: StoreClient) -> None:
        ended = await caller.converse("a", "b", key="k")
        inside = await caller.start("think", key="k", is_internal=True)
        await caller.finish(inside, "thought")
        listed = await caller.read.sessions(caller.tenant, SessionQuery(generations=True))
        assert [view.session.id for view in listed] == [ended.session.id]

    async def test_an_internal_turn_on_a_new_key_makes_no_session_of_the_key(
        self, caller: StoreClient
    ) -> None:
        inside = await caller.start("think", key="k", is_internal=True)
        assert await caller.texts(inside.session) == ["think"]
        assert await caller.read.session(caller.tenant, key=Key("k")) is None
        assert (await caller.reserve("k")).generation == 1

    async def test_an_internal_turn_does_not_see_what_is_hidden(self, caller: StoreClient) -> None:
        ended = await caller.converse("a", "b", key="k")
        await caller.submit(
            Hide(tenant=caller.tenant, session_id=ended.session.id, from_seq=1, to_seq=1)
        )
        inside = await caller.start("think", key="k", is_internal=True)
        assert await caller.texts(inside.session) == ["b", "think"]
        assert inside.session.item_count == 2
