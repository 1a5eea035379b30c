"""Rollover by policy: never by default, judged on the last user activity, soft or hard."""

from datetime import datetime, time
from zoneinfo import ZoneInfo

import pytest

from holdfast.core.model.reset_policy import ResetPolicy, Rollover
from holdfast.core.model.turn import Source
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from holdfast.testing.store_contract.fencing import STATE

DAY = 86_400.0
IDLE = ResetPolicy(mode="idle", idle_seconds=600)
BERLIN = ZoneInfo("Europe/Berlin")


def _at(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


class RolloverContract:
    """Promise 11, for resets by a policy."""

    async def test_by_default_a_session_never_rolls_over(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        first = await caller.converse("a", "b", key="k")
        clock.advance(400 * DAY)
        again = await caller.converse("c", "d", key="k")
        assert again.session.id == first.session.id
        assert await caller.texts(first.session) == list("abcd")

    async def test_an_idle_rollover_is_soft_and_keeps_everything(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await caller.start("a", key="k", reset=IDLE)
        await caller.finish(run, "b", provider_state=STATE)
        clock.advance(600)
        rolled = await caller.start("c", key="k", reset=IDLE)
        assert (rolled.session.id, rolled.is_rolled_over) == (run.session.id, True)
        assert await caller.texts(run.session) == ["a", "b", "c"]
        assert len(await caller.read.provider_state(run.session.id)) == 1
        events = await caller.read.events(run.session.id, after=0, limit=100)
        assert [event.kind for event in events].count("session.rolled_over") == 1

    async def test_an_active_session_does_not_roll_over(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        await caller.finish(await caller.start("a", key="k", reset=IDLE), "b")
        for _ in range(5):
            clock.advance(599)
            run = await caller.start("c", key="k", reset=IDLE)
            assert not run.is_rolled_over
            await caller.finish(run, "d")

    @pytest.mark.parametrize(
        ("source", "counts"),
        [("user", True), ("console", True), ("channel", True), ("cron", False),
         ("background", False), ("system", False), ("internal", False)],
    )  # fmt: skip
    async def test_only_users_and_channels_are_activity(
        self, caller: StoreClient, clock: ManualClock, source: Source, *, counts: bool
    ) -> None:
        await caller.finish(await caller.start("a", key="k"), "b")
        clock.advance(590)
        beat = await caller.start("tick", key="k", source=source, reset=IDLE)
        assert not beat.is_rolled_over
        await caller.finish(beat)
        clock.advance(20)
        assert (await caller.start("c", key="k", reset=IDLE)).is_rolled_over is not counts

    @pytest.mark.parametrize("source", ["cron", "background", "system"])
    async def test_nobody_but_a_user_causes_a_rollover(
        self, caller: StoreClient, clock: ManualClock, source: Source
    ) -> None:
        hard = ResetPolicy(mode="idle", idle_seconds=600, rollover="hard")
        ended = await caller.finish(await caller.start("a", key="k"), "b")
        clock.advance(10_000)
        run = await caller.start("tick", key="k", source=source, reset=hard)
        assert (run.session.id, run.is_rolled_over) == (ended.session.id, False)

    async def test_there_is_no_rollover_during_a_turn_or_while_one_waits(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        hard = ResetPolicy(mode="idle", idle_seconds=1, rollover="hard")
        run = await caller.start("a", key="k")
        clock.advance(5)
        waiting = await caller.wait("b", key="k", reset=hard)
        await caller.finish(run)
        clock.advance(5)
        assert (await caller.wait("c", key="k", reset=hard)).session.id == run.session.id
        assert waiting.session.id == run.session.id

    @pytest.mark.parametrize("mode", ["idle", "daily"])
    async def test_a_hard_rollover_is_a_reset_in_the_accepting_commit(
        self, caller: StoreClient, clock: ManualClock, mode: str
    ) -> None:
        policy = ResetPolicy(mode="daily" if mode == "daily" else "idle", rollover="hard")
        run = await caller.start("a", key="k", reset=policy)
        await caller.finish(run, "b", provider_state=STATE)
        clock.advance(2 * DAY)
        rolled = await caller.start("c", key="k", reset=policy)
        assert rolled.is_rolled_over
        assert (rolled.session.generation, rolled.session.previous_session_id) == (
            2,
            run.session.id,
        )
        assert await caller.texts(rolled.session) == ["c"]
        assert await caller.texts(run.session) == ["a", "b"]
        assert await caller.read.provider_state(run.session.id) == []

    @pytest.mark.parametrize("key", ["k", None])
    async def test_who_names_a_session_by_its_id_means_that_one(
        self, caller: StoreClient, clock: ManualClock, key: str | None
    ) -> None:
        policy = ResetPolicy(mode="idle", idle_seconds=600, rollover="hard")
        ended = await caller.finish(await caller.start("a", key=key, reset=policy), "b")
        clock.advance(600)
        again = await caller.start("c", session_id=ended.session.id, reset=policy)
        assert (again.session.id, again.is_rolled_over) == (ended.session.id, False)
        assert await caller.texts(again.session) == ["a", "b", "c"]

    @pytest.mark.parametrize(("rollover", "generation"), [("soft", 1), ("hard", 2), (None, 2)])
    async def test_daily_is_hard_unless_it_says_otherwise(
        self, caller: StoreClient, clock: ManualClock, rollover: Rollover | None, generation: int
    ) -> None:
        policy = ResetPolicy(mode="daily", at=time(4), zone=BERLIN, rollover=rollover)
        clock.set(_at("2025-06-01 23:00"))
        await caller.finish(await caller.start("a", key="k", reset=policy), "b")
        clock.set(_at("2025-06-02 03:59:59"))
        run = await caller.start("c", key="k", reset=policy)
        assert not run.is_rolled_over
        await caller.finish(run)
        clock.set(_at("2025-06-02 04:00"))
        rolled = await caller.start("d", key="k", reset=policy)
        assert (rolled.is_rolled_over, rolled.session.generation) == (True, generation)

    @pytest.mark.parametrize(
        ("zone", "at", "before", "after"),
        [
            # The clock jumps from 02:00 to 03:00: half past two falls on three.
            ("Europe/Berlin", time(2, 30), "2025-03-30T00:59:59Z", "2025-03-30T01:00:00Z"),
            # The clock goes back from 03:00 to 02:00: the first half past two counts.
            ("Europe/Berlin", time(2, 30), "2025-10-26T00:29:59Z", "2025-10-26T00:30:00Z"),
            # Half an hour only, on Lord Howe Island: from 02:00 to 02:30.
            ("Australia/Lord_Howe", time(2, 15), "2025-10-04T15:29:59Z", "2025-10-04T15:30:00Z"),
            # The day itself ends early in Nuuk: 23:00 jumps to the next midnight.
            ("America/Nuuk", time(23, 30), "2025-03-30T00:59:59Z", "2025-03-30T01:00:00Z"),
        ],
    )
    async def test_the_daily_boundary_follows_the_zones_clock(
        self, caller: StoreClient, clock: ManualClock, zone: str, at: time, before: str, after: str
    ) -> None:
        policy = ResetPolicy(mode="daily", at=at, zone=ZoneInfo(zone))
        moments = [datetime.fromisoformat(one).timestamp() for one in (before, after)]
        clock.set(moments[0] - 60)
        await caller.finish(await caller.start("a", key="k", reset=policy), "b")
        clock.set(moments[0])
        run = await caller.start("c", key="k", reset=policy)
        assert not run.is_rolled_over
        await caller.finish(run)
        clock.set(moments[1])
        rolled = await caller.start("d", key="k", reset=policy)
        assert rolled.is_rolled_over
        await caller.finish(rolled)
        clock.advance(3600)
        assert not (await caller.start("e", key="k", reset=policy)).is_rolled_over
