"""One run: the only thing in the process that may write to its session, while it may."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import IdempotencyMismatch, RunFenced, SessionMoved, StoreUnavailable
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.records import quarantined
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Fence
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
)
from holdfast.engine.logging import log
from holdfast.engine.sessions.waiters import Waiter, WaiterRegistry
from holdfast.ports.meter import Meter, NoMeter
from holdfast.ports.store import Store

FINISH_TRIES = 8
FIRST_PAUSE_SECONDS = 0.05


class Batch(msgspec.Struct, frozen=True):
    """What a caller may send again, and counts once."""

    id: str
    body_hash: bytes


class ActiveRun:
    """A run that was given its lane. `is_lost` once the lane was taken from it."""

    def __init__(
        self, started: Started, store: Store, wakeups: WaiterRegistry, meter: Meter | None = None
    ) -> None:
        self._meter: Meter = meter or NoMeter()
        self.turn = started.turn
        self.session = started.session
        self.fence = started.fence
        self.is_rolled_over = started.is_rolled_over
        self.is_lost = False
        self.preface: tuple[bytes, ...] = ()
        """Items that its answer begins with: what was done before the model was asked."""
        self._end: Ended | None = None
        self._finishing: Finish | None = None
        self._refused: Finish | None = None
        self._unsaved: tuple[NewItem, ...] = ()
        self._healed = 0
        self._shown_records = started.session.record_no
        """The last record over the log that what was shown to the model knows of."""
        self._store = store
        self._wakeups = wakeups
        self._on_lost: Callable[[], object] | None = None
        wakeups.on_stop(self.fence.run_id, self._lose)

    def on_lost(self, callback: Callable[[], object]) -> None:
        """Call back when the lane is taken away, so that upstream work can be aborted."""
        self._on_lost = callback
        if self.is_lost:
            callback()

    def _lose(self) -> None:
        self.is_lost = True
        log.info("run.lost", run_id=self.fence.run_id, session_id=self.fence.session_id)
        if self._on_lost is not None:
            self._on_lost()

    async def items(self) -> Sequence[StoredItem]:
        """Return what the turn may see: the history, compacted where it is, and its own items."""
        self._shown_records = self.session.record_no
        return await self._store.read.context(self.session)

    async def quarantined(self) -> frozenset[int]:
        """Return the items that a provider could not take; a session without records has none."""
        if not self.session.record_no and self.session.parent_id is None:
            return frozenset()
        return quarantined(await self._store.read.lineage_records(self.session))

    async def context(self) -> list[bytes]:
        """Return the items of a valid model request."""
        return project(await self.items(), await self.quarantined())

    async def extend(
        self,
        items: Sequence[NewItem] = (),
        partial: Sequence[NewItem] | None = None,
        journal: JournalEntry | None = None,
        batch: Batch | None = None,
    ) -> Session:
        """Make finished items durable now, and remember unfinished ones in case of a crash.

        Items are given once: if the store is unavailable, the run's next write brings them along.
        A batch that counts once is given alone, after all others.
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
            self._lose_quietly()
            raise
        except IdempotencyMismatch:
            self._unsaved = ()
            raise
        # Another write of this run may have been answered first: never go back.
        self.session = max(self.session, session, key=lambda one: one.version)
        self._unsaved = self._unsaved[len(command.items) :]
        return self.session

    @property
    def has_unsaved(self) -> bool:
        """Whether the run's next write brings something along."""
        return bool(self._unsaved)

    async def record_heal(self, command: RecordHeal) -> None:
        """Note on the run what was done about a failure of its provider, once."""
        await self._note(replace(command, number=self._healed))
        self._healed += 1

    async def compact(self, command: Compact) -> Session:
        """Record what stands for a part of the log; sent again if its outcome is not known.

        Raises `SessionMoved` if that part was changed since `items` was read: read it anew.
        """
        try:
            return await self._note(replace(command, shown_records=self._shown_records))
        except SessionMoved:
            await self._look_again()
            raise

    async def _look_again(self) -> None:
        """Take in what others wrote over the log."""
        view = await self._store.read.session(self.turn.tenant, session_id=self.session.id)
        if view is not None and self.fence.holds(view.session):
            self.session = view.session

    async def _note(self, command: Command[Session]) -> Session:
        pause = FIRST_PAUSE_SECONDS
        for left in reversed(range(FINISH_TRIES)):
            try:
                session = await self._store.submit(command)
            except RunFenced:
                self._lose_quietly()
                raise
            except StoreUnavailable:
                if not left:
                    raise
                command = replace(command, again=True)
                await asyncio.sleep(pause)
                pause *= 2
            else:
                self.session = max(self.session, session, key=lambda one: one.version)
                return session
        raise AssertionError("the last try returns or raises")

    async def finish(self, command: Finish) -> Ended:
        """End the run durably. An unknown outcome is asked about until it is known."""
        next_one = self._wakeups.ending(self.fence.run_id, self.fence.session_id)
        items = (*self._unsaved, *command.items) if self._unsaved else command.items
        command = replace(
            command,
            items=items,
            after_seq=self.session.head_seq,
            shown_records=self._shown_records,
            successor=next_one.successor if next_one is not None else None,
        )
        self._finishing = command
        pause = FIRST_PAUSE_SECONDS
        for left in range(FINISH_TRIES - 1, -1, -1):
            try:
                ended = await self._store.submit(command)
            except RunFenced:
                self._lose_quietly()
                raise
            except StoreUnavailable:
                if not left:
                    raise
                command = replace(command, again=True)
                await asyncio.sleep(pause)
                pause *= 2
            except Exception as exc:
                # It would be refused again: an end without what was refused frees the lane.
                self._refused = rejected_finish(self.fence, exc)
                raise
            else:
                self._end = ended
                if next_one is None:
                    self._wakeups.wake(ended.session.id)
                else:
                    self._pass_on(ended, next_one, is_certain=not command.again)
                self._meter.run_ended(command.outcome)
                log.info(
                    "run.ended",
                    run_id=self.fence.run_id,
                    turn_id=self.turn.id,
                    session_id=self.fence.session_id,
                    outcome=command.outcome,
                )
                return ended
        raise AssertionError("the last try returns or raises")

    def _pass_on(self, ended: Ended, next_one: Waiter, *, is_certain: bool) -> None:
        """Have who is next go on: with the lane that it was handed, or by a look at it."""
        if ended.successor is not None:
            self._wakeups.hand_over(next_one, ended.successor)
            return
        if is_certain:
            next_one.is_named = False
        self._wakeups.wake(ended.session.id)

    @property
    def unwritten(self) -> Finish | None:
        """The end that the run has if it is not known to be written."""
        if self._refused is not None or self._finishing is None:
            return self._refused
        return replace(self._finishing, again=True, successor=None)

    @property
    def is_ended(self) -> bool:
        """Whether nothing is left to be written for the run: it has its end, or lost its lane."""
        return self._end is not None or self.is_lost

    def abandon(self) -> None:
        """Leave the run as it is, for recovery to take up."""
        self._wakeups.off_stop(self.fence.run_id)

    def _lose_quietly(self) -> None:
        self.is_lost = True
        self._wakeups.off_stop(self.fence.run_id)


def rejected_finish(fence: Fence, exc: Exception) -> Finish:
    """Return the end of a run whose own end the store does not take."""
    return Finish(
        fence=fence,
        outcome="failed",
        error_code="turn_failed",
        error_message=f"{type(exc).__name__}: its end was refused",
        is_retryable=True,
    )


def interrupted_finish(fence: Fence) -> Finish:
    """Return the end of a run whose task went away without one."""
    return Finish(
        fence=fence,
        outcome="interrupted",
        error_code="caller_left",
        error_message="the turn was left before it ended",
        is_retryable=True,
    )
