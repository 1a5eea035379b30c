"""Clean up after agents: end processes and delete files whose session was ended elsewhere.

The process that resets or erases a session does this for its own agents. Other gateways, and one
that was killed in between, find out here.
"""

import asyncio

from holdfast.core.errors import HoldfastError
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.session_runtimes import SessionRuntimes

RUNNING_SECONDS = 10.0
"""How often sessions with a process are checked."""
STORED_SECONDS = 3600.0
"""How often all sessions with files on this machine are checked."""


class RuntimeCleanup:
    """Checks at intervals what agents have on this machine."""

    def __init__(self, gateway: Gateway, runtimes: SessionRuntimes) -> None:
        self._gateway = gateway
        self._runtimes = runtimes

    async def run(self) -> None:
        """Check until cancelled; what fails is checked again at the next interval."""
        elapsed = asyncio.get_running_loop().time
        next_full = elapsed()
        while True:
            is_full = elapsed() >= next_full
            try:
                await self.check(is_full=is_full)
                if is_full:
                    next_full = elapsed() + STORED_SECONDS
            except (HoldfastError, OSError) as exc:
                log.warning("agent.not_cleaned", reason=type(exc).__name__)
            await asyncio.sleep(RUNNING_SECONDS)

    async def check(self, *, is_full: bool) -> None:
        """Check the sessions with a process, or all that have files."""
        runtimes, find = self._runtimes, self._gateway.find_runtime_session
        names = await runtimes.stored_sessions() if is_full else runtimes.running_sessions()
        for name in names:
            try:
                await runtimes.clean_session(name, find)
            except OSError as exc:  # of one directory: check the others
                log.warning("agent.not_cleaned", session_id=name, reason=type(exc).__name__)
            await asyncio.sleep(0)  # there may be many, and short reads do not yield
