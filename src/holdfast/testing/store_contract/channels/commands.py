"""Commands about channels, each prepared so that it can be submitted twice."""

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.core.ids import Key, TurnId
from holdfast.core.model.delivery import Delivery, Fact, OutboxMessage, OutboxRow, outbox_id
from holdfast.core.model.request import TurnRequest, write_request
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.commands import Command, DeliveryOutcome, Started
from holdfast.ports.outbox import OutboxQuery
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient, said

Prepare = Callable[[StoreClient, ManualClock], Awaitable[Command[Any]]]

CHANNEL = "support"


def chat_request(chat: str = "7", *, sender: str = "1", collect_seconds: float = 0.0) -> bytes:
    """Return the request of a turn from a chat."""
    delivery = Delivery(
        channel=CHANNEL, chat=chat, sender=sender, reply_to="9", collect_seconds=collect_seconds
    )
    return write_request(TurnRequest(api="responses", model="m", delivery=delivery))


def to_chat(*texts: str, chat: str = "7") -> tuple[OutboxMessage, ...]:
    """Return texts as messages to a chat."""
    return tuple(OutboxMessage(channel=CHANNEL, chat=chat, text=text) for text in texts)


async def start_from_chat(
    caller: StoreClient, *texts: str, key: str = "k", chat: str = "7"
) -> Started:
    """Start a turn whose answer goes to a chat."""
    return await caller.start(*texts, key=key, source="channel", request=chat_request(chat))


async def claim(caller: StoreClient, **more: Any) -> tuple[OutboxRow, ...]:
    """Claim the messages that are due."""
    return await caller.submit(
        cmd.ClaimDeliveries(worker=caller.worker, channels=(CHANNEL,), **more)
    )


async def settle(
    caller: StoreClient, row: OutboxRow, outcome: DeliveryOutcome, **more: Any
) -> OutboxRow | None:
    """Record the outcome of a message."""
    return await caller.submit(
        cmd.SettleDelivery(
            id=row.id, worker=caller.worker, outcome=outcome, approval=row.approval, **more
        )
    )


def queue(caller: StoreClient, *texts: str, chat: str = "7", **more: Any) -> cmd.QueueMessages:
    """Return the command that queues messages without a turn."""
    return cmd.QueueMessages(
        tenant=caller.tenant,
        record_id=caller.ids.new("rec"),
        messages=to_chat(*texts, chat=chat),
        **more,
    )


async def _finish_to_chat(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await start_from_chat(caller, "a")
    return cmd.Finish(fence=run.fence, outcome="completed", outbox=to_chat("b", "c"))


async def _open_placeholder(caller: StoreClient, _: ManualClock) -> Command[Any]:
    run = await start_from_chat(caller, "a")
    delivery = Delivery(channel=CHANNEL, chat="7")
    return cmd.OpenPlaceholder(fence=run.fence, worker=caller.worker, delivery=delivery)


async def _keep_placeholder(caller: StoreClient, clock: ManualClock) -> Command[Any]:
    row = await caller.submit(await _open_placeholder(caller, clock))
    return cmd.KeepPlaceholder(id=row.id, worker=caller.worker, external_id="100")


async def _queue_messages(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return queue(caller, "a", "b", idempotency_key="once")


async def _queue_messages_without_key(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return queue(caller, "a", "b")


def facts(caller: StoreClient, after: tuple[int, int] | None, *texts: str) -> cmd.QueueFacts:
    """Return the command that writes facts after a cursor and moves it."""
    upto = (after or (0, 0))[0], (after or (0, 0))[1] + 1
    listed = tuple(
        Fact(source=f"evt_{text}", message=message)
        for text, message in zip(texts, to_chat(*texts), strict=True)
    )
    return cmd.QueueFacts(
        tenant=caller.tenant, view="webhooks:t", after=after, upto=upto, facts=listed
    )


async def _queue_facts(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(facts(caller, None))
    return facts(caller, (0, 1), "a", "b")


async def _queue_first_facts(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return facts(caller, None)


async def _claim_deliveries(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(queue(caller, "a", "b"))
    await caller.submit(queue(caller, "c", chat="8"))
    return cmd.ClaimDeliveries(worker=caller.worker, channels=(CHANNEL,))


async def _settle_delivery(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(queue(caller, "a", "b"))
    (row,) = await claim(caller)
    return cmd.SettleDelivery(id=row.id, worker=caller.worker, outcome="sent", external_id="5")


async def _settle_delivery_later(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(queue(caller, "a"))
    (row,) = await claim(caller)
    return cmd.SettleDelivery(id=row.id, worker=caller.worker, outcome="refused", error="no")


async def _revise_delivery(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(queue(caller, "a"))
    (row,) = await claim(caller)
    await settle(caller, row, "impossible")
    return cmd.ReviseDelivery(id=row.id, action="retry")


async def _revise_delivery_dropping(caller: StoreClient, _: ManualClock) -> Command[Any]:
    command = queue(caller, "a")
    await caller.submit(command)
    return cmd.ReviseDelivery(id=outbox_id(command.record_id, 0), action="drop")


async def _prune_outbox(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return cmd.PruneOutbox(worker=caller.worker, older_than_seconds=1.0)


async def _stop_turns(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await start_from_chat(caller, "a")
    await caller.wait("b", key="k")
    return cmd.StopTurns(
        tenant=caller.tenant, key=Key("k"), record_id=TurnId(caller.ids.new("rec")),
        idempotency_key="stop", messages=to_chat("Stopped."),
    )  # fmt: skip


def edit(caller: StoreClient, text: str, edited: str, name: str = "e1") -> cmd.EditWaiting:
    """Return the command that edits a message."""
    return cmd.EditWaiting(
        tenant=caller.tenant, key=Key("k"), edited_key=edited, items=said(text),
        record_id=TurnId(caller.ids.new("rec")), idempotency_key=name,
    )  # fmt: skip


async def _edit_waiting(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await start_from_chat(caller, "a")
    await caller.wait("b", key="k", source="channel", idempotency_key="m2")
    return edit(caller, "c", "m2")


async def _edit_too_late(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.start("a", key="k", source="channel", idempotency_key="m1")
    return edit(caller, "c", "m1")


def pairing(caller: StoreClient, sender: str = "1", code: str = "ABCD2345") -> cmd.RequestPairing:
    """Return the command with which a stranger requests a pairing code."""
    return cmd.RequestPairing(
        tenant=caller.tenant, channel=CHANNEL, sender=sender, name="Ada", code=code, chat=sender,
        record_id=caller.ids.new("rec"), idempotency_key=f"pairing:{sender}:{code}",
    )  # fmt: skip


async def _request_pairing(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return pairing(caller)


async def _approve_pairing(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(pairing(caller))
    return cmd.ApprovePairing(channel=CHANNEL, code="abcd2345")


async def _revoke_pairing(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(pairing(caller))
    return cmd.RevokePairing(channel=CHANNEL, sender="1")


async def _hold_channel(caller: StoreClient, _: ManualClock) -> Command[Any]:
    return cmd.HoldChannel(channel=CHANNEL, worker=caller.worker)


async def _release_channel(caller: StoreClient, _: ManualClock) -> Command[Any]:
    await caller.submit(cmd.HoldChannel(channel=CHANNEL, worker=caller.worker))
    return cmd.ReleaseChannel(channel=CHANNEL, worker=caller.worker)


async def _remember_chat(*_: Any) -> Command[Any]:
    return cmd.RememberChat(channel=CHANNEL, chat="7")


async def _dead_letter_update(*_: Any) -> Command[Any]:
    return cmd.DeadLetterUpdate(channel=CHANNEL, update_id="12", reason="broken")


async def _note_receiver(*_: Any) -> Command[Any]:
    return cmd.NoteReceiver(channel=CHANNEL, kind="telegram", keeps_seconds=60.0, reason="no")


async def _count_bot_turn(*_: Any) -> Command[Any]:
    return cmd.CountBotTurn(channel=CHANNEL, chat="-5", message="a", limit=1)


async def _forget_bot_turns(caller: StoreClient, clock: ManualClock) -> Command[Any]:
    await caller.submit(await _count_bot_turn(caller, clock))
    return cmd.ForgetBotTurns(channel=CHANNEL, chat="-5")


CHANNEL_PREPARATIONS: dict[str, Prepare] = {
    name.removeprefix("_"): prepare
    for name, prepare in list(globals().items())
    if name.startswith("_") and callable(prepare) and not name.startswith("__")
}


async def channel_picture(caller: StoreClient) -> list[object]:
    """Return everything that a store has about the channel."""
    read = caller.store.channels
    return [
        await read.messages(None, OutboxQuery(limit=100)),
        await read.pairings(CHANNEL),
        await read.chats(CHANNEL),
        await read.dead_updates(100),
        await read.holder(CHANNEL),
        await read.receivers(),
        await read.cursor("webhooks:t"),
    ]
