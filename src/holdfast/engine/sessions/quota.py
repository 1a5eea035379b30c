"""How much each tenant has stored: measured from time to time, estimated in between.

An exact figure would serialize all commits of a tenant. The limit may be exceeded by what other
processes store between two measurements.
"""

import time
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core.ids import Tenant
from holdfast.core.transaction.commands import LaneLimits
from holdfast.ports.store import SessionReader

MEASURE_SECONDS = 10.0
REST_FACTOR = 50
"""After a measurement there is a pause of at least this many times its duration."""


class StorageQuota:
    """Decides whether a tenant may store more; without a limit it measures nothing."""

    def __init__(
        self, read: SessionReader, max_bytes: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self.is_bounded = max_bytes > 0
        self._now = now
        self._measured: dict[Tenant, tuple[int, float]] = {}
        """What each tenant has stored, and when to measure again."""

    async def limits(self, tenant: Tenant, limits: LaneLimits) -> LaneLimits:
        """Return the limits, with the storage limit set if the tenant has reached it."""
        if not self.is_bounded:
            return limits
        stored, until = self._measured.get(tenant, (0, 0.0))
        if self._now() >= until:
            began = self._now()
            stored = await self._read.stored_bytes(tenant)
            pause = max(MEASURE_SECONDS, (self._now() - began) * REST_FACTOR)
            self._measured[tenant] = (stored, self._now() + pause)
        if stored < self._max_bytes:
            return limits
        return replace(limits, full_bytes=self._max_bytes)

    def note(self, tenant: Tenant, added: int) -> None:
        """Add what was stored since the last measurement."""
        if tenant in self._measured:
            stored, until = self._measured[tenant]
            self._measured[tenant] = (stored + added, until)
