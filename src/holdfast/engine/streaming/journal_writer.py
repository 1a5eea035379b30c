"""Writes a running stream: events to readers and the journal, unfinished text to the store.

Events of background streams are committed before anybody sees them. Other streams are journalled at
their end, or as soon as they exceed their memory window. Unfinished text is checkpointed at least
every quarter of a second.
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
"""How long events of a background stream are batched; with the commit, under 50 ms."""
YIELD_AFTER_BYTES = 64 * 1024
"""How much a provider may write before other tasks get to run."""
CHECKPOINT_SECONDS = 0.2
"""How long text is collected before a checkpoint; with the commit, under 250 ms."""
SHORT_CHARACTERS = 16 * 1024
"""A text of a background stream of up to this length is stored with each batch of its journal.

A cancel from elsewhere then keeps all that readers were shown. A longer text is stored at
checkpoints only: each time the whole text is written.
"""
SHARED_SECONDS = 0.02
"""Checkpoints that are due within this time are written together, so that they share a commit."""


class JournalWriter:
    """The event sink of a run; call `settle` before committing the end of the run."""

    def __init__(self, run: ActiveRun, live: LiveResponse) -> None:
        self._run = run
        self._live = live
        live.run_id = run.fence.run_id
        self._partial = PartialOutput()
        self._unfolded: list[AnyEvent] = []
        """Events that `_partial` does not have yet: they are added in batches, at checkpoints."""
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_settled = False
        self._written_bytes = 0
        self._saved_at = asyncio.get_running_loop().time()
        self._held: list[AnyEvent] | None = None
        """Events that are held back; None while events are shown as they arrive."""
        self.has_output = False
        """Whether the model has sent any event; after that nothing is retried."""

    def start(self) -> None:
        """Publish that the run has started."""
        self._live.start()
        if self._live.publish_after_commit:
            self._schedule()

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Publish events of the model. False means that the caller must drain first."""
        live = self._live
        if self._held is not None:
            self._held += events
            return True
        if events:
            self.has_output = True
        self._unfolded += events
        self._written_bytes += live.publish(events)
        if self._timer is None or live.uncommitted_bytes > WINDOW_BYTES:
            self._schedule()
        return self._written_bytes <= YIELD_AFTER_BYTES

    async def drain(self) -> None:
        """Let other tasks run; slow readers do not slow down the run."""
        self._written_bytes = 0
        await asyncio.sleep(0)

    async def hold(self) -> None:
        """Stop showing output and store what was shown: the run is about to be interrupted."""
        self._held = self._held or []
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        live, partial = self._live, self._fold()
        entry = live.uncommitted() if live.publish_after_commit else None
        if self._is_settled or not (partial.has_changed or entry):
            return
        try:
            await self._run.extend(partial=partial.checkpoint(), journal=entry)
            live.mark_committed(entry)
        except HoldfastError as exc:
            partial.has_changed = True
            log.failed("run.checkpoint_failed", exc, run_id=self._run.fence.run_id)

    def release(self) -> None:
        """Show what was held back, unless the run was interrupted."""
        held, self._held = self._held, None
        if held and not self._run.is_lost:
            self.write(held)

    def interrupted_output(self) -> tuple[tuple[NewItem, ...], tuple[NewItem, ...]]:
        """Return the items that the model has finished, and its unfinished ones."""
        partial = self._fold()
        finished = tuple(read_item(body) for body in partial.finished())
        return finished, partial.unfinished()

    def end(self, journal: JournalEntry | None, facts: ResponseFacts) -> None:
        """Publish the end, after it was committed together with the rest of the journal."""
        if journal is not None:
            self._live.mark_committed(journal)
        self._live.end(facts)

    def begin_step(self) -> None:
        """Continue after `settle`: the output so far is committed as items, no longer partial."""
        self._unfolded = []
        self._partial = PartialOutput()
        self._is_settled = False
        if self._has_more():
            self._schedule()

    def _fold(self) -> PartialOutput:
        """Return the accumulated output, including recent events."""
        if self._unfolded:
            self._partial.add(self._unfolded)
            self._unfolded = []
        return self._partial

    def _schedule(self) -> None:
        """Schedule a write of new events: soon, or at once if there are many."""
        if self._writing is not None:
            return
        live = self._live
        if live.uncommitted_bytes > WINDOW_BYTES and live.is_journalled:
            self._write()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            if live.publish_after_commit:
                self._timer = loop.call_later(BATCH_SECONDS, self._write)
            else:
                due = loop.time() + CHECKPOINT_SECONDS
                self._timer = loop.call_at(due - due % SHARED_SECONDS, self._write)

    @property
    def _is_overgrown(self) -> bool:
        return self._live.is_journalled and self._live.uncommitted_bytes > WINDOW_BYTES

    async def settle(self) -> JournalEntry | None:
        """Stop writing; return the batch that the commit of the run's end must include.

        A write in flight is awaited, so that its batch is not committed again with the end.
        """
        self._is_settled = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        return self._live.uncommitted()

    def _write(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None and not self._is_settled:
            self._writing = asyncio.create_task(self._commit(), name="holdfast-journal")

    async def _commit(self) -> None:
        loop = asyncio.get_running_loop()
        live, partial = self._live, self._fold()
        is_batch = live.publish_after_commit or self._is_overgrown
        entry = live.uncommitted() if is_batch else None
        text = None
        # Timers fire a little early; without the margin a checkpoint would wait for another batch.
        is_due = loop.time() - self._saved_at >= CHECKPOINT_SECONDS - BATCH_SECONDS
        if live.publish_after_commit and live.shown_characters <= SHORT_CHARACTERS:
            is_due = True
        if partial.has_changed and is_due:
            self._saved_at = loop.time()
            text = partial.checkpoint()
        try:
            if entry is not None or text is not None:
                await self._run.extend(partial=text, journal=entry)
                live.mark_committed(entry)
        except RunFenced:
            # The run may wait for a silent upstream, and would not notice for as long.
            if not self._is_settled:
                self._is_settled = True
                self._run.abort()
        except HoldfastError as exc:
            partial.has_changed = partial.has_changed or text is not None
            log.failed("run.checkpoint_failed", exc, run_id=self._run.fence.run_id)
        finally:
            self._writing = None
            if not self._is_settled and self._has_more():
                self._schedule()

    def _has_more(self) -> bool:
        """Whether there is more to write. Events of a foreground stream may stay in memory."""
        if self._live.publish_after_commit and self._live.uncommitted_bytes:
            return True
        return bool(self._unfolded) or self._partial.has_changed or self._is_overgrown
