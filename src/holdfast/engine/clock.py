"""The machine's own time and randomness, behind the ports that a test can replace."""

import secrets
import time

IDS_AT_ONCE = 64
"""How many ids one question to the system's source of chance is good for."""


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> float:
        """Return the time now."""
        return time.time()


class RandomIds:
    """Ids that nobody can guess; they begin with the time, so that neighbours are stored near."""

    def __init__(self) -> None:
        self._dice: list[str] = []
        self._at, self._time = 0, ""

    def new(self, prefix: str) -> str:
        """Return a new id. Chance is fetched for many ids at a time, and none of it used twice."""
        if not self._dice:
            rolled = secrets.token_hex(10 * IDS_AT_ONCE)
            self._dice = [rolled[at : at + 20] for at in range(0, len(rolled), 20)]
        at = int(time.time() * 1000)
        if at != self._at:
            self._at, self._time = at, f"_{at:011x}"
        return prefix + self._time + self._dice.pop()
