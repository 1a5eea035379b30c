"""One process's access to its sessions: accept a turn, get its lane, run it, release it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core.errors import (
    HoldfastError,
    SessionDeleted,
    StoreUnavailable,
    TurnCancelled,
    TurnFailed,
    TurnInterrupted,
    TurnNotFound,
)
from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.turn import RUN_AGAIN, Fence, Turn
from holdfast.core.transaction.commands import (
    Accept,
    Cancel,
    Command,
    Delete,
    Finish,
    Hide,
    LaneLimits,
    MarkDelivered,
    Queued,
    Recover,
    Repeated,
    Reset,
    Restore,
    Started,
)
from holdfast.engine.logging import log
from holdfast.engine.sessions.active_run import ActiveRun, interrupted_finish
from holdfast.engine.sessions.lane_queue import LaneQueue
from holdfast.engine.sessions.quota import StorageQuota
from holdfast.engine.sessions.submission import SUBMIT_TRIES, resubmit, submit
from holdfast.engine.sessions.waiters import WaiterRegistry
from holdfast.engine.sessions.worker import Worker
from holdfast.engine.settings import LaneSettings
from holdfast.ports.clock import Clock, Ids
from holdfast.ports.meter import Meter
from holdfast.ports.request_context import begin_context
from holdfast.ports.session_runtimes import RuntimeSession, SessionRuntimes
from holdfast.ports.store import Outage, Reader, Store, TurnView

OutcomeT = TypeVar("OutcomeT")
AdmissionT = TypeVar("AdmissionT", Started | Queued, Started | Queued | Repeated)
Handler = Callable[[ActiveRun], Awaitable[None]]
"""Executes a recovered turn, for which no client waits, and finishes its run."""

POLL_SECONDS = 0.25
"""How often a caller polls a turn that runs in another process."""
RECOVERED_AT_ONCE = 32
"""How many recovered turns run in parallel: a crash may leave a large number."""

_ADMISSIONS = {Started: "started", Queued: "queued", Repeated: "repeated"}


def ended_error(turn: Turn) -> HoldfastError:
    """Return the error for a caller whose turn ended without completing."""
    if turn.outcome == "cancelled":
        return TurnCancelled(turn.id, turn.error_code)
    if turn.outcome == "failed":
        message = turn.error_message or "the turn failed"
        return TurnFailed(message, failure_code=turn.error_code or TurnFailed.code)
    return TurnInterrupted(f"turn {turn.id} was interrupted; send it again")


def _log_outage(outage: Outage) -> None:
    """Log that the store cannot be used, or can be used again; nobody else logs it."""
    if outage.seconds is None:
        log.error("store.unavailable", reason=outage.reason)
    else:
        log.warning("store.available", seconds=round(outage.seconds, 1), reason=outage.reason)


class Gateway:
    """The sessions of one store, as one process uses them."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: Ids,
        settings: LaneSettings | None = None,
        limits: LaneLimits | None = None,
        storage: StorageQuota | None = None,
        meter: Meter | None = None,
        runtimes: SessionRuntimes | None = None,
    ) -> None:
        """Compose the gateway.

        `limits` must have `can_run_again` set if and only if `start` gets a handler: it decides
        what the store does with turns that a crash left.
        """
        self.store = store
        self.read: Reader = store.read
        """The read interface of the store."""
        self.meter: Meter = meter or Meter()
        self.ids = ids
        self.clock = clock
        self.settings = settings or LaneSettings()
        self.limits = limits or self.settings.limits(can_run_again=False)
        self.storage = storage or StorageQuota(store.read, 0)
        self._registry = WaiterRegistry(self._release_lane)
        self.worker = Worker(
            store, self._registry, ids=ids, settings=self.settings, meter=self.meter
        )
        self.begin = partial(ActiveRun, store, self._registry, self.meter)
        """Returns the run of a turn that has its lane; `on_lost` is called if it loses the lane."""
        self._lanes = LaneQueue(self, self._registry, self._submit_cancellable, self._release_lane)
        self._runtimes = runtimes
        self._handler: Handler | None = None
        self._handling = asyncio.Semaphore(RECOVERED_AT_ONCE)
        self.refused_at: float | None = None
        """When the store last refused a turn, if it has accepted none since."""
        self.delivered: set[tuple[TurnId, int]] = set()
        """Turns and steps whose answers reached their clients; written with the next lease.

        A crash before that only lets a retry of the same request attach to its turn for longer.
        """

    async def start(self, handler: Handler | None = None) -> None:
        """Acquire a lease, recover what dead workers left, and run recovered turns with `handler`.

        Without a handler, recovered turns stay interrupted until their clients send them again.
        """
        if (handler is not None) != self.limits.can_run_again:
            raise ValueError("a handler and LaneLimits.can_run_again belong together")
        self._handler = handler
        self.store.on_outage(_log_outage)
        adopt = self._run_adopted if handler is not None else None
        await self.worker.start(adopt, self._flush_delivered)

    def hand_back(self) -> None:
        """Leave the turns that are cut off from now on to other workers, as no lost attempt."""
        self.worker.hands_back = True

    async def stop(self) -> None:
        """Release the lease; other workers may take over at once what is still open."""
        await self.worker.stop()

    # ── accepting ───────────────────────────────────────────────────────────────────────────

    async def accept(self, command: Accept) -> Started | Queued | Repeated:
        """Make a turn durable; the ids in `command` come from `self.ids`.

        The caller is responsible for a turn that was started or queued, and must enter it.
        """
        registry = self._registry
        # The worker may have a new id since the command was built (see Worker._renew).
        if command.worker != self.worker.id:
            command = replace(command, worker=self.worker.id)
        # Claimed before the commit: a sweep that sees the turn in the store must not treat it as
        # abandoned.
        since = registry.tick
        registry.claims.setdefault(command.turn_id, since)
        try:
            try:
                admission = await self.store.submit(command)
            except (StoreUnavailable, asyncio.CancelledError) as exc:
                admission = await self._recover_submit(command, exc)
        except BaseException as exc:
            registry.release_turn(command.turn_id)
            if isinstance(exc, StoreUnavailable):
                self.refused_at = time.monotonic()
            raise
        self.refused_at = None
        is_new = admission.turn.id == command.turn_id
        self.meter.turn_accepted(command.source, _ADMISSIONS[type(admission)], is_new=is_new)
        if is_new and not isinstance(admission, Repeated):
            return admission
        registry.release_turn(command.turn_id)
        return self._claim_repeat(admission, since)

    def _claim_repeat(
        self, admission: Started | Queued | Repeated, since: int
    ) -> Started | Queued | Repeated:
        """Claim the earlier turn that this request repeats."""
        if isinstance(admission, Repeated):
            return admission
        turn = admission.turn
        if not self._registry.claim_turn(turn.id, since) and isinstance(admission, Queued):
            # Another task of this process waits for the lane of this turn: attach to it.
            return Repeated(turn, admission.session, None, turn.step)
        return admission

    async def _submit_cancellable(self, command: Command[AdmissionT]) -> AdmissionT:
        """Submit a command that may give a turn its lane; free it if the caller is cancelled."""
        try:
            return await self.store.submit(command)
        except (StoreUnavailable, asyncio.CancelledError) as exc:
            return await self._recover_submit(command, exc)

    async def _recover_submit(
        self, command: Command[AdmissionT], exc: StoreUnavailable | asyncio.CancelledError
    ) -> AdmissionT:
        """Find out the outcome of a command whose reply was lost.

        A cancelled caller gets no reply, but its command may still commit. A separate task asks
        again, to find out whether a lane has to be freed.
        """
        try:
            if isinstance(exc, StoreUnavailable):
                return await resubmit(self.store, command, tries=SUBMIT_TRIES - 1)
            raise exc
        except asyncio.CancelledError:
            asking = asyncio.ensure_future(self.submit(replace(command, again=True)))
            asking.add_done_callback(self._release_orphan)
            raise

    def _release_orphan(self, submitting: "asyncio.Future[Any]") -> None:
        """Release the lane or queue place that a command gave to a cancelled caller."""
        if submitting.cancelled() or submitting.exception() is not None:
            return
        outcome = submitting.result()
        if isinstance(outcome, Started):
            self._release_lane(outcome)
        elif isinstance(outcome, Queued) or self._is_requeued_orphan(outcome):
            self._leave_queue(outcome.turn)

    def _is_requeued_orphan(self, repeated: Repeated) -> bool:
        """Whether a repeat requeued its turn for this worker, and no task is responsible for it."""
        turn, session = repeated.turn, repeated.session
        is_queued = turn.is_open and session.active_turn_id != turn.id
        is_ours = turn.owner == self.worker.id and not self._registry.is_claimed(turn.id)
        return is_queued and is_ours

    # ── running ─────────────────────────────────────────────────────────────────────────────

    async def enter(
        self, admission: Started | Queued, on_lost: Callable[[], object] | None = None
    ) -> ActiveRun:
        """Return the run of an accepted turn, once it has its lane; `on_lost` as in `begin`."""
        started = admission
        try:
            if isinstance(started, Queued):
                since = self._registry.claims.get(started.turn.id, -1)
                started = await self._lanes.wait(started, since=since)
            return self.begin(started, on_lost)
        except BaseException as exc:
            self._registry.release_turn(admission.turn.id)
            is_ended = isinstance(
                exc, TurnInterrupted | TurnCancelled | TurnNotFound | SessionDeleted
            )
            if isinstance(admission, Queued) and not is_ended:
                self._leave_queue(admission.turn)
            if isinstance(exc, TurnNotFound):
                raise await self.why_gone(admission.turn) from exc
            raise

    def leave(self, run: ActiveRun) -> None:
        """Give up a run: if its end is not committed, release its turn and write the end."""
        if run.ended is None:
            self._registry.claims.pop(run.turn.id, None)
            if not run.is_lost:
                self._free_lane(run.turn, run.fence, run.unwritten)

    def _leave_queue(self, turn: Turn) -> None:
        """End a queued turn whose caller left, so that the turns behind it can start."""
        if turn.source in RUN_AGAIN and self._handler is not None:
            return  # it needs no client: the next sweep adopts it
        self.worker.defer_write(
            turn.id,
            Cancel(
                tenant=turn.tenant,
                turn_id=turn.id,
                reason="the caller left while the turn was queued",
                outcome="interrupted",
                code="caller_left",
                is_retryable=True,
                only_if_queued=True,
            ),
        )

    def _release_lane(self, started: Started) -> None:
        """Free a lane that was given to a turn whose caller left."""
        self._free_lane(started.turn, started.fence, None)

    def _free_lane(self, turn: Turn, fence: Fence, unwritten: Finish | None) -> None:
        """Free the lane of an abandoned run: write its missing end, or queue its turn again.

        A turn that needs no client goes back into the queue. If this worker is stopping, another
        worker recovers it.
        """
        if unwritten is not None:
            self.worker.defer_write(fence.run_id, unwritten)
        elif turn.source not in RUN_AGAIN or self._handler is None:
            self.worker.defer_write(fence.run_id, interrupted_finish(fence))
        elif not self.worker.hands_back:
            command = Recover(
                session_id=fence.session_id,
                worker=self.worker.id,
                forsaken=(fence.run_id,),
                limits=self.limits,
            )
            self.worker.defer_write(fence.run_id, command)

    async def _run_adopted(self, turn: Turn) -> None:
        """Run a recovered turn with the handler, in its own task."""
        assert self._handler is not None
        begin_context(self.ids.new("req"), turn.tenant)
        view = await self.read.session(turn.tenant, session_id=turn.session_id)
        if view is None:
            return
        started = await self._lanes.wait(Queued(turn, view.session))
        run = self.begin(started)
        try:
            async with self._handling:
                await self._handler(run)
        finally:
            self.leave(run)

    # ── watching ────────────────────────────────────────────────────────────────────────────

    async def wait_until_ended(
        self, tenant: Tenant, turn_id: TurnId, *, step: int | None = None
    ) -> TurnView:
        """Return the turn once it has ended, or once the given step has been answered."""
        view = await self.read.turn(tenant, turn_id)
        if view is None:
            raise TurnNotFound(f"no turn {turn_id}")
        turn = view.turn
        waiter = self._registry.watch(turn.session_id)
        try:
            while self._is_open(view) and (step is None or view.turn.step <= step):
                await waiter.wait(POLL_SECONDS)
                view = await self.read.turn(tenant, turn_id)
                if view is None:
                    raise await self.why_gone(turn)
        finally:
            self._registry.unwatch(waiter)
        return view

    def _is_open(self, view: TurnView) -> bool:
        """Whether the turn will continue, also without a caller that sends it again.

        A turn of a dead worker does if others run it again. A turn of this worker does although its
        lease is over: the store never takes a lane from the worker that asks, so a repeat could
        only wait. Its run ends it, or the worker notices that it was declared dead.
        """
        turn = view.turn
        if view.status in ("queued", "running"):
            return True
        if not turn.is_open or view.status != "interrupted":
            return False
        return turn.source in RUN_AGAIN or turn.owner == self.worker.id

    async def why_lost(self, turn: Turn) -> HoldfastError:
        """Return the error for the caller of a turn whose run lost its lane."""
        view = await self.read.turn(turn.tenant, turn.id)
        if view is None:
            return await self.why_gone(turn)
        if view.turn.outcome == "cancelled":
            return TurnCancelled(turn.id, view.turn.error_code)
        return TurnInterrupted(f"turn {turn.id} was taken over by another worker; send it again")

    async def why_gone(self, turn: Turn) -> HoldfastError:
        """Return the error for a caller whose turn is not in the store any more."""
        if await self.is_lost(turn):
            return TurnInterrupted(
                f"turn {turn.id} is not in the database any more, which may have lost its last "
                "commits; send it again"
            )
        return SessionDeleted("the session of this turn was deleted")

    async def is_lost(self, turn: Turn) -> bool:
        """Whether the store lacks a turn that was in it, although nobody has erased its session.

        An erased session leaves its row.
        """
        if await self.read.turn(turn.tenant, turn.id) is not None:
            return False
        session = await self.read.any_session(turn.session_id)
        return session is None or session.deleted_at is None

    async def _flush_delivered(self) -> None:
        if self.delivered:
            steps, self.delivered = self.delivered, set()
            await self.submit(MarkDelivered(steps=tuple(sorted(steps))))

    # ── everything else ─────────────────────────────────────────────────────────────────────

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Submit a command; if the store does not answer, ask again for the outcome.

        Processes that live for a session between its turns are stopped before the session ends.
        What they have stored of an erased session or item is deleted after it, in forks too.
        """
        runtimes = self._runtimes
        if runtimes is not None and isinstance(command, Reset | Restore | Delete):
            await runtimes.end_session(command.session_id)
        outcome = await submit(self.store, command)
        if runtimes is not None and isinstance(command, Delete | Hide):
            is_erasure = isinstance(command, Delete) or command.erase
            if is_erasure and not runtimes.is_empty:
                await self._clean_runtimes(runtimes, command.session_id)
        return outcome

    async def _clean_runtimes(self, runtimes: SessionRuntimes, session_id: SessionId) -> None:
        try:
            # Read after the erasure: an erased session cannot be forked any more.
            for name in (session_id, *await self.read.descendants(session_id)):
                await runtimes.clean_session(name, self.find_runtime_session)
        except (HoldfastError, OSError) as exc:
            # The erasure is done: `RuntimeCleanup` will find what is left of it.
            log.warning("agent.not_cleaned", session_id=session_id, reason=type(exc).__name__)

    async def find_runtime_session(self, session_id: str) -> RuntimeSession | None:
        """Return what the store knows of a session that may have a runtime.

        None if it knows nothing yet: the state of a turn is stored when the turn ends.
        """
        session = await self.read.any_session(SessionId(session_id))
        if session is None:
            return None
        if session.deleted_at is not None:
            return RuntimeSession(is_erased=True)
        if session.active_turn_id is not None:
            return None
        return RuntimeSession(states=await self.read.provider_state(session.id))

    def new_session_id(self) -> SessionId:
        """Return an id for a session that may have to be created."""
        return SessionId(self.ids.new("ses"))
