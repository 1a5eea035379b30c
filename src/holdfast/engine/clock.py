"""The machine's own time and randomness, behind the ports that a test can replace."""

import secrets
import time


class SystemClock:
    """The machine's wall clock."""

    def now(self) -> float:
        """Return the time now."""
        return time.time()


class RandomIds:
    """Ids that nobody can guess; they begin with the time, so that neighbours are stored near."""

    def new(self, prefix: str) -> str:
        """Return a new id."""
        return f"{prefix}_{int(time.time() * 1000):011x}{secrets.token_hex(10)}"
