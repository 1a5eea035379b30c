"""Which session a request means: the one it names, the live one of its key, or a new one."""

from holdfast.core.errors import (
    HoldfastError,
    SessionChanged,
    SessionNotFound,
    SessionRetired,
    StorageFull,
    TenantFull,
)
from holdfast.core.model.session import Session, begin_session
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Accept, Append, AppendBatch, LaneLimits, Reserve
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.session_draft import Draft


def reserve(command: Reserve, facts: Facts) -> Decision[Session]:
    """Return the one live session of a key; all callers in a race get the same session."""
    if facts.session is not None:
        return Decision(facts.session)
    draft = new_draft(command, facts)
    draft.set(metadata=command.metadata)
    return draft.decide(draft.session)


def unusable(command: Accept | Append, facts: Facts) -> HoldfastError | None:
    """Return why the named session cannot accept the request, or None if it can."""
    session = facts.session
    if session is None:
        if command.session_id is None:
            return None
        return SessionNotFound(f"no session {command.session_id}")
    if session.tenant != command.tenant or session.deleted_at is not None:
        return SessionNotFound(f"no session {session.id}")
    if not session.is_live:
        return SessionRetired(session.id, facts.live_id)
    return None


def unexpected(command: Accept | AppendBatch, facts: Facts) -> HoldfastError | None:
    """Return an error if the live session is not the one that the caller expects, or None."""
    session = facts.session
    if command.expected_id is None or (
        session is not None and not session.exists_for(command.tenant)
    ):
        return None
    if session is None or session.id != command.expected_id or not session.is_live:
        live_id = session.id if session is not None and session.is_live else facts.live_id
        return SessionChanged(command.expected_id, live_id)
    return None


def new_draft(command: Accept | Append | AppendBatch | Reserve, facts: Facts) -> Draft:
    """Return the draft of a new session: the next generation of its key."""
    session = begin_session(
        command.candidate_id,
        command.tenant,
        now=facts.now,
        key=command.key,
        generation=facts.next_generation,
        started_by=command.source if isinstance(command, Accept | AppendBatch) else "user",
    )
    draft = Draft(session, now=facts.now, is_new=True)
    draft.add_event("session.created", generation=session.generation)
    return draft


def tenant_full(limits: LaneLimits, facts: Facts) -> HoldfastError | None:
    """Return an error if a tenant may not store more or open another turn, or None."""
    if limits.full_bytes:
        limit = limits.full_bytes
        return StorageFull(f"the tenant has reached its limit of {limit} stored bytes; delete some")
    limit = limits.max_tenant_turns
    if not limit or facts.tenant_turns < limit:
        return None
    return TenantFull(
        f"the tenant has {facts.tenant_turns} open turns; its limit is {limit}, retry later"
    )
