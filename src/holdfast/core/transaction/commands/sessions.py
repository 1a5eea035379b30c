"""Commands about whole sessions and API keys: reserve, reset, restore, fork, import, delete."""

from holdfast.core.ids import Key, SessionId, Tenant, WorkerId
from holdfast.core.model.delivery import OutboxMessage
from holdfast.core.model.import_rows import Imported, ImportedTurn, Order
from holdfast.core.model.session import Session, Usage
from holdfast.core.transaction.changes import ApiKeyRow
from holdfast.core.transaction.commands.command import Command


class Reset(Command[Session], frozen=True, kw_only=True):
    """Retire the live generation and start the next one under the same key."""

    tenant: Tenant
    session_id: SessionId
    new_id: SessionId
    expected_id: SessionId | None = None
    reason: str = "session_reset"
    idempotency_key: str | None = None
    body_hash: bytes | None = None
    messages: tuple[OutboxMessage, ...] = ()
    """Messages that a channel sends about the reset."""


class Restore(Command[Session], frozen=True, kw_only=True):
    """Make an old generation live again, and retire the live one."""

    tenant: Tenant
    session_id: SessionId


class Delete(Command[Session], frozen=True, kw_only=True):
    """Erase a session and leave a tombstone; with `idle_seconds`, only if it was idle that long."""

    tenant: Tenant
    session_id: SessionId
    cascade: bool = False
    idle_seconds: float | None = None


class Prune(Command[bool], frozen=True, kw_only=True):
    """Delete old journals, idempotency keys and events; return whether there are more."""

    worker: WorkerId
    older_than_seconds: float


class Fork(Command[Session], frozen=True, kw_only=True):
    """Create a keyless session that shares this one's history up to an item."""

    tenant: Tenant
    session_id: SessionId
    new_id: SessionId
    after_seq: int | None = None
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class Reserve(Command[Session], frozen=True, kw_only=True):
    """Return the live session of a key; create it, with an empty log, if there is none."""

    tenant: Tenant
    candidate_id: SessionId
    key: Key | None = None
    metadata: bytes = b"{}"


class Import(Command[Imported], frozen=True, kw_only=True):
    """Import a session from another store, under an id that is always the same for its source.

    A session that was erased, reset or continued here is not changed: what was done here is newer
    than the import.
    """

    tenant: Tenant
    session_id: SessionId
    key: Key | None = None
    generation: int = 1
    """Its generation at the source; here it gets at least this number."""
    turns: tuple[ImportedTurn, ...] = ()
    order: Order = ()
    """The blocks of the log; if empty, each turn is one block, in order."""
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of the log to hide from the model."""
    follows: tuple[SessionId, ...] = ()
    """The earlier generations of the key in the same source, the latest last."""
    is_live: bool = True
    metadata: bytes = b"{}"
    created_at: float | None = None
    last_user_activity_at: float | None = None
    usage: Usage | None = None
    is_dry_run: bool = False
    """Return the result without writing anything."""


class Annotate(Command[Session], frozen=True, kw_only=True):
    """Set a session's metadata."""

    tenant: Tenant
    session_id: SessionId
    metadata: bytes


class ForgetState(Command[Session], frozen=True, kw_only=True):
    """Drop a session's provider state, while nothing runs in it."""

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
    """Revoke a key for good."""

    id: str
