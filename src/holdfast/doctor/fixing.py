"""Mending what the doctor found, and only what it found."""

from collections.abc import Sequence

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import ForgetState, Hide
from holdfast.doctor.findings import Finding
from holdfast.engine.clock import RandomIds
from holdfast.engine.sessions.waiters import WaiterRegistry
from holdfast.engine.sessions.worker import Worker
from holdfast.engine.settings import LaneSettings
from holdfast.stores.sql.store import SqlStore

SWEPT = frozenset({"lease_expired", "run_orphaned", "turn_abandoned", "hold_expired"})
"""What any worker settles that takes part for a moment."""


async def fix(
    store: SqlStore, findings: Sequence[Finding], lanes: LaneSettings
) -> dict[Finding, str]:
    """Mend what can be mended; return what could not be, and why."""
    if any(finding.code in SWEPT for finding in findings):
        await _sweep(store, lanes)
    failures: dict[Finding, str] = {}
    for finding in findings:
        try:
            await _mend(store, finding)
        except HoldfastError as exc:
            failures[finding] = f"{finding.code} {finding.subject}: {exc.message}"
    return failures


async def _sweep(store: SqlStore, lanes: LaneSettings) -> None:
    """Take part as a worker for as long as it takes to settle what others left.

    Turns that nobody waits for on a socket stay queued, for the next gateway to run.
    """
    worker = Worker(store, WaiterRegistry(), ids=RandomIds(), settings=lanes)
    await worker.start(_leave_queued)
    await worker.stop()


async def _leave_queued(turn: Turn) -> None:
    """A doctor runs nothing."""
    del turn


async def _mend(store: SqlStore, finding: Finding) -> None:
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
