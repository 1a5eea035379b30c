"""All errors of the gateway, in one tree.

HoldfastError
├── InvalidInput            the request is invalid
│   ├── InvalidSessionKey
│   ├── InvalidItem
│   ├── SessionNotKeyed     a reset needs a key to continue under
│   ├── ParentNotFound      the response to continue cannot be continued
│   ├── UnsupportedByUpstream  the model's server cannot express it
│   └── InvalidSetting
├── NotFound                unknown, foreign and erased look the same
│   ├── SessionNotFound
│   ├── TurnNotFound
│   ├── ItemNotFound
│   ├── CompactionNotFound
│   ├── ApprovalNotFound    no call waits for it any more
│   └── ModelNotFound       no upstream serves a model of this name
├── Conflict                the session's state does not allow it now
│   ├── SessionRetired      another generation is live
│   ├── SessionChanged      the expected session is not the live one
│   ├── SessionMoved        the log grew while a request was compared with it
│   │   └── ComparisonNeeded  a request may repeat what the log has
│   ├── SessionBusy         the caller asked not to wait
│   ├── SessionHasForks
│   ├── SessionDeleted      a late write to, or a repeat in, an erased session
│   ├── IdempotencyMismatch
│   ├── RunStateUsed        a parked run was resumed before
│   ├── TurnAlreadyDone     a repeat of a finished request: its answer is recorded
│   ├── TurnCancelled
│   └── TurnInterrupted
├── ApprovalForbidden       only the sender of a turn approves its calls
├── SessionClosed           the session object was closed by its owner
├── LaneFull / LaneTimeout  the bounds of a lane
├── TenantFull              the bound of a tenant
├── StorageFull             the tenant has stored as much as it may
├── RunFenced               this run no longer owns its session
├── TurnFailed              the work itself failed; carries the recorded code
├── ProviderFailure         a failure of the model's server, classified once
└── StoreError
    ├── StoreUnavailable    nothing was done, or its outcome is unknown; try again
    ├── SessionLost         the database was reached again without a session that was in it
    ├── StoreClosed         closed in this process, for good
    ├── ForeignDatabase     the tables are of another application
    ├── SchemaTooNew
    ├── SchemaTooOld        export with the version that wrote the store, then import
    └── DurabilityRefused
"""

from typing import ClassVar, Literal

FailureClass = Literal[
    "stale_state", "foreign_opaque", "shape", "busy", "overflow", "poison", "transient", "terminal"
]

REQUEST_STATUSES = frozenset({400, 413, 415, 422})
"""HTTP statuses of a provider that mean that the request is invalid."""


class HoldfastError(Exception):
    """The root class: a stable `code` for machines, and a message that names the values."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False
    param: str | None = None
    """The part of the request that is wrong, if it is known."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(HoldfastError):
    """The request cannot be carried out as written; `param` names the invalid part."""

    code = "invalid_input"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        if param is not None:
            self.param = param


class InvalidSessionKey(InvalidInput):
    """The key is empty, too long, or contains characters that keys must not have."""

    code = "invalid_session_key"


class InvalidItem(InvalidInput):
    """An item is not a JSON object in the Responses format."""

    code = "invalid_item"


class SessionNotKeyed(InvalidInput):
    """The session has no key, so a reset has no key to continue under."""

    code = "session_not_keyed"


class ParentNotFound(InvalidInput):
    """The response to continue is unknown, foreign, deleted or failed."""

    code = "previous_response_not_found"

    def __init__(self, name: str) -> None:
        message = f"Previous response with id '{name}' not found."
        super().__init__(message, param="previous_response_id")


class UnsupportedByUpstream(InvalidInput):
    """The API of the model's upstream cannot express the request; `param` names the part."""

    code = "unsupported_by_upstream"

    def __init__(self, param: str, upstream: str, remedy: str = "") -> None:
        message = f"{param} is not supported by {upstream}, which serves this model"
        super().__init__(f"{message}: {remedy}" if remedy else message, param=param)


class InvalidSetting(InvalidInput):
    """A setting has an invalid value."""

    code = "invalid_setting"


class NotFound(HoldfastError):
    """This object does not exist for this tenant."""

    code = "not_found"


class SessionNotFound(NotFound):
    """No session has this id or key."""

    code = "session_not_found"


class TurnNotFound(NotFound):
    """No turn has this id."""

    code = "turn_not_found"


class ItemNotFound(NotFound):
    """No item has this id or sequence number."""

    code = "item_not_found"


class ApprovalNotFound(NotFound):
    """No call waits for this approval: unknown, answered or expired."""

    code = "approval_not_found"


class ApprovalForbidden(HoldfastError):
    """Somebody else has to approve this call."""

    code = "approval_forbidden"


class CompactionNotFound(NotFound):
    """The session has no compaction of this id."""

    code = "compaction_not_found"


class ModelNotFound(NotFound):
    """No upstream serves a model of this name."""

    code = "model_not_found"


class Conflict(HoldfastError):
    """The current state of the session does not allow this."""

    code = "conflict"


class SessionRetired(Conflict):
    """The session was reset; `live_id` names the generation that is live now."""

    code = "session_retired"

    def __init__(self, session_id: str, live_id: str | None) -> None:
        where = f"; the live one is {live_id}" if live_id else ""
        super().__init__(f"session {session_id} is retired{where}")
        self.live_id = live_id


class SessionChanged(Conflict):
    """The live session is not the one that the caller expected; nothing was done."""

    code = "session_changed"

    def __init__(self, session_id: str, live_id: str | None) -> None:
        where = f"; the live one is {live_id}" if live_id else ""
        super().__init__(f"session {session_id} is not live{where}")
        self.live_id = live_id


class SessionMoved(Conflict):
    """The log is not the one that the request was compared with; compare again."""

    code = "session_moved"
    retryable = True


class ComparisonNeeded(SessionMoved):
    """A request may repeat the turn that runs, or one that failed; compare it with the log."""

    code = "comparison_needed"

    def __init__(self, session_id: str, active_turn_id: str | None) -> None:
        super().__init__("the request has to be compared with the session")
        self.session_id = session_id
        self.active_turn_id = active_turn_id


class SessionBusy(Conflict):
    """A turn is running and the caller asked not to wait."""

    code = "session_busy"
    retryable = True


class SessionHasForks(Conflict):
    """Other sessions point into this one; erase them too, or none."""

    code = "session_has_forks"


class SessionDeleted(Conflict):
    """The session was erased; nothing can be written to it or replayed from it."""

    code = "session_deleted"


class IdempotencyMismatch(Conflict):
    """The idempotency key was used with another body."""

    code = "idempotency_key_reused"


class RunStateUsed(Conflict):
    """A run that was parked for a decision has already been resumed, here or elsewhere."""

    code = "run_state_used"


class TurnAlreadyDone(Conflict):
    """This request was carried out before; its one answer is recorded with its turn."""

    code = "turn_already_done"


class TurnCancelled(Conflict):
    """The turn was cancelled; `reason` is the code of the cause."""

    code = "turn_cancelled"

    def __init__(self, turn_id: str, reason: str | None) -> None:
        super().__init__(f"turn {turn_id} was cancelled ({reason or 'on request'})")
        self.reason = reason


class TurnInterrupted(Conflict):
    """The turn lost its worker; sending the same request again resumes it."""

    code = "turn_interrupted"
    retryable = True


class LaneFull(HoldfastError):
    """The queue of this session's lane is full."""

    code = "lane_full"
    retryable = True


class TenantFull(HoldfastError):
    """The tenant has reached its limit of open turns."""

    code = "tenant_full"
    retryable = True


class StorageFull(HoldfastError):
    """The tenant has reached its storage limit; reading and deleting still work."""

    code = "storage_full"


class LaneTimeout(HoldfastError):
    """The turn waited for its lane for the longest allowed time."""

    code = "lane_timeout"
    retryable = True


class RunFenced(HoldfastError):
    """The run lost its session to a newer owner, a reset or a deletion; it changed nothing."""

    code = "run_fenced"


class TurnFailed(HoldfastError):
    """The turn's work failed. `failure_code` and the other attributes are what was recorded."""

    code = "turn_failed"

    def __init__(self, message: str, *, failure_code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.failure_code = failure_code
        self.param = param


class ProviderFailure(HoldfastError):
    """The model's server rejected the call or failed; `failure_class` decides how to handle it."""

    code = "provider_failure"

    def __init__(
        self,
        message: str,
        *,
        failure_class: FailureClass,
        status: int | None = None,
        provider_code: str | None = None,
        provider_type: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.failure_class = failure_class
        self.status = status
        self.provider_code = provider_code
        self.provider_type = provider_type
        self.param = param
        self.retry_after = retry_after
        self.provider_status: int | None = None
        """The status of the provider's own response; None if there was no response. `status` is
        what clients get."""
        self.places: tuple[int, ...] = ()
        """The items that the provider names, as indexes in the input of the call."""
        self.refuses_content = False
        """Whether its code says that the provider refuses the content of the input, or that it is
        too long however short the history is."""
        self.may_fail_on_input = False
        """Whether the server failed over the request: if that repeats, the input may be the
        cause."""
        self.is_about_bytes = False
        """Whether a request is rejected as too large without any mention of tokens or a context."""
        self.is_missing_path = False
        """Whether the provider has nothing at the path of the request."""

    @property
    def may_refuse_input(self) -> bool:
        """Whether its status says that the request is invalid: so the input may be the cause."""
        return self.status in REQUEST_STATUSES


class StoreError(HoldfastError):
    """The store cannot be used as requested."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store is unavailable now. Every command is safe to send again."""

    code = "store_unavailable"
    retryable = True


class SessionLost(StoreError):
    """The database was reached again and lacks a session that this process had seen in it.

    A standby that was promoted may lack the last commits, and so may a restored backup.
    """

    code = "session_lost"
    retryable = True

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id} was in the database before the connection to it was lost, and "
            "is not in it now; the database may have lost its last commits"
        )
        self.session_id = session_id


class StoreClosed(StoreError):
    """The store was closed in this process; trying again here will not help."""

    code = "store_closed"


class ForeignDatabase(StoreError):
    """The database has tables of another application where a store would have its own."""

    code = "foreign_database"


class SchemaTooNew(StoreError):
    """The store was written by a newer version than this one."""

    code = "schema_too_new"


class SchemaTooOld(StoreError):
    """The store has the schema before the log: export it with the version that wrote it."""

    code = "schema_too_old"


class DurabilityRefused(StoreError):
    """The database may lose acknowledged work, and the configuration does not allow that."""

    code = "durability_refused"


class SessionClosed(HoldfastError, RuntimeError):
    """The session object was closed and cannot be used any more."""

    code = "session_closed"


def release_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an error and of its causes.

    A frame that holds its own error in a variable forms a cycle with it. Until a garbage collection
    the cycle keeps everything that the frames hold, request bodies included.
    """
    seen: set[int] = set()
    pending = [error]
    while pending:
        error = pending.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            pending += [error.__cause__, error.__context__]
