"""Retention, where it is configured: archive and erase idle sessions, prune old traces.

Whether a session is idle is checked again in the transaction that erases it. A session that cannot
be archived is not erased.
"""

import asyncio
from collections.abc import Awaitable, Callable

from holdfast.core.errors import Conflict, HoldfastError, NotFound
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.transaction.commands import Delete, Prune
from holdfast.engine.logging import log
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import RetentionSettings

DAY_SECONDS = 86_400.0
PAGE = 100
MAX_PRUNES = 1000

Archive = Callable[[Tenant, SessionId], Awaitable[None]]
"""Archives a session; the session is erased only after this has returned."""


class Retention:
    """Sweeps a store at intervals."""

    def __init__(self, gateway: Gateway, settings: RetentionSettings, archive: Archive) -> None:
        self._gateway = gateway
        self._settings = settings
        self._archive = archive

    async def run(self) -> None:
        """Sweep until cancelled; a failed sweep is repeated at the next interval."""
        while True:
            try:
                await self.sweep()
            except HoldfastError as exc:
                log.failed("retention.failed", exc)
            except OSError as exc:
                log.warning("retention.not_archived", reason=type(exc).__name__)
            await asyncio.sleep(self._settings.sweep_minutes * 60)

    async def sweep(self) -> int:
        """Prune and erase what is due; return how many sessions were erased."""
        if self._settings.traces_days:
            await self._prune(self._settings.traces_days * DAY_SECONDS)
        if not self._settings.sessions_days:
            return 0
        return await self._erase_idle(self._settings.sessions_days * DAY_SECONDS)

    async def _prune(self, seconds: float) -> None:
        for _ in range(MAX_PRUNES):
            worker = self._gateway.worker.id
            if not await self._gateway.submit(Prune(worker=worker, older_than_seconds=seconds)):
                return

    async def _erase_idle(self, seconds: float) -> int:
        erased, after = 0, SessionId("")
        while True:
            page = await self._gateway.read.idle_sessions(seconds, after=after, limit=PAGE)
            for tenant, session_id in page:
                erased += await self._erase(tenant, session_id, seconds)
                after = session_id
            if len(page) < PAGE:
                return erased

    async def _erase(self, tenant: Tenant, session_id: SessionId, seconds: float) -> int:
        await self._archive(tenant, session_id)
        command = Delete(tenant=tenant, session_id=session_id, idle_seconds=seconds)
        try:
            await self._gateway.submit(command)
        except (Conflict, NotFound) as exc:
            # It was used or erased meanwhile.
            log.info("retention.kept", session_id=session_id, code=exc.code)
            return 0
        log.info("retention.erased", session_id=session_id)
        return 1
