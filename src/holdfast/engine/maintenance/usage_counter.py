"""Add up what turns used, in the background.

Turns do not wait for it: it reads committed entries, one bounded batch at a time, and pauses for as
long as each batch took. A report counts newer entries by itself, so that a batch waits until it is
full, for some seconds at most. Several processes may each run one: if two add up the same entries,
only one of them succeeds, and the other one waits longer.
"""

import asyncio
import time

from holdfast.core.errors import HoldfastError
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway

BATCH = 500
"""Entries per transaction."""
POLL_SECONDS = 1.0
"""How often the log is checked for a full batch."""
LATEST_SECONDS = 10.0
"""How long a batch waits until it is full. Retention and erasing meet older entries only."""
RETRY_SECONDS = 5.0


class UsageCounter:
    """Follows the log of one store."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._counted_at = -LATEST_SECONDS

    async def run(self) -> None:
        """Count until cancelled; after a failure continue from the stored position."""
        while True:
            began = time.monotonic()
            try:
                pause = await self._count(began)
            except HoldfastError as exc:
                log.warning("usage.not_counted", code=exc.code, reason=exc.message)
                pause = RETRY_SECONDS
            await asyncio.sleep(pause)

    async def _count(self, began: float) -> float:
        """Count a batch if one is due; return how long to wait for the next."""
        usage, worker = self._gateway.store.usage, self._gateway.worker.id
        is_late = began - self._counted_at >= LATEST_SECONDS
        if not is_late and await usage.backlog() < BATCH:
            return POLL_SECONDS
        self._counted_at = began
        command = await usage.read_backlog(worker, BATCH)
        if command is None:
            return POLL_SECONDS
        if not await self._gateway.submit(command):
            return RETRY_SECONDS
        return time.monotonic() - began if command.has_more else POLL_SECONDS
