"""Forks: pointers into another session's history, at any depth, with nothing copied."""

from typing import Any

import pytest

from holdfast.core.errors import ItemNotFound, SessionHasForks, SessionNotFound
from holdfast.core.ids import SessionId
from holdfast.core.model.session import Session
from holdfast.core.transaction.commands import Delete, Fork, Hide, Parent
from holdfast.ports.store import ItemQuery
from holdfast.testing.store_client import StoreClient, answered, text_of
from holdfast.testing.store_contract.transcript import assert_sound, picture


async def _fork(caller: StoreClient, session: Session, after: int | None = None) -> Session:
    return await caller.submit(
        Fork(
            tenant=caller.tenant,
            session_id=session.id,
            new_id=SessionId(caller.ids.new("ses")),
            after_seq=after,
        )
    )


async def _hide(caller: StoreClient, session: Session, first: int, last: int) -> None:
    await caller.submit(
        Hide(tenant=caller.tenant, session_id=session.id, from_seq=first, to_seq=last)
    )


class ForkContract:
    """A branch sees the past up to its point, and neither side sees the other's future."""

    async def test_a_fork_shares_the_past_and_not_the_future(self, caller: StoreClient) -> None:
        parent = (await caller.append(*"abcd", key="k")).session
        child = await _fork(caller, parent, 2)
        await caller.append("X", session_id=child.id)
        await caller.append("e", key="k")
        assert await caller.texts(child) == ["a", "b", "X"]
        assert await caller.texts(parent) == list("abcde")
        assert (child.key, child.parent_id, child.parent_seq) == (None, parent.id, 2)
        assert_sound(await picture(caller, child.id))

    async def test_nothing_is_copied(self, caller: StoreClient) -> None:
        parent = (await caller.append(*"abcd", key="k")).session
        child = await _fork(caller, parent)
        items = await caller.read.items(child, ItemQuery())
        assert {item.session_id for item in items} == {parent.id}
        assert [item.seq for item in items] == [1, 2, 3, 4]

    async def test_forks_of_forks_read_like_one_log(self, caller: StoreClient) -> None:
        first = (await caller.append(*"abcd", key="k")).session
        second = await _fork(caller, first, 3)
        await caller.append("P", "Q", session_id=second.id)
        third = await _fork(caller, await caller.session(second), 4)
        await caller.append("x", "y", "z", session_id=third.id)
        below_first = await _fork(caller, await caller.session(third), 2)
        assert await caller.texts(second) == list("abcPQ")
        assert await caller.texts(third) == list("abcPxyz")
        assert await caller.texts(third, limit=4, order="desc") == list("zyxP")
        assert await caller.texts(third, limit=5, order="desc", after=6) == list("xPcba")
        assert await caller.texts(third, limit=3, after=2) == list("cPx")
        assert await caller.texts(third, limit=1, after=3) == ["P"]
        assert await caller.texts(below_first) == list("ab")
        for session in (second, third, below_first):
            assert_sound(await picture(caller, session.id))

    async def test_what_was_hidden_before_the_fork_is_hidden_in_it(
        self, caller: StoreClient
    ) -> None:
        parent = (await caller.append(*"abcdef", key="k")).session
        await _hide(caller, parent, 2, 3)
        child = await _fork(caller, await caller.session(parent), 5)
        await _hide(caller, parent, 5, 5)
        assert await caller.texts(child) == ["a", "d", "e"]
        assert await caller.texts(parent) == ["a", "d", "f"]
        assert child.item_count == 3

    async def test_a_fork_hides_its_past_from_itself_alone(self, caller: StoreClient) -> None:
        parent = (await caller.append(*"abcd", key="k")).session
        child = await _fork(caller, parent)
        await caller.append("e", session_id=child.id)
        await _hide(caller, child, 2, 5)
        grandchild = await _fork(caller, await caller.session(child))
        assert await caller.texts(child) == ["a"]
        assert await caller.texts(grandchild) == ["a"]
        assert await caller.texts(parent) == list("abcd")
        assert_sound(await picture(caller, child.id))

    async def test_a_range_hidden_in_a_parent_ends_where_the_fork_begins(
        self, caller: StoreClient
    ) -> None:
        parent = (await caller.append(*"abcdef", key="k")).session
        await _hide(caller, parent, 2, 5)
        child = await _fork(caller, await caller.session(parent), 3)
        await caller.append("X", "Y", session_id=child.id)
        assert await caller.texts(child) == ["a", "X", "Y"]
        assert_sound(await picture(caller, child.id))

    @pytest.mark.parametrize("more", [{"retry_count": 1}, {"on_busy": "rollback"}, {}])
    async def test_a_turn_behind_an_earlier_answer_shows_and_counts_what_that_answer_saw(
        self, caller: StoreClient, more: dict[str, Any]
    ) -> None:
        await caller.converse("a", "b", key="k")
        run = (await caller.converse("c", "d", key="k")).run
        edited = await caller.start("e", key="k", rewind=(2, 4))
        await caller.finish(edited, "f")
        parent = Parent(run.last_seq or 0, run.record_no or 0)
        session_id = edited.session.id
        child = await caller.start(
            "x", session_id=session_id, parent=parent, body_hash=b"x", **more
        )
        assert await caller.texts(child.session) == list("abcdx")
        assert child.session.item_count == 5

    async def test_a_turn_behind_an_earlier_answer_is_not_shown_what_another_process_erased(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = (await other.converse("secret", "b", key="k")).run
        session = await other.session(run.session_id)
        erase = Hide(
            tenant=caller.tenant, session_id=session.id, from_seq=1, to_seq=1, erase=True
        )  # fmt: skip
        await caller.submit(erase)
        parent = Parent(run.last_seq or 0, run.record_no or 0)
        child = await other.start("x", session_id=session.id, parent=parent, body_hash=b"x")
        assert child.session.parent_id == session.id
        context = await other.read.context(child.session)
        assert [text_of(item) for item in context] == ["b", "x"]

    async def test_a_fork_leaves_a_running_turn_out(self, caller: StoreClient) -> None:
        await caller.converse("a", "b", key="k")
        run = await caller.start("c", key="k")
        await caller.extend(run, "d")
        child = await _fork(caller, run.session)
        assert await caller.texts(child) == ["a", "b"]

    async def test_a_fork_of_a_retired_generation_is_a_session_like_any_other(
        self, caller: StoreClient
    ) -> None:
        parent = (await caller.append("a", "b", key="k")).session
        await caller.reset(parent)
        child = await _fork(caller, parent)
        await caller.converse("c", "d", session_id=child.id)
        assert await caller.texts(child) == list("abcd")

    @pytest.mark.parametrize("after", [-1, 3])
    async def test_there_is_no_fork_behind_an_item_that_is_not_there(
        self, caller: StoreClient, after: int
    ) -> None:
        parent = (await caller.append("a", "b", key="k")).session
        with pytest.raises(ItemNotFound):
            await _fork(caller, parent, after)

    async def test_a_fork_before_everything_is_empty(self, caller: StoreClient) -> None:
        parent = (await caller.append("a", key="k")).session
        child = await _fork(caller, parent, 0)
        assert await caller.texts(child) == []
        await caller.append("b", session_id=child.id)
        assert await caller.texts(child) == ["b"]

    async def test_a_session_that_others_point_into_is_not_erased_alone(
        self, caller: StoreClient
    ) -> None:
        parent = (await caller.append("a", key="k")).session
        child = await _fork(caller, parent)
        grandchild = await _fork(caller, child)
        with pytest.raises(SessionHasForks):
            await caller.submit(Delete(tenant=caller.tenant, session_id=parent.id))
        assert await caller.texts(grandchild) == ["a"]
        await caller.submit(Delete(tenant=caller.tenant, session_id=parent.id, cascade=True))
        for session in (parent, child, grandchild):
            assert await caller.read.session(caller.tenant, session_id=session.id) is None

    async def test_nothing_that_was_said_in_a_fork_is_left_when_its_parent_is_erased(
        self, caller: StoreClient
    ) -> None:
        parent = (await caller.append("secret", key="k")).session
        child = await _fork(caller, parent)
        ended = await caller.converse("secret", "secret", session_id=child.id)
        grandchild = await _fork(caller, ended.session)
        run = await caller.start("secret", session_id=grandchild.id, request=b"secret")
        extended = await caller.extend(run, "secret", partial=answered("secret"))
        await _hide(caller, grandchild, 1, 1)
        inside = await caller.start("secret", session_id=child.id, is_internal=True)
        await caller.submit(Delete(tenant=caller.tenant, session_id=parent.id, cascade=True))
        for session in (parent, ended.session, extended, inside.session):
            assert await caller.read.items(session, ItemQuery(view="log")) == []
            assert await caller.read.records(session) == []
            assert await caller.read.events(session.id, after=0, limit=100) == []
        for turn in (ended.turn, run.turn, inside.turn):
            assert await caller.read.turn(caller.tenant, turn.id) is None
            for one in await caller.read.runs(turn.id):
                assert b"secret" not in (one.partial or b"") + (one.result or b"")
        assert await caller.read.stored_bytes(caller.tenant) == 0

    async def test_an_erased_fork_does_not_keep_its_parent(self, caller: StoreClient) -> None:
        parent = (await caller.append("a", key="k")).session
        child = await _fork(caller, parent)
        await caller.submit(Delete(tenant=caller.tenant, session_id=child.id))
        assert await caller.texts(parent) == ["a"]
        await caller.submit(Delete(tenant=caller.tenant, session_id=parent.id))
        with pytest.raises(SessionNotFound):
            await _fork(caller, parent)

    async def test_a_hidden_fork_is_erased_with_its_parent(self, caller: StoreClient) -> None:
        parent = (await caller.append("a", key="k")).session
        inside = await caller.start("think", key="k", is_internal=True)
        await caller.submit(Delete(tenant=caller.tenant, session_id=parent.id))
        assert await caller.read.session(caller.tenant, session_id=inside.session.id) is None
