"""What providers remember for us: kept with a completed answer, dropped as a whole."""

import pytest

from holdfast.core.commands import Delete, DropProviderState, Hide, Restore
from holdfast.core.provider_state import ProviderState
from holdfast.testing.caller import Caller

ONE = ProviderState("openai", "acct-1", "m-1", b"\x00resp_1")
TWO = ProviderState("openai", "acct-2", "m-1", b"resp_2")


class ProviderStateContract:
    """Promise 9: a cache, never more."""

    async def test_it_is_kept_with_the_completed_answer_and_says_what_it_covers(
        self, caller: Caller
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, "b", provider_state=ONE)
        (kept,) = await caller.read.provider_state(run.session.id)
        assert (kept.provider, kept.account, kept.model) == ("openai", "acct-1", "m-1")
        assert (kept.value, kept.covers_seq) == (b"\x00resp_1", 2)

    @pytest.mark.parametrize("outcome", ["failed", "cancelled", "interrupted"])
    async def test_it_is_not_kept_with_any_other_end(self, caller: Caller, outcome: str) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, outcome=outcome, provider_state=ONE)
        assert await caller.read.provider_state(run.session.id) == []

    async def test_each_maker_has_a_place_of_its_own(self, caller: Caller) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, provider_state=ONE)
        await caller.finish(await caller.start("b", key="k"), provider_state=TWO)
        newer = ProviderState("openai", "acct-1", "m-1", b"resp_3")
        await caller.finish(await caller.start("c", key="k"), provider_state=newer)
        kept = await caller.read.provider_state(run.session.id)
        assert sorted(one.value for one in kept) == [b"resp_2", b"resp_3"]

    async def test_a_run_may_drop_one_or_all(self, caller: Caller) -> None:
        await caller.finish(await caller.start("a", key="k"), provider_state=ONE)
        await caller.finish(await caller.start("b", key="k"), provider_state=TWO)
        run = await caller.start("c", key="k")
        await caller.submit(DropProviderState(fence=run.fence, slot=ONE.slot))
        kept = await caller.read.provider_state(run.session.id)
        assert [one.account for one in kept] == ["acct-2"]
        await caller.submit(DropProviderState(fence=run.fence))
        assert await caller.read.provider_state(run.session.id) == []

    @pytest.mark.parametrize("how", ["reset", "restore", "delete", "hide"])
    async def test_it_goes_as_a_whole_when_history_changes_hands(
        self, caller: Caller, how: str
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, provider_state=ONE)
        session = run.session
        match how:
            case "reset":
                fresh = await caller.reset(session)
                assert await caller.read.provider_state(fresh.id) == []
            case "restore":
                fresh = await caller.reset(session)
                await caller.finish(await caller.start("b", key="k"), provider_state=TWO)
                await caller.submit(Restore(tenant=caller.tenant, session_id=session.id))
                assert await caller.read.provider_state(fresh.id) == []
            case "delete":
                await caller.submit(Delete(tenant=caller.tenant, session_id=session.id))
            case _:
                await caller.submit(
                    Hide(tenant=caller.tenant, session_id=session.id, from_seq=1, to_seq=1)
                )
        assert await caller.read.provider_state(session.id) == []

    async def test_a_rollback_drops_what_no_longer_matches_the_view(self, caller: Caller) -> None:
        await caller.finish(await caller.start("a", key="k"), "b", provider_state=ONE)
        run = await caller.start("c", key="k")
        cut_in = await caller.start("d", key="k", on_busy="rollback")
        kept = await caller.read.provider_state(run.session.id)
        assert all(one.covers_seq <= 2 for one in kept)
        await caller.finish(cut_in, "e")
