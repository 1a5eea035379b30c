"""Who may write, and the state of channel receivers that restarts and replicas share."""

import asyncio

import pytest
from msgspec.structs import replace

from holdfast.core.decisions.channels.access import PairingNotFound
from holdfast.core.transaction import commands as cmd
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import LEASE_SECONDS, StoreClient
from holdfast.testing.store_contract.channels.commands import CHANNEL, claim, pairing

LIMIT = 5


async def _count(caller: StoreClient, message: str, chat: str = "-5") -> bool:
    return await caller.submit(
        cmd.CountBotTurn(channel=CHANNEL, chat=chat, message=message, limit=LIMIT)
    )


class BotTurnContract:
    """Bots have a bounded number of turns until a person writes."""

    async def test_turns_of_bots_are_bounded_over_all_workers(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        workers = [caller, other] * LIMIT
        counted = await asyncio.gather(
            *(_count(worker, f"m{number}") for number, worker in enumerate(workers))
        )
        assert sum(counted) == LIMIT
        assert await _count(caller, "elsewhere", chat="-6")

    async def test_a_message_that_comes_again_counts_once(self, caller: StoreClient) -> None:
        assert [await _count(caller, "m1") for _ in range(2 * LIMIT)] == [True] * 2 * LIMIT
        assert await _count(caller, "m2")

    async def test_bots_may_speak_again_when_a_person_wrote(self, caller: StoreClient) -> None:
        counted = [await _count(caller, f"m{number}") for number in range(LIMIT + 1)]
        assert counted == [True] * LIMIT + [False]
        await caller.submit(cmd.ForgetBotTurns(channel=CHANNEL, chat="-5"))
        assert await _count(caller, "later")


class ReceiverContract:
    """The store records which channels fail, and when none received for too long."""

    async def test_a_failure_is_known_until_it_works_again(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        note = cmd.NoteReceiver(channel=CHANNEL, kind="slack", keeps_seconds=60.0)
        began = clock.now()
        for reason in ("first", "second"):
            await caller.submit(replace(note, reason=reason))
            clock.advance(10.0)
        (row,) = await caller.store.channels.receivers()
        assert (row.is_failing, row.reason, row.failing_since) == (True, "second", began)
        await caller.submit(note)
        (row,) = await caller.store.channels.receivers()
        assert (row.is_failing, row.reason, row.gap_until) == (False, "", None)

    async def test_a_gap_that_the_platform_does_not_bridge_is_recorded(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        note = cmd.NoteReceiver(channel=CHANNEL, kind="slack", keeps_seconds=60.0)
        await caller.submit(note)
        began = clock.now()
        clock.advance(61.0)
        await caller.submit(note)
        clock.advance(59.0)
        await caller.submit(note)
        (row,) = await caller.store.channels.receivers()
        assert (row.gap_from, row.gap_until) == (began, began + 61.0)


class ChannelAccessContract:
    """Pairings bind a sender; one worker receives."""

    async def test_a_code_is_sent_once_and_binds_its_sender(self, caller: StoreClient) -> None:
        first = await caller.submit(pairing(caller))
        again = await caller.submit(pairing(caller, code="OTHER234"))
        assert again == first, "the code that still holds is given again"
        (row,) = await claim(caller)
        assert first.code in row.text
        approved = await caller.submit(cmd.ApprovePairing(channel=CHANNEL, code=first.code))
        assert (approved.sender, approved.approved_at is not None) == ("1", True)
        with pytest.raises(PairingNotFound):
            await caller.submit(cmd.ApprovePairing(channel=CHANNEL, code="OTHER234"))

    async def test_a_code_expires(self, caller: StoreClient, clock: ManualClock) -> None:
        row = await caller.submit(pairing(caller))
        clock.advance(3601.0)
        with pytest.raises(PairingNotFound):
            await caller.submit(cmd.ApprovePairing(channel=CHANNEL, code=row.code))

    async def test_open_pairings_are_bounded_and_the_oldest_goes(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        for number in range(5):
            clock.advance(1.0)
            command = pairing(caller, sender=str(number), code=f"CODE{number}")
            await caller.submit(replace(command, max_open=3))
        found = await caller.store.channels.pairings(CHANNEL)
        assert [row.sender for row in found] == ["2", "3", "4"]

    async def test_one_worker_receives_until_it_dies(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        mine = cmd.HoldChannel(channel=CHANNEL, worker=caller.worker)
        theirs = cmd.HoldChannel(channel=CHANNEL, worker=other.worker)
        assert await caller.submit(mine)
        assert not await other.submit(theirs)
        clock.advance(LEASE_SECONDS + 1)
        assert not await other.submit(theirs), "it may live: the clock may have stepped"
        await other.submit(cmd.ExpireWorker(worker=caller.worker))
        assert await other.submit(theirs)
        assert not await caller.submit(mine)
