"""Time and names, as things that can be moved and counted by hand."""

from typing import Protocol


class Clock(Protocol):
    """Wall time in seconds since the epoch."""

    def now(self) -> float:
        """Return the time now."""
        ...


class Ids(Protocol):
    """New names."""

    def new(self, prefix: str) -> str:
        """Return an id that was never returned before and cannot be guessed: `prefix_…`."""
        ...
