"""Whether the store answers: one outage is one event, however many callers meet it.

The store reports each failure here and each commit after one. An outage ends with a commit that is
followed by no failure for a while. Callers stop to try again once it has lasted for some time, and
those that work in the background do not log what each of them met.
"""

import time
from collections.abc import Callable

import msgspec

from holdfast.core.errors import StoreUnavailable
from holdfast.ports.store import Outage

PATIENCE_SECONDS = 12.0
"""For how long callers try again."""
QUIET_SECONDS = 1.0
"""How long nothing may fail until an outage is over: a failover lets some connections fail late."""


class OutageCounts(msgspec.Struct):
    """The outages so far, and the seconds of those that are over."""

    outages: int = 0
    seconds: float = 0.0


class Availability:
    """What is known about one store, by the monotonic clock."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self.is_in_doubt = False
        """Whether an outage has begun that is not over for certain."""
        self.on_change: Callable[[Outage], None] = lambda _: None
        """Called when an outage begins and when it is over."""
        self.counts = OutageCounts()
        self.patience_seconds = PATIENCE_SECONDS
        self._clock = clock
        self._quiet_seconds = quiet_seconds
        self._reason = ""
        self._began = 0.0
        self._failed_at = 0.0
        self._back_at = 0.0
        """When the first commit succeeded after a failure; at first, before everything."""
        self.is_out = False
        """Whether nothing has been committed since the last failure."""

    def failed(self, exc: StoreUnavailable, began: float | None = None) -> None:
        """Note that work failed which began at a moment; by default it took no time."""
        now = self._clock()
        began = now if began is None else began
        if began < self._back_at:
            return  # it says nothing about the time since the store was back
        self._failed_at, self.is_out = now, True
        if not self.is_in_doubt:
            self.is_in_doubt = True
            self._began, self._reason = began, exc.message
            self.counts.outages += 1
            self.on_change(Outage(exc.message))

    def committed(self) -> None:
        """Note that a commit succeeded; called only while `is_in_doubt`."""
        now = self._clock()
        if self.is_out:
            self.is_out, self._back_at = False, now
        if now - self._failed_at < self._quiet_seconds:
            return
        self.is_in_doubt = False
        seconds = self._back_at - self._began
        self.counts.seconds += seconds
        self.on_change(Outage(self._reason, seconds))

    @property
    def is_given_up(self) -> bool:
        """Whether an outage has lasted so long that callers should get its error at once."""
        return self.is_out and self._clock() - self._began >= self.patience_seconds
