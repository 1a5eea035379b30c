"""Conversations whose messages fail hold up no other conversation and no other channel."""

import asyncio

from holdfast.channels.delivery import MAX_AT_ONCE, Deliverer
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.model.delivery import OutboxMessage, OutboxRow
from holdfast.core.transaction.commands import QueueMessages
from holdfast.ports.channel import DeliveryDelayed
from tests.in_process import RunningGateway, open_gateway


async def _queue(gateway: RunningGateway, channel: str, chat: str) -> None:
    message = OutboxMessage(channel=channel, chat=chat, text="hello")
    record_id = gateway.engine.ids.new("rec")
    await gateway.engine.submit(
        QueueMessages(tenant=DEFAULT_TENANT, record_id=record_id, messages=(message,))
    )


async def test_others_are_answered_while_many_chats_fail() -> None:
    """More chats than may be sent to at once fail with an error, or hang."""
    sent: set[str] = set()
    all_sent = asyncio.Event()

    async def fail(row: OutboxRow) -> str | None:
        if row.chat.startswith("bad"):
            raise DeliveryDelayed("the platform answered 500")
        return note(row)

    async def hang(row: OutboxRow) -> str | None:
        if row.chat.startswith("bad"):
            await asyncio.Event().wait()
        return note(row)

    def note(row: OutboxRow) -> str:
        sent.add(f"{row.channel}/{row.chat}")
        if sent == {"failing/7", "failing/8", "other/9"}:
            all_sent.set()
        return row.id

    async with open_gateway() as gateway:
        senders = {"failing": fail, "hanging": hang, "other": hang}
        deliverer = Deliverer(gateway.engine, senders, expire_seconds={})
        for number in range(MAX_AT_ONCE + 4):
            for channel in ("failing", "hanging"):
                await _queue(gateway, channel, f"bad{number}")
        running = asyncio.create_task(deliverer.run())
        try:
            for channel, chat in (("failing", "7"), ("other", "9"), ("failing", "8")):
                await _queue(gateway, channel, chat)
                deliverer.wake()
            await asyncio.wait_for(all_sent.wait(), 30)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
