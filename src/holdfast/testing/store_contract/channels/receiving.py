"""State of channel receivers that restarts and replicas share."""

import asyncio

from msgspec.structs import replace

from holdfast.core.transaction import commands as cmd
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from holdfast.testing.store_contract.channels.commands import CHANNEL

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
