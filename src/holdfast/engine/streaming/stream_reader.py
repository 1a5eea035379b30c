"""One reader's place in a response's stream: from memory while it is near, else from the journal.

A reader never holds up a run. Where neither memory nor a journal has what it missed, it is told
so instead of being given a stream with a gap.
"""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import Tenant
from holdfast.core.openai.response import ResponseFacts
from holdfast.core.openai.stream_events import StreamEvent, prologue, retold, terminal
from holdfast.engine.streaming.live_response import AT_ONCE_BYTES, LiveResponse, LiveResponses
from holdfast.engine.streaming.response_records import ResponseRecords
from holdfast.ports.store import ResponseView

PushCallback = Callable[[Sequence[StreamEvent]], bool]
"""Somebody who takes events at once, or says that they cannot."""
LOOK_SECONDS = 0.1
"""How often a stream of another process is looked at."""


class StreamLost(HoldfastError):
    """The stream cannot be continued here without a gap; the response itself can be fetched."""

    code = "stream_lost"
    retryable = True


class StreamReader:
    """Reads one response from a number on."""

    def __init__(
        self,
        recorded: ResponseRecords,
        lives: LiveResponses,
        tenant: Tenant,
        name: str,
        after: int = -1,
    ) -> None:
        self._recorded = recorded
        self._lives = lives
        self._tenant = tenant
        self._name = name
        self._after = after
        self.is_over = False
        """Whether the last event has been taken."""

    async def take(
        self, seconds: float, push: PushCallback | None = None
    ) -> Sequence[StreamEvent] | None:
        """Return the next events; none if there were none for so long; `None` at the end.

        What comes while this waits is given to `push` as it comes, for as long as it takes it.
        """
        if self.is_over:
            return None
        live = self._lives.get(self._name)
        if live is None:
            return self._seen(await self._follow_record(seconds))
        if self._after + 1 < live.first_held:
            return self._seen(await self._catch_up(live))
        return await self._follow(live, seconds, push)

    async def close(self) -> None:
        """A reader that goes leaves nothing behind: the run is not its own."""

    def _seen(self, events: Sequence[StreamEvent]) -> Sequence[StreamEvent] | None:
        if events:
            self._after = events[-1].number
        return None if self.is_over and not events else events

    async def _follow(
        self, live: LiveResponse, seconds: float, push: PushCallback | None
    ) -> Sequence[StreamEvent] | None:
        while not (events := live.after(self._after, AT_ONCE_BYTES)):
            if live.is_ended:
                self.is_over = True
                return None
            if live.is_cut:
                return self._seen(await self._follow_record(seconds))
            if not await self._wait(live, seconds, push):
                return ()
            if self._after + 1 < live.first_held:
                return self._seen(await self._catch_up(live))
        self._after = events[-1].number
        self.is_over = live.is_ended and self._after + 1 == live.next_number
        return events

    async def _wait(self, live: LiveResponse, seconds: float, push: PushCallback | None) -> bool:
        """Wait until there is something to do, for so long at most; return whether there is."""
        watch = _Watch(self._after, seconds, push)
        live.listen(watch.hear)
        try:
            return await watch.waiter
        finally:
            live.unlisten(watch.hear)
            watch.timer.cancel()
            self._after = watch.after

    async def _catch_up(self, live: LiveResponse) -> Sequence[StreamEvent]:
        """Feed a reader that fell behind what is in memory."""
        view = await self._find() if live.is_journalled else None
        if view is None:
            raise StreamLost(f"the reader of {self._name} fell too far behind")
        events = await self._recorded.events(view, live.facts, self._after)
        if not events:
            raise StreamLost(f"the journal of {self._name} is gone")
        return events

    async def _follow_record(self, seconds: float) -> Sequence[StreamEvent]:
        """Read a stream that this process does not have: another's, or one that has ended."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            events = await self._look()
            if events or self.is_over:
                return events
            if self._lives.is_closing:
                raise StreamLost(f"response {self._name} goes on elsewhere; come back for it")
            left = until - loop.time()
            if left <= 0 or self._lives.get(self._name) is not None:
                return ()
            await asyncio.sleep(min(left, LOOK_SECONDS))

    async def _look(self) -> Sequence[StreamEvent]:
        # The end is looked at first: whatever was kept before it is then in the journal.
        view = await self._find()
        if view is None:
            raise StreamLost(f"response {self._name} is gone")
        facts = await self._recorded.facts(view)
        events = await self._recorded.events(view, facts, self._after)
        if events:
            return events
        if facts.status in ("queued", "in_progress"):
            return await self._beginning(view, facts)
        self.is_over = True
        return await self._ending(view, facts)

    async def _beginning(self, view: ResponseView, facts: ResponseFacts) -> list[StreamEvent]:
        """Return what can be told of a background stream before its journal begins."""
        if not facts.request.is_background or await self._recorded.has_journal(view):
            return []
        return self._missed(prologue(facts))

    async def _ending(self, view: ResponseView, facts: ResponseFacts) -> list[StreamEvent]:
        """Return what follows the journal of a response that has ended: its terminal event."""
        if await self._recorded.has_journal(view):
            is_told = not await self._recorded.events(view, facts, self._after - 1)
            return [] if is_told else [terminal(self._after + 1, facts)]
        if facts.request.is_background and not facts.output:
            told = prologue(facts)
            return self._missed([*told, terminal(len(told), facts)])
        # It was told without a journal: a reader who comes back is owed at least its end.
        told = self._missed(retold(facts))
        number = told[-1].number + 1 if told else self._after + 1
        return [*told, terminal(number, facts)]

    def _missed(self, events: list[StreamEvent]) -> list[StreamEvent]:
        return [event for event in events if event.number > self._after]

    async def _find(self) -> ResponseView | None:
        return await self._recorded.find(self._tenant, self._name)


class _Watch:
    """A reader that waits. One timer and one future serve as many events as are given away."""

    def __init__(self, after: int, seconds: float, push: PushCallback | None) -> None:
        self.after = after
        """The number of the last event that was given away."""
        self._seconds = seconds
        self._push = push
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self.waiter: asyncio.Future[bool] = self._loop.create_future()
        self.timer = self._loop.call_later(seconds, self._look)

    def hear(self, told: Sequence[StreamEvent]) -> None:
        """There is news: give it away, or have the reader see to it."""
        waiter, push = self.waiter, self._push
        if waiter.done():
            return
        try:
            if push is None or not told or told[0].number != self.after + 1 or not push(told):
                waiter.set_result(True)
            else:
                self.after = told[-1].number
                self._heard_at = self._loop.time()
        except Exception as exc:  # noqa: BLE001 - the reader's to raise, not the run's
            waiter.set_exception(exc)

    def _look(self) -> None:
        left = self._heard_at + self._seconds - self._loop.time()
        if left > 0:
            self.timer = self._loop.call_later(left, self._look)
        elif not self.waiter.done():
            self.waiter.set_result(False)
