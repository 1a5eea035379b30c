"""Send an answer: complete, or broken in the way its faults ask for."""

import asyncio
from dataclasses import dataclass

from holdfast.simulator.delivery.outlet import Outlet
from holdfast.simulator.faults.effects import Cut, DuplicateChunks, Hang, Slow
from holdfast.simulator.state.barriers import Barrier, Barriers
from holdfast.simulator.state.call import ApiAnswer, Call, StreamedEvent
from holdfast.simulator.state.json import encode
from holdfast.simulator.state.record import RequestEntry


@dataclass(slots=True, kw_only=True)
class SimulatedTransmission:
    """One answer while it is sent, with its faults applied."""

    call: Call
    answer: ApiAnswer
    entry: RequestEntry
    outlet: Outlet
    barriers: Barriers
    held_by: list[Barrier]
    is_committed: bool = False

    async def run(self) -> None:
        """Send the answer; its result is stored just before the client can see it."""
        if self.answer.events is None:
            await self._send_body()
            return
        await self.outlet.open_stream(self.answer.headers)
        if self._is_plain():
            await self._send_at_once(self.answer.events)
        else:
            await self._send_step_by_step(self.answer.events)

    def commit(self) -> None:
        """Store the result of the answer, once."""
        if not self.is_committed:
            self.is_committed = True
            self.answer.commit()

    async def _send_body(self) -> None:
        cut = self.call.effect(Cut)
        body = encode(self.answer.body)
        if cut is None or cut.stored:
            self.commit()
        if self.held_by:
            await self.barriers.hold(self.held_by, "answer", self.call)
        if cut is None:
            await self.outlet.send_body(self.answer.status, self.answer.headers, body)
            return
        keep = len(body) // 2 if cut.byte is None else min(cut.byte, len(body))
        if cut.ending == "clean":
            await self.outlet.send_body(self.answer.status, self.answer.headers, body[:keep])
            return
        await self.outlet.send_body(self.answer.status, self.answer.headers, body, keep=keep)
        await self.outlet.break_off(cut.ending)

    def _is_plain(self) -> bool:
        if self.held_by or self.answer.between_seconds:
            return False
        return not any(
            isinstance(effect, Cut | DuplicateChunks | Hang | Slow) for effect in self.call.effects
        )

    async def _send_at_once(self, events: list[StreamedEvent]) -> None:
        if any(event.is_terminal for event in events):
            self.commit()
        self.entry.events_sent = len(events)
        await self.outlet.send_events(events)
        await self._end()

    async def _send_step_by_step(self, events: list[StreamedEvent]) -> None:
        cut, slow = self.call.effect(Cut), self.call.effect(Slow)
        between = slow.between_seconds if slow else self.answer.between_seconds
        budget = None if cut is None else cut.byte
        await self.barriers.hold(self.held_by, "answer", self.call)
        for number, event in enumerate(self._repeated(events)):
            await self._pause_before(number)
            if cut is not None and cut.event is not None and number >= cut.event:
                await self._break_off(cut, events)
                return
            if event.is_terminal and cut is None:
                self.commit()
            piece = self.outlet.encode(event)
            if cut is not None and budget is not None and len(piece) > budget:
                await self.outlet.send_piece(piece[:budget])
                await self._break_off(cut, events)
                return
            budget = None if budget is None else budget - len(piece)
            await self.outlet.send_piece(piece)
            self.entry.events_sent = number + 1
            if between:
                await asyncio.sleep(between)
        if any(event.is_terminal for event in events):
            self.commit()
        await self._pause_before(len(events))
        await self._end()

    def _repeated(self, events: list[StreamedEvent]) -> list[StreamedEvent]:
        duplicate = self.call.effect(DuplicateChunks)
        if duplicate is None:
            return events
        repeated = []
        for number, event in enumerate(events):
            is_chosen = duplicate.event == number
            if duplicate.event is None:
                is_chosen = not event.is_terminal and _is_delta(event)
            repeated += [event, event] if is_chosen else [event]
        return repeated

    async def _pause_before(self, number: int) -> None:
        hang = self.call.effect(Hang)
        if hang is not None and hang.event == number:
            await wait_until_gone(self.outlet, self.barriers)
        for barrier in self.held_by:
            if barrier.spec.at == "event" and barrier.spec.event == number:
                await self.barriers.hold([barrier], "event", self.call)

    async def _break_off(self, cut: Cut, events: list[StreamedEvent]) -> None:
        if cut.stored or cut.terminal:
            self.commit()
        terminal = next((event for event in events if event.is_terminal), None)
        if cut.terminal and terminal is not None:
            await self.outlet.send_piece(self.outlet.encode(terminal))
        await self.outlet.break_off(cut.ending)

    async def _end(self) -> None:
        if self.answer.never_ends:
            await wait_until_gone(self.outlet, self.barriers)
        is_done = self.answer.ends_with_done and not self.answer.never_ends
        await self.outlet.end_stream(done=is_done)


def _is_delta(event: StreamedEvent) -> bool:
    if event.name is None:
        return True
    return event.name.endswith("delta")


async def wait_until_gone(outlet: Outlet, barriers: Barriers) -> None:
    """Send nothing until the client disconnects, hanging calls are released, or we stop."""
    gone = asyncio.ensure_future(outlet.wait_gone())
    released = asyncio.ensure_future(barriers.hangs.wait())
    try:
        await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        released.cancel()
