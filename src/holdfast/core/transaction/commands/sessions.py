"""Commands about whole sessions and the access to them: reserve, reset, restore, fork, delete."""

from holdfast.core.ids import Key, SessionId, Tenant, WorkerId
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.model.import_rows import Imported, ImportedTurn, Order
from holdfast.core.model.session import Session, Usage
from holdfast.core.transaction.changes import ApiKeyRow
from holdfast.core.transaction.commands.command import Command


class Reset(Command[Session], frozen=True, kw_only=True):
    """Retire the live generation and begin the next one under the same key."""

    tenant: Tenant
    session_id: SessionId
    new_id: SessionId
    expected_id: SessionId | None = None
    reason: str = "session_reset"
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    messages: tuple[OutboxMessage, ...] = ()
    """What a channel sends about it."""


class Restore(Command[Session], frozen=True, kw_only=True):
    """Make an old generation live again, and retire the one that was."""

    tenant: Tenant
    session_id: SessionId


class Delete(Command[Session], frozen=True, kw_only=True):
    """Erase a session and leave a tombstone; with `idle_seconds`, if it was idle for so long."""

    tenant: Tenant
    session_id: SessionId
    cascade: bool = False
    idle_seconds: float | None = None


class Prune(Command[bool], frozen=True, kw_only=True):
    """Forget old journals of ended turns, idempotency keys and events; is there more of them?"""

    worker: WorkerId
    older_than_seconds: float


class Fork(Command[Session], frozen=True, kw_only=True):
    """Begin a keyless session that shares this one's history up to a point."""

    tenant: Tenant
    session_id: SessionId
    new_id: SessionId
    after_seq: int | None = None
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class Reserve(Command[Session], frozen=True, kw_only=True):
    """Return the live session of a key, making it, with its empty log, if there is none."""

    tenant: Tenant
    candidate_id: SessionId
    key: Key | None = None
    metadata: bytes = b"{}"


class Import(Command[Imported], frozen=True, kw_only=True):
    """Take over a session from elsewhere, under an id that the same source always gives it.

    What was erased here, reset here or continued here stays as it is: the past of another store
    is older than anything that was done in this one.
    """

    tenant: Tenant
    session_id: SessionId
    key: Key | None = None
    generation: int = 1
    """Its number where it comes from: the least that it gets here."""
    turns: tuple[ImportedTurn, ...] = ()
    order: Order = ()
    """The blocks of the log; where there are none, each turn is one, in their own order."""
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of the log that the model is not to be shown."""
    follows: tuple[SessionId, ...] = ()
    """The earlier generations of the key in the same source, the nearest last."""
    is_live: bool = True
    metadata: bytes = b"{}"
    created_at: float | None = None
    last_user_activity_at: float | None = None
    usage: Usage | None = None
    is_dry_run: bool = False
    """Only say what would be done."""


class Annotate(Command[Session], frozen=True, kw_only=True):
    """Set a session's metadata."""

    tenant: Tenant
    session_id: SessionId
    metadata: bytes


class ForgetState(Command[Session], frozen=True, kw_only=True):
    """Forget what providers remember for a session, while nothing runs in it."""

    tenant: Tenant
    session_id: SessionId


class AddApiKey(Command[ApiKeyRow], frozen=True, kw_only=True):
    """Record a key by its hash; from then on every request needs a key."""

    id: str
    tenant: Tenant
    hash: bytes
    name: str = ""
    is_admin: bool = False


class RevokeApiKey(Command[ApiKeyRow], frozen=True, kw_only=True):
    """Close a key for good."""

    id: str
