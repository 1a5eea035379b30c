"""The database server's time, estimated between two readings."""

import time

from holdfast.ports.clock import Clock

CLOCK = "extract(epoch from clock_timestamp())::double precision"
READ_CLOCK = f"select {CLOCK}"


class ServerClock:
    """The last time read from the database plus the time elapsed here since.

    It is never ahead of the database, so a lease that has expired by it has expired. `override`
    replaces the database's clock in tests.
    """

    def __init__(self, override: Clock | None = None) -> None:
        self._override = override
        self._server_time = 0.0
        self._read_at = time.monotonic()

    def observe(self, server_time: float) -> float:
        """Record a reading of the database's clock; return the time to use."""
        if self._override is not None:
            return self._override.now()
        self._server_time = server_time
        self._read_at = time.monotonic()
        return server_time

    def now(self) -> float:
        """Return a time that the database's clock has reached."""
        if self._override is not None:
            return self._override.now()
        return self._server_time + time.monotonic() - self._read_at
