"""A session: one history under one id, and the lane that its turns pass through."""

from operator import add, sub
from typing import Literal

import msgspec
from msgspec.structs import astuple, replace

from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId

SessionStatus = Literal["idle", "running", "retired"]
SessionSource = Literal[
    "user", "console", "background", "cron", "channel", "internal", "system"
]  # fmt: skip
"""The source of a turn, and of a session's first turn."""


class Session(msgspec.Struct, frozen=True, gc=False):
    """The row of a session; its fields but the last are stored. By default it is new.

    The lane is part of it: `active_turn_id` holds it. While a run works, `active_run_id` and
    `owner` are set; while the client's tools work, `hold_until` and `pending_calls` are.
    """

    id: SessionId
    tenant: Tenant
    key: Key | None
    generation: int = 1
    is_live: bool = True
    is_visible: bool = True
    previous_session_id: SessionId | None = None
    parent_id: SessionId | None = None
    parent_seq: int = 0
    parent_record: int = 0
    epoch: int = 1
    version: int = 1
    head_seq: int = 0
    record_no: int = 0
    event_no: int = 0
    turn_count: int = 0
    hidden_count: int = 0
    active_turn_id: TurnId | None = None
    active_run_id: RunId | None = None
    owner: WorkerId | None = None
    hold_until: float | None = None
    pending_calls: str | None = None
    created_at: float = 0.0
    last_user_activity_at: float | None = None
    retired_at: float | None = None
    deleted_at: float | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    metadata: bytes = b"{}"
    has_failed: bool = False
    """Whether the last turn failed with a retryable error: the next input may repeat its input."""
    started_by: SessionSource = "user"
    """The source that started the conversation; inherited from the predecessor or parent."""
    has_later_records: bool = False
    """Whether this is an earlier state, and records came since: they may have erased items."""

    @property
    def item_count(self) -> int:
        """How many items are visible."""
        return self.head_seq - self.hidden_count

    def as_of(self, seq: int, record_no: int) -> "Session":
        """Return the session as it was when its log ended at `seq`, with the records of that time.

        Its `hidden_count` only says that items may be hidden.
        """
        has_later = self.has_later_records or record_no != self.record_no
        return replace(
            self, head_seq=seq, record_no=record_no, hidden_count=1, has_later_records=has_later
        )

    @property
    def is_held(self) -> bool:
        """Whether the lane waits for the client's tools."""
        return self.active_turn_id is not None and self.active_run_id is None

    def exists_for(self, tenant: Tenant) -> bool:
        """Whether a tenant can access the session: it owns it, and the session was not erased."""
        return self.tenant == tenant and self.deleted_at is None

    def status(self, *, has_live_owner: bool) -> SessionStatus:
        """Return the status, from the lane: a session whose owner died counts as idle."""
        if not self.is_live:
            return "retired"
        if self.active_turn_id is not None and (has_live_owner or self.is_held):
            return "running"
        return "idle"


def read_pending_calls(session: Session) -> list[str]:
    """Return the ids of the calls that the lane is held for."""
    return msgspec.json.decode(session.pending_calls or "[]", type=list[str])


def begin_session(
    session_id: SessionId,
    tenant: Tenant,
    *,
    now: float,
    key: Key | None = None,
    generation: int = 1,
    previous: Session | None = None,
    is_visible: bool = True,
    started_by: SessionSource = "user",
) -> Session:
    """Return a new, empty, idle session with the metadata and source of its predecessor."""
    return Session(
        id=session_id,
        tenant=tenant,
        key=key,
        generation=generation,
        is_visible=is_visible,
        previous_session_id=previous.id if previous else None,
        created_at=now,
        metadata=previous.metadata if previous else b"{}",
        started_by=previous.started_by if previous else started_by,
    )


MOST_TOKENS = 2**53
"""No run uses more; the sum over a session still fits a number that any client can read."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens that a run's calls reported. Unknown usage is None on the run, never an estimate."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def is_countable(self) -> bool:
        """Whether every count is plausible; implausible usage is ignored."""
        counts = (self.input_tokens, self.cached_tokens, self.output_tokens, self.reasoning_tokens)
        return {*map(type, counts)} == {int} and min(counts) >= 0 and max(counts) <= MOST_TOKENS


def sum_usage(total: Usage | None, more: Usage | None) -> Usage | None:
    """Return the sum of two usages, either of which may be unknown."""
    if total is None or more is None:
        return total or more
    return Usage(*map(add, astuple(total), astuple(more)))


def subtract_usage(known: Usage, last: Usage) -> Usage:
    """Return the usage before the last call."""
    return Usage(*map(sub, astuple(known), astuple(last)))


class ProviderState(msgspec.Struct, frozen=True, gc=False):
    """An opaque value that may be sent only to the provider that made it.

    It is committed together with the completed response that made it, or not at all.
    """

    provider: str
    account: str
    model: str
    value: bytes
    covers_seq: int = 0

    @property
    def slot(self) -> str:
        """The key of this owner's state within a session."""
        return msgspec.json.encode([self.provider, self.account, self.model]).decode()
