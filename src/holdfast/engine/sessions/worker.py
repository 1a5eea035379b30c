"""A worker: the lease of this process, and the recovery of what other processes left.

The lease shows who is alive; only the epoch in each write decides who may write. One lease per
process covers all its runs and is renewed as one row.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from holdfast.core.errors import HoldfastError, RunFenced, StoreUnavailable
from holdfast.core.ids import RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.turn import RUN_AGAIN, Turn
from holdfast.core.transaction.commands import Cancel, ExpireWorker, Finish, Recover, Renew
from holdfast.engine.logging import log
from holdfast.engine.sessions.waiters import WaiterRegistry
from holdfast.engine.settings import LaneSettings
from holdfast.ports.clock import Ids
from holdfast.ports.meter import Meter
from holdfast.ports.store import Store, WorkerState

RECOVERY_BATCH = 500
ORPHANS_AT_ONCE = 20_000
"""How many orphans one query fetches. Each query's cost grows with all orphans, so use few."""
LOGGED_SESSIONS = 10
"""How many sessions that lost history have a line of their own in the log."""
LOGGED_NAMES = 20
"""How many names of runs and turns one line of the log has."""
DEAD_WORKER_POLL_SECONDS = 0.5
"""How often to check for dead workers while a task waits for a lane or a lease is over."""
Chore = Callable[[], Awaitable[None]]
"""Work to do whenever the lease is renewed."""
Adopt = Callable[[Turn], Awaitable[None]]
"""Runs a turn that a dead worker left in the queue."""


class LeaseWatch:
    """Which workers are gone, by what this process has seen of their renewals.

    The end of a lease is a time of the store's clock. If that clock steps forward, the leases of
    live workers are over until they are renewed. So a worker whose process may be alive is gone
    only if its lease is over and this process has not seen it change for a whole lease, by a clock
    that cannot be set. Time in which this process did not look does not count: it may have been
    suspended together with the others. Nor does time in which the store did not answer.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._seen: dict[WorkerId, tuple[float, float]] = {}
        """The end of each worker's lease, and for how many seconds it has not changed."""
        self._looked_at: float | None = None
        self.has_suspects = False
        """Whether the lease of a worker that may be alive is over."""

    def start_over(self) -> None:
        """Forget all silence: this process could not use the store, so neither could others."""
        self._seen, self._looked_at = {}, None

    def observe(
        self, workers: Sequence[WorkerState], *, began: float, ended: float
    ) -> list[WorkerState]:
        """Return the gone workers, from a look that began and ended at these moments."""
        passed = 0.0
        if self._looked_at is not None:
            passed = max(0.0, min(began - self._looked_at, self._lease_seconds / 2))
        self._looked_at = ended
        seen: dict[WorkerId, tuple[float, float]] = {}
        for worker in workers:
            alive_until, silent_seconds = self._seen.get(worker.id, (None, 0.0))
            is_silent = alive_until == worker.alive_until
            seen[worker.id] = (worker.alive_until, silent_seconds + passed if is_silent else 0.0)
        self._seen = seen
        expired = [
            worker
            for worker in workers
            if worker.is_dead or (worker.is_late and seen[worker.id][1] >= self._lease_seconds)
        ]
        self.has_suspects = any(worker.is_late and worker not in expired for worker in workers)
        return expired


class Worker:
    """One of the processes that share a store."""

    def __init__(
        self,
        store: Store,
        registry: WaiterRegistry,
        *,
        ids: Ids,
        settings: LaneSettings,
        meter: Meter | None = None,
    ) -> None:
        self._meter: Meter = meter or Meter()
        self._store = store
        self._registry = registry
        self._ids = ids
        self._settings = settings
        self._watch = LeaseWatch(settings.lease_seconds)
        self._tasks: list[asyncio.Task[None]] = []
        self._adopt: Adopt | None = None
        self._chore: Chore | None = None
        self._adopted: set[asyncio.Task[None]] = set()
        self.on_news: Chore | None = None
        """Called when another process may have written something that this one must read."""
        self._unclaimed: set[RunId | TurnId] = set()
        """Runs and turns of this worker that had no responsible task at the last sweep."""
        self._deferred: dict[str, Finish | Cancel | Recover] = {}
        """Writes whose tasks are gone, by the id of their run or turn."""
        self.id = WorkerId(ids.new("wrk"))
        """It changes if this worker was judged dead and starts over, so do not store it
        elsewhere."""
        self.is_stopping = False
        self.hands_back = False
        """Whether what its runs leave open is for other workers, because it is about to stop."""

    async def start(self, adopt: Adopt | None = None, chore: Chore | None = None) -> None:
        """Acquire a lease, recover what dead workers left, then keep doing both.

        A store that can only be read, as on a full disk, is read; the lease follows.
        """
        self._adopt = adopt
        self._chore = chore
        # A failed start has called `stop`, and may be retried.
        self.is_stopping = self.hands_back = False
        self._store.listen(self._registry.notify)
        has_lease = await self._enlist_if_writable()
        # Renewed during the first sweep too, which may take longer than a lease.
        self._tasks = [asyncio.create_task(self._keep_lease(), name="holdfast-lease")]
        try:
            if has_lease:
                await self.sweep()
        except BaseException:
            await self.stop()
            raise
        self._tasks += [
            asyncio.create_task(self._keep_swept(), name="holdfast-sweep"),
            asyncio.create_task(self._watch_other_processes(), name="holdfast-watch"),
        ]

    async def _enlist_if_writable(self) -> bool:
        """Acquire a lease; return whether there is one, or raise if not even reading works."""
        try:
            await self._store.enlist(self.id, self._settings.lease_seconds)
        except StoreUnavailable as exc:
            await self._store.workers()
            log.warning("worker.only_reads", worker=self.id, reason=exc.message)
            return False
        return True

    async def stop(self) -> None:
        """Stop adopted turns and release the lease: others may take over at once."""
        self.is_stopping = self.hands_back = True
        self._registry.wake_all()  # turns that wait for a lane here fail with StoreClosed
        for task in [*self._tasks, *self._adopted]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._adopted, return_exceptions=True)
        await self._flush_deferred()
        with contextlib.suppress(HoldfastError):
            await self._store.dismiss(self.id)

    async def sweep(self) -> int:
        """Recover the sessions of dead workers; return how many there were."""
        # A worker is removed only after its sessions are recovered: if this process dies in
        # between, the next sweep still finds them by their owner.
        await self._report_lost_history()
        expired = await self._expire_dead_workers()
        recovered = await self._recover_all()
        for worker in expired:
            await self._store.dismiss(worker)
        if not self.hands_back:
            await self._recover_unclaimed()
            await self._adopt_turns()
        return recovered

    async def _report_lost_history(self) -> None:
        """Log by session what a failover has lost; the sessions go on from what is there."""
        lost = await self._store.lost_history()
        if not lost:
            return
        self._meter.history_lost(len(lost))
        items = sum(one.known_items - one.found_items for one in lost)
        log.error("store.history_lost", sessions=len(lost), items=items)
        for one in lost[-LOGGED_SESSIONS:]:
            log.error(
                "session.history_lost",
                session_id=one.session_id,
                known_items=one.known_items,
                found_items=one.found_items,
            )

    async def _expire_dead_workers(self) -> list[WorkerId]:
        """End the leases of dead workers; one that renewed its lease since then is alive."""
        expired: list[WorkerId] = []
        for worker in await self._gone_workers():
            command = ExpireWorker(worker=worker.id, alive_until=worker.alive_until)
            if await self._store.submit(command):
                expired.append(worker.id)
        return expired

    async def _gone_workers(self) -> list[WorkerState]:
        """Return the other workers that are gone."""
        elapsed = asyncio.get_running_loop().time
        began = elapsed()
        with self._watching():
            workers = await self._store.workers()
        others = [worker for worker in workers if worker.id != self.id]
        return self._watch.observe(others, began=began, ended=elapsed())

    async def _recover_all(self) -> int:
        seen: set[SessionId] = set()
        settled = 0
        while True:
            orphans = await self._store.orphaned_sessions(ORPHANS_AT_ONCE)
            fresh = [session_id for session_id in orphans if session_id not in seen]
            if not fresh:
                if settled:
                    log.warning("recovery.settled", sessions=settled)
                return len(seen)
            seen.update(fresh)
            for at in range(0, len(fresh), RECOVERY_BATCH):
                batch = fresh[at : at + RECOVERY_BATCH]
                settled += sum(await asyncio.gather(*map(self._recover, batch)))

    async def _recover(
        self, session_id: SessionId, unclaimed: Sequence[RunId | TurnId] = ()
    ) -> bool:
        """Recover one session; return whether a worker had left something in it.

        A wait for tools that is over needs the same command, and is no reason to warn anybody.
        """
        limits = self._settings.limits(can_run_again=self._adopt is not None)
        command = Recover(
            session_id=session_id, worker=self.id, limits=limits, forsaken=tuple(unclaimed)
        )
        try:
            recovered = await self._store.submit(command)
        except StoreUnavailable:
            raise
        except HoldfastError as exc:
            log.info("recovery.skipped", session_id=session_id, code=exc.code)
            return False
        if recovered.is_from_worker:
            self._meter.recovered(1)
        log.info("recovery.session_settled", session_id=session_id)
        return recovered.is_from_worker

    def defer_write(self, name: str, command: Finish | Cancel | Recover) -> None:
        """Take over a write that its task could not complete or did not wait for.

        No other worker takes the lane of a live owner, so this worker must write: now, or as soon
        as the store answers again.
        """
        self._deferred[name] = command
        if self.is_stopping:
            return
        self._start(self._flush_deferred(), name="holdfast-deferred")

    async def _flush_deferred(self) -> None:
        for name, command in list(self._deferred.items()):
            if isinstance(command, Cancel) and self._registry.is_claimed(command.turn_id):
                self._deferred.pop(name, None)  # a repeat of the request waits for the turn
                continue
            try:
                await self._store.submit(command)
            except StoreUnavailable:
                return  # the next sweep tries again
            except HoldfastError as exc:
                log.info("store.write_not_needed", write=name, code=exc.code)
            self._deferred.pop(name, None)
            if isinstance(command, Finish):
                self._registry.wake(command.fence.session_id)

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._adopted.add(task)
        task.add_done_callback(self._adopted.discard)

    async def _recover_unclaimed(self) -> None:
        """Recover runs and turns of this worker that have no task, because a reply was lost.

        Only those that two consecutive sweeps found: after a commit, the task may not have been
        resumed yet to register its run. A deferred write settles its run or turn itself.
        """
        unclaimed: dict[RunId | TurnId, SessionId] = {}
        for run in await self._store.owned_runs(self.id):
            if not self._registry.is_claimed(run.turn_id, run.run_id):
                unclaimed[run.run_id] = run.session_id
        for turn in await self._store.owned_turns(self.id):
            is_adopted = turn.source in RUN_AGAIN and self._adopt is not None
            if not is_adopted and not self._registry.is_claimed(turn.id):
                unclaimed[turn.id] = turn.session_id
        unclaimed = {name: where for name, where in unclaimed.items() if name not in self._deferred}
        again = {
            name: session_id for name, session_id in unclaimed.items() if name in self._unclaimed
        }
        self._unclaimed = unclaimed.keys() - again.keys()
        if again:
            log.warning("turn.unclaimed", count=len(again), names=list(again)[:LOGGED_NAMES])
        for session_id in sorted(set(again.values())):
            names = [name for name, place in again.items() if place == session_id]
            await self._recover(session_id, names)

    async def _adopt_turns(self) -> None:
        """Run the queued turns of this worker that have no responsible task yet."""
        if self._adopt is None:
            return
        for turn in await self._store.owned_turns(self.id):
            if turn.source in RUN_AGAIN and self._registry.claim_turn(turn.id):
                self._start(self._run_adopted(turn), name="holdfast-adopted")

    async def _run_adopted(self, turn: Turn) -> None:
        assert self._adopt is not None
        try:
            await self._adopt(turn)
        except HoldfastError as exc:
            log.info("recovery.turn_ended", turn_id=turn.id, code=exc.code)
        except Exception:  # noqa: BLE001 - the top of a task; its run is freed by `Gateway.leave`
            log.exception("recovery.turn_failed", turn_id=turn.id)
        finally:
            self._registry.release_turn(turn.id)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_seconds / 3)
            with _logged("worker.lease_not_renewed", self.id):
                await self._renew()
            with _logged("worker.chore_failed", self.id):
                if self._chore is not None:
                    await self._chore()

    async def _keep_swept(self) -> None:
        """Sweep regularly; at once if a worker is gone and a task waits or its lease is over."""
        pause = self._settings.lease_seconds / 3
        waited = 0.0
        while True:
            await asyncio.sleep(min(pause, DEAD_WORKER_POLL_SECONDS))
            waited += min(pause, DEAD_WORKER_POLL_SECONDS)
            with _logged("worker.sweep_failed", self.id):
                if waited < pause and not await self._has_gone_worker():
                    continue
                waited = 0.0
                await self._flush_deferred()
                await self.sweep()

    async def _has_gone_worker(self) -> bool:
        if not self._registry.has_waiters and not self._watch.has_suspects:
            return False
        return bool(await self._gone_workers())

    async def _renew(self) -> None:
        lease = self._settings.lease_seconds
        running = list(self._registry.running)
        try:
            with self._watching():
                await self._store.submit(Renew(worker=self.id, lease_seconds=lease))
        except RunFenced:
            # The lease expired while this process was frozen, so every run of it is fenced. Start
            # over under a new id, so that nothing written under the old one can be mistaken for
            # this worker's.
            log.warning("worker.expired", worker=self.id)
            self._registry.notify((), running)
            self.id = WorkerId(self._ids.new("wrk"))
            await self._store.enlist(self.id, lease)
            return
        await self._stop_lost_runs()

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Do not count the silence of others while the store does not answer."""
        try:
            yield
        except StoreUnavailable:
            self._watch.start_over()
            raise

    async def _stop_lost_runs(self) -> None:
        """Stop the runs of this process whose lanes another process took."""
        running = list(self._registry.running)
        if running:
            owned = {run.run_id for run in await self._store.owned_runs(self.id)}
            self._registry.notify((), [run_id for run_id in running if run_id not in owned])

    async def _watch_other_processes(self) -> None:
        """Poll for writes of other processes while a task here depends on them."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            if not self._registry.has_waiters:
                continue
            with _logged("worker.watch_failed", self.id):
                if await self._store.has_news():
                    self._registry.wake_all()
                    await self._stop_lost_runs()
                    if self.on_news is not None:
                        await self.on_news()


@contextlib.contextmanager
def _logged(event: str, worker: WorkerId) -> Iterator[None]:
    """Log errors in the body of a task that must continue, instead of raising them."""
    try:
        yield
    except HoldfastError as exc:
        log.failed(event, exc, worker=worker, reason=exc.message)
    except Exception:  # noqa: BLE001 - the top of a task that keeps the worker alive
        log.exception(event, worker=worker)
