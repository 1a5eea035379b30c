"""A clock that only moves when a test moves it."""


class ManualClock:
    """A clock for tests that `advance` and `set` move."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time it was set to."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Advance by some seconds and return the new time."""
        self._now += seconds
        return self._now

    def set(self, now: float) -> None:
        """Set the time, also backwards."""
        self._now = now
