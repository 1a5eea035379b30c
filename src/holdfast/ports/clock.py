"""Time and ids as ports, so that tests can control them."""

from typing import Protocol


class Clock(Protocol):
    """Wall time in seconds since the epoch."""

    def now(self) -> float:
        """Return the time now."""
        ...


class Ids(Protocol):
    """A source of new ids."""

    def new(self, prefix: str) -> str:
        """Return an id that was never returned before and cannot be guessed: `prefix_…`."""
        ...
