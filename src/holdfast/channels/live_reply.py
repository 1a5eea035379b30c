"""Show typing while a turn runs, and edit the answer in place as it grows."""

import asyncio
import contextlib

from holdfast.channels.rendering.splitting import split_markdown, units
from holdfast.core.errors import HoldfastError
from holdfast.core.model.delivery import Delivery, OutboxRow
from holdfast.core.model.turn import Fence
from holdfast.core.transaction.commands import KeepPlaceholder, OpenPlaceholder
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnTicket
from holdfast.ports.channel import Channel, ChatPlace

TYPING_SECONDS = 4.0
CURSOR = " …"


class LiveReply:
    """The visible progress of one channel turn, in the process that runs it."""

    def __init__(
        self, gateway: Gateway, channel: Channel, ticket: TurnTicket, delivery: Delivery
    ) -> None:
        self._gateway = gateway
        self._channel = channel
        self._ticket = ticket
        self._delivery = delivery
        self._place = ChatPlace(delivery.chat, delivery.thread)
        self._row: OutboxRow | None = None
        self._external_id: str | None = None
        self._text = ""
        self._shown = ""
        self._shown_at = 0.0
        self._typed_at = 0.0

    async def run(self, *, is_direct: bool, is_streamed: bool) -> None:
        """Show progress until the turn has its answer; a failure here never affects the turn."""
        try:
            await self._attend(is_direct, is_streamed)
        except HoldfastError as exc:
            log.info("channel.attendance_ended", turn_id=self._ticket.turn.id, code=exc.code)
        except Exception:  # noqa: BLE001 - the top of a task that only decorates a turn
            log.exception("channel.attendance_failed", turn_id=self._ticket.turn.id)

    async def _attend(self, is_direct: bool, is_streamed: bool) -> None:
        capabilities = self._channel.capabilities
        pause = capabilities.direct_edit_seconds if is_direct else capabilities.group_edit_seconds
        reader = self._ticket.reader()
        clock = asyncio.get_running_loop().time
        while not self._is_answered():
            events = await reader.take(pause / 2)
            if events is None:
                return
            for event in events:
                if event.type == "response.output_text.delta" and event.delta is not None:
                    self._text += event.delta.delta
            now = clock()
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
        """Show the text so far; if the platform refuses it, the next edit shows more."""
        text = self._cut(self._text.strip()) if self._text.strip() else ""
        if not text or text == self._shown:
            return
        if self._row is None and not await self._open():
            return
        assert self._row is not None
        self._shown, self._shown_at = text, now
        # Below half the lease: another worker takes the placeholder over after that time.
        seconds = self._gateway.settings.lease_seconds / 2 * 0.9
        with contextlib.suppress(HoldfastError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._write(self._row, text)

    async def _write(self, row: OutboxRow, text: str) -> None:
        if self._external_id is not None:
            await self._channel.edit(self._place, self._external_id, text, plain=True)
            return
        reply_to = self._delivery.reply_to
        sent = await self._channel.send(self._place, text, reply_to=reply_to, plain=True)
        keep = KeepPlaceholder(id=row.id, worker=row.owner or "", external_id=sent)  # type: ignore[arg-type]  # an owner is a worker
        if await self._gateway.submit(keep):
            self._external_id = sent

    async def _open(self) -> bool:
        """Reserve the message, if this turn still runs here."""
        turn, delivery = self._ticket.turn, self._delivery
        # What was said before comes first: after a restart an earlier answer may not be sent yet.
        # Earlier turns have ended, so that no such message can be added now.
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
        capabilities = self._channel.capabilities
        room = capabilities.max_units - units(CURSOR, is_utf16=True)
        parts = split_markdown(
            text, room, is_utf16=capabilities.counts_utf16, escapes=capabilities.escapes
        )
        return parts[0] + CURSOR if parts else ""
