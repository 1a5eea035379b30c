"""Fixes for findings of the doctor."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import SessionId, Tenant, WorkerId
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import ForgetState, Hide
from holdfast.doctor.findings import Finding
from holdfast.engine.clock import RandomIds
from holdfast.engine.sessions.waiters import WaiterRegistry
from holdfast.engine.sessions.worker import Worker
from holdfast.engine.settings import LaneSettings
from holdfast.stores.sql.store import SqlStore

RECOVERABLE = frozenset({"lease_expired", "run_orphaned", "turn_abandoned", "hold_expired"})
"""Findings that a worker fixes by starting and stopping once."""
STILL_RUNS = (
    "its worker's process still runs without renewing its lease: if it hangs, end it and run --fix "
    "again, or leave it to a running gateway, which takes over after `lanes.lease_seconds`"
)


def fix_before_open(findings: Sequence[Finding]) -> dict[Finding, str]:
    """Fix file permissions; return the failures."""
    failures: dict[Finding, str] = {}
    for finding in findings:
        if finding.code == "permissions_open":
            path = Path(finding.subject)
            try:
                _make_private(path)
            except OSError as exc:
                failures[finding] = f"{finding.code} {path}: {exc.strerror}"
    return failures


def _make_private(path: Path) -> None:
    if path.is_dir():
        path.chmod(0o700)
        return
    for suffix in ("", "-wal", "-shm"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            file.chmod(0o600)


async def fix(
    store: SqlStore, findings: Sequence[Finding], lanes: LaneSettings
) -> dict[Finding, str]:
    """Fix what can be fixed; return the failures."""
    failures: dict[Finding, str] = {}
    if any(finding.code in RECOVERABLE for finding in findings):
        await _recover(store, lanes)
        failures |= await _unfixed(store, findings)
    for finding in findings:
        try:
            await _fix_one(store, finding)
        except HoldfastError as exc:
            failures[finding] = f"{finding.code} {finding.subject}: {exc.message}"
    return failures


async def _recover(store: SqlStore, lanes: LaneSettings) -> None:
    """Start a worker and stop it again: starting recovers what dead workers left.

    Turns without a waiting client stay queued for the next gateway.
    """
    worker = Worker(store, WaiterRegistry(), ids=RandomIds(), settings=lanes)
    await worker.start(_leave_queued)
    await worker.stop()


async def _unfixed(store: SqlStore, findings: Sequence[Finding]) -> dict[Finding, str]:
    """Return the findings about workers that were not ended, because their processes still run.

    Their leases are over, but after a step of the clock so are those of live workers. A gateway
    watches such a worker for a whole lease before it takes its work.
    """
    open_ids: set[str] = {worker.id for worker in await store.workers()}
    for finding in findings:
        if finding.code == "lease_expired" and finding.subject in open_ids:
            worker = WorkerId(finding.subject)
            open_ids |= {run.turn_id for run in await store.owned_runs(worker)}
            open_ids |= {turn.id for turn in await store.owned_turns(worker)}
    return {
        finding: f"{finding.code} {finding.subject}: {STILL_RUNS}"
        for finding in findings
        if finding.code in RECOVERABLE and finding.subject in open_ids
    }


async def _leave_queued(turn: Turn) -> None:
    """Leave a turn queued: the doctor runs nothing."""
    del turn


async def _fix_one(store: SqlStore, finding: Finding) -> None:
    if finding.code == "provider_state_stale":
        tenant, session_id = finding.subject.rsplit("/", 1)
        await store.submit(ForgetState(tenant=Tenant(tenant), session_id=SessionId(session_id)))
    elif finding.code == "projection_invalid":
        tenant, session_id, seq = finding.subject.rsplit("/", 2)
        await store.submit(
            Hide(
                tenant=Tenant(tenant),
                session_id=SessionId(session_id),
                from_seq=int(seq),
                to_seq=int(seq),
            )
        )
