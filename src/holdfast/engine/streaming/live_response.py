"""A response in progress: its numbered events, for any number of readers.

The run publishes and never waits for a reader. Beyond a bounded window, events that the journal has
are dropped from memory: a slower reader continues from the journal. Without a journal, events stay
until every reader that keeps up has them; a reader that does not gets an error.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakMethod, WeakSet

import msgspec

from holdfast.core.errors import ProviderFailure
from holdfast.core.ids import RunId
from holdfast.core.openai.response import (
    ResponseFacts,
    ResponseStatus,
    shows_encrypted,
    without_encrypted,
)
from holdfast.core.openai.stream_events import (
    CREATED,
    DELTA_BYTES,
    DELTA_CHARACTERS,
    IN_PROGRESS,
    QUEUED,
    Delta,
    StreamEvent,
    item_events,
    journal_events,
    lifecycle_event,
    number_event,
    pack_events,
    prologue,
    split_deltas,
    terminal_event,
)
from holdfast.core.transaction.commands import JournalEntry
from holdfast.ports.provider import AnyEvent, ModelEvent

WINDOW_BYTES = 256 * 1024
"""How many bytes of events are kept in memory for slow readers."""
READ_BYTES = 64 * 1024
"""How many bytes a reader gets at once."""
STALL_SECONDS = 5.0
"""A reader beyond the window that takes nothing for this long does not keep up."""
MAX_UNREAD_BYTES = 32 * 1024 * 1024
"""How many bytes of a stream without a journal are kept for readers that keep up."""
MAX_TEXT = 16 * 1024 * 1024
"""The most characters of all deltas of one response: 30 times a model's longest answer.

The text is in memory several times: for checkpoints, and as the answer's items.
"""
PushCallback = Callable[[Sequence[StreamEvent]], bool]
"""Sends events at once; returns False if they cannot be sent now."""


class StreamClient(Protocol):
    """A client that reads a stream as the answer to its request."""

    @property
    def caller(self) -> bytes:
        """The hash of its API key."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether it has closed its connection."""
        ...

    @property
    def position(self) -> int:
        """The number of the last event that was sent to it."""
        ...


class LiveResponse:
    """The events of one response, from the first to the terminal one."""

    def __init__(self, facts: ResponseFacts, *, first: int = 0, drops_unread: bool = True) -> None:
        self.id = facts.id
        self.facts = facts
        self.run_id: RunId | None = None
        """The run that publishes its events; None before it starts."""
        self.is_ended = False
        self.is_detached = False
        """Whether this process gets no more events, although the response has not ended."""
        self.is_journalled = facts.request.is_stored
        self.publish_after_commit = facts.request.is_background
        self.held_bytes = 0
        self.uncommitted_bytes = 0
        self.next_number = first
        """The number of the next event."""
        self.first_held = first
        """The number of the oldest event in memory."""
        self.first_output: int | None = None
        """The number of the model's first event."""
        self.clients: list[StreamClient] = []
        """The clients whose requests this stream answers; empty once it has ended."""
        self._drops_unread = drops_unread
        self._shows_encrypted = "include" in facts.request.fields and shows_encrypted(facts.request)
        self._committed = first
        """The number of the first event that the journal does not have."""
        self._prologue_end = first
        self._has_started = False
        self.shown_characters = 0
        """The characters of all deltas so far."""
        self._events: list[StreamEvent] = []
        self._shrinks_at = WINDOW_BYTES
        """How many bytes are held when the next events are dropped."""
        # Weak: a reader refers to its stream, and a cycle would keep both until they are collected.
        self._readers: WeakSet[LiveCursor] = WeakSet()
        self.waiting: list[LiveCursor] = []
        """The readers that wait for events."""

    # ── the run's side ──────────────────────────────────────────────────────────────────────

    def open(self, status: ResponseStatus) -> None:
        """Publish that the response was accepted, as `queued` or `in_progress`."""
        if self.publish_after_commit:
            for event in prologue(self.facts):
                self._add(event)
            self._prologue_end = self.next_number
        else:
            self._add(lifecycle_event(CREATED, self.next_number, self.facts, status))
            if status == "queued":
                self._add(lifecycle_event(QUEUED, self.next_number, self.facts, status))
        if self.waiting:
            self._wake()

    def start(self) -> None:
        """Publish that a run has started."""
        self._has_started = True
        self._add(lifecycle_event(IN_PROGRESS, self.next_number, self.facts, "in_progress"))
        if not self.publish_after_commit:
            self._wake(self._events[-1:])

    def publish(self, events: Sequence[AnyEvent]) -> int:
        """Number a model's events and send them to every reader; return their approximate size.

        A delta is not encoded here, nor what repeats a long text: its reader may need another form,
        or there may be no reader.
        """
        first = number = self.next_number
        size, text, is_pushed = 0, self.shown_characters, True
        numbered: list[StreamEvent] = []
        for event in events:
            if isinstance(event, Delta):
                length = len(event.delta)
                if length > DELTA_CHARACTERS:
                    return LiveResponse.publish(self, split_deltas(events))
                event.sequence_number = number
                text += length
                event_bytes = length + DELTA_BYTES
                numbered.append(StreamEvent(event.type, number, None, None, event, event_bytes))
            else:
                data, item = event.data, event.data.get("item")
                is_hidden = not self._shows_encrypted
                if is_hidden and isinstance(item, dict) and item.get("type") == "reasoning":
                    data = {**data, "item": without_encrypted(item)}
                is_long = text > DELTA_CHARACTERS
                numbered.append(number_event(event.type, number, data, is_long=is_long))
                is_pushed = is_pushed and numbered[-1].data is None
                event_bytes = numbered[-1].size
                text += event_bytes if event.type.endswith(".delta") else 0
            size += event_bytes
            number += 1
        if self.first_output is None:
            self.first_output = first
        if text > MAX_TEXT:
            raise _too_long()
        self.shown_characters = text
        self._events += numbered
        self.next_number = number
        self.held_bytes += size
        self.uncommitted_bytes += size
        if not self.publish_after_commit:
            for cursor in self.waiting:
                cursor.receive(numbered if size <= READ_BYTES and is_pushed else ())
        if self.held_bytes > self._shrinks_at and not self.is_journalled:
            self._shrink()
        return size

    def uncommitted(self) -> JournalEntry | None:
        """Return the events that the journal does not have yet, as one batch."""
        events = self._events[self._committed - self.first_held :]
        if not events or not self.is_journalled:
            return None
        return pack_events(self._committed, journal_events(events))

    def mark_committed(self, entry: JournalEntry | None) -> None:
        """Record that a batch is durable: readers may see it, and it may be dropped from memory."""
        if entry is None:
            return
        self._committed = entry.last + 1
        rest = self._events[self._committed - self.first_held :]
        self.uncommitted_bytes = sum(event.size for event in rest)
        self._shrink()
        self._wake()

    def end(self, facts: ResponseFacts) -> None:
        """Publish the terminal event, after the end was committed."""
        if self.publish_after_commit:
            # Events that were not committed were never shown and will not be in the journal: the
            # terminal event gets the next number of the journal.
            self.next_number = self._visible_end()
            del self._events[self.next_number - self.first_held :]
        self._add(terminal_event(self.next_number, facts))
        self.is_ended = True
        self.clients = []
        self._wake()
        if self.held_bytes > WINDOW_BYTES:
            self._shrink()

    def end_whole(self, facts: ResponseFacts) -> None:
        """Publish the whole answer of another turn or run, and the end."""
        if self.publish_after_commit:
            # This turn has no journal: readers rebuild the events from the record.
            self.detach()
            return
        if not self._has_started:
            self.start()
        self.publish(
            [
                ModelEvent(kind, data)
                for index, body in enumerate(facts.output)
                for kind, data in item_events(index, msgspec.json.decode(body))
            ]
        )
        self.end(facts)

    def detach(self) -> None:
        """Make readers continue from the journal, which another attempt may extend."""
        self.is_detached = True
        self._wake()

    def _add(self, event: StreamEvent) -> None:
        self._events.append(event)
        self.next_number += 1
        self.held_bytes += event.size
        self.uncommitted_bytes += event.size

    def _shrink(self) -> None:
        """Drop the oldest events beyond the window, unless they are only in memory and needed."""
        if self.held_bytes <= WINDOW_BYTES or not self._drops_unread:
            return
        if self.is_journalled:
            self._drop_to(WINDOW_BYTES // 2, self._committed)
            return
        if self.held_bytes > MAX_UNREAD_BYTES:
            self._drop_to(MAX_UNREAD_BYTES // 2, self.next_number)
        needed = [reader.position + 1 for reader in self._readers if reader.keeps_up]
        self._drop_to(WINDOW_BYTES // 2, min(needed, default=self.next_number - 1))
        self._shrinks_at = self.held_bytes + WINDOW_BYTES // 2
        if self.is_ended and needed and self.held_bytes > WINDOW_BYTES:
            # Nothing is published any more, but its readers may stall.
            again = WeakMethod(self._shrink)
            asyncio.get_running_loop().call_later(STALL_SECONDS, _call, again)

    def _drop_to(self, size: int, limit: int) -> None:
        """Drop events before a number, the oldest first, until `size` bytes are left."""
        count = 0
        while self.held_bytes > size and self.first_held + count < limit:
            self.held_bytes -= self._events[count].size
            count += 1
        del self._events[:count]
        self.first_held += count

    def release(self, number: int) -> None:
        """Drop the events up to a number, because the only reader has them."""
        count = number + 1 - self.first_held
        if count > 0:
            self.held_bytes -= sum(event.size for event in self._events[:count])
            del self._events[:count]
            self.first_held += count

    def _wake(self, events: Sequence[StreamEvent] = ()) -> None:
        for cursor in self.waiting:
            cursor.receive(events)

    # ── the readers' side ───────────────────────────────────────────────────────────────────

    def _visible_end(self) -> int:
        """Return the number after the last visible event of a background stream."""
        if self.is_ended:
            return self.next_number
        return max(self._committed, self._prologue_end)

    def after(self, number: int, max_bytes: int) -> Sequence[StreamEvent]:
        """Return visible events after a number, about `max_bytes` of them."""
        end = self._visible_end() if self.publish_after_commit else self.next_number
        place, end = number + 1 - self.first_held, end - self.first_held
        size, stop = 0, place
        while stop < end and size < max_bytes:
            size += self._events[stop].size
            stop += 1
            if self._events[stop - 1].data is not None:
                break  # it is as large as the text so far
        return self._events[place:stop]

    def attach(self, cursor: "LiveCursor") -> None:
        """Keep the events that a reader needs, as long as it exists and keeps up."""
        self._readers.add(cursor)


def _call(method: "WeakMethod[Callable[[], None]]") -> None:
    """Call a method unless its object is gone."""
    found = method()
    if found is not None:
        found()


def _too_long() -> ProviderFailure:
    return ProviderFailure(
        f"the text of the upstream's answer exceeds {MAX_TEXT} characters",
        failure_class="terminal",
        status=502,
        provider_code="upstream_answer_too_long",
        provider_type="server_error",
    )


class LiveCursor:
    """The position of a reader in a live response.

    While the reader waits, events are pushed to it, or it is woken to read them.
    """

    __slots__ = (
        "__weakref__", "_future", "_heard_at", "_loop", "_push", "_seconds", "_timer", "live",
        "position",
    )  # fmt: skip

    def __init__(self, live: LiveResponse, position: int = -1) -> None:
        self.live = live
        self.position = position
        """The number of the last event that was read or pushed."""
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        live.attach(self)

    @property
    def is_over(self) -> bool:
        """Whether the terminal event was read."""
        return self.live.is_ended and self.position + 1 == self.live.next_number

    @property
    def is_behind(self) -> bool:
        """Whether the next event is no longer in memory."""
        return self.position + 1 < self.live.first_held

    @property
    def keeps_up(self) -> bool:
        """Whether the reader has taken something a short time ago."""
        return self._loop.time() - self._heard_at <= STALL_SECONDS

    def note_progress(self) -> None:
        """Record that the reader takes what it has read."""
        self._heard_at = self._loop.time()

    async def read(
        self, seconds: float, push: PushCallback | None = None
    ) -> Sequence[StreamEvent] | None:
        """Return the next events; empty after `seconds` without events.

        None if memory has no more: the response ended or was detached, or the cursor fell behind.
        Events that arrive meanwhile are passed to `push`, as long as it accepts them.
        """
        live = self.live
        self._heard_at = self._loop.time()
        while self.position + 1 >= live.first_held:
            has_more = self.position + 1 < live.next_number
            if has_more and (events := live.after(self.position, READ_BYTES)):
                self.position = events[-1].number
                return events
            if live.is_ended or live.is_detached:
                return None
            if not await self.wait(seconds, push):
                return ()
        return None

    async def wait(self, seconds: float, push: PushCallback | None = None) -> bool:
        """Wait at most `seconds` until there is something to do; return whether there is."""
        loop = self._loop
        self._push, self._seconds, self._heard_at = push, seconds, loop.time()
        future: asyncio.Future[bool] = loop.create_future()
        self._future = future
        # One timer for all events that are pushed meanwhile.
        self._timer = loop.call_later(seconds, self._check_silence)
        waiting = self.live.waiting
        waiting.append(self)
        try:
            return await future
        finally:
            waiting.remove(self)
            self._timer.cancel()

    def receive(self, events: Sequence[StreamEvent]) -> None:
        """Push events that follow the position; wake the reader if that is not possible.

        Called from within the run: an exception is passed to the reader and must not affect the
        run.
        """
        if self._future.done():
            return
        try:
            push = self._push
            if (
                push is not None
                and events
                and events[0].number == self.position + 1
                and push(events)
            ):
                self.position = events[-1].number
            else:
                self._future.set_result(True)
            self._heard_at = self._loop.time()
        except Exception as exc:  # noqa: BLE001 - raised where the reader waits
            self._future.set_exception(exc)

    def _check_silence(self) -> None:
        seconds_left = self._heard_at + self._seconds - self._loop.time()
        if seconds_left > 0:
            self._timer = self._loop.call_later(seconds_left, self._check_silence)
        elif not self._future.done():
            self._future.set_result(False)


class LiveResponses:
    """The streams in progress in this process.

    Streams that have ended are read from the record, where an erased answer is gone.
    """

    def __init__(self) -> None:
        self.running: dict[str, LiveResponse] = {}
        """The streams by their ids."""
        self.get = self.running.get
        """Return the live response of an id, if this process has it."""
        self.is_closing = False
        """Whether this process is shutting down: readers of other processes' streams must
        disconnect."""

    def add(self, live: LiveResponse) -> None:
        """Add a stream that starts."""
        self.running[live.id] = live

    def retire(self, live: LiveResponse) -> None:
        """Remove a stream that has ended or was detached; its present readers keep it."""
        if self.running.get(live.id) is live:
            del self.running[live.id]
