"""A run that holds its lane: the only object of the process that may write to its session.

Every write carries the run's fence. Once another worker owns the lane, the store refuses the write
and the run is lost: its caller aborts the upstream call and reports the state of the turn.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.hide import is_changed
from holdfast.core.errors import IdempotencyMismatch, RunFenced, SessionMoved, StoreUnavailable
from holdfast.core.healing.refused_items import find_question
from holdfast.core.ids import TurnId
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.request import SentRequest, TurnRequest
from holdfast.core.model.session import ProviderState, Session, Usage
from holdfast.core.model.turn import Fence, Run
from holdfast.core.projection.project import project
from holdfast.core.transaction.commands import (
    Command,
    Compact,
    Ended,
    Extend,
    Finish,
    JournalEntry,
    RecordHeal,
    Started,
    UndoCompaction,
)
from holdfast.engine.logging import log
from holdfast.engine.sessions.submission import FINISH_TRIES, ask_again, resubmit, submit
from holdfast.engine.sessions.waiters import WaiterRegistry
from holdfast.ports.meter import Meter
from holdfast.ports.store import Store

_run_log = log.logger("run.ended")
_NONE_QUARANTINED: frozenset[int] = frozenset()


class Batch(msgspec.Struct, frozen=True):
    """The id of a batch of items, which is added once however often it is sent."""

    id: str
    body_hash: bytes


class HeldOutput(Protocol):
    """The output of a run, which can be held back temporarily."""

    async def hold(self) -> None:
        """Stop showing output, and store everything that was shown."""
        ...

    def release(self) -> None:
        """Show the output that was held back."""
        ...


class ActiveRun:
    """A run, from getting its lane to its end or the loss of the lane."""

    # Class attributes as defaults: few runs change these.
    is_lost = False
    """Whether the lane was taken from the run."""
    is_rejected = False
    """Whether it fails because of the client's request, so that operators need not act."""
    writer: HeldOutput | None = None
    """Shows the run's output, if it is streamed."""
    stop_code: str | None = None
    """The code with which the run ends as cancelled; None if it is not stopped."""
    preface: tuple[bytes, ...] = ()
    """Items with which the answer begins: the compaction that the client requested."""
    sent: SentRequest | None = None
    """The last request that was sent to a provider."""
    earlier: tuple[SentRequest, ...] = ()
    """Earlier requests of the run, whose answers were calls of gateway tools."""
    requested: TurnRequest | None = None
    """The original request, if the model is shown other tools than it names."""
    left_out: tuple[int, ...] = ()
    """Earlier items that were left out because the provider refused them."""
    placeholders: frozenset[int] = frozenset()
    """Those of them that stay as placeholders: outputs of tools."""
    approval_seconds: float | None = None
    """How long an agent may wait for a permission; None if nobody can give it."""
    ended: Ended | None = None
    """The committed end of the run."""
    _finishing: Finish | None = None
    _rejected: Finish | None = None
    _unsaved: tuple[NewItem, ...] = ()
    _heal_count = 0

    def __init__(
        self,
        store: Store,
        registry: WaiterRegistry,
        meter: Meter,
        started: Started,
        on_lost: Callable[[], object] | None = None,
    ) -> None:
        self._meter = meter
        self.turn = started.turn
        self.session = started.session
        self.fence = started.fence
        self.permissions: dict[str, bool] = {}
        """Answers to the agent's permission requests, by the ids of the calls."""
        self._shown_records = started.session.record_no
        """The last record over the log that the model's context includes."""
        self._store = store
        self._registry = registry
        self._on_lost = on_lost
        registry.running[self.fence.run_id] = self.abort
        if self.fence.run_id in registry.stopped_early:
            # A reset was committed after the commit that started the run.
            registry.notify((), (self.fence.run_id,))

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the lane is lost, or at once if it is, to abort upstream work."""
        self._on_lost = callback
        if self.is_lost:
            callback()

    def abort(self) -> None:
        """Stop the task of a run that has lost its lane; another task learned of the loss."""
        self.is_lost = True
        log.info("run.lost", run_id=self.fence.run_id, session_id=self.fence.session_id)
        if self._on_lost is not None:
            self._on_lost()

    def stop(self, code: str) -> bool:
        """End the run as cancelled, with what it has shown; return False if it is already ending.

        The task that executes the run is cancelled and commits the end.
        """
        if self.is_ended or self._finishing is not None or self._on_lost is None:
            return False
        if self.stop_code is None:
            self.stop_code = code
            self._on_lost()
        return True

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    async def items(self) -> Sequence[StoredItem]:
        """Return the turn's context: the compacted history and the turn's own items.

        A short outage of the store is waited for: it must not make the turn fail.
        """
        self._shown_records = self.session.record_no
        try:
            return await self._store.read.context(self.session)
        except StoreUnavailable:
            return await ask_again(self._store, partial(self._store.read.context, self.session))

    async def is_context_outdated(self) -> bool:
        """Whether items were hidden or erased since the context was read; `items` reads it again.

        Raise `RunFenced` if the lane was lost, with its session or alone.
        """
        read, session_id = self._store.read, self.session.id
        find = partial(read.session, self.turn.tenant, session_id=session_id)
        try:
            view = await find()
        except StoreUnavailable:
            view = await ask_again(self._store, find)
        if view is None or not self.fence.holds(view.session):
            self._mark_lost()
            raise RunFenced(f"run {self.fence.run_id} has lost session {session_id}")
        self._advance(view.session)
        if self.session.record_no <= self._shown_records:
            return False
        return is_changed(self.session, await read.records(self.session), self._shown_records)

    async def own_items(self) -> list[StoredItem]:
        """Return the part of the context that belongs to the run's own turn."""
        session_id, number = self.session.id, self.turn.number
        items = await self.items()
        return [
            item for item in items if (item.session_id, item.turn_number) == (session_id, number)
        ]

    async def quarantined(self) -> frozenset[int]:
        """Return the items that a provider could not process; without records there are none."""
        if not self.session.record_no and self.session.parent_id is None:
            return _NONE_QUARANTINED
        try:
            return await self._store.read.quarantined(self.session)
        except StoreUnavailable:
            return await ask_again(self._store, partial(self._store.read.quarantined, self.session))

    async def all_runs(self) -> list[Run]:
        """Return every run of the turn, including this one."""
        try:
            return await self._store.read.runs(self.turn.id)
        except StoreUnavailable:
            return await ask_again(self._store, partial(self._store.read.runs, self.turn.id))

    async def context(self) -> list[bytes]:
        """Return the items of a valid model request."""
        return project(await self.items(), await self.quarantined())

    async def own_range(self) -> tuple[int, int]:
        """Return the first and last item of the input of the run's model call."""
        turn = self.turn
        assert turn.first_seq is not None
        assert turn.last_seq is not None
        first = turn.first_seq
        if turn.step:
            # Later steps answer the outputs of tools that were called in earlier steps.
            runs = await self.all_runs()
            ends = [run.last_seq for run in runs if run.step < turn.step and run.last_seq]
            first = max(ends) + 1 if ends else first
        return first, turn.last_seq

    async def question(self) -> int | None:
        """Return the first item of the run's question; None if it has no input of its own."""
        first, last = await self.own_range()
        history = await self._store.read.context(self.session)
        return find_question([item for item in history if first <= item.seq <= last])

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    async def extend(
        self,
        items: Sequence[NewItem] = (),
        partial: Sequence[NewItem] | None = None,
        journal: JournalEntry | None = None,
        batch: Batch | None = None,
    ) -> Session:
        """Commit finished items now, and checkpoint unfinished ones in case of a crash.

        Pass each item once: if the store is unavailable, the run's next write includes it.
        Pass a batch with an id alone, after everything else is saved.
        """
        self._unsaved = (*self._unsaved, *items)
        command = Extend(
            fence=self.fence,
            items=self._unsaved,
            after_seq=self.session.head_seq,
            partial=tuple(partial) if partial is not None else None,
            journal=journal,
            shown_records=self._shown_records,
            tenant=self.turn.tenant,
            idempotency_key=batch.id if batch is not None else None,
            body_hash=batch.body_hash if batch is not None else None,
        )
        try:
            session = await self._store.submit(command)
        except RunFenced:
            self._mark_lost()
            raise
        except IdempotencyMismatch:
            self._unsaved = ()
            raise
        self._advance(session)
        self._unsaved = self._unsaved[len(command.items) :]
        return self.session

    async def commit_step(
        self,
        items: Sequence[NewItem],
        *,
        state: ProviderState | None = None,
        usage: Usage | None = None,
        merges: tuple[TurnId, ...] = (),
        outbox: tuple[OutboxMessage, ...] = (),
    ) -> None:
        """Commit a model's answer or the outputs of its tools before the turn continues.

        Return only once it is durable: a tool must not run before its call is committed. No other
        write of the run may be in flight.
        """
        command = Extend(
            fence=self.fence,
            items=(*self._unsaved, *items),
            after_seq=self.session.head_seq,
            shown_records=self._shown_records,
            provider_state=state,
            usage=usage,
            merges=merges,
            outbox=outbox,
        )
        await self._annotate(command)
        self._unsaved = ()

    @property
    def has_unsaved(self) -> bool:
        """Whether the run's next write includes items of an earlier write that failed."""
        return bool(self._unsaved)

    async def record_heal(self, command: RecordHeal) -> None:
        """Record once how a failure of the provider was handled."""
        await self._annotate(replace(command, number=self._heal_count))
        self._heal_count += 1

    async def compact(self, command: Compact) -> Session:
        """Record a compaction of a range of the log.

        Raise `SessionMoved` if that range changed since `items` was read: the caller reads it
        again.
        """
        try:
            return await self._annotate(replace(command, shown_records=self._shown_records))
        except SessionMoved:
            view = await self._store.read.session(self.turn.tenant, session_id=self.session.id)
            if view is not None and self.fence.holds(view.session):
                self.session = view.session
            raise

    async def undo_compaction(self, compaction_id: str) -> None:
        """Undo a compaction of this run's session."""
        command = UndoCompaction(
            tenant=self.turn.tenant, session_id=self.session.id, compaction_id=compaction_id
        )
        await self._annotate(command)

    async def _annotate(self, command: Command[Session]) -> Session:
        try:
            session = await submit(self._store, command, tries=FINISH_TRIES)
        except RunFenced:
            self._mark_lost()
            raise
        self._advance(session)
        return session

    def _advance(self, session: Session) -> None:
        """Replace the session by a newer version of it.

        Two writes of one run may be in flight (a checkpoint and a heal) and be answered in any
        order: an older answer must not overwrite a newer one.
        """
        if session.version > self.session.version:
            self.session = session

    async def finish(self, command: Finish) -> Ended:
        """End the run durably; return only once the outcome of the commit is known."""
        # The waiter is named before the commit, so that the commit itself starts its run: the
        # lane is never free in between, and the waiter needs no claim of its own.
        registry = self._registry
        registry.running.pop(self.fence.run_id, None)
        waiter = registry.next_in_lane(self.fence.session_id) if registry.lanes else None
        command = self._finishing = replace(
            command,
            items=(*self._unsaved, *command.items) if self._unsaved else command.items,
            after_seq=self.session.head_seq,
            shown_records=self._shown_records,
            successor=waiter.successor if waiter is not None else None,
            left_out=self.left_out,
            placeholders=self.placeholders,
        )
        is_certain = True
        try:
            try:
                ended = await self._store.submit(command)
            except StoreUnavailable:
                is_certain = False
                ended = await resubmit(self._store, command, tries=FINISH_TRIES - 1)
        except RunFenced:
            self._mark_lost()
            raise
        except StoreUnavailable:
            raise
        except Exception as exc:
            # The store would reject it again: an end without the rejected content frees the lane.
            self._rejected = rejected_finish(self.fence, exc)
            raise
        self.ended = ended
        registry.claims.pop(self.turn.id, None)
        if waiter is not None and ended.successor is not None:
            registry.hand_over(waiter, ended.successor)
        else:
            if waiter is not None and is_certain:
                # Otherwise it may own the lane without anybody knowing the run: then it claims the
                # run that it was named with.
                waiter.may_own_lane = False
            registry.wake(ended.session.id)
        outcome: str = command.outcome
        if ended.turn.outcome is None:
            outcome = "requires_action"
        elif self.is_rejected and outcome == "failed":
            outcome = "rejected"
        self._meter.run_ended(outcome)
        if _run_log.isEnabledFor(logging.INFO):
            log.info(
                "run.ended",
                run_id=self.fence.run_id,
                turn_id=self.turn.id,
                session_id=self.fence.session_id,
                outcome=command.outcome,
            )
        return ended

    async def finish_shielded(self, command: Finish) -> Ended:
        """End the run; a cancelled caller still waits until the end is committed."""
        ending = asyncio.ensure_future(self.finish(command))
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.gather(ending, return_exceptions=True)
            raise

    # ── leaving ─────────────────────────────────────────────────────────────────────────────

    @property
    def unwritten(self) -> Finish | None:
        """The end that may not be committed yet."""
        if self._rejected is not None or self._finishing is None:
            return self._rejected
        return replace(self._finishing, again=True, successor=None)

    @property
    def is_ended(self) -> bool:
        """Whether nothing is left to write: the end is committed, or the lane is lost."""
        return self.ended is not None or self.is_lost

    def abandon(self) -> None:
        """Leave the run open for recovery."""
        self._registry.running.pop(self.fence.run_id, None)

    def _mark_lost(self) -> None:
        """Record a loss that the caller learns from an exception: no callback, no log event."""
        self.is_lost = True
        self._registry.running.pop(self.fence.run_id, None)


def rejected_finish(fence: Fence, exc: Exception) -> Finish:
    """Return the end for a run whose own end the store rejected."""
    return Finish(
        fence=fence,
        outcome="failed",
        error_code="turn_failed",
        error_message=f"{type(exc).__name__}: the store rejected the end of the run",
        is_retryable=True,
    )


def interrupted_finish(fence: Fence) -> Finish:
    """Return the end for a run whose task stopped before ending it."""
    return Finish(
        fence=fence,
        outcome="interrupted",
        error_code="caller_left",
        error_message="the turn was abandoned before it ended",
        is_retryable=True,
    )
