"""Send what the outbox holds: at least once, in order per conversation, with back-off."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from holdfast.channels.approvals import approval_buttons
from holdfast.channels.live_reply import EditBudget
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.model.delivery import APPROVAL_ENDED, OutboxRow
from holdfast.core.transaction.commands import (
    ClaimDeliveries,
    DeliveryOutcome,
    PruneOutbox,
    RememberChat,
    SettleDelivery,
)
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.channel import (
    Channel,
    ChatMoved,
    ChatPlace,
    DeliveryDelayed,
    DeliveryImpossible,
    DeliveryRefused,
    MessageGone,
    OutgoingFile,
)

IDLE_SECONDS = 2.0
"""How often the outbox is read for messages that other processes wrote without a notification."""
FIRST_DELAY_SECONDS = 1.0
MAX_DELAY_SECONDS = 300.0
MAX_PAUSE_SECONDS = 5.0
"""Limit of the pause of a whole channel: one failing conversation must not delay the others."""
MAX_AT_ONCE = 16
"""Messages of one channel that are under way at the same time."""
PRUNE_AFTER_SECONDS = 7 * 24 * 3600.0
PRUNE_EVERY_SECONDS = 3600.0


class Sender:
    """Sends rows of one channel."""

    def __init__(
        self,
        channel: Channel,
        current_chat: Callable[[str], str],
        budget: EditBudget,
        load_file: Callable[[str], Awaitable[bytes | None]],
    ) -> None:
        self._channel = channel
        self._budget = budget
        self._load_file = load_file
        self._current_chat = current_chat
        """Returns the current id of a chat that was moved."""

    async def send(self, row: OutboxRow) -> str | None:
        """Send a message, or edit the existing one; return the platform's id."""
        place = ChatPlace(self._current_chat(row.chat), row.thread)
        self._budget.spend()
        if row.file_name:
            return await self._send_file(row, place)
        try:
            return await self._send(row, place, plain=False)
        except DeliveryRefused as exc:
            if not exc.is_formatting:
                raise
            return await self._send(row, place, plain=True)

    async def _send_file(self, row: OutboxRow, place: ChatPlace) -> str:
        content = await self._load_file(row.id)
        if content is None:
            raise DeliveryImpossible(f"the content of {row.file_name} is gone")
        file = OutgoingFile(name=row.file_name, media_type=row.file_type, content=content)
        return await self._channel.send_file(place, file, reply_to=row.reply_to)

    async def _send(self, row: OutboxRow, place: ChatPlace, *, plain: bool) -> str | None:
        buttons = approval_buttons(row.approval) if row.is_request else ()
        is_ended = row.approval == APPROVAL_ENDED and row.external_id is not None
        if is_ended and not self._channel.capabilities.can_edit:
            return row.external_id
        if row.external_id is not None:
            try:
                await self._channel.edit(
                    place, row.external_id, row.text, plain=plain, buttons=buttons
                )
            except MessageGone:
                if is_ended:
                    return row.external_id  # the user deleted it: there is nothing to edit
                log.info("outbox.message_gone", message_id=row.id, channel=row.channel)
            else:
                return row.external_id
        return await self._channel.send(
            place, row.text, reply_to=row.reply_to, plain=plain, buttons=buttons
        )


SendRow = Callable[[OutboxRow], Awaitable[str | None]]


class ChannelBackoff:
    """How long a channel that is away is left alone: up to `MAX_PAUSE_SECONDS`.

    The pause doubles with each failed probe. Each message has a longer wait of its own, so that a
    probe takes messages of conversations that were not tried yet.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._delay = FIRST_DELAY_SECONDS / 2
        self._failed_at = -math.inf
        self._until = -math.inf

    @property
    def seconds_left(self) -> float:
        """Seconds until the channel may be tried again; at most 0 if it may now."""
        return self._until - self._clock()

    def fail(self, started_at: float) -> float:
        """Note that a send failed; return the seconds to wait.

        Sends that were under way when another one failed tell nothing new: only one that started
        later makes the wait longer.
        """
        if started_at > self._failed_at:
            self._failed_at = self._clock()
            self._delay = min(self._delay * 2, MAX_PAUSE_SECONDS)
            self._until = self._failed_at + self._delay * random.uniform(0.75, 1.25)
        return max(self.seconds_left, 0.0)


class Deliverer:
    """The task of one process that empties the outbox of some channels."""

    def __init__(
        self,
        gateway: Gateway,
        senders: Mapping[str, SendRow],
        *,
        expire_seconds: Mapping[str, float],
        on_settled: Callable[[OutboxRow, str], None] = lambda _row, _outcome: None,
        on_moved: Callable[[str, str, str], None] = lambda _channel, _old, _new: None,
        before_send: Callable[[OutboxRow], Awaitable[OutboxRow]] | None = None,
    ) -> None:
        self._gateway = gateway
        self._senders = senders
        self._expire_seconds = expire_seconds
        self._on_settled = on_settled
        self._on_moved = on_moved
        self._before_send = before_send
        self._in_flight: dict[str, dict[str, asyncio.Task[None]]] = {}
        """Sends under way, by channel and message."""
        self._backoffs: dict[str, ChannelBackoff] = {}
        """Channels that are away."""
        self._news = asyncio.Event()
        self._next_prune = 0.0

    def wake(self) -> None:
        """Look at the outbox now."""
        self._news.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        listen = self._gateway.store.on_outbox
        # Without senders no turn pays for the look at what it wrote.
        stop_listening = listen(self.wake, set(self._senders)) if self._senders else lambda: None
        try:
            while True:
                self._news.clear()
                try:
                    is_full = await self._deliver_due()
                except HoldfastError as exc:
                    log.failed("outbox.not_read", exc)
                    is_full = False
                if not is_full:
                    await self._wait()
        finally:
            stop_listening()
            tasks = [task for sends in self._in_flight.values() for task in sends.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _deliver_due(self) -> bool:
        """Start sending due messages; return whether there may be more."""
        await self._prune()
        counts = await self._gateway.store.channels.counts()
        unsent = [count for count in counts if count.state in ("pending", "sending")]
        age = self._gateway.clock.now() - min((c.oldest_at for c in unsent), default=math.inf)
        self._gateway.meter.outbox_waits(sum(c.count for c in unsent), max(age, 0.0))
        has_more = False
        for channel in sorted(self._senders.keys() & {count.channel for count in unsent}):
            backoff = self._backoffs.get(channel)
            if backoff is None or backoff.seconds_left <= 0:
                has_more |= await self._claim(channel)
        return has_more

    async def _claim(self, channel: str) -> bool:
        """Start sending the due messages of one channel; return whether there may be more.

        Each channel has its own limit, so that a hanging channel does not block the others.
        """
        in_flight = self._in_flight.setdefault(channel, {})
        free = MAX_AT_ONCE - len(in_flight)
        if free <= 0:
            return False
        claim = ClaimDeliveries(
            worker=self._gateway.worker.id,
            channels=(channel,),
            limit=free,
            orphaned_after_seconds=self._gateway.settings.lease_seconds / 2,
        )
        rows = await self._gateway.submit(claim)
        for row in rows:
            if row.id not in in_flight:
                task = asyncio.create_task(self._deliver(row), name="holdfast-delivery")
                in_flight[row.id] = task
        return len(rows) >= free

    async def _prune(self) -> None:
        now = self._gateway.clock.now()
        if now >= self._next_prune:
            self._next_prune = now + PRUNE_EVERY_SECONDS
            command = PruneOutbox(
                worker=self._gateway.worker.id, older_than_seconds=PRUNE_AFTER_SECONDS
            )
            await self._gateway.submit(command)

    async def _deliver(self, row: OutboxRow) -> None:
        try:
            if self._before_send is not None:
                row = await self._before_send(row)
            command = await self._attempt(row)
            self._on_settled(row, command.outcome)
            await self._settle(command)
            if command.outcome in ("delayed", "refused"):
                asyncio.get_running_loop().call_later(command.delay_seconds, self.wake)
        finally:
            self._in_flight[row.channel].pop(row.id, None)
            self._news.set()

    async def _attempt(self, row: OutboxRow) -> SettleDelivery:
        """Send one message; return the outcome and when to retry."""
        started_at = asyncio.get_running_loop().time()
        try:
            external_id = await self._senders[row.channel](row)
        except ChatMoved as exc:
            moved = RememberChat(channel=row.channel, chat=row.chat, successor=exc.successor)
            await self._gateway.submit(moved)
            self._on_moved(row.channel, row.chat, exc.successor)
            return self._settlement(row, "delayed", error=exc.message, delay_seconds=0.0)
        except DeliveryDelayed as exc:
            return self._settlement(
                row, "delayed", error=exc.message, is_uncertain=exc.is_uncertain,
                delay_seconds=self._delay(row, exc.retry_after, started_at),
            )  # fmt: skip
        except DeliveryImpossible as exc:
            return self._settlement(row, "impossible", error=exc.message)
        except DeliveryRefused as exc:
            delay = min(FIRST_DELAY_SECONDS * 2**row.refusals, MAX_DELAY_SECONDS)
            return self._settlement(row, "refused", error=exc.message, delay_seconds=delay)
        except Exception as exc:  # noqa: BLE001 - a bug of an adapter must not stop the others
            log.exception("outbox.send_failed", message_id=row.id, channel=row.channel)
            return self._settlement(row, "refused", error=type(exc).__name__)
        self._backoffs.pop(row.channel, None)
        return self._settlement(row, "sent", external_id=external_id)

    def _settlement(self, row: OutboxRow, outcome: DeliveryOutcome, **more: Any) -> SettleDelivery:
        return SettleDelivery(
            id=row.id,
            worker=row.owner or self._gateway.worker.id,
            outcome=outcome,
            approval=row.approval,
            expire_seconds=self._expire_seconds.get(row.channel, 24 * 3600.0),
            **more,
        )

    def _delay(self, row: OutboxRow, retry_after: float | None, started_at: float) -> float:
        """Return how long a message waits: as the platform asks, or longer the older it is."""
        if retry_after is not None:
            return retry_after
        backoff = self._backoffs.get(row.channel)
        if backoff is None:
            clock = asyncio.get_running_loop().time
            backoff = self._backoffs[row.channel] = ChannelBackoff(clock)
        age = self._gateway.clock.now() - row.created_at
        return max(backoff.fail(started_at), min(age / 2, MAX_DELAY_SECONDS))

    async def _settle(self, command: SettleDelivery) -> None:
        """Record an outcome, and retry until the store takes it.

        No other worker may settle the message while this one lives, so giving up would leave it
        in the state `sending`.
        """
        while True:
            try:
                await self._gateway.submit(command)
            except StoreUnavailable:
                await asyncio.sleep(1.0)
            else:
                return
