"""Check the store of a running gateway on request, at a limited rate."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.doctor.findings import Finding, finding_value
from holdfast.stores.sql.store import SqlStore

if TYPE_CHECKING:
    from holdfast.doctor.store_checks import Coverage

FRESH_SECONDS = 15.0
"""How long the result of a check is reused."""
DEEP_FRESH_SECONDS = 600.0
"""The same for a deep check, which reads the whole store."""
DEEP_WAIT_SECONDS = 10.0
"""How long a caller waits for a deep check; after that the answer is what was found so far."""
MAX_FINDINGS = 1000


@dataclass(slots=True)
class Diagnosis:
    """The result of one check, which may still run."""

    coverage: "Coverage"
    started_at: float = field(default_factory=time.time)
    finished_at: float | None = None
    findings: list[Finding] = field(default_factory=list)

    def value(self, deep: "Diagnosis | None") -> dict[str, Any]:
        """Return the diagnosis as JSON, and when the last deep check was."""
        seen, now = self.coverage, time.time()
        return {
            "checked_at": int(self.finished_at or now),
            "coverage": {
                "is_deep": seen.is_deep,
                "is_finished": self.finished_at is not None,
                "is_whole": seen.is_whole and self.finished_at is not None,
                "entries": seen.entries,
                "since": int(seen.since) if seen.since is not None else None,
                "sessions": seen.sessions,
            },
            "deep_check": None if deep is None else {
                "started_at": int(deep.started_at),
                "finished_at": int(deep.finished_at) if deep.finished_at is not None else None,
                "findings": len(deep.findings),
            },
            "data": [finding_value(finding) for finding in self.findings],
        }  # fmt: skip


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
        self._last: Diagnosis | None = None
        self._deep: Diagnosis | None = None
        self._deep_task: asyncio.Task[None] | None = None

    async def diagnose(self, *, is_deep: bool = False) -> dict[str, Any]:
        """Return what was found and looked at; a deep check may still run then."""
        if is_deep:
            return (await self._find_deep()).value(self._deep)
        async with self._lock:
            if not _is_fresh(self._last, FRESH_SECONDS):
                self._last = self._begin(is_deep=False)
                await self._check(self._last)
            assert self._last is not None
            return self._last.value(self._deep)

    async def _find_deep(self) -> Diagnosis:
        """Return the last deep check, or the one that runs; begin one if it is too old."""
        is_over = self._deep_task is None or self._deep_task.done()
        if self._deep is None or (is_over and not _is_fresh(self._deep, DEEP_FRESH_SECONDS)):
            self._deep = self._begin(is_deep=True)
            self._deep_task = asyncio.create_task(self._check(self._deep), name="holdfast-doctor")
            # The caller that would hear of a failure may be gone.
            self._deep_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        assert self._deep_task is not None
        deep = self._deep
        await asyncio.wait([self._deep_task], timeout=DEEP_WAIT_SECONDS)
        if self._deep_task.done():
            self._deep_task.result()
        return deep

    @staticmethod
    def _begin(*, is_deep: bool) -> Diagnosis:
        # Few gateways are ever asked, so import the checks on demand.
        from holdfast.doctor.store_checks import Coverage

        return Diagnosis(Coverage(is_deep=is_deep, pause=1.0))

    async def _check(self, diagnosis: Diagnosis) -> None:
        from holdfast.doctor.store_checks import check_contents, check_inspection
        from holdfast.stores.inspect import inspect_store

        findings, coverage = diagnosis.findings, diagnosis.coverage
        # In a thread: inspecting a large file blocks for some time.
        inspection = await asyncio.to_thread(
            asyncio.run, inspect_store(self._url, is_deep=coverage.is_deep)
        )
        coverage.is_whole &= inspection.is_verified
        findings += check_inspection(inspection)
        if self._services is not None:
            findings += await self._services()
        async for finding in check_contents(
            self._store, turn_seconds=self._turn_seconds, coverage=coverage
        ):
            if len(findings) >= MAX_FINDINGS:
                coverage.is_whole = False
                break
            findings.append(finding)
        diagnosis.finished_at = time.time()


def _is_fresh(diagnosis: Diagnosis | None, seconds: float) -> bool:
    if diagnosis is None or diagnosis.finished_at is None:
        return False
    return time.time() < diagnosis.finished_at + seconds
