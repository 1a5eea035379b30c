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
        self._dice = ""

    def new(self, prefix: str) -> str:
        """Return a new id. Chance is fetched for many ids at a time, and none of it used twice."""
        dice = self._dice or secrets.token_hex(10 * IDS_AT_ONCE)
        self._dice = dice[20:]
        return f"{prefix}_{int(time.time() * 1000):011x}{dice[:20]}"
