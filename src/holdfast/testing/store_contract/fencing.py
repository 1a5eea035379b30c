"""Only the current owner writes: every kind of write, after every way to lose a session."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from holdfast.core.compaction.records import CompactionRecord
from holdfast.core.errors import RunFenced, SessionDeleted, SessionNotFound, TurnCancelled
from holdfast.core.healing.policy import Heal
from holdfast.core.model.session import ProviderState
from holdfast.core.model.turn import Run
from holdfast.core.transaction.commands import (
    Cancel,
    Compact,
    Delete,
    ExpireWorker,
    RecordHeal,
    Recover,
    Restore,
    Started,
)
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import LEASE_SECONDS, StoreClient, answered
from holdfast.testing.store_contract.transcript import picture, without_runs

STATE = ProviderState("openai", "acct", "m", b"resp_1")

Write = Callable[[StoreClient, Started], Awaitable[object]]
Loss = Callable[[StoreClient, StoreClient, ManualClock, Started], Awaitable[None]]


async def _extend(caller: StoreClient, run: Started) -> None:
    await caller.extend(run, "late", partial=answered("torn"))


async def _complete(caller: StoreClient, run: Started) -> None:
    await caller.finish(run, "late", provider_state=STATE)


async def _fail(caller: StoreClient, run: Started) -> None:
    await caller.finish(run, outcome="failed", error_code="boom", is_retryable=True)


async def _hold(caller: StoreClient, run: Started) -> None:
    await caller.finish(run, "late", pending_calls=("call_1",))


async def _heal(caller: StoreClient, run: Started) -> None:
    heal = Heal(failure_class="stale_state", action="dropped_state")
    await caller.submit(RecordHeal(fence=run.fence, number=0, heal=heal, drops_state=True))


async def _compact(caller: StoreClient, run: Started) -> None:
    made = CompactionRecord(
        id="cmp_1", mode="given", reason="asked", text="late", tokens_before=2, tokens_after=1
    )
    await caller.submit(Compact(fence=run.fence, to_seq=1, compaction=made))


WRITES: dict[str, Write] = {
    "extend": _extend, "complete": _complete, "fail": _fail, "hold": _hold,
    "heal": _heal, "compact": _compact,
}  # fmt: skip


async def _reset(caller: StoreClient, _: StoreClient, __: ManualClock, run: Started) -> None:
    await caller.reset(run.session)


async def _restore(caller: StoreClient, _: StoreClient, __: ManualClock, run: Started) -> None:
    await caller.reset(run.session)
    await caller.submit(Restore(tenant=caller.tenant, session_id=run.session.id))


async def _cancel(caller: StoreClient, _: StoreClient, __: ManualClock, run: Started) -> None:
    await caller.submit(Cancel(tenant=caller.tenant, turn_id=run.turn.id))


async def _interrupt(_: StoreClient, other: StoreClient, __: ManualClock, run: Started) -> None:
    await other.start("mine now", session_id=run.session.id, on_busy="interrupt")


async def _expire(caller: StoreClient, other: StoreClient, _: ManualClock, run: Started) -> None:
    await other.submit(ExpireWorker(worker=caller.worker))
    await other.start("mine now", session_id=run.session.id)


LOSSES: dict[str, Loss] = {
    "reset": _reset, "restore": _restore, "cancel": _cancel, "interrupt": _interrupt,
    "expiry": _expire,
}  # fmt: skip


OUTCOMES = ("completed", "failed", "interrupted")


def _without_late(runs: list[Run]) -> list[Run]:
    """Return runs without the record of late writes."""
    return [msgspec.structs.replace(run, late=None) for run in runs]


class FencingContract:
    """Promise 5."""

    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("write", WRITES)
    async def test_a_run_that_lost_its_session_changes_only_its_own_record(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock, write: str, loss: str
    ) -> None:
        await caller.converse("a", "b", key="k")
        run = await caller.start("c", key="k")
        await LOSSES[loss](caller, other, clock, run)
        before = await picture(caller, run.session.id)
        live_before = await caller.read.session(caller.tenant, key=run.session.key)
        with pytest.raises(RunFenced):
            await WRITES[write](caller, run)
        after = await picture(caller, run.session.id)
        assert without_runs(after) == without_runs(before)
        assert await caller.read.session(caller.tenant, key=run.session.key) == live_before
        changed = [one for one in after["runs"] if one not in before["runs"]]
        assert [one.id for one in changed] == [run.run.id]
        assert changed[0].late is not None
        assert _without_late(changed) == _without_late(
            [one for one in before["runs"] if one.id == run.run.id]
        )
        assert msgspec.json.decode(changed[0].late)["at"] == clock.now()

    @pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
    @pytest.mark.parametrize("outcome", OUTCOMES)
    async def test_an_end_that_comes_late_changes_neither_the_turn_nor_its_outcome(
        self, caller: StoreClient, outcome: str, again: bool
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.submit(Cancel(tenant=caller.tenant, turn_id=run.turn.id))
        before = await picture(caller, run.session.id)
        with pytest.raises(RunFenced):
            await caller.finish(run, "late", outcome=outcome, error_code="late", again=again)
        after = await picture(caller, run.session.id)
        assert without_runs(after) == without_runs(before)
        assert _without_late(after["runs"]) == _without_late(before["runs"])
        assert [one.outcome for one in after["runs"]] == ["cancelled"]
        assert [one.turn.outcome for one in after["turns"]] == ["cancelled"]

    @pytest.mark.parametrize("write", WRITES)
    async def test_a_run_of_an_erased_session_brings_nothing_back(
        self, caller: StoreClient, write: str
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.submit(Delete(tenant=caller.tenant, session_id=run.session.id))
        with pytest.raises(RunFenced):
            await WRITES[write](caller, run)
        assert await picture(caller, run.session.id) == {"session": None}
        assert (await caller.reserve("k")).generation == 2

    @pytest.mark.parametrize("loss", ["reset", "restore", "delete"])
    async def test_a_start_is_fenced_like_any_write(self, caller: StoreClient, loss: str) -> None:
        run = await caller.start("a", key="k")
        waiting = await caller.wait("b", key="k")
        if loss == "delete":
            await caller.submit(Delete(tenant=caller.tenant, session_id=run.session.id))
        else:
            fresh = await caller.reset(run.session)
            if loss == "restore":
                await caller.submit(Restore(tenant=caller.tenant, session_id=run.session.id))
            else:
                assert (await caller.session(fresh)).active_turn_id is None
        expected = SessionDeleted if loss == "delete" else TurnCancelled
        with pytest.raises(expected):
            await caller.claim(waiting.turn)
        view = await caller.read.session(caller.tenant, session_id=run.session.id)
        assert view is None or view.session.active_turn_id is None

    async def test_every_loss_raises_the_epoch(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        epoch = run.fence.epoch
        fresh = await caller.reset(run.session)
        retired = await caller.session(run.session)
        assert retired.epoch > epoch
        back = await caller.submit(Restore(tenant=caller.tenant, session_id=run.session.id))
        assert back.epoch > retired.epoch
        assert (await caller.session(fresh)).epoch > fresh.epoch
        erased = await caller.submit(Delete(tenant=caller.tenant, session_id=back.id))
        assert erased.epoch > back.epoch

    async def test_an_owner_that_woke_late_may_write_if_nobody_took_over(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await caller.start("a", key="k")
        clock.advance(10 * LEASE_SECONDS)
        await caller.finish(run, "b")
        assert await caller.texts(run.session) == ["a", "b"]

    async def test_a_run_ends_once(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, "b")
        before = await picture(caller, run.session.id)
        with pytest.raises(RunFenced):
            await caller.finish(run, "c", outcome="failed", error_code="late")
        after = await picture(caller, run.session.id)
        assert without_runs(after) == without_runs(before)
        assert _without_late(after["runs"]) == _without_late(before["runs"])

    async def test_a_run_has_no_say_in_another_session(self, caller: StoreClient) -> None:
        run, victim = await caller.start("a", key="k"), await caller.start("b", key="l")
        forged = msgspec.structs.replace(run.fence, session_id=victim.session.id)
        before = without_runs(await picture(caller, victim.session.id))
        with pytest.raises(RunFenced):
            await caller.finish(forged, "c")
        assert without_runs(await picture(caller, victim.session.id)) == before

    async def test_a_run_of_an_unknown_session_is_fenced(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        forged = msgspec.structs.replace(run.fence, session_id="ses_unknown")
        with pytest.raises(RunFenced):
            await caller.finish(forged, "c")

    async def test_recovery_does_not_bring_an_erased_session_back(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.submit(Delete(tenant=caller.tenant, session_id=run.session.id))
        with pytest.raises(SessionNotFound):
            await caller.submit(Recover(session_id=run.session.id, worker=caller.worker))
        assert await picture(caller, run.session.id) == {"session": None}
