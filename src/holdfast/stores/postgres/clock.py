"""The database's time, between two looks at it."""

import time

from holdfast.ports.clock import Clock

CLOCK = "extract(epoch from clock_timestamp())::double precision"
READ_CLOCK = f"select {CLOCK}"


class ServerClock:
    """The last time that the database told, and what has passed here since.

    It is never ahead of the database, so a lease that has run out by it has run out. `override`
    stands in for the database's clock in tests.
    """

    def __init__(self, override: Clock | None = None) -> None:
        self._override = override
        self._told = 0.0
        self._heard_at = time.monotonic()

    def hear(self, told: float) -> float:
        """Take in what the database told just now, and return the time that holds."""
        if self._override is not None:
            return self._override.now()
        self._told = told
        self._heard_at = time.monotonic()
        return told

    def now(self) -> float:
        """Return the time now, as far as it is certain."""
        if self._override is not None:
            return self._override.now()
        return self._told + time.monotonic() - self._heard_at
