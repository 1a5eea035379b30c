"""What a stream leaves behind as it runs: batches of its events, and the text so far.

Background streams are kept before they are seen. Others are kept at their end, or as soon as
they outgrow their window. The text so far is written at least every quarter of a second.
"""

import asyncio
from collections.abc import Sequence

from holdfast.core.errors import HoldfastError, RunFenced
from holdfast.core.model.items import NewItem, read_item
from holdfast.core.openai.response import ResponseFacts
from holdfast.core.transaction.commands import JournalEntry
from holdfast.engine.logging import log
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.streaming.live_response import WINDOW_BYTES, LiveResponse
from holdfast.engine.streaming.partial_output import PartialOutput
from holdfast.ports.provider import AnyEvent

BATCH_SECONDS = 0.04
"""How long events of a background stream are gathered; with the commit, under 50 ms."""
YIELD_AFTER_BYTES = 64 * 1024
"""How much may be said at once before others have their turn."""
CHECKPOINT_SECONDS = 0.2
"""How long text is gathered before it is made durable; with the commit, under 250 ms."""
SHARED_SECONDS = 0.02
"""Texts that are due so close together are written at one time, in one commit."""


class JournalWriter:
    """Tells one run's stream and keeps it; `settle` comes before the end is recorded.

    It is the `EventSink` to whom the model speaks.
    """

    def __init__(self, run: ActiveRun, live: LiveResponse) -> None:
        self._run = run
        self._live = live
        self._partial = PartialOutput()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_settled = False
        self._said = 0
        self._saved_at = asyncio.get_running_loop().time()

    def start(self) -> None:
        """Tell that the run has begun."""
        self._live.start()
        self._note()

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Pass on what the model says; return whether it may say more at once."""
        live = self._live
        self._partial.see(events)
        self._said += live.publish(events)
        if self._timer is None or live.unkept_bytes > WINDOW_BYTES:
            self._note()
        return self._said <= YIELD_AFTER_BYTES

    async def drain(self) -> None:
        """A model may say much at once; readers are not slow for that."""
        self._said = 0
        await asyncio.sleep(0)

    @property
    def has_output(self) -> bool:
        """Whether the model has said anything at all."""
        return self._partial.has_output

    def broken_off(self) -> tuple[tuple[NewItem, ...], tuple[NewItem, ...]]:
        """Return what the model had finished, and what it had begun."""
        finished = tuple(read_item(body) for body in self._partial.finished())
        return finished, self._partial.items()

    def end(self, journal: JournalEntry | None, facts: ResponseFacts) -> None:
        """Tell how it ended, once that is recorded together with the rest of the journal."""
        self._live.keep(journal)
        self._live.end(facts)

    def _note(self) -> None:
        """Something was said: write it soon, or now if there is much of it."""
        if self._writing is not None:
            return
        if self._is_overgrown:
            self._write()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            if self._live.publish_after_commit:
                self._timer = loop.call_later(BATCH_SECONDS, self._write)
            else:
                due = loop.time() + CHECKPOINT_SECONDS
                self._timer = loop.call_at(due - due % SHARED_SECONDS, self._write)

    @property
    def _is_overgrown(self) -> bool:
        return self._live.is_journalled and self._live.unkept_bytes > WINDOW_BYTES

    async def settle(self) -> JournalEntry | None:
        """Write no more; return what the record of the run's end must bring along."""
        self._is_settled = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        return self._live.unkept()

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None and not self._is_settled:
            self._writing = asyncio.create_task(self._keep(), name="holdfast-journal")

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        live, partial = self._live, self._partial
        is_batch = live.publish_after_commit or self._is_overgrown
        entry = live.unkept() if is_batch else None
        text = None
        # Timers come a little early, and what is not written now waits for another batch at least.
        if partial.has_news and loop.time() - self._saved_at >= CHECKPOINT_SECONDS - BATCH_SECONDS:
            self._saved_at = loop.time()
            text = partial.take()
        try:
            if entry is not None or text is not None:
                await self._run.extend(partial=text, journal=entry)
                live.keep(entry)
        except RunFenced:
            self._is_settled = True
        except HoldfastError as exc:
            partial.has_news = partial.has_news or text is not None
            log.warning("run.not_kept", run_id=self._run.fence.run_id, code=exc.code)
        finally:
            self._writing = None
            if not self._is_settled and (partial.has_news or live.unkept_bytes):
                self._again()

    def _again(self) -> None:
        """There is more by now; a foreground stream has it in memory until its end."""
        if self._live.publish_after_commit or self._partial.has_news or self._is_overgrown:
            self._note()
