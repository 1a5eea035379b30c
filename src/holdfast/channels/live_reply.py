"""Show typing while a turn runs, and edit the answer in place as it grows."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec

from holdfast.channels.rendering.splitting import split_markdown, units
from holdfast.core.errors import HoldfastError, StoreUnavailable
from holdfast.core.model.delivery import Delivery, OutboxRow
from holdfast.core.model.turn import Fence
from holdfast.core.openai.stream_events import StreamEvent
from holdfast.core.transaction.commands import KeepPlaceholder, OpenPlaceholder
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnTicket
from holdfast.ports.channel import Channel, ChatPlace, DeliveryDelayed

TYPING_SECONDS = 4.0
TOOL_SECONDS = 20.0
"""After this time the placeholder names the running tool."""
RETRY_SECONDS = 0.5
CURSOR = " …"
MIN_TOKENS = 4.0
RESERVED = 0.25
"""Share of a budget that live edits leave for complete messages."""


class EditBudget:
    """A token bucket of one bot, shared by all its chats in this process.

    Live edits leave a share for complete messages, which never wait for the budget.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._clock = clock
        self._capacity = self._tokens = max(per_second, MIN_TOKENS)
        self._filled_at = clock()
        self._paused_until = self._filled_at

    def try_spend(self) -> bool:
        """Take a token for a live edit; return whether there was one."""
        self._fill()
        if self._filled_at < self._paused_until:
            return False
        if self._tokens - 1 < self._capacity * RESERVED:
            return False
        self._tokens -= 1
        return True

    def spend(self) -> None:
        """Take a token for a complete message, which is sent in any case."""
        self._fill()
        self._tokens = max(self._tokens - 1, 0.0)

    def pause(self, seconds: float) -> None:
        """Allow no live edit for some time, as the platform asked."""
        self._paused_until = max(self._paused_until, self._clock() + seconds)

    def _fill(self) -> None:
        now = self._clock()
        added = (now - self._filled_at) * self._per_second
        self._tokens = min(self._tokens + added, self._capacity)
        self._filled_at = now


class _Item(msgspec.Struct):
    id: str | None = None
    type: str = ""
    name: str | None = None


class _ItemEvent(msgspec.Struct):
    item: _Item


class _TextEvent(msgspec.Struct):
    delta: str = ""


_read_item_event = msgspec.json.Decoder(_ItemEvent).decode
_read_text_event = msgspec.json.Decoder(_TextEvent).decode


def _delta_text(event: StreamEvent) -> str:
    """Return the text of a delta; one with fields of its server's own is no `Delta`."""
    if event.delta is not None:
        return event.delta.delta
    try:
        return _read_text_event(event.body).delta
    except msgspec.DecodeError:
        return ""


class Progress:
    """The text of a turn so far, and the tools that it waits for."""

    def __init__(self) -> None:
        self.text = ""
        self._running: dict[str, tuple[str, float]] = {}

    def add(self, events: Sequence[StreamEvent], now: float) -> None:
        """Apply the next events of the response."""
        for event in events:
            match event.type:
                case "response.output_text.delta":
                    self.text += _delta_text(event)
                case "response.output_item.added" | "response.output_item.done":
                    self._apply_item(event, now)

    def _apply_item(self, event: StreamEvent, now: float) -> None:
        try:
            item = _read_item_event(event.body).item
        except msgspec.DecodeError:
            return  # an item type that only the client understands
        if not item.type.endswith("_call") or item.id is None:
            return
        if event.type.endswith("done"):
            self._running.pop(item.id, None)
        else:
            name = item.name or item.type.removesuffix("_call")
            self._running[item.id] = name, now

    def describe(self, now: float) -> str:
        """Return the text so far, and the tool that has been running for a long time."""
        parts = [self.text.strip()] if self.text.strip() else []
        for name, since in self._running.values():
            if now - since >= TOOL_SECONDS:
                parts.append(f"(running {name})")
                break
        return "\n\n".join(parts)


class LiveReply:
    """The visible progress of one channel turn, in the process that runs it."""

    def __init__(
        self,
        gateway: Gateway,
        channel: Channel,
        ticket: TurnTicket,
        delivery: Delivery,
        budget: EditBudget,
        chat: str,
    ) -> None:
        self._gateway = gateway
        self._channel = channel
        self._ticket = ticket
        self._delivery = delivery
        self._budget = budget
        self._place = ChatPlace(chat, delivery.thread)
        """The chat to write to: it may have moved since the turn was accepted."""
        self._row: OutboxRow | None = None
        self._external_id: str | None = None
        self._is_uncertain = False
        """Whether a placeholder may have arrived without a known id; then nothing more is shown."""
        self._progress = Progress()
        self._shown = ""
        self._shown_at = 0.0
        self._typed_at = 0.0

    async def run(self, *, is_direct: bool, is_streamed: bool) -> None:
        """Show progress until the turn has its answer; a failure here never affects the turn."""
        try:
            await self._follow(is_direct, is_streamed)
        except HoldfastError as exc:
            log.info("channel.live_reply_ended", turn_id=self._ticket.turn.id, code=exc.code)
        except Exception:  # noqa: BLE001 - the top of a task that only decorates a turn
            log.exception("channel.live_reply_failed", turn_id=self._ticket.turn.id)

    async def _follow(self, is_direct: bool, is_streamed: bool) -> None:
        capabilities = self._channel.capabilities
        pause = capabilities.direct_edit_seconds if is_direct else capabilities.group_edit_seconds
        reader = self._ticket.reader()
        clock = asyncio.get_running_loop().time
        while not self._is_answered():
            events = await reader.take(pause / 2)
            if events is None:
                return
            now = clock()
            self._progress.add(events, now)
            if self._is_answered():
                return
            if is_streamed and capabilities.can_edit and now - self._shown_at >= pause:
                await self._show(now)
            if capabilities.can_type and now - self._typed_at >= TYPING_SECONDS:
                self._typed_at = now
                with contextlib.suppress(HoldfastError):
                    await self._channel.show_typing(self._place)

    def _is_answered(self) -> bool:
        return self._ticket.outcome is not None

    async def _show(self, now: float) -> None:
        """Show the text so far; if the platform refuses it, the next edit tries again with more."""
        text = self._cut(self._progress.describe(now))
        if not text or text == self._shown or self._is_uncertain:
            return
        if not self._budget.try_spend():
            return
        if self._row is None and not await self._open():
            return
        assert self._row is not None
        self._shown, self._shown_at = text, now
        if self._external_id is None:
            await self._send_first(self._row, text)
        else:
            with contextlib.suppress(HoldfastError, TimeoutError):
                async with asyncio.timeout(self._call_seconds):
                    await self._edit(self._external_id, text)

    @property
    def _call_seconds(self) -> float:
        """The limit of one call: below half the lease, which a successor of this worker waits."""
        return self._gateway.settings.lease_seconds / 2 * 0.9

    async def _edit(self, external_id: str, text: str) -> None:
        try:
            await self._channel.edit(self._place, external_id, text, plain=True)
        except DeliveryDelayed as exc:
            self._budget.pause(exc.retry_after or 0.0)

    async def _send_first(self, row: OutboxRow, text: str) -> None:
        """Send the placeholder; record its id, or that it may have arrived without a known id."""
        sent: str | None = None
        try:
            async with asyncio.timeout(self._call_seconds):
                sent = await self._channel.send(
                    self._place, text, reply_to=self._delivery.reply_to, plain=True
                )
        except DeliveryDelayed as exc:
            if not exc.is_uncertain:
                self._budget.pause(exc.retry_after or 0.0)
                return
        except TimeoutError:
            pass
        except HoldfastError:
            return
        self._is_uncertain = sent is None
        if await self._record(row, sent):
            self._external_id = sent

    async def _record(self, row: OutboxRow, external_id: str | None) -> bool:
        """Record the placeholder's id, if known; retry until the store is available.

        The final text waits for this task: without the record it would be sent a second time,
        without a note that it may be a repeat.
        """
        worker = self._gateway.worker.id
        command = KeepPlaceholder(id=row.id, worker=worker, external_id=external_id)
        while True:
            try:
                return await self._gateway.submit(command)
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)

    async def _open(self) -> bool:
        """Reserve the message; return False if the turn no longer runs here."""
        turn, delivery = self._ticket.turn, self._delivery
        # Earlier messages come first: after a restart an earlier answer may not be sent yet.
        # Earlier turns have ended, so no such message can be added any more.
        channels = self._gateway.store.channels
        if await channels.has_waiting(delivery.channel, delivery.chat, delivery.thread):
            return False
        view = await self._gateway.read.session(turn.tenant, session_id=turn.session_id)
        session = view.session if view is not None else None
        if session is None or session.active_turn_id != turn.id or session.active_run_id is None:
            return False
        fence = Fence(session.id, session.generation, session.active_run_id, session.epoch)
        command = OpenPlaceholder(
            fence=fence,
            worker=self._gateway.worker.id,
            delivery=delivery,
            step=self._ticket.step,
        )
        row = await self._gateway.submit(command)
        if row.state != "open":
            return False
        self._row, self._external_id = row, row.external_id
        return True

    def _cut(self, text: str) -> str:
        if not text:
            return ""
        capabilities = self._channel.capabilities
        room = capabilities.max_units - units(CURSOR, is_utf16=True)
        parts = split_markdown(
            text, room, is_utf16=capabilities.counts_utf16, escapes=capabilities.escapes
        )
        return parts[0] + CURSOR if parts else ""
