"""Update numbers of Telegram start anew after a quiet week; no message is dropped for it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.channels.settings import ChannelSettings
from holdfast.channels.telegram.channel import TelegramChannel
from holdfast.ports.channel import DeliveryDelayed
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.testing.channel_contract import CollectingInbox
from holdfast.testing.platforms import TelegramSimulator


@asynccontextmanager
async def _receiving(simulator: TelegramSimulator) -> AsyncIterator[CollectingInbox]:
    """Receive for the length of a block, again after each failure."""
    settings = ChannelSettings(name="support", kind="telegram", url=simulator.url, token="42:TEST")
    http, inbox = PlainHttpCaller(), CollectingInbox()
    channel = TelegramChannel(settings, http)

    async def receive() -> None:
        while True:
            with contextlib.suppress(DeliveryDelayed):
                await channel.receive(inbox)

    task = asyncio.create_task(receive())
    try:
        yield inbox
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await http.close()


async def _until_arrived(inbox: CollectingInbox, text: str) -> None:
    while text not in [message.text for message in inbox.messages]:
        await inbox.wait()


async def test_a_message_with_a_lower_number_arrives_after_an_outage() -> None:
    with TelegramSimulator() as simulator:
        async with _receiving(simulator) as inbox:
            simulator.say("one")
            await asyncio.to_thread(simulator.wait, lambda: simulator.confirmed == [1000])
            await asyncio.to_thread(simulator.down)
            simulator.restart_numbers()
            simulator.say("two")
            simulator.up()
            await _until_arrived(inbox, "two")


async def test_a_message_with_a_lower_number_arrives_after_an_empty_poll() -> None:
    with TelegramSimulator() as simulator:
        async with _receiving(simulator) as inbox:
            simulator.say("one")
            await asyncio.to_thread(simulator.wait, lambda: simulator.confirmed == [1000])
            simulator.end_poll()
            await asyncio.to_thread(simulator.wait, lambda: len(_polls(simulator)) == 3)
            simulator.restart_numbers()
            simulator.say("two")
            await _until_arrived(inbox, "two")
            assert ["offset" in poll for poll in _polls(simulator)[:3]] == [False, True, False]


def _polls(simulator: TelegramSimulator) -> list[dict[str, object]]:
    return [arguments for method, arguments in simulator.calls if method == "getUpdates"]
