"""Who waits for what in this process: turns for their lanes, callers for ends, runs for a stop."""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.core.ids import RunId, SessionId, TurnId
from holdfast.core.model.turn import Successor
from holdfast.core.transaction.commands import Started

REMEMBERED = 4096
"""Wake-ups of so many sessions, and stops of so many runs, are remembered for those to come."""


class Waiter:
    """Somebody who wants to look again when a session changes."""

    def __init__(
        self, session_id: SessionId, place: int, successor: Successor | None = None
    ) -> None:
        self.session_id = session_id
        self.place = place
        self.is_woken = False
        """Whether there is a reason to look again."""
        self._waiting: asyncio.Future[None] | None = None
        self.successor = successor
        """What it begins with the lane, where it waits for one."""
        self.is_named = False
        """Whether the lane may have been handed to this one, by a run that ended."""
        self.handed: Started | None = None
        """What it was handed."""
        self.is_unserved = False
        """Whether it left without the lane."""

    async def wait(self, seconds: float) -> bool:
        """Wait to be woken, for so long at most; return whether it happened."""
        if not self.is_woken:
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(max(seconds, 0.0), _release, self._waiting)
            try:
                await self._waiting
            finally:
                timer.cancel()
                self._waiting = None
        was_woken, self.is_woken = self.is_woken, False
        return was_woken

    def wake(self) -> None:
        """Have it look, now or as soon as it waits."""
        self.is_woken = True
        if self._waiting is not None:
            _release(self._waiting)


def _release(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


class WaiterRegistry:
    """The registry. In a lane only the first waiter is woken: nobody else could start.

    What is heard is remembered for a while: whoever begins to wait says since when it has not
    looked, and finds out if something happened in between.
    """

    def __init__(self) -> None:
        self._lanes: dict[SessionId, list[Waiter]] = {}
        self._watchers: dict[SessionId, list[Waiter]] = {}
        self._stops: dict[RunId, Callable[[], None]] = {}
        self._cared_for: dict[TurnId, int] = {}
        self.moment = 0
        self._woken_at: dict[SessionId, int] = {}
        self._all_woken_at = 0
        self._stopped: dict[RunId, None] = {}
        self.on_unwanted: Callable[[Started], None] = lambda _: None
        """Told of a lane that was handed to somebody who had left."""

    def claim_turn(self, turn_id: TurnId, since: int | None = None) -> bool:
        """Say that a task of this process cares for the turn; `False` if one does already.

        `since` is the moment at which its lane was last looked at, if that is not now.
        """
        if turn_id in self._cared_for:
            return False
        self._cared_for[turn_id] = self.moment if since is None else since
        return True

    def claimed_at(self, turn_id: TurnId) -> int:
        """Return when a task began to care for the turn; for one that nobody does, the first."""
        return self._cared_for.get(turn_id, -1)

    def is_claimed(self, turn_id: TurnId, run_id: RunId | None = None) -> bool:
        """Whether a task of this process answers for the turn, or for its run."""
        return turn_id in self._cared_for or run_id in self._stops

    def release_turn(self, turn_id: TurnId) -> None:
        """The turn ended, or its task did."""
        self._cared_for.pop(turn_id, None)

    @property
    def is_anybody_waiting(self) -> bool:
        """Whether there is a reason to look at what other processes do."""
        return bool(self._lanes or self._watchers or self._stops)

    def queue(
        self,
        session_id: SessionId,
        place: int,
        *,
        since: int,
        successor: Successor | None = None,
    ) -> Waiter:
        """Join a lane's queue in this process; woken already, if the lane was since a moment."""
        waiter = Waiter(session_id, place, successor)
        if max(self._all_woken_at, self._woken_at.get(session_id, 0)) > since:
            waiter.wake()
        lane = self._lanes.setdefault(session_id, [])
        lane.append(waiter)
        lane.sort(key=lambda one: one.place)
        return waiter

    def leave(self, waiter: Waiter, *, is_served: bool) -> None:
        """Leave a queue; where the lane was not got, the next one looks if its time has come."""
        waiter.is_unserved = not is_served
        lane = self._lanes.get(waiter.session_id, [])
        lane.remove(waiter)
        if not lane:
            self._lanes.pop(waiter.session_id, None)
        elif not is_served:
            lane[0].wake()

    def ending(self, run_id: RunId, session_id: SessionId) -> Waiter | None:
        """A run ends by itself: return who is first in its lane, to be handed it.

        One that may have been handed it before finds out for itself.
        """
        self._stops.pop(run_id, None)
        lane = self._lanes.get(session_id)
        if not lane or lane[0].successor is None or lane[0].is_named:
            return None
        lane[0].is_named = True
        return lane[0]

    def hand_over(self, waiter: Waiter, started: Started) -> None:
        """Give the lane to who was named for it; one that has left without it takes nothing."""
        for watcher in self._watchers.get(waiter.session_id, ()):
            watcher.wake()
        waiter.handed = started
        waiter.wake()
        if waiter.is_unserved:
            self.on_unwanted(started)

    def watch(self, session_id: SessionId) -> Waiter:
        """Be woken whenever a turn of the session ends here."""
        waiter = Waiter(session_id, 0)
        self._watchers.setdefault(session_id, []).append(waiter)
        return waiter

    def unwatch(self, waiter: Waiter) -> None:
        """Stop watching."""
        watchers = self._watchers[waiter.session_id]
        watchers.remove(waiter)
        if not watchers:
            del self._watchers[waiter.session_id]

    def on_stop(self, run_id: RunId, stop: Callable[[], None]) -> None:
        """Call `stop` when the run loses its session; at once, if it has."""
        if run_id in self._stopped:
            del self._stopped[run_id]
            stop()
        else:
            self._stops[run_id] = stop

    def off_stop(self, run_id: RunId) -> None:
        """The run has ended by itself."""
        self._stops.pop(run_id, None)

    def running(self) -> list[RunId]:
        """Return the runs of this process."""
        return list(self._stops)

    def hear(self, woken: Sequence[SessionId], aborted: Sequence[RunId]) -> None:
        """Take in what the store announces."""
        for session_id in woken:
            self.wake(session_id)
        for run_id in aborted:
            stop = self._stops.pop(run_id, None)
            if stop is not None:
                stop()
            else:
                self._stopped[run_id] = None
        while len(self._stopped) > REMEMBERED:
            del self._stopped[next(iter(self._stopped))]

    def wake(self, session_id: SessionId) -> None:
        """Have the first of a lane, and everybody who watches, look again."""
        self.moment += 1
        self._woken_at.pop(session_id, None)
        self._woken_at[session_id] = self.moment
        if len(self._woken_at) > REMEMBERED:
            self._all_woken_at = self._woken_at.pop(next(iter(self._woken_at)))
        if self._lanes or self._watchers:
            self._look(session_id)

    def _look(self, session_id: SessionId) -> None:
        lane = self._lanes.get(session_id)
        if lane:
            lane[0].wake()
        for waiter in self._watchers.get(session_id, ()):
            waiter.wake()

    def wake_everybody(self) -> None:
        """Have everybody look again: somebody else wrote something."""
        self.moment += 1
        self._all_woken_at = self.moment
        self._woken_at.clear()
        for session_id in [*self._lanes, *self._watchers]:
            self._look(session_id)
