"""How much one tenant may ask of one process. Off unless set."""

import time

from holdfast.core.ids import Tenant
from holdfast.http.server.errors import RateLimited


class RequestLimit:
    """A bucket per tenant that fills evenly; a request takes one from it."""

    def __init__(self, requests_per_minute: int) -> None:
        self._size = requests_per_minute
        self.is_set = requests_per_minute > 0
        self._buckets: dict[Tenant, tuple[float, float]] = {}

    def take(self, tenant: Tenant) -> None:
        """Count a request, or refuse it and say when to come back."""
        now = time.monotonic()
        left, at = self._buckets.get(tenant, (float(self._size), now))
        left = min(float(self._size), left + (now - at) * self._size / 60.0)
        if left < 1.0:
            self._buckets[tenant] = (left, now)
            seconds = (1.0 - left) * 60.0 / self._size
            raise RateLimited(f"at most {self._size} requests a minute", seconds)
        self._buckets[tenant] = (left - 1.0, now)
