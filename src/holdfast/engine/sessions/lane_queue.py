"""Waiting for a lane: a queued turn waits until its lane is handed over or can be claimed."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec.structs import replace

from holdfast.core.errors import LaneTimeout, RunFenced, StoreClosed
from holdfast.core.ids import RunId
from holdfast.core.model.turn import Source, Successor, Turn
from holdfast.core.transaction.commands import Cancel, Claim, LaneLimits, Queued, Started
from holdfast.engine.sessions.submission import submit
from holdfast.engine.sessions.waiters import Waiter, WaiterRegistry
from holdfast.engine.sessions.worker import Worker
from holdfast.engine.settings import LaneSettings
from holdfast.ports.clock import Clock, Ids
from holdfast.ports.meter import Meter
from holdfast.ports.store import Store

UNBOUNDED: frozenset[Source] = frozenset({"channel", "cron"})
"""Sources whose turns wait without a limit, because nobody would send them again."""
SubmitClaim = Callable[[Claim], Awaitable[Started | Queued]]
"""Submits a claim; if the caller is cancelled, the lane is freed again."""


class LaneContext(Protocol):
    """The parts of a gateway that a waiting turn needs."""

    store: Store
    clock: Clock
    ids: Ids
    settings: LaneSettings
    limits: LaneLimits
    meter: Meter
    worker: Worker


class LaneQueue:
    """Waits for lanes on behalf of queued turns."""

    def __init__(
        self,
        context: LaneContext,
        registry: WaiterRegistry,
        submit_claim: SubmitClaim,
        on_unclaimed: Callable[[Started], None],
    ) -> None:
        self._context = context
        self._registry = registry
        self._submit_claim = submit_claim
        self._on_unclaimed = on_unclaimed

    async def wait(self, queued: Queued, *, since: int = -1) -> Started:
        """Return the started run once the turn has its lane.

        `since` is the registry's tick when the lane was last known to be taken.
        """
        context, turn = self._context, queued.turn
        pause = context.settings.lease_seconds / 2
        elapsed = asyncio.get_running_loop().time  # monotonic: clock changes do not matter
        began = elapsed()
        until = began + context.settings.max_wait_seconds
        if turn.source in UNBOUNDED:
            until = math.inf
        successor = Successor(turn.id, RunId(context.ids.new("run")))
        waiter = self._registry.join_lane(
            turn.session_id, turn.position, since=since, successor=successor
        )
        outcome: Started | Queued = queued
        try:
            while not isinstance(outcome, Started):
                due = outcome.check_again_at
                seconds = pause if due is None else self._poll_seconds(due)
                await waiter.alarm(min(until - elapsed(), seconds))
                waiter.is_woken = False
                if context.worker.is_stopping:
                    raise StoreClosed(f"turn {turn.id} was queued when its store was closed")
                outcome = waiter.handed or await self._claim(waiter, turn)
                if not isinstance(outcome, Started) and until <= elapsed():
                    outcome = await self._give_up(waiter, turn)
        finally:
            self._registry.leave_lane(waiter, is_served=isinstance(outcome, Started))
            # Handed over while this task was cancelled: nobody will use the run.
            if waiter.handed is not None and not isinstance(outcome, Started):
                self._on_unclaimed(waiter.handed)
        context.meter.lane_waited(elapsed() - began)
        return outcome

    def _poll_seconds(self, check_again_at: float) -> float:
        """Return how long to wait without a wake-up: a tool wait or a lease may expire."""
        pause = self._context.settings.lease_seconds / 2
        return min(pause, max(check_again_at - self._context.clock.now(), 0.001))

    async def _claim(self, waiter: Waiter, turn: Turn) -> Started | Queued:
        """Claim the lane.

        If the reply of an ended run's hand-over was lost, `again` makes the store return the run
        that it started, instead of starting a second one.
        """
        assert waiter.successor is not None
        claim = Claim(
            turn_id=turn.id,
            run_id=waiter.successor.run_id,
            worker=self._context.worker.id,
            limits=self._context.limits,
            again=waiter.may_own_lane,
        )
        try:
            return await self._submit_claim(claim)
        except RunFenced:
            # The hand-over started the run, which lost its lane before this task learned of it. Its
            # id is used up: claim with a new one.
            run_id = RunId(self._context.ids.new("run"))
            waiter.successor, waiter.may_own_lane = Successor(turn.id, run_id), False
            claim = replace(claim, run_id=waiter.successor.run_id, again=False)
            return await self._submit_claim(claim)

    async def _give_up(self, waiter: Waiter, turn: Turn) -> Started:
        """Fail a turn that waited too long, unless its lane was just handed over."""
        seconds = self._context.settings.max_wait_seconds
        message = f"turn {turn.id} waited {seconds:g} seconds for its lane"
        left = await submit(
            self._context.store,
            Cancel(
                tenant=turn.tenant,
                turn_id=turn.id,
                reason=message,
                outcome="failed",
                code=LaneTimeout.code,
                is_retryable=True,
                only_if_queued=True,
            ),
        )
        if left.is_open and waiter.may_own_lane:
            outcome = await self._claim(waiter, turn)
            if isinstance(outcome, Started):
                return outcome
        raise LaneTimeout(message)
