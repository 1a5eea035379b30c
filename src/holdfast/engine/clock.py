"""The machine's clock and random source, behind ports that a test can replace."""

import secrets
import time

IDS_AT_ONCE = 64
"""How many ids are made from one read of the system's random source."""
_ID_CHARACTERS = 20


class SystemClock:
    """The machine's wall clock."""

    now = staticmethod(time.time)
    """Return the time now, in seconds since the epoch."""


class RandomIds:
    """Unguessable ids that begin with the time, so that recent ones are stored close together."""

    def __init__(self) -> None:
        self._unused: list[str] = []
        self._millisecond, self._time = 0, ""

    def new(self, prefix: str) -> str:
        """Return a new id. Randomness is read for many ids at a time and never used twice."""
        if not self._unused:
            digits = secrets.token_hex(IDS_AT_ONCE * _ID_CHARACTERS // 2)
            starts = range(0, len(digits), _ID_CHARACTERS)
            # Sorted, so that ids of one millisecond are handed out in ascending order: lists are
            # in the order of ids, and two sessions may be created within a millisecond.
            self._unused = [digits[at : at + _ID_CHARACTERS] for at in starts]
            self._unused.sort(reverse=True)
        millisecond = int(time.time() * 1000)
        if millisecond != self._millisecond:
            self._millisecond, self._time = millisecond, f"_{millisecond:011x}"
        return prefix + self._time + self._unused.pop()
