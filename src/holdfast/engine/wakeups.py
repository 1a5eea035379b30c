"""Who waits for what in this process: turns for their lanes, callers for ends, runs for a stop."""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.core.ids import RunId, SessionId, TurnId


class Waiter:
    """Somebody who wants to look again when a session changes."""

    def __init__(self, session_id: SessionId, place: int) -> None:
        self.session_id = session_id
        self.place = place
        self.woken = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Wait to be woken, for so long at most; return whether it happened."""
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await self.woken.wait()
        except TimeoutError:
            return False
        self.woken.clear()
        return True


class Wakeups:
    """The registry. In a lane only the first waiter is woken: nobody else could start."""

    def __init__(self) -> None:
        self._lanes: dict[SessionId, list[Waiter]] = {}
        self._watchers: dict[SessionId, list[Waiter]] = {}
        self._stops: dict[RunId, Callable[[], None]] = {}
        self._cared_for: set[TurnId] = set()

    def begin_care(self, turn_id: TurnId) -> bool:
        """Say that a task of this process cares for the turn; `False` if one does already."""
        if turn_id in self._cared_for:
            return False
        self._cared_for.add(turn_id)
        return True

    def is_cared_for(self, turn_id: TurnId, run_id: RunId | None = None) -> bool:
        """Whether a task of this process answers for the turn, or for its run."""
        return turn_id in self._cared_for or run_id in self._stops

    def end_care(self, turn_id: TurnId) -> None:
        """The turn ended, or its task did."""
        self._cared_for.discard(turn_id)

    @property
    def is_anybody_waiting(self) -> bool:
        """Whether there is a reason to look at what other processes do."""
        return bool(self._lanes or self._watchers or self._stops)

    def queue(self, session_id: SessionId, place: int) -> Waiter:
        """Join a lane's queue in this process."""
        waiter = Waiter(session_id, place)
        lane = self._lanes.setdefault(session_id, [])
        lane.append(waiter)
        lane.sort(key=lambda one: one.place)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Leave a queue; the next one looks whether its time has come."""
        lane = self._lanes.get(waiter.session_id, [])
        lane.remove(waiter)
        if lane:
            lane[0].woken.set()
        else:
            self._lanes.pop(waiter.session_id, None)

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
        """Call `stop` when the run loses its session."""
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

    def wake(self, session_id: SessionId) -> None:
        """Have the first of a lane, and everybody who watches, look again."""
        lane = self._lanes.get(session_id)
        if lane:
            lane[0].woken.set()
        for waiter in self._watchers.get(session_id, ()):
            waiter.woken.set()

    def wake_everybody(self) -> None:
        """Have everybody look again: somebody else wrote something."""
        for session_id in [*self._lanes, *self._watchers]:
            self.wake(session_id)
