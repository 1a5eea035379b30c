"""Liveness and readiness."""

import asyncio
import time

from holdfast.core.errors import RunFenced, StoreUnavailable
from holdfast.core.transaction.commands import Renew
from holdfast.engine.sessions.gateway import Gateway
from holdfast.http.server.errors import error_reply
from holdfast.http.server.types import Reply, Request, json_reply

FRESH_SECONDS = 1.0
"""A successful check is reused for this long: anybody may ask, and each check is a commit."""
CHECK_SECONDS = 5.0
REFUSED_SECONDS = 5.0
"""How long a turn that the store refused counts; nobody may send one that it would accept."""


class HealthApi:
    """GET /healthz and GET /readyz."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._checking: asyncio.Task[None] | None = None
        self._ready_until = 0.0
        self._is_draining = False

    def drain(self) -> None:
        """Report not ready from now on, so that load balancers send no new requests."""
        self._is_draining = True

    async def healthz(self, _: Request) -> Reply:
        """Answer that the process is alive."""
        return json_reply({"status": "ok"})

    async def readyz(self, _: Request) -> Reply:
        """Answer 200 if the store accepts turns and the gateway does not stop.

        Requests in the same second share one check.
        """
        if self._is_draining:
            return error_reply(503, "the gateway is stopping", code="draining")
        if time.monotonic() >= self._ready_until:
            if self._checking is None or self._checking.done():
                self._checking = asyncio.create_task(self._check(), name="holdfast-readiness")
            # Shielded: a caller that disconnects must not cancel the check of the others.
            await asyncio.shield(self._checking)
        return json_reply({"status": "ready"})

    async def _check(self) -> None:
        """Renew the worker's own lease: the smallest possible write, which changes nothing else.

        A full disk may have room for that and for no turn.
        """
        gateway = self._gateway
        refused_at = gateway.refused_at
        if refused_at is not None and time.monotonic() - refused_at < REFUSED_SECONDS:
            raise StoreUnavailable("the store refuses turns")
        lease_seconds = gateway.settings.lease_seconds
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await gateway.store.check_room()
                await gateway.submit(Renew(worker=gateway.worker.id, lease_seconds=lease_seconds))
        except TimeoutError as exc:
            raise StoreUnavailable("the store did not accept a write in time") from exc
        except RunFenced as exc:
            # Another process declared this worker dead; it starts over at its next renewal. What
            # it accepted until then would be taken from it.
            raise StoreUnavailable("the lease of this worker is over; it starts over") from exc
        self._ready_until = time.monotonic() + FRESH_SECONDS
