"""A worker's life: its lease, its eyes on other processes, and the care of what others left.

A lease says who is alive; only the epoch in each write says who may write. One lease per process
covers all its runs, and is renewed as one row.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from holdfast.core.errors import HoldfastError, RunFenced, StoreUnavailable
from holdfast.core.ids import RunId, SessionId, TurnId, WorkerId
from holdfast.core.model.turn import RUN_AGAIN, Turn
from holdfast.core.transaction.commands import Bury, Cancel, Finish, Recover, Renew
from holdfast.engine.logging import log
from holdfast.engine.sessions.waiters import WaiterRegistry
from holdfast.engine.settings import LaneSettings
from holdfast.ports.clock import Ids
from holdfast.ports.meter import Meter, NoMeter
from holdfast.ports.store import Store

RECOVERY_BATCH = 500
ORPHANS_AT_ONCE = 20_000
"""Looking for orphans costs as much as there are, so it is done for many of them at once."""
LOOK_SECONDS = 0.5
"""How often somebody who waits makes us look for workers whose process is dead."""
Chore = Callable[[], Awaitable[None]]
"""What is to be done whenever the lease is renewed."""
Adopt = Callable[[Turn], Awaitable[None]]


class Worker:
    """One process's part in the house."""

    def __init__(
        self,
        store: Store,
        wakeups: WaiterRegistry,
        *,
        ids: Ids,
        settings: LaneSettings,
        meter: Meter | None = None,
    ) -> None:
        self._meter: Meter = meter or NoMeter()
        self._store = store
        self._wakeups = wakeups
        self._ids = ids
        self._settings = settings
        self._tasks: list[asyncio.Task[None]] = []
        self._adopt: Adopt | None = None
        self._chore: Chore | None = None
        self._adopted: set[asyncio.Task[None]] = set()
        self._forsaken: set[RunId | TurnId] = set()
        self._owed: dict[str, Finish | Cancel | Recover] = {}
        self.id = WorkerId(ids.new("wrk"))
        self.is_stopping = False

    async def start(self, adopt: Adopt | None = None, chore: Chore | None = None) -> None:
        """Begin: take a lease, settle what dead workers left, then keep both up."""
        self._adopt = adopt
        self._chore = chore
        self.is_stopping = False  # a start that failed has stopped; it may be tried again
        self._store.listen(self._wakeups.hear)
        await self._store.enlist(self.id, self._settings.lease_seconds)
        # There may be much to settle; others must not take us for dead meanwhile.
        self._tasks = [asyncio.create_task(self._keep_lease(), name="holdfast-lease")]
        try:
            await self.sweep()
        except BaseException:
            await self.stop()
            raise
        self._tasks += [
            asyncio.create_task(self._keep_swept(), name="holdfast-sweep"),
            asyncio.create_task(self._watch_others(), name="holdfast-watch"),
        ]

    async def stop(self) -> None:
        """End: stop adopted turns, and let others take at once what is left."""
        self.is_stopping = True
        self._wakeups.wake_everybody()  # whoever waits for a lane here will not get it
        for task in [*self._tasks, *self._adopted]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._adopted, return_exceptions=True)
        await self._flush_deferred()
        with contextlib.suppress(HoldfastError):
            await self._store.dismiss(self.id)

    async def sweep(self) -> int:
        """Settle everything that workers without a lease left behind; return how much it was."""
        gone = await self._expire_dead_workers()
        settled = await self._recover_all()
        for worker in gone:
            await self._store.dismiss(worker)
        await self._recover_forsaken()
        await self._adopt_turns()
        return settled

    async def _expire_dead_workers(self) -> list[WorkerId]:
        """End the leases of the dead; one that renewed in the meantime was not dead."""
        buried: list[WorkerId] = []
        for worker in await self._store.gone_workers():
            if worker.id == self.id:
                continue
            command = Bury(worker=worker.id, alive_until=worker.alive_until)
            if await self._store.submit(command):
                buried.append(worker.id)
        return buried

    async def _recover_all(self) -> int:
        seen: set[SessionId] = set()
        while True:
            found = await self._store.orphaned_sessions(ORPHANS_AT_ONCE)
            fresh = [session_id for session_id in found if session_id not in seen]
            if not fresh:
                return len(seen)
            seen.update(fresh)
            for at in range(0, len(fresh), RECOVERY_BATCH):
                batch = fresh[at : at + RECOVERY_BATCH]
                await asyncio.gather(*(self._recover(session_id) for session_id in batch))

    async def _recover(
        self, session_id: SessionId, forsaken: Sequence[RunId | TurnId] = ()
    ) -> None:
        limits = self._settings.limits(can_run_again=self._adopt is not None)
        command = Recover(
            session_id=session_id, worker=self.id, limits=limits, forsaken=tuple(forsaken)
        )
        try:
            await self._store.submit(command)
        except StoreUnavailable:
            raise
        except HoldfastError as exc:
            log.info("recovery.skipped", session_id=session_id, code=exc.code)
            return
        self._meter.recovered(1)
        log.info("recovery.settled", session_id=session_id)

    def defer_write(self, name: str, end: Finish | Cancel | Recover) -> None:
        """Take over an end that its task could not write or did not stay for.

        A lane whose owner lives is taken by nobody, so it is written now, or as soon as it can be.
        """
        self._owed[name] = end
        if self.is_stopping:
            return
        self._start(self._flush_deferred(), name="holdfast-owed")

    async def _flush_deferred(self) -> None:
        for name, end in list(self._owed.items()):
            if isinstance(end, Cancel) and self._wakeups.is_claimed(end.turn_id):
                self._owed.pop(name, None)  # somebody came back for the turn, and waits for it
                continue
            try:
                await self._store.submit(end)
            except StoreUnavailable:
                return
            except HoldfastError as exc:
                log.info("owed.not_needed", owed=name, code=exc.code)
            self._owed.pop(name, None)
            if isinstance(end, Finish):
                self._wakeups.wake(end.fence.session_id)

    def _start(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._adopted.add(task)
        task.add_done_callback(self._adopted.discard)

    async def _recover_forsaken(self) -> None:
        """Settle what is our own and no task here cares for: it began, and nobody heard of it.

        Only what was so at the last look too: a task that has just begun may not have said so yet.
        """
        found: dict[RunId | TurnId, SessionId] = {}
        for run in await self._store.owned_runs(self.id):
            if not self._wakeups.is_claimed(run.turn_id, run.run_id):
                found[run.run_id] = run.session_id
        for turn in await self._store.owned_turns(self.id):
            is_adopted = turn.source in RUN_AGAIN and self._adopt is not None
            if not is_adopted and not self._wakeups.is_claimed(turn.id):
                found[turn.id] = turn.session_id
        again = {name: session_id for name, session_id in found.items() if name in self._forsaken}
        self._forsaken = found.keys() - again.keys()
        for session_id in sorted(set(again.values())):
            names = [name for name, place in again.items() if place == session_id]
            log.warning("turns.forsaken", session_id=session_id, names=names)
            await self._recover(session_id, names)

    async def _adopt_turns(self) -> None:
        """Run turns that were handed to this worker and that nobody here cares for yet."""
        if self._adopt is None:
            return
        for turn in await self._store.owned_turns(self.id):
            if turn.source in RUN_AGAIN and self._wakeups.claim_turn(turn.id):
                self._start(self._run_adopted(turn), name="holdfast-adopted")

    async def _run_adopted(self, turn: Turn) -> None:
        assert self._adopt is not None
        try:
            await self._adopt(turn)
        except HoldfastError as exc:
            log.info("adopted.ended", turn_id=turn.id, code=exc.code)
        except Exception:  # noqa: BLE001 - the top of a task; its run is settled by whoever left it
            log.exception("adopted.broke", turn_id=turn.id)
        finally:
            self._wakeups.release_turn(turn.id)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_seconds / 3)
            with _reported("lease.not_renewed", self.id):
                await self._renew()
            with _reported("chore.failed", self.id):
                if self._chore is not None:
                    await self._chore()

    async def _keep_swept(self) -> None:
        """Sweep now and then; at once where somebody waits for a worker whose process is dead."""
        pause = self._settings.lease_seconds / 3
        slept = 0.0
        while True:
            await asyncio.sleep(min(pause, LOOK_SECONDS))
            slept += min(pause, LOOK_SECONDS)
            with _reported("sweep.failed", self.id):
                if slept < pause and not await self._is_somebody_missed():
                    continue
                slept = 0.0
                await self._flush_deferred()
                await self.sweep()

    async def _is_somebody_missed(self) -> bool:
        if not self._wakeups.is_anybody_waiting:
            return False
        return any(worker.id != self.id for worker in await self._store.gone_workers())

    async def _renew(self) -> None:
        lease = self._settings.lease_seconds
        running = self._wakeups.running()
        try:
            await self._store.submit(Renew(worker=self.id, lease_seconds=lease))
        except RunFenced:
            # Taken for dead while frozen: every run of ours is fenced. Start over, as somebody new.
            log.warning("worker.was_buried", worker=self.id)
            self._wakeups.hear((), running)
            self.id = WorkerId(self._ids.new("wrk"))
            await self._store.enlist(self.id, lease)
            return
        await self._stop_the_lost()

    async def _stop_the_lost(self) -> None:
        """Stop the runs that another process took the lane from."""
        running = self._wakeups.running()
        if running:
            owned = {run.run_id for run in await self._store.owned_runs(self.id)}
            self._wakeups.hear((), [run_id for run_id in running if run_id not in owned])

    async def _watch_others(self) -> None:
        """Look out for other processes' writes, as long as somebody here waits for any."""
        while True:
            await asyncio.sleep(self._settings.poll_seconds)
            if not self._wakeups.is_anybody_waiting:
                continue
            with _reported("watch.failed", self.id):
                if await self._store.has_news():
                    self._wakeups.wake_everybody()
                    await self._stop_the_lost()


@contextlib.contextmanager
def _reported(event: str, worker: WorkerId) -> Iterator[None]:
    """Let a task that must not end outlive what breaks in it, and say so."""
    try:
        yield
    except HoldfastError as exc:
        log.warning(event, worker=worker, code=exc.code, reason=exc.message)
    except Exception:  # noqa: BLE001 - the top of a task that keeps the worker alive
        log.exception(event, worker=worker)
