"""How much a tenant has stored, about: measured now and then, counted in between.

Exact figures would make every commit of a tenant wait for every other. A bound is kept within
what other processes take in between two measurements.
"""

import time
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.core.ids import Tenant
from holdfast.core.transaction.commands import LaneLimits
from holdfast.ports.store import Reader

MEASURE_SECONDS = 10.0
REST = 50
"""A measurement that takes long is made the more rarely."""


class StorageQuota:
    """Says whether a tenant may store more; without a bound it measures nothing."""

    def __init__(
        self, read: Reader, max_bytes: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self.is_bounded = max_bytes > 0
        self._now = now
        self._known: dict[Tenant, tuple[int, float]] = {}

    async def limits(self, tenant: Tenant, limits: LaneLimits) -> LaneLimits:
        """Return the limits, with the bound on storage if the tenant has reached it."""
        if self._max_bytes <= 0:
            return limits
        stored, until = self._known.get(tenant, (0, 0.0))
        if self._now() >= until:
            began = self._now()
            stored = await self._read.stored_bytes(tenant)
            pause = max(MEASURE_SECONDS, (self._now() - began) * REST)
            self._known[tenant] = (stored, self._now() + pause)
        if stored < self._max_bytes:
            return limits
        return replace(limits, full_bytes=self._max_bytes)

    def note(self, tenant: Tenant, added: int) -> None:
        """Count what was taken in since the last measurement."""
        if tenant in self._known:
            stored, until = self._known[tenant]
            self._known[tenant] = (stored + added, until)
