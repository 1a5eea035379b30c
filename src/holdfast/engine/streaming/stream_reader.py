"""A reader of a response's stream: from memory while possible, else from the journal.

A reader never delays a run. If neither memory nor a journal has the events it missed, it gets an
error instead of a stream with a gap.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import RunId, Tenant
from holdfast.core.openai.response import ResponseFacts, cut_off_end, deleted_end
from holdfast.core.openai.stream_events import (
    StreamEvent,
    prologue,
    rebuild_events,
    terminal_event,
)
from holdfast.engine.streaming.live_response import (
    LiveCursor,
    LiveResponse,
    LiveResponses,
    PushCallback,
)
from holdfast.engine.streaming.response_records import ResponseRecords
from holdfast.ports.store import ResponseView

MAX_RESUMES = 16
"""How often one request tries to resume a turn that loses its workers."""
POLL_SECONDS = 0.1
"""How often a stream of another process is polled."""


class StreamLost(HoldfastError):
    """The stream cannot be continued here without a gap; the response itself can be fetched."""

    code = "stream_lost"
    retryable = True


class StreamReader:
    """Reads one response, starting after a position."""

    def __init__(
        self,
        records: ResponseRecords,
        lives: LiveResponses,
        tenant: Tenant,
        name: str,
        after: int = -1,
    ) -> None:
        self._records = records
        self._lives = lives
        self._tenant = tenant
        self.name = name
        """The id of the response."""
        self._after = after
        self.is_over = False
        """Whether the last event was read."""
        self.resume: Callable[[], Awaitable[object]] | None = None
        """Resumes the turn if it lost its worker."""
        self._resumes_left = MAX_RESUMES
        self._facts: ResponseFacts | None = None
        """The response as it was last read."""
        self._run_id: RunId | None = None
        """The run whose events were read from a journal; attempts number their events anew."""
        live = lives.get(name)
        # Taken now: a stream that is not stored is only in memory, and may end before it is read.
        self._cursor = LiveCursor(live, after) if live is not None else None

    @property
    def position(self) -> int:
        """The number of the last event that was read or pushed."""
        return self._after if self._cursor is None else self._cursor.position

    async def take(
        self, seconds: float, push: PushCallback | None = None
    ) -> Sequence[StreamEvent] | None:
        """Return the next events; empty after `seconds` without events; None at the end.

        Events that arrive while this waits are passed to `push`, as long as it accepts them.
        """
        if self.is_over:
            return None
        cursor = self._cursor
        if cursor is None and (live := self._live()) is not None:
            cursor = self._cursor = LiveCursor(live, self.position)
        if cursor is None:
            return self._advance(await self._follow_record(seconds))
        events = await cursor.read(seconds, push)
        if events is not None:
            self.is_over = cursor.is_over
            return events
        self._after, self._cursor, self._facts = cursor.position, None, cursor.live.facts
        if cursor.is_behind:
            if not cursor.live.publish_after_commit:
                self._run_id = cursor.live.run_id
            return self._advance(await self._catch_up(cursor.live))
        if cursor.live.is_ended:
            self.is_over = True
            return None
        return self._advance(await self._follow_record(seconds))

    def _live(self) -> LiveResponse | None:
        """Return the stream in memory, unless it is that of another attempt than was read."""
        live = self._lives.get(self.name)
        if live is None or live.publish_after_commit or self._run_id in (None, live.run_id):
            return live
        return None

    def note_progress(self) -> None:
        """Record that the client goes on reading what was taken."""
        if self._cursor is not None:
            self._cursor.note_progress()

    async def close(self) -> None:
        """Release what is kept for this reader; the run is not affected."""
        self._after, self._cursor = self.position, None

    def _advance(self, events: Sequence[StreamEvent]) -> Sequence[StreamEvent] | None:
        if events:
            self._after = events[-1].number
        return None if self.is_over and not events else events

    async def _catch_up(self, live: LiveResponse) -> Sequence[StreamEvent]:
        """Return events that are no longer in memory, from the journal."""
        view = await self._find() if live.is_journalled else None
        if view is None:
            raise StreamLost(f"the reader of {self.name} fell too far behind")
        events = await self._records.events(view, live.facts, self._after)
        # Read again: another attempt replaces the journal after it has started.
        view = await self._find()
        if view is not None and self._is_of_another_run(view):
            return self._cut_off(live.facts)
        if not events:
            raise StreamLost(f"the journal of {self.name} is gone")
        return events

    async def _follow_record(self, seconds: float) -> Sequence[StreamEvent]:
        """Read a stream that this process does not have: it ended or runs in another process."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            events = await self._read_record()
            if events or self.is_over:
                return events
            if self._lives.is_closing:
                raise StreamLost(
                    f"response {self.name} continues in another process; reconnect to read it"
                )
            seconds_left = until - loop.time()
            if seconds_left <= 0 or self._live() is not None:
                return ()
            await asyncio.sleep(min(seconds_left, POLL_SECONDS))

    async def _read_record(self) -> Sequence[StreamEvent]:
        # Read the status before the journal: once it is terminal, the journal is complete. In the
        # other order, events committed in between would be skipped.
        view = await self._find()
        facts = await self._records.kept_facts(view) if view is not None else None
        if view is None or facts is None:
            return self._deleted_events()
        self._facts = facts
        if self._is_of_another_run(view):
            return self._cut_off(facts)
        status = (view.joined or view).turn_status
        may_resume = status == "interrupted" and self._resumes_left and self._run_id is None
        if self.resume is not None and may_resume:
            self._resumes_left -= 1
            await self.resume()
            return []
        is_open = facts.status in ("queued", "in_progress")
        if is_open and not facts.request.is_background:
            # Until the run has ended, the journal may be that of an earlier attempt.
            return []
        events = await self._records.events(view, facts, self._after)
        if events:
            if not facts.request.is_background and view.run is not None:
                self._run_id = view.run.id
            return events
        if is_open:
            return await self._first_events(view, facts)
        self.is_over = True
        return await self._last_events(view, facts)

    def _is_of_another_run(self, view: ResponseView) -> bool:
        """Whether another attempt than the one that was read has the record and the journal."""
        return self._run_id is not None and (view.run is None or view.run.id != self._run_id)

    def _cut_off(self, facts: ResponseFacts) -> list[StreamEvent]:
        """Return the end of a stream whose run was not the last one of its turn."""
        self.is_over = True
        return [terminal_event(self._after + 1, cut_off_end(facts))]

    def _deleted_events(self) -> list[StreamEvent]:
        """Return the end of a stream whose session or response was deleted while it was read."""
        if self._facts is None or self._facts.status not in ("queued", "in_progress"):
            raise StreamLost(f"response {self.name} is gone")
        self.is_over = True
        return [terminal_event(self._after + 1, deleted_end(self._facts))]

    async def _first_events(self, view: ResponseView, facts: ResponseFacts) -> list[StreamEvent]:
        """Return the events of a background stream that come before its journal."""
        if not facts.request.is_background or await self._records.has_journal(view):
            return []
        return self._unread(prologue(facts))

    async def _last_events(self, view: ResponseView, facts: ResponseFacts) -> list[StreamEvent]:
        """Return the events after the journal of an ended response: its terminal event."""
        if await self._records.has_journal(view):
            # The worker of a foreground stream may have died after events that it had not stored.
            is_lost = view.turn_status == "interrupted" and not facts.request.is_background
            is_read = not is_lost and not await self._records.events(view, facts, self._after - 1)
            return [] if is_read else [terminal_event(self._after + 1, facts)]
        if facts.request.is_background and not facts.output:
            events = prologue(facts)
            return self._unread([*events, terminal_event(len(events), facts)])
        # A stream without a journal: a reader that reconnects gets at least its end.
        events = self._unread(rebuild_events(facts))
        number = events[-1].number + 1 if events else self._after + 1
        return [*events, terminal_event(number, facts)]

    def _unread(self, events: list[StreamEvent]) -> list[StreamEvent]:
        return [event for event in events if event.number > self._after]

    async def _find(self) -> ResponseView | None:
        return await self._records.find(self._tenant, self.name)
