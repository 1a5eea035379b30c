"""A response while it is being made: its events, numbered, for as many readers as want them.

The run writes and never waits. What the journal has is let go of beyond a bounded window: a reader
that is slower is fed from the journal, and cut off where there is none.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from holdfast.core.openai.encrypted_reasoning import shows_encrypted, without_encrypted
from holdfast.core.openai.event_batches import pack_events
from holdfast.core.openai.response import ResponseFacts, ResponseStatus
from holdfast.core.openai.stream_events import (
    CREATED,
    IN_PROGRESS,
    QUEUED,
    Delta,
    StreamEvent,
    begun,
    model_event,
    numbered,
    prologue,
    terminal,
)
from holdfast.core.transaction.commands import JournalEntry
from holdfast.ports.provider import AnyEvent, ModelEvent

WINDOW_BYTES = 256 * 1024
"""How far a reader may lag behind in memory."""
AT_ONCE_BYTES = 64 * 1024
"""How much a reader is given at once; of more it takes one part after the other."""
ENDED_BYTES = 32 * 1024 * 1024
"""How much of ended streams is kept in memory for readers who come back."""
News = Callable[[Sequence[StreamEvent]], None]
"""Somebody who is given events as they come; none where there is something else to see."""


class LiveResponse:
    """The events of one response, from its first to its terminal one."""

    def __init__(self, facts: ResponseFacts, *, first: int = 0) -> None:
        self.id = facts.id
        self.facts = facts
        self.is_ended = False
        self.is_cut = False
        self.is_journalled = facts.request.is_stored
        self.publish_after_commit = facts.request.is_background
        self.held_bytes = 0
        self.unkept_bytes = 0
        self._index_offset = 0
        self._shows_sealed = shows_encrypted(facts.request)
        self.next_number = first
        """The number that the next event gets."""
        self.first_held = first
        """The number of the oldest event that is still in memory."""
        self._kept = first
        self._told = first
        self._events: list[StreamEvent] = []
        self._listeners: list[News] = []

    # ── the run's side ──────────────────────────────────────────────────────────────────────

    def open(self, status: ResponseStatus) -> None:
        """Tell that the response was taken in, as `queued` or `in_progress`."""
        if self.publish_after_commit:
            for event in prologue(self.facts):
                self._add(event)
            self._told = self.next_number
        else:
            self._add(begun(CREATED, self.next_number, self.facts, status))
            if status == "queued":
                self._add(begun(QUEUED, self.next_number, self.facts, status))
        self._wake()

    def start(self) -> None:
        """Tell that a run has begun."""
        self._add(begun(IN_PROGRESS, self.next_number, self.facts, "in_progress"))
        if not self.publish_after_commit:
            self._wake(self._events[-1:])

    def publish(self, events: Sequence[AnyEvent]) -> int:
        """Number what the model says and give it to every reader; return how much it was."""
        first = number = self.next_number
        size = 0
        told: list[StreamEvent] = []
        for event in events:
            if isinstance(event, Delta):
                event.output_index += self._index_offset
                one = numbered(event, number)
            else:
                one = self._number(event, number)
            told.append(one)
            size += len(one.body)
            number += 1
        self._events += told
        self.next_number = number
        self.held_bytes += size
        self.unkept_bytes += size
        if not self.is_journalled:
            self._shrink(first)
        if not self.publish_after_commit:
            for listener in self._listeners:
                listener(told if size <= AT_ONCE_BYTES else ())
        return size

    def _number(self, event: ModelEvent, number: int) -> StreamEvent:
        data = event.data
        if self._index_offset and "output_index" in data:
            data = {**data, "output_index": data["output_index"] + self._index_offset}
        item = data.get("item")
        if not self._shows_sealed and isinstance(item, dict):
            data = {**data, "item": without_encrypted(item)}
        return model_event(event.type, number, data)

    def shift_indexes(self, count: int) -> None:
        """Number output items from `count` on: those before belong to an earlier attempt."""
        self._index_offset = count

    def unkept(self) -> JournalEntry | None:
        """Return what the journal does not have yet."""
        events = self._events[self._kept - self.first_held :]
        if not events or not self.is_journalled:
            return None
        return pack_events(self._kept, [event.kept() for event in events])

    def keep(self, entry: JournalEntry | None) -> None:
        """Say that a batch is durable: it may be read now, and let go of."""
        if entry is None:
            return
        self._kept = entry.last + 1
        fresh = self._events[self._kept - self.first_held :]
        self.unkept_bytes = sum(len(event.body) for event in fresh)
        self._shrink()
        self._wake()

    def end(self, facts: ResponseFacts) -> None:
        """Publish the terminal event, once the end is recorded; nothing comes after it."""
        if self.publish_after_commit:
            # Nobody has seen what was never kept, and nobody will: numbers follow the journal.
            self.next_number = self._shown_end()
            del self._events[self.next_number - self.first_held :]
        self._add(terminal(self.next_number, facts))
        self.is_ended = True
        self._shrink()
        self._wake()

    def cut(self) -> None:
        """Say that this process has nothing more to tell, although the response has not ended."""
        self.is_cut = True
        self._wake()

    def _add(self, event: StreamEvent) -> None:
        self._events.append(event)
        self.next_number += 1
        self.held_bytes += len(event.body)
        self.unkept_bytes += len(event.body)

    def _shrink(self, last: int | None = None) -> None:
        """Let go of the oldest events beyond the window, as far as nobody needs them from here.

        Without a journal they are needed until whoever waits for them had the time to look: those
        from `last` on, the latest one at least.
        """
        if self.held_bytes <= WINDOW_BYTES:
            return
        latest = last if last is not None else self.next_number - 1
        limit = self._kept if self.is_journalled else latest
        count = 0
        while self.held_bytes > WINDOW_BYTES // 2 and self.first_held + count < limit:
            self.held_bytes -= len(self._events[count].body)
            count += 1
        del self._events[:count]
        self.first_held += count

    def _wake(self, told: Sequence[StreamEvent] = ()) -> None:
        for listener in self._listeners:
            listener(told)

    # ── the readers' side ───────────────────────────────────────────────────────────────────

    def _shown_end(self) -> int:
        if self.is_ended or not self.publish_after_commit:
            return self.next_number
        return max(self._kept, self._told)

    def after(self, number: int, max_bytes: int) -> Sequence[StreamEvent]:
        """Return events that follow a number and may be seen, about so many bytes of them."""
        place, end = number + 1 - self.first_held, self._shown_end() - self.first_held
        size, stop = 0, place
        while stop < end and size < max_bytes:
            size += len(self._events[stop].body)
            stop += 1
        return self._events[place:stop]

    def listen(self, listener: News) -> None:
        """Call somebody for all news; it is called in the middle of the run, and never fails."""
        self._listeners.append(listener)

    def unlisten(self, listener: News) -> None:
        """Call them no more."""
        self._listeners.remove(listener)


class LiveResponses:
    """The streams of this process, running and just ended, bounded in bytes."""

    def __init__(self, max_bytes: int = ENDED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._running: dict[str, LiveResponse] = {}
        self._ended: OrderedDict[str, LiveResponse] = OrderedDict()
        self._ended_bytes = 0
        self.is_closing = False
        """Whether this process is about to end: readers of what it does not run are let go."""

    def get(self, name: str) -> LiveResponse | None:
        """Return a response's events, if this process has them."""
        return self._running.get(name) or self._ended.get(name)

    def add(self, live: LiveResponse) -> None:
        """Hold a stream that begins."""
        self._forget(live.id)
        self._running[live.id] = live

    def settle(self, live: LiveResponse) -> None:
        """Hold a stream that has ended for a while; one that was cut is let go of."""
        if self._running.get(live.id) is not live:
            return
        del self._running[live.id]
        if not live.is_ended:
            return
        self._ended[live.id] = live
        self._ended_bytes += live.held_bytes
        while self._ended_bytes > self._max_bytes:
            _, oldest = self._ended.popitem(last=False)
            self._ended_bytes -= oldest.held_bytes

    def _forget(self, name: str) -> None:
        old = self._ended.pop(name, None)
        if old is not None:
            self._ended_bytes -= old.held_bytes
