"""The channels of one process: receivers, the outbox, and what operators ask of them."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast.channels.conversations.session_keys import People, is_direct_chat, session_key
from holdfast.channels.delivery import Deliverer, Sender, SendRow
from holdfast.channels.inbound import InboundHandler
from holdfast.channels.live_reply import EditBudget, LiveReply
from holdfast.channels.operator_messages import check_message, to_parts
from holdfast.channels.receiver_notes import NOTE_SECONDS, ReceiverNotes
from holdfast.channels.rendering.splitting import split_markdown
from holdfast.channels.settings import ChannelSettings
from holdfast.core.errors import HoldfastError, NotFound
from holdfast.core.healing.redaction import redact
from holdfast.core.ids import Key, Tenant
from holdfast.core.model.channels import PairingRow
from holdfast.core.model.delivery import (
    GATEWAY_KEY_PREFIX,
    OutboxRow,
    outbox_id,
)
from holdfast.core.model.request import read_request
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.schedule import DeliverTo
from holdfast.core.transaction.commands import (
    ApprovePairing,
    HoldChannel,
    QueueMessages,
    ReleaseChannel,
    ReviseDelivery,
    RevokePairing,
)
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnService, TurnTicket
from holdfast.ports.channel import (
    Attachment,
    Channel,
    ChatPlace,
    DeliveryDelayed,
    DeliveryImpossible,
    InboundMessage,
    OperatorMessage,
    ReceiveConflict,
    Transcriber,
)

MAX_REASON = 300
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
DEFAULT_UNITS = 4000
HEALTHY_STATES = frozenset({"starting", "receiving", "webhook", "another worker receives"})


class ChannelNotFound(NotFound):
    """No channel has this name."""

    code = "channel_not_found"


class MessageFormats:
    """Splits answers and loads files for the channels that are configured."""

    def __init__(
        self,
        channels: Sequence[tuple[ChannelSettings, Channel]],
        transcriber: Transcriber | None = None,
    ) -> None:
        self.transcriber = transcriber
        self._channels = {channel.name: channel for _, channel in channels}
        self._settings = {settings.name: settings for settings, _ in channels}

    def split(self, channel: str, text: str) -> Sequence[str]:
        """Return the parts of an answer."""
        entry = self._channels.get(channel)
        if entry is None:
            return split_markdown(text, DEFAULT_UNITS)
        capabilities = entry.capabilities
        return split_markdown(
            text,
            capabilities.max_units,
            is_utf16=capabilities.counts_utf16,
            escapes=capabilities.escapes,
        )

    def media_bytes(self, channel: str) -> int:
        """Return how many bytes the files of a turn may have together."""
        settings = self._settings.get(channel)
        return settings.media_bytes if settings is not None else 0

    def file_bytes(self, channel: str) -> int:
        """Return how many bytes the files of an answer may have together; 0 if none are sent."""
        entry = self._channels.get(channel)
        return min(entry.capabilities.max_file_bytes, self.media_bytes(channel)) if entry else 0

    async def download(self, channel: str, attachment: Attachment, max_bytes: int) -> bytes:
        """Return the content of a file."""
        entry = self._channels.get(channel)
        if entry is None:
            raise DeliveryImpossible(f"no channel {channel}")
        return await entry.download(attachment, max_bytes)


class ChannelService:
    """Connects chat platforms to sessions."""

    def __init__(
        self,
        gateway: Gateway,
        turns: TurnService,
        channels: Sequence[tuple[ChannelSettings, Channel]],
        *,
        people: People | None = None,
        reset: ResetPolicy = NEVER,
        triggers: tuple[str, ...] = (),
    ) -> None:
        self._gateway = gateway
        self._people: People = people or {}
        self._settings = {settings.name: settings for settings, _ in channels}
        self._channels = {channel.name: channel for _, channel in channels}
        self._formats = MessageFormats(channels)
        self._handlers = {
            settings.name: InboundHandler(
                gateway, turns, settings, channel.capabilities, people=people or {}, reset=reset,
                triggers=triggers, attend=self._attend,
            )
            for settings, channel in channels
        }  # fmt: skip
        self._notes = {
            name: ReceiverNotes(gateway, channel, self._handlers[name])
            for name, channel in self._channels.items()
        }
        self._budgets = {
            name: EditBudget(channel.capabilities.sends_per_second, time.monotonic)
            for name, channel in self._channels.items()
        }
        senders: dict[str, SendRow] = {}
        for name, channel in self._channels.items():
            senders[name] = Sender(
                channel,
                self._handlers[name].moved_chats.current_id,
                self._budgets[name],
                gateway.store.channels.file,
            ).send
        self.deliverer = Deliverer(
            gateway,
            senders,
            expire_seconds={
                name: settings.outbox_hours * 3600 for name, settings in self._settings.items()
            },
            on_settled=self._count,
            on_moved=self._note_moved,
            before_send=self._wait_for_live_reply,
        )
        self._live_replies: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._receiving: list[asyncio.Task[None]] = []
        self.states: dict[str, str] = dict.fromkeys(self._channels, "starting")
        """What each receiver does: receiving, waiting for another one, or why it cannot."""

    # ── life ────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Begin to receive and to deliver."""
        for name in self._channels:
            await self._read_moved(name)
        self._tasks = [asyncio.create_task(self.deliverer.run(), name="holdfast-outbox")]
        for name, channel in self._channels.items():
            is_webhook = self._settings[name].receive == "webhook"
            receiving = self._watch_webhook(channel) if is_webhook else self._receive(channel)
            task = asyncio.create_task(receiving, name=f"holdfast-channel-{name}")
            self._receiving.append(task)

    async def _read_moved(self, channel: str) -> None:
        """Learn which chats were moved, also while another process received."""
        for row in await self._gateway.store.channels.chats(channel):
            if row.successor:
                self._note_moved(channel, row.chat, row.successor)

    async def stop_receiving(self) -> None:
        """Stop receiving; accepted turns continue."""
        for task in self._receiving:
            task.cancel()
        await asyncio.gather(*self._receiving, return_exceptions=True)
        self._receiving = []

    async def stop(self) -> None:
        """Stop everything; unsent messages stay in the outbox."""
        await self.stop_receiving()
        tasks = [*self._tasks, *self._live_replies.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for channel in self._channels.values():
            await channel.close()

    async def _receive(self, channel: Channel) -> None:
        """Receive as long as this process may; wait longer after each failure."""
        pause = FIRST_PAUSE_SECONDS
        clock, notes = asyncio.get_running_loop().time, self._notes[channel.name]
        while True:
            began, handled = clock(), self._handlers[channel.name].count
            try:
                if not await self._hold(channel):
                    self.states[channel.name] = "another worker receives"
                    await asyncio.sleep(self._gateway.settings.lease_seconds / 3)
                    continue
                await self._read_moved(channel.name)
                self.states[channel.name] = "receiving"
                notes.begin()
                await self._receive_while_held(channel)
            except asyncio.CancelledError:
                if self.states[channel.name] == "receiving":
                    await notes.works(is_last=True)
                await self._release(channel)
                raise
            except (ReceiveConflict, DeliveryDelayed, HoldfastError) as exc:
                self.states[channel.name] = exc.message
                reason = redact(exc.message)[:MAX_REASON]
                log.warning(
                    "channel.receive_failed", channel=channel.name, code=exc.code, reason=reason
                )
                await notes.failed(reason)
                is_healthy = self._handlers[channel.name].count > handled
                if is_healthy or clock() - began > MAX_PAUSE_SECONDS:
                    pause = FIRST_PAUSE_SECONDS  # it worked meanwhile: this is a new failure
                await asyncio.sleep(getattr(exc, "retry_after", None) or pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
            except Exception:  # noqa: BLE001 - the top of a task that must go on
                self.states[channel.name] = "internal error"
                log.exception("channel.receive_failed", channel=channel.name)
                await notes.failed("internal error")
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)

    async def _watch_webhook(self, channel: Channel) -> None:
        """Ask the platform from time to time whether it delivers, and record the answer.

        While a process serves the webhook nothing else shows that messages would arrive.
        """
        notes = self._notes[channel.name]
        self.states[channel.name] = "webhook"
        while True:
            try:
                await channel.check_webhook()
            except HoldfastError as exc:
                reason = self.states[channel.name] = redact(exc.message)[:MAX_REASON]
                log.warning(
                    "channel.receive_failed", channel=channel.name, code=exc.code, reason=reason
                )
                await notes.failed(reason)
            except Exception:  # noqa: BLE001 - the top of a task that must go on
                log.exception("channel.receive_failed", channel=channel.name)
            else:
                self.states[channel.name] = "webhook"
                await notes.confirm()
            await asyncio.sleep(NOTE_SECONDS)

    async def _hold(self, channel: Channel) -> bool:
        if not channel.capabilities.is_polled:
            return True
        command = HoldChannel(channel=channel.name, worker=self._gateway.worker.id)
        return await self._gateway.submit(command)

    async def _release(self, channel: Channel) -> None:
        if channel.capabilities.is_polled:
            with contextlib.suppress(HoldfastError):
                command = ReleaseChannel(channel=channel.name, worker=self._gateway.worker.id)
                await self._gateway.submit(command)

    async def _receive_while_held(self, channel: Channel) -> None:
        receiving = asyncio.ensure_future(channel.receive(self._handlers[channel.name]))
        try:
            while True:
                pause = self._gateway.settings.lease_seconds / 3
                done, _ = await asyncio.wait({receiving}, timeout=pause)
                if done:
                    receiving.result()
                    return
                if not await self._hold(channel):
                    return
                await self._notes[channel.name].works()
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    # ── turns in progress ───────────────────────────────────────────────────────────────────

    def _attend(self, ticket: TurnTicket) -> None:
        """Show what a turn does while it runs, and have its answer sent at once."""
        delivery = read_request(ticket.turn.request).delivery
        if delivery is None or delivery.channel not in self._channels:
            return
        channel = self._channels[delivery.channel]
        budget = self._budgets[delivery.channel]
        chat = self._handlers[delivery.channel].moved_chats.current_id(delivery.chat)
        live_reply = LiveReply(self._gateway, channel, ticket, delivery, budget, chat)
        settings = self._settings[delivery.channel]
        is_streamed = settings.reply == "stream" and not settings.notify
        task = asyncio.create_task(
            live_reply.run(is_direct=delivery.is_direct, is_streamed=is_streamed),
            name="holdfast-live-reply",
        )
        turn_id = ticket.turn.id
        self._live_replies[turn_id] = task

        def ended(_: "asyncio.Task[None]") -> None:
            self._live_replies.pop(turn_id, None)
            self.deliverer.wake()

        task.add_done_callback(ended)

    async def _wait_for_live_reply(self, row: OutboxRow) -> OutboxRow:
        """Let what is under way arrive before the final text; return the row as it is then."""
        task = self._live_replies.get(row.source)
        if task is None:
            return row
        await asyncio.wait({task}, timeout=self._gateway.settings.lease_seconds / 2)
        return await self._gateway.store.channels.message(row.id) or row

    def _note_moved(self, channel: str, old: str, new: str) -> None:
        self._handlers[channel].moved_chats.note(old, new)

    def _count(self, row: OutboxRow, outcome: str) -> None:
        self._gateway.meter.channel_sent(row.channel, outcome)

    async def find_chat(self, deliver: DeliverTo) -> tuple[Tenant, Key, DeliverTo]:
        """Return the tenant, the session key and the usual id of a chat to deliver to.

        A direct chat may be named by a phone number or a Slack `D…`; once the person has written,
        it is known whose it is, and the text is remembered where that person's answer runs.
        """
        settings = self._find(deliver.channel)
        row = await self._gateway.store.channels.chat(deliver.channel, deliver.to)
        if row is not None and row.person:
            deliver = msgspec.structs.replace(deliver, to=row.person)
        is_channel = settings.kind == "slack" and deliver.to.startswith("C")
        message = InboundMessage(
            unique_id="", place=ChatPlace(deliver.to, deliver.thread), sender=deliver.to, text="",
            is_direct=is_direct_chat(settings.kind, deliver.to),
            group_kind="channel" if is_channel else "group",
        )  # fmt: skip
        key = session_key(settings, self._people, message)
        key = await self._handlers[deliver.channel].imported_keys.find(key)
        return Tenant(settings.tenant), key, deliver

    # ── what operators ask ──────────────────────────────────────────────────────────────────

    async def listing(self) -> list[dict[str, object]]:
        """Return every channel and its state."""
        counts = await self._gateway.store.channels.counts()
        channels: list[dict[str, object]] = []
        for name, settings in self._settings.items():
            mine = {count.state: count for count in counts if count.channel == name}
            channels.append(
                {
                    "object": "channel",
                    "name": name,
                    "kind": settings.kind,
                    "state": self.states[name],
                    "tenant": settings.tenant,
                    "outbox": {state: count.count for state, count in mine.items()},
                    "received": dict(self._handlers[name].outcomes),
                }
            )
        return channels

    async def send(self, name: str, message: OperatorMessage) -> list[str]:
        """Queue a message to a chat; return the ids of its parts in the outbox.

        With an idempotency key the ids are made from the key: a repeat returns the same ones.
        """
        settings = self._find(name)
        check_message(name, message, self._formats.file_bytes(name))
        key = message.key
        named = blake2b(f"{name}\x1f{key}".encode(), digest_size=16).hexdigest()
        record_id = self._gateway.ids.new("rec") if key is None else f"rec_{named}"
        parts = to_parts(name, message, self._formats.split)
        command = QueueMessages(
            tenant=Tenant(settings.tenant),
            record_id=record_id,
            idempotency_key=f"{GATEWAY_KEY_PREFIX}send:{name}:{key}" if key is not None else None,
            messages=parts,
            body_hash=blake2b(msgspec.msgpack.encode(message), digest_size=16).digest(),
        )
        await self._gateway.submit(command)
        self.deliverer.wake()
        return [outbox_id(record_id, part) for part in range(len(parts))]

    async def check(self, name: str) -> dict[str, object]:
        """Ask the platform who we are; return the answer, or why there is none."""
        self._find(name)
        result: dict[str, object] = {"object": "channel.check", "name": name}
        try:
            account = await self._channels[name].check()
        except HoldfastError as exc:
            return {**result, "is_ok": False, "account": None, "error": redact(exc.message)}
        state = self.states[name]
        error = None if state in HEALTHY_STATES else redact(state)
        return {**result, "is_ok": error is None, "account": account, "error": error}

    async def pairings(self, name: str) -> list[PairingRow]:
        """Return who asked to write to a channel, the oldest first."""
        self._find(name)
        return await self._gateway.store.channels.pairings(name)

    async def approve(self, name: str, code: str) -> PairingRow:
        """Approve a pairing."""
        self._find(name)
        return await self._gateway.submit(ApprovePairing(channel=name, code=code))

    async def revoke(self, name: str, sender: str) -> bool:
        """Revoke a pairing."""
        self._find(name)
        return await self._gateway.submit(RevokePairing(channel=name, sender=sender))

    async def revise(self, message_id: str, action: Any) -> OutboxRow:
        """Retry or drop a message."""
        row = await self._gateway.submit(ReviseDelivery(id=message_id, action=action))
        self.deliverer.wake()
        return row

    async def webhook(self, name: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Handle a webhook request of a platform."""
        self._find(name)
        return await self._channels[name].webhook(headers, body, self._handlers[name])

    def _find(self, name: str) -> ChannelSettings:
        settings = self._settings.get(name)
        if settings is None:
            raise ChannelNotFound(f"no channel {name}")
        return settings
