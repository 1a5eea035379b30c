"""Requests per minute and tenant, counted in this process. Off unless configured."""

import time

from holdfast.core.ids import Tenant
from holdfast.http.server.errors import RateLimited


class RateLimiter:
    """A token bucket per tenant."""

    def __init__(self, requests_per_minute: int) -> None:
        self._size = requests_per_minute
        self.is_set = requests_per_minute > 0
        self._buckets: dict[Tenant, tuple[float, float]] = {}

    def consume(self, tenant: Tenant) -> None:
        """Count a request, or raise `RateLimited` with the time until the next one is allowed."""
        now = time.monotonic()
        tokens, updated_at = self._buckets.get(tenant, (float(self._size), now))
        tokens = min(float(self._size), tokens + (now - updated_at) * self._size / 60.0)
        if tokens < 1.0:
            self._buckets[tenant] = (tokens, now)
            seconds = (1.0 - tokens) * 60.0 / self._size
            raise RateLimited(f"at most {self._size} requests per minute are allowed", seconds)
        self._buckets[tenant] = (tokens - 1.0, now)
