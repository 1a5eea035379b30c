"""What tasks of this process wait for: turns for lanes, callers for ends, runs for a stop signal.

Everything here happens on the event loop, without an await between reading and writing a field,
so no lock is needed. What must not be lost is a wake-up between a caller's look at the store and
its first wait: see `WaiterRegistry.tick`.
"""

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from operator import attrgetter

from holdfast.core.ids import RunId, SessionId, TurnId
from holdfast.core.model.turn import Successor
from holdfast.core.transaction.commands import Started

REMEMBERED = 4096
"""How many sessions' wake-ups, and how many runs' stop signals, are remembered for later comers."""


class Waiter:
    """A task that looks at its session again when it is woken."""

    __slots__ = (
        "_future",
        "_timer",
        "handed",
        "has_left",
        "is_woken",
        "may_own_lane",
        "position",
        "session_id",
        "successor",
    )

    def __init__(
        self, session_id: SessionId, position: int, successor: Successor | None = None
    ) -> None:
        self.session_id = session_id
        self.position = position
        """The turn's place in its lane; the first one is woken."""
        self.is_woken = False
        """Whether there is a reason to look again."""
        self._future: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.successor = successor
        """The run to start when the lane is free; None for a caller that only watches."""
        self.may_own_lane = False
        """Whether a `Finish` named this waiter as the next owner.

        Until the outcome of that commit is known, the lane may belong to it or not.
        """
        self.handed: Started | None = None
        """The run that the previous owner's commit started for this waiter."""
        self.has_left = False
        """Whether it stopped waiting without getting the lane."""

    async def wait(self, seconds: float) -> bool:
        """Wait until woken, at most `seconds`; return whether it was."""
        try:
            await self.alarm(seconds)
        finally:
            self.stop_timer()
        was_woken, self.is_woken = self.is_woken, False
        return was_woken

    def alarm(self, seconds: float) -> "asyncio.Future[None]":
        """Return a future that is done once the waiter is woken, at most `seconds` from now.

        Who awaits it clears `is_woken` afterwards, and stops the timer if it is cancelled.
        """
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        if self.is_woken:
            future.set_result(None)
        else:
            self._timer = loop.call_later(max(seconds, 0.0), _release, future)
        return future

    def wake(self) -> None:
        """Make it look again: now, or as soon as it waits."""
        self.is_woken = True
        future, timer = self._future, self._timer
        if future is not None and not future.done():
            future.set_result(None)
        if timer is not None:
            timer.cancel()
            self._timer = None

    def stop_timer(self) -> None:
        """Cancel the timer: from now on only a wake-up ends the alarm."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _release(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _ignore(_: Started) -> None:
    """Drop a run that nobody waits for."""


class WaiterRegistry:
    """The waiters of one process. Of a lane only the first is woken: no other could start."""

    def __init__(self, on_unclaimed: Callable[[Started], None] = _ignore) -> None:
        self._on_unclaimed = on_unclaimed
        """Receives a run that was handed to a waiter that has left."""
        self.lanes: dict[SessionId, list[Waiter]] = {}
        """The waiters of each lane, in the order of their turns."""
        self._watchers: dict[SessionId, list[Waiter]] = {}
        self.running: dict[RunId, Callable[[], None]] = {}
        """The runs of this process, and what stops each of them."""
        self.claims: dict[TurnId, int] = {}
        """The turns that a task of this process is responsible for, and since which tick."""
        self.tick = 0
        """Counts wake-ups.

        A caller notes it before it looks at the store and passes it to `join_lane`: a wake-up in
        between then counts, although nobody was waiting yet.
        """
        self._woken_at: dict[SessionId, int] = {}
        self._all_woken_at = 0
        self.stopped_early: dict[RunId, None] = {}
        """Runs that have to stop but were not in `running` yet; they are stopped when added."""

    # ── turns that a task of this process is responsible for ────────────────────────────────

    def claim_turn(self, turn_id: TurnId, since: int | None = None) -> bool:
        """Make a task responsible for a turn; return False if another one is already.

        `since` is the tick at which the turn's lane was last looked at, if that is not now.
        """
        if turn_id in self.claims:
            return False
        self.claims[turn_id] = self.tick if since is None else since
        return True

    def is_claimed(self, turn_id: TurnId, run_id: RunId | None = None) -> bool:
        """Whether a task of this process is responsible for the turn, or for its run."""
        return turn_id in self.claims or run_id in self.running

    def release_turn(self, turn_id: TurnId) -> None:
        """End the responsibility for a turn."""
        self.claims.pop(turn_id, None)

    @property
    def has_waiters(self) -> bool:
        """Whether anybody here depends on what other processes write."""
        return bool(self.lanes or self._watchers or self.running)

    # ── waiting for a lane ──────────────────────────────────────────────────────────────────

    def join_lane(
        self,
        session_id: SessionId,
        position: int,
        *,
        since: int,
        successor: Successor | None = None,
    ) -> Waiter:
        """Add a waiter to a lane; it is woken at once if the lane was woken after `since`."""
        waiter = Waiter(session_id, position, successor)
        if max(self._all_woken_at, self._woken_at.get(session_id, 0)) > since:
            waiter.wake()
        lane = self.lanes.setdefault(session_id, [])
        if not lane or lane[-1].position <= position:
            lane.append(waiter)
        else:
            insort(lane, waiter, key=attrgetter("position"))
        return waiter

    def leave_lane(self, waiter: Waiter, *, is_served: bool) -> None:
        """Remove a waiter; if it did not get the lane, the next one has to look in its place."""
        waiter.has_left = not is_served
        if not is_served:
            waiter.stop_timer()
        lane = self.lanes.get(waiter.session_id, [])
        lane.remove(waiter)
        if not lane:
            self.lanes.pop(waiter.session_id, None)
        elif not is_served:
            lane[0].wake()

    def next_in_lane(self, session_id: SessionId) -> Waiter | None:
        """Return the waiter that the commit of a run's end may hand the lane to.

        A waiter that was named before is not named twice: it does not know yet whether the lane
        is its own, and finds out by a claim.
        """
        lane = self.lanes.get(session_id)
        if not lane or lane[0].successor is None or lane[0].may_own_lane:
            return None
        lane[0].may_own_lane = True
        return lane[0]

    def hand_over(self, waiter: Waiter, started: Started) -> None:
        """Give the run to the waiter it was started for; free the lane if the waiter has left."""
        for watcher in self._watchers.get(waiter.session_id, ()):
            watcher.wake()
        waiter.handed = started
        waiter.wake()
        if waiter.has_left:
            self._on_unclaimed(started)

    # ── watching a session ──────────────────────────────────────────────────────────────────

    def watch(self, session_id: SessionId) -> Waiter:
        """Return a waiter that is woken whenever a turn of the session ends."""
        waiter = Waiter(session_id, 0)
        self._watchers.setdefault(session_id, []).append(waiter)
        return waiter

    def unwatch(self, waiter: Waiter) -> None:
        """Remove a watching waiter."""
        watchers = self._watchers[waiter.session_id]
        watchers.remove(waiter)
        if not watchers:
            del self._watchers[waiter.session_id]

    # ── notifications ───────────────────────────────────────────────────────────────────────

    def notify(self, woken: Sequence[SessionId], aborted: Sequence[RunId]) -> None:
        """Process a notification of the store: sessions to look at again, runs to stop."""
        for session_id in woken:
            self.wake(session_id)
        for run_id in aborted:
            stop = self.running.pop(run_id, None)
            if stop is None:
                self.stopped_early[run_id] = None
            else:
                self.stopped_early.pop(run_id, None)
                stop()
        while len(self.stopped_early) > REMEMBERED:
            del self.stopped_early[next(iter(self.stopped_early))]

    def wake(self, session_id: SessionId) -> None:
        """Wake the first waiter of a session's lane and everybody who watches the session."""
        self.tick += 1
        self._woken_at.pop(session_id, None)
        self._woken_at[session_id] = self.tick
        if len(self._woken_at) > REMEMBERED:
            # What is forgotten counts as a wake-up of every session: one look too many is cheap.
            self._all_woken_at = self._woken_at.pop(next(iter(self._woken_at)))
        if self.lanes or self._watchers:
            self._wake_waiters(session_id)

    def wake_all(self) -> None:
        """Wake every first waiter and every watcher: another process wrote something."""
        self.tick += 1
        self._all_woken_at = self.tick
        self._woken_at.clear()
        for session_id in [*self.lanes, *self._watchers]:
            self._wake_waiters(session_id)

    def _wake_waiters(self, session_id: SessionId) -> None:
        lane = self.lanes.get(session_id)
        if lane:
            lane[0].wake()
        for waiter in self._watchers.get(session_id, ()):
            waiter.wake()
