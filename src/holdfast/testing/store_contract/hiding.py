"""Hidden and erased items stay hidden: in summaries, in compaction items, and in forks."""

import pytest
from msgspec.structs import replace

from holdfast.core.compaction.records import compaction_item
from holdfast.core.errors import SessionMoved
from holdfast.core.ids import SessionId
from holdfast.core.model.items import ERASED_ITEM, NewItem, read_item
from holdfast.core.model.session import ProviderState, Session
from holdfast.core.transaction.commands import Fork, Hide, UndoCompaction
from holdfast.ports.store import ItemQuery
from holdfast.testing.store_client import StoreClient, text_of
from holdfast.testing.store_contract.compaction import compact_up_to, compaction, shown
from holdfast.testing.store_contract.transcript import assert_sound, picture

STATE = ProviderState("p", "a", "m", b"resp_1")


async def _hide(caller: StoreClient, session: Session, seq: int, *, erase: bool = False) -> Session:
    return await caller.submit(
        Hide(tenant=caller.tenant, session_id=session.id, from_seq=seq, to_seq=seq, erase=erase)
    )


async def _fork(caller: StoreClient, session: Session, after: int | None = None) -> Session:
    new_id = SessionId(caller.ids.new("ses"))
    return await caller.submit(
        Fork(tenant=caller.tenant, session_id=session.id, new_id=new_id, after_seq=after)
    )


def _carrier(text: str, session: Session, no: int) -> NewItem:
    return read_item(compaction_item(f"cmp_{text}", text, (session.id, no)))


async def _log(caller: StoreClient, session: Session) -> list[bytes]:
    now = await caller.session(session)
    return [item.body for item in await caller.read.items(now, ItemQuery(view="log"))]


class HidingContract:
    """Promise 8; hidden items stay hidden."""

    @pytest.mark.parametrize("erase", [False, True])
    async def test_a_summary_of_what_was_hidden_while_it_was_made_is_refused(
        self, caller: StoreClient, erase: bool
    ) -> None:
        await caller.append("a", "secret", "c", key="k")
        run = await caller.start(key="k", source="system")
        await _hide(caller, run.session, 2, erase=erase)
        outdated = replace(compaction(run, 3, "secret"), shown_records=run.session.record_no)
        with pytest.raises(SessionMoved):
            await caller.submit(outdated)
        assert await shown(caller, run.session) == ["a", "c"]
        await caller.submit(replace(compaction(run, 3, "ac"), shown_records=1))
        assert await shown(caller, run.session) == ["ac"]

    async def test_a_summary_is_kept_if_only_what_comes_behind_it_was_hidden(
        self, caller: StoreClient
    ) -> None:
        await caller.append(*"abcd", key="k")
        run = await caller.start(key="k", source="system")
        await _hide(caller, run.session, 4)
        await caller.submit(replace(compaction(run, 3, "abc"), shown_records=run.session.record_no))
        assert await shown(caller, run.session) == ["abc"]

    async def test_a_summary_of_a_summary_that_was_undone_meanwhile_is_refused(
        self, caller: StoreClient
    ) -> None:
        await caller.append(*"abc", key="k")
        session = await compact_up_to(caller, "k", 2, "ab")
        run = await caller.start(key="k", source="system")
        undo = UndoCompaction(tenant=caller.tenant, session_id=session.id, compaction_id="cmp_ab")
        await caller.submit(undo)
        with pytest.raises(SessionMoved):
            await caller.submit(
                replace(compaction(run, 3, "more"), shown_records=run.session.record_no)
            )
        assert await shown(caller, session) == list("abc")

    @pytest.mark.parametrize("erase", [False, True])
    @pytest.mark.parametrize("is_recorded", [False, True])
    async def test_an_item_that_carries_a_summary_goes_with_what_it_tells_of(
        self, caller: StoreClient, is_recorded: bool, erase: bool
    ) -> None:
        await caller.append("a", "secret", "c", key="k")
        run = await caller.start("d", key="k")
        if is_recorded:
            await caller.submit(compaction(run, 3, "secret"))
        carrier = _carrier("secret", run.session, int(is_recorded))
        await caller.finish(run, items=(carrier,))
        await _hide(caller, run.session, 2, erase=erase)
        assert await shown(caller, run.session) == ["a", "c", "d"]
        assert await caller.texts(run.session) == ["a", "c", "d"]
        bodies = await _log(caller, run.session)
        assert (bodies[4] == ERASED_ITEM) is erase
        assert (await caller.session(run.session)).item_count == 3
        assert_sound(await picture(caller, run.session.id))

    async def test_an_item_that_carries_a_summary_of_something_else_stays(
        self, caller: StoreClient
    ) -> None:
        await caller.append("a", "b", "secret", key="k")
        run = await caller.start("d", key="k")
        await caller.submit(compaction(run, 2, "ab"))
        elsewhere = read_item(compaction_item("cmp_x", "x", (SessionId("ses_x"), 1)))
        await caller.finish(run, items=(_carrier("ab", run.session, 1), elsewhere))
        await _hide(caller, run.session, 3, erase=True)
        assert await shown(caller, run.session) == ["ab", "d", "x"]
        assert ERASED_ITEM not in (await _log(caller, run.session))[3:]

    @pytest.mark.parametrize("how", ["extend", "finish"])
    async def test_an_item_that_would_carry_what_was_hidden_meanwhile_is_blank(
        self, caller: StoreClient, how: str
    ) -> None:
        await caller.append("a", "secret", "c", key="k")
        run = await caller.start("d", key="k")
        await caller.submit(compaction(run, 3, "secret"))
        await _hide(caller, run.session, 2)
        items = (_carrier("secret", run.session, 1),)
        if how == "extend":
            await caller.extend(run, items=items, shown_records=1)
            await caller.finish(run, items=(), shown_records=1)
        else:
            await caller.finish(run, items=items, shown_records=1)
        assert await shown(caller, run.session) == ["a", "c", "d"]
        assert (await _log(caller, run.session))[-1] == ERASED_ITEM

    @pytest.mark.parametrize("erase", [False, True])
    async def test_what_a_provider_was_told_before_something_was_hidden_is_not_kept(
        self, caller: StoreClient, erase: bool
    ) -> None:
        await caller.finish(await caller.start("a", key="k"), "b", provider_state=STATE)
        run = await caller.start("c", key="k")
        await _hide(caller, run.session, 1, erase=erase)
        shown_records = run.session.record_no
        await caller.finish(run, "d", provider_state=STATE, shown_records=shown_records)
        assert await caller.read.provider_state(run.session.id) == []
        run = await caller.start("e", key="k")
        await caller.finish(run, "f", provider_state=STATE, shown_records=run.session.record_no)
        (kept,) = await caller.read.provider_state(run.session.id)
        assert kept.covers_seq == 6

    async def test_what_a_provider_was_told_of_a_summary_that_was_undone_is_not_kept(
        self, caller: StoreClient
    ) -> None:
        await caller.append(*"abc", key="k")
        session = await compact_up_to(caller, "k", 2, "ab")
        run = await caller.start("d", key="k")
        undo = UndoCompaction(tenant=caller.tenant, session_id=session.id, compaction_id="cmp_ab")
        await caller.submit(undo)
        await caller.finish(run, "e", provider_state=STATE, shown_records=run.session.record_no)
        assert await caller.read.provider_state(session.id) == []

    async def test_erasing_reaches_the_summaries_of_every_fork_below(
        self, caller: StoreClient
    ) -> None:
        session = (await caller.append("a", "secret", "c", key="k")).session
        child = await _fork(caller, session)
        run = await caller.start("d", session_id=child.id)
        await caller.submit(compaction(run, 3, "secret"))
        await caller.finish(run, items=(_carrier("secret", child, 1),), provider_state=STATE)
        grandchild = await _fork(caller, await caller.session(child))
        below = await caller.start("e", session_id=grandchild.id)
        aside = await _fork(caller, session, 1)
        await _hide(caller, session, 2, erase=True)
        for fork, expected in ((child, ["a", "c", "d"]), (grandchild, ["a", "c", "d", "e"])):
            assert await shown(caller, fork) == expected
            assert await caller.texts(fork) == expected
            assert (await caller.session(fork)).item_count == len(expected)
            assert_sound(await picture(caller, fork.id))
        assert (await _log(caller, child))[-1] == ERASED_ITEM
        bodies = [record.body for record in await caller.read.records(await caller.session(child))]
        assert bodies[0] is None
        assert await caller.read.provider_state(child.id) == []
        await caller.finish(below, "f", provider_state=STATE, shown_records=below.session.record_no)
        assert await caller.read.provider_state(grandchild.id) == []
        assert (await caller.session(aside)).version == aside.version

    async def test_hiding_without_erasing_leaves_forks_as_they_were_made(
        self, caller: StoreClient
    ) -> None:
        session = (await caller.append(*"abc", key="k")).session
        child = await _fork(caller, session)
        await _hide(caller, session, 2)
        assert await shown(caller, session) == ["a", "c"]
        assert await shown(caller, child) == list("abc")

    async def test_a_fork_that_hides_what_it_inherited_hides_the_summary_it_inherited(
        self, caller: StoreClient
    ) -> None:
        await caller.append("a", "secret", "c", key="k")
        run = await caller.start("d", key="k")
        await caller.submit(compaction(run, 3, "secret"))
        ended = await caller.finish(run, items=(_carrier("secret", run.session, 1),))
        child = await _fork(caller, ended.session)
        await _hide(caller, child, 2)
        assert await shown(caller, child) == ["a", "c", "d"]
        assert await shown(caller, run.session) == ["secret", "d"]

    async def test_an_earlier_view_of_a_log_is_without_what_was_erased_since_at_another_process(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        first = (await caller.converse("secret", "a", key="k")).session
        assert await shown(caller, first) == ["secret", "a"]
        second = (await other.converse("b", "c", key="k")).session
        await _hide(other, second, 1, erase=True)
        earlier = (await caller.session(first)).as_of(second.head_seq, second.record_no)
        assert [text_of(item) for item in await caller.read.context(earlier)] == ["a", "b", "c"]
        assert await shown(caller, first) == ["a", "b", "c"]
