"""A clock that stands still until it is moved by hand."""


class HandClock:
    """Time for tests: `advance` it, and nothing else does."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        """Return the time it was set to."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move on by so many seconds, and return the time then."""
        self._now += seconds
        return self._now

    def set(self, now: float) -> None:
        """Move to a moment, also backwards."""
        self._now = now
