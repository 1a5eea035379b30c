"""Check the store of a running gateway on request, at a limited rate."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.doctor.findings import Finding, finding_value
from holdfast.stores.sql.store import SqlStore

FRESH_SECONDS = 15.0
"""How long the result of a check is reused: a check reads many sessions."""
MAX_FINDINGS = 1000


class DoctorService:
    """Checks one store; concurrent callers share a check."""

    def __init__(
        self,
        store: SqlStore,
        store_url: str,
        *,
        turn_seconds: float,
        services: Callable[[], Awaitable[Iterable[Finding]]] | None = None,
    ) -> None:
        self._services = services
        self._store = store
        self._url = store_url
        self._turn_seconds = turn_seconds
        self._lock = asyncio.Lock()
        self._checked_at = 0.0
        self._fresh_until = 0.0
        self._findings: list[dict[str, Any]] = []

    async def diagnose(self) -> tuple[float, list[dict[str, Any]]]:
        """Return when the store was checked last, and the findings."""
        async with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._findings = [finding_value(finding) for finding in await self._check()]
                self._checked_at = time.time()
                self._fresh_until = time.monotonic() + FRESH_SECONDS
            return self._checked_at, self._findings

    async def _check(self) -> list[Finding]:
        # Few gateways are ever asked, so import the checks on demand.
        from holdfast.doctor.store_checks import check_contents, check_inspection
        from holdfast.stores.inspect import inspect_store

        # In a thread: inspecting a large file blocks for some time.
        inspection = await asyncio.to_thread(asyncio.run, inspect_store(self._url))
        findings = [*check_inspection(inspection)]
        if self._services is not None:
            findings += await self._services()
        async for finding in check_contents(self._store, turn_seconds=self._turn_seconds):
            if len(findings) >= MAX_FINDINGS:
                break
            findings.append(finding)
        return findings
