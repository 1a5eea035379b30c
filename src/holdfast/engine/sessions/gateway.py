"""The engine's front door: accept a turn, get its lane, run it, read it, end it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core.errors import (
    HoldfastError,
    LaneTimeout,
    RunFenced,
    SessionBusy,
    SessionDeleted,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    TurnCancelled,
    TurnInterrupted,
    TurnNotFound,
)
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.turn import RUN_AGAIN, Fence, OnBusy, Successor, Turn
from holdfast.core.transaction.commands import (
    Accept,
    Append,
    Appended,
    Cancel,
    Claim,
    Command,
    Continue,
    Deliver,
    Finish,
    Queued,
    Recover,
    Repeated,
    Started,
)
from holdfast.engine.sessions.active_run import FIRST_PAUSE_SECONDS, ActiveRun, interrupted_finish
from holdfast.engine.sessions.quota import StorageQuota
from holdfast.engine.sessions.waiters import Waiter, WaiterRegistry
from holdfast.engine.sessions.worker import Worker
from holdfast.engine.settings import LaneSettings
from holdfast.ports.clock import Clock, Ids
from holdfast.ports.meter import Meter, NoMeter
from holdfast.ports.store import Reader, Store, TurnView

OutcomeT = TypeVar("OutcomeT")
AdmissionT = TypeVar("AdmissionT", Started | Queued, Started | Queued | Repeated)
Handler = Callable[[ActiveRun], Awaitable[None]]
"""Carries a turn out that nobody waits for on a socket, and finishes its run."""

WATCH_SECONDS = 0.25
"""How often somebody attached to a turn of another process looks at it."""
BUSY_SECONDS = 0.02
"""How often a batch that found its session busy looks whether it is free."""
SUBMIT_TRIES = 4
HANDLED_AT_ONCE = 32
"""Adopted turns that are carried out side by side: a crash may have left very many."""


_ADMISSIONS = {Started: "started", Queued: "queued", Repeated: "repeated"}


class Gateway:
    """One process's engine over one store."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: Ids,
        settings: LaneSettings | None = None,
        handler: Handler | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.store = store
        self.read: Reader = store.read
        """The reading side of the store."""
        self.meter: Meter = meter or NoMeter()
        self.ids = ids
        self.settings = settings or LaneSettings()
        self.clock = clock
        self._handler = handler
        self._wakeups = WaiterRegistry()
        self._wakeups.on_unwanted = self._not_wanted
        self._delivered: set[tuple[TurnId, int]] = set()
        self._handling = asyncio.Semaphore(HANDLED_AT_ONCE)
        self.worker = Worker(
            store, self._wakeups, ids=ids, settings=self.settings, meter=self.meter
        )
        self.limits = self.settings.limits(can_run_again=handler is not None)
        self.storage = StorageQuota(store.read, 0)

    async def start(self) -> None:
        """Take part: a lease, recovery of what others left, adoption of what can be run."""
        adopt = self._carry_out if self._handler is not None else None
        await self.worker.start(adopt, self._note_delivered)

    async def stop(self) -> None:
        """Leave; what is still open can be taken up by others at once."""
        await self.worker.stop()

    # ── turns ───────────────────────────────────────────────────────────────────────────────

    async def accept(self, command: Accept) -> Started | Queued | Repeated:
        """Make a turn durable; `command` brings ids from `self.ids`.

        The caller answers for what it gets: a started or queued turn is to be entered.
        """
        # The worker may have been born again since the command was written down.
        if command.worker != self.worker.id:
            command = replace(command, worker=self.worker.id)
        since = self._wakeups.moment
        self._wakeups.claim_turn(command.turn_id)
        try:
            admission = await self._submit_cancellable(command)
        except BaseException:
            self._wakeups.release_turn(command.turn_id)
            raise
        self.meter.turn_accepted(command.source, _ADMISSIONS[type(admission)])
        if admission.turn.id == command.turn_id and not isinstance(admission, Repeated):
            return admission
        return self._take_care(command, admission, since)

    def _take_care(
        self, command: Accept, admission: Started | Queued | Repeated, since: int
    ) -> Started | Queued | Repeated:
        """Answer for the turn that this request is: an earlier one's."""
        turn = admission.turn
        self._wakeups.release_turn(command.turn_id)
        if isinstance(admission, Repeated):
            return admission
        if not self._wakeups.claim_turn(turn.id, since) and isinstance(admission, Queued):
            # Another caller of this process waits for the same turn already: attach to it.
            return Repeated(turn, admission.session, None, turn.step)
        return admission

    async def _submit_cancellable(self, command: Command[AdmissionT]) -> AdmissionT:
        """Submit what may give a turn its lane; if the caller leaves meanwhile, free it again.

        What was submitted goes through whoever waits; asked again, the store tells what came of it.
        """
        try:
            try:
                return await self.store.submit(command)
            except StoreUnavailable:
                return await self._submit_again(command)
        except asyncio.CancelledError:
            asking = asyncio.ensure_future(self.submit(replace(command, again=True)))
            asking.add_done_callback(self._release_orphan)
            raise

    def _release_orphan(self, submitting: "asyncio.Future[Any]") -> None:
        if submitting.cancelled() or submitting.exception() is not None:
            return
        outcome = submitting.result()
        if isinstance(outcome, Started):
            self._not_wanted(outcome)
        elif isinstance(outcome, Queued) or self._is_left_waiting(outcome):
            self._leave_queue(outcome.turn)

    def _is_left_waiting(self, repeated: Repeated) -> bool:
        """Whether a repeat put its turn back into the queue, in our name, before it was left."""
        turn, session = repeated.turn, repeated.session
        is_queued = turn.is_open and session.active_turn_id != turn.id
        is_ours = turn.owner == self.worker.id and not self._wakeups.is_claimed(turn.id)
        return is_queued and is_ours

    def _leave_queue(self, turn: Turn) -> None:
        """Have a turn that nobody waits for any more end, before others wait behind it."""
        if turn.source in RUN_AGAIN and self._handler is not None:
            return  # nobody has to wait for it: the next sweep adopts it
        self.worker.defer_write(
            turn.id,
            Cancel(
                tenant=turn.tenant,
                turn_id=turn.id,
                reason="the turn was left while it waited",
                outcome="interrupted",
                code="caller_left",
                is_retryable=True,
                only_if_queued=True,
            ),
        )

    def begin(self, started: Started) -> ActiveRun:
        """Return the run of a turn that has its lane."""
        return ActiveRun(started, self.store, self._wakeups, self.meter)

    async def enter(self, admission: Started | Queued) -> ActiveRun:
        """Return the run of an accepted turn, once it has its lane."""
        started = admission
        try:
            if isinstance(started, Queued):
                since = self._wakeups.claimed_at(started.turn.id)
                started = await self._wait_for_lane(started, since=since)
            return self.begin(started)
        except BaseException as exc:
            self._wakeups.release_turn(admission.turn.id)
            is_ended = isinstance(
                exc, TurnInterrupted | TurnCancelled | TurnNotFound | SessionDeleted
            )
            if isinstance(admission, Queued) and not is_ended:
                self._leave_queue(admission.turn)
            raise

    def leave(self, run: ActiveRun) -> None:
        """Say that nobody here cares for the run's turn any more; an end it lacks is written."""
        self._wakeups.release_turn(run.turn.id)
        if not run.is_ended:
            self._give_back(run.turn, run.fence, run.unwritten)

    def _give_back(self, turn: Turn, fence: Fence, unwritten: Finish | None) -> None:
        """Free the lane of a run that was left: by the end it lacks, or to be run again.

        A turn that nobody waits for on a socket goes back into its queue; of a worker that stops,
        its heirs take it.
        """
        if unwritten is not None:
            self.worker.defer_write(fence.run_id, unwritten)
        elif turn.source not in RUN_AGAIN or self._handler is None:
            self.worker.defer_write(fence.run_id, interrupted_finish(fence))
        elif not self.worker.is_stopping:
            command = Recover(
                session_id=fence.session_id,
                worker=self.worker.id,
                forsaken=(fence.run_id,),
                limits=self.limits,
            )
            self.worker.defer_write(fence.run_id, command)

    async def _wait_for_lane(self, queued: Queued, *, since: int = -1) -> Started:
        """Return once the turn has its lane; `since` says when it was last known not to."""
        turn, began = queued.turn, self.clock.now()
        waiter = self._wakeups.queue(
            turn.session_id, turn.position, since=since, successor=self._new_run(turn)
        )
        until = began + self.settings.max_wait_seconds
        outcome: Started | Queued = queued
        try:
            while not isinstance(outcome, Started):
                left = until - self.clock.now()
                await waiter.wait(min(left, self._look_again_in(outcome)))
                if self.worker.is_stopping:
                    raise StoreClosed(f"turn {turn.id} waited when its store was closed")
                outcome = waiter.handed or await self._claim(waiter, turn)
                if not isinstance(outcome, Started) and until <= self.clock.now():
                    outcome = await self._give_up(waiter, turn)
        finally:
            self._wakeups.leave(waiter, is_served=isinstance(outcome, Started))
            if waiter.handed is not None and not isinstance(outcome, Started):
                self._not_wanted(waiter.handed)
        self.meter.lane_waited(self.clock.now() - began)
        return outcome

    def _new_run(self, turn: Turn) -> Successor:
        return Successor(turn.id, RunId(self.ids.new("run")))

    async def _claim(self, waiter: Waiter, turn: Turn) -> Started | Queued:
        """Ask for the lane; a run that ended meanwhile may have handed it to the waiter."""
        assert waiter.successor is not None
        claim = Claim(
            turn_id=turn.id,
            run_id=waiter.successor.run_id,
            worker=self.worker.id,
            limits=self.limits,
            again=waiter.is_named,
        )
        try:
            return await self._submit_cancellable(claim)
        except RunFenced:
            # It was handed the lane, and lost it before anybody here heard of that.
            waiter.successor, waiter.is_named = self._new_run(turn), False
            return await self._submit_cancellable(
                replace(claim, run_id=waiter.successor.run_id, again=False)
            )

    def _not_wanted(self, started: Started) -> None:
        """Free a lane that was given to a turn for which nobody stayed."""
        self._give_back(started.turn, started.fence, None)

    def _look_again_in(self, queued: Queued) -> float:
        """Return when, unwoken, the lane may have come free: a hold or a lease that ran out."""
        pause = self.settings.lease_seconds / 2
        if queued.look_again_at is None:
            return pause
        return min(pause, max(queued.look_again_at - self.clock.now(), 0.001))

    async def _give_up(self, waiter: Waiter, turn: Turn) -> Started:
        """End a turn that has waited too long; one that was handed its lane just now has it."""
        seconds = self.settings.max_wait_seconds
        message = f"turn {turn.id} waited {seconds:g} seconds for its lane"
        left = await self.submit(
            Cancel(
                tenant=turn.tenant,
                turn_id=turn.id,
                reason=message,
                outcome="failed",
                code=LaneTimeout.code,
                is_retryable=True,
                only_if_queued=True,
            )
        )
        if left.is_open and waiter.is_named:
            outcome = await self._claim(waiter, turn)
            if isinstance(outcome, Started):
                return outcome
        raise LaneTimeout(message)

    async def _carry_out(self, turn: Turn) -> None:
        """Run an adopted turn with the handler."""
        assert self._handler is not None
        view = await self.read.session(turn.tenant, session_id=turn.session_id)
        if view is None:
            return
        started = await self._wait_for_lane(Queued(turn, view.session))
        run = ActiveRun(started, self.store, self._wakeups, self.meter)
        try:
            async with self._handling:
                await self._handler(run)
        finally:
            self.leave(run)

    async def wait_until_ended(
        self, tenant: Tenant, turn_id: TurnId, *, step: int | None = None
    ) -> TurnView:
        """Return the turn once it has ended, or once the given step of it has been answered."""
        view = await self.read.turn(tenant, turn_id)
        if view is None:
            raise TurnNotFound(f"no turn {turn_id}")
        waiter = self._wakeups.watch(view.turn.session_id)
        try:
            while _is_under_way(view) and not _is_past(view.turn, step):
                await waiter.wait(WATCH_SECONDS)
                view = await self.read.turn(tenant, turn_id)
                if view is None:
                    raise SessionDeleted("the session of this turn was deleted")
        finally:
            self._wakeups.unwatch(waiter)
        return view

    async def why_lost(self, turn: Turn) -> HoldfastError:
        """Return what became of a turn whose run lost its lane, as its caller is told."""
        view = await self.read.turn(turn.tenant, turn.id)
        if view is None:
            return SessionDeleted("the session of this turn was deleted")
        if view.turn.outcome == "cancelled":
            return TurnCancelled(turn.id, view.turn.error_code)
        return TurnInterrupted(f"turn {turn.id} was taken over by another worker; send it again")

    def delivered(self, turn_id: TurnId, step: int) -> None:
        """Remember that an answer reached its client; noted with the next renewal of the lease.

        A crash before that only makes a retry of the same request attach to its turn for longer.
        """
        self._delivered.add((turn_id, step))

    async def _note_delivered(self) -> None:
        if self._delivered:
            steps, self._delivered = self._delivered, set()
            await self.submit(Deliver(steps=tuple(sorted(steps))))

    # ── short turns ─────────────────────────────────────────────────────────────────────────

    async def append(self, command: Append, *, on_busy: OnBusy = "enqueue") -> Appended:
        """Add items with no run: in one commit where the lane is free, else in its turn."""
        try:
            return await self.submit(command)
        except SessionBusy:
            if on_busy == "reject":
                raise
        return await self._append_in_turn(command, on_busy)

    async def continue_turn(self, command: Continue) -> Appended:
        """Add a batch to a turn whose run is somebody else's, once nothing of ours is under way."""
        try:
            return await self.submit(command)
        except SessionBusy:
            pass
        except (StoreUnavailable, StoreClosed):
            raise
        except StoreError:
            # Its turn's id is taken: by an earlier sending of it, which has to be looked for.
            if command.again:
                raise
        command = replace(command, again=True)
        until = self.clock.now() + self.settings.max_wait_seconds
        while True:
            await asyncio.sleep(BUSY_SECONDS)
            try:
                return await self.submit(command)
            except SessionBusy as exc:
                if self.clock.now() >= until:
                    seconds = self.settings.max_wait_seconds
                    message = f"a batch of turn {command.turn_id} waited {seconds:g} seconds"
                    raise LaneTimeout(message) from exc

    async def _append_in_turn(self, command: Append, on_busy: OnBusy) -> Appended:
        accept = Accept(
            tenant=command.tenant,
            turn_id=command.turn_id,
            run_id=RunId(self.ids.new("run")),
            worker=command.worker,
            candidate_id=command.candidate_id,
            key=command.key,
            session_id=command.session_id,
            items=command.items,
            source=command.source,
            on_busy=on_busy,
            idempotency_key=command.idempotency_key,
            body_hash=command.body_hash,
            retry_count=command.retry_count,
            limits=replace(self.limits, full_bytes=command.limits.full_bytes),
        )
        admission = await self.accept(accept)
        if isinstance(admission, Repeated):
            return await self._appended_before(admission)
        run = await self.enter(admission)
        try:
            ended = await run.finish(Finish(fence=run.fence, outcome="completed"))
        finally:
            self.leave(run)
        return Appended(ended.session, ended.turn)

    async def _appended_before(self, repeated: Repeated) -> Appended:
        """Wait for the one turn of a batch, and take its end as this one's."""
        turn = repeated.turn
        if turn.is_open:
            turn = (await self.wait_until_ended(turn.tenant, turn.id)).turn
        if turn.outcome == "completed":
            return Appended(repeated.session, turn)
        if turn.outcome == "cancelled":
            raise TurnCancelled(turn.id, turn.error_code)
        raise TurnInterrupted(f"turn {turn.id} was interrupted; send it again")

    # ── everything else ─────────────────────────────────────────────────────────────────────

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Carry out a command; one whose outcome is unknown is asked about before giving up."""
        try:
            return await self.store.submit(command)
        except StoreUnavailable:
            return await self._submit_again(command)

    async def _submit_again(self, command: Command[OutcomeT]) -> OutcomeT:
        """Ask what came of a command, as often as it makes sense."""
        command, pause = replace(command, again=True), FIRST_PAUSE_SECONDS
        for left in range(SUBMIT_TRIES - 2, -1, -1):
            await asyncio.sleep(pause)
            pause *= 2
            try:
                return await self.store.submit(command)
            except StoreUnavailable:
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def new_session_id(self) -> SessionId:
        """Return an id for a session that may have to be made."""
        return SessionId(self.ids.new("ses"))


def _is_under_way(view: TurnView) -> bool:
    """Whether the turn will go on: also one whose worker died, if others run it again."""
    if view.status in ("queued", "running"):
        return True
    return view.turn.is_open and view.status == "interrupted" and view.turn.source in RUN_AGAIN


def _is_past(turn: Turn, step: int | None) -> bool:
    return step is not None and turn.step > step
