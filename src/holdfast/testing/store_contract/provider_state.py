"""Provider state: stored with a completed answer, deleted as a whole."""

import pytest
from msgspec.structs import replace

from holdfast.core.healing.policy import Heal, read_heals
from holdfast.core.ids import SessionId
from holdfast.core.model.records import quarantined
from holdfast.core.model.session import ProviderState
from holdfast.core.transaction.commands import (
    Delete,
    Fork,
    Hide,
    RecordHeal,
    Restore,
)
from holdfast.ports.store import ItemQuery
from holdfast.testing.store_client import StoreClient

ONE = ProviderState("openai", "acct-1", "m-1", b"\x00resp_1")
TWO = ProviderState("openai", "acct-2", "m-1", b"resp_2")


class ProviderStateContract:
    """Promise 9: it is a cache and nothing more."""

    async def test_it_is_kept_with_the_completed_answer_and_says_what_it_covers(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, "b", provider_state=ONE)
        (kept,) = await caller.read.provider_state(run.session.id)
        assert (kept.provider, kept.account, kept.model) == ("openai", "acct-1", "m-1")
        assert (kept.value, kept.covers_seq) == (b"\x00resp_1", 2)

    @pytest.mark.parametrize("outcome", ["failed", "cancelled", "interrupted"])
    async def test_it_is_not_kept_with_any_other_end(
        self, caller: StoreClient, outcome: str
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, outcome=outcome, provider_state=ONE)
        assert await caller.read.provider_state(run.session.id) == []

    async def test_each_maker_has_a_place_of_its_own(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, provider_state=ONE)
        await caller.finish(await caller.start("b", key="k"), provider_state=TWO)
        newer = ProviderState("openai", "acct-1", "m-1", b"resp_3")
        await caller.finish(await caller.start("c", key="k"), provider_state=newer)
        kept = await caller.read.provider_state(run.session.id)
        assert sorted(one.value for one in kept) == [b"resp_2", b"resp_3"]

    async def test_a_run_may_drop_one_or_all(self, caller: StoreClient) -> None:
        await caller.finish(await caller.start("a", key="k"), provider_state=ONE)
        await caller.finish(await caller.start("b", key="k"), provider_state=TWO)
        run = await caller.start("c", key="k")
        heal = Heal(failure_class="stale_state", action="dropped_state")
        drop_all = RecordHeal(fence=run.fence, number=1, heal=heal, drops_state=True)
        await caller.submit(replace(drop_all, number=0, slot=ONE.slot))
        kept = await caller.read.provider_state(run.session.id)
        assert [one.account for one in kept] == ["acct-2"]
        await caller.submit(drop_all)
        assert await caller.read.provider_state(run.session.id) == []

    @pytest.mark.parametrize("how", ["reset", "restore", "delete", "hide"])
    async def test_it_goes_as_a_whole_when_history_changes_hands(
        self, caller: StoreClient, how: str
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

    async def test_a_rollback_drops_what_no_longer_matches_the_view(
        self, caller: StoreClient
    ) -> None:
        await caller.finish(await caller.start("a", key="k"), "b", provider_state=ONE)
        run = await caller.start("c", key="k")
        cut_in = await caller.start("d", key="k", on_busy="rollback")
        kept = await caller.read.provider_state(run.session.id)
        assert all(one.covers_seq <= 2 for one in kept)
        await caller.finish(cut_in, "e")

    async def test_a_heal_is_kept_with_its_run_in_full_and_once(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        heal = Heal(
            "transient", "fell_back", "x", 0.5, upstream="u", model="m", status=500,
            message="oh \u00e9", next_model="n",
        )  # fmt: skip
        for again in (False, True):
            await caller.submit(RecordHeal(fence=run.fence, number=0, heal=heal, again=again))
        (kept,) = await caller.read.runs(run.turn.id)
        assert read_heals(kept.heals) == [heal]
        events = await caller.read.events(run.session.id, after=0, limit=100)
        assert [event.kind for event in events].count("turn.healed") == 1

    async def test_items_that_are_set_aside_are_recorded_and_what_holds_them_is_dropped(
        self, caller: StoreClient
    ) -> None:
        await caller.finish(await caller.start("a", key="k"), "b", provider_state=ONE)
        run = await caller.start("c", "d", key="k")
        heal = Heal("poison", "quarantined", "bad", items=(1, 3, 4), message="no")
        await caller.submit(RecordHeal(fence=run.fence, number=0, heal=heal))
        await caller.finish(run, "e")
        view = await caller.read.session(caller.tenant, session_id=run.session.id)
        assert view is not None
        records = await caller.read.lineage_records(view.session)
        assert [(one.kind, one.from_seq, one.to_seq) for one in records] == [
            ("quarantine", 1, 1),
            ("quarantine", 3, 4),
        ]
        assert quarantined(records) == {1, 3, 4}
        assert await caller.read.provider_state(run.session.id) == []
        visible = await caller.read.items(view.session, ItemQuery())
        assert [item.seq for item in visible] == [1, 2, 3, 4, 5]

    async def test_a_fork_has_the_records_of_what_it_shares_and_no_later_ones(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", "b", key="k")
        heal = Heal("poison", "quarantined", items=(1,))
        await caller.submit(RecordHeal(fence=run.fence, number=0, heal=heal))
        await caller.finish(run, "c")
        fork = await caller.submit(
            Fork(tenant=caller.tenant, session_id=run.session.id, new_id=SessionId("ses_fork"))
        )
        run = await caller.start("d", key="k")
        later = Heal("poison", "quarantined", items=(2,))
        await caller.submit(RecordHeal(fence=run.fence, number=0, heal=later))
        assert quarantined(await caller.read.lineage_records(fork)) == {1}
