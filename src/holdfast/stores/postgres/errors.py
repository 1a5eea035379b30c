"""Classify PostgreSQL errors by what they mean for the interrupted work."""

import os
from typing import Literal

import asyncpg

from holdfast.core.errors import InvalidInput, StoreError, StoreUnavailable
from holdfast.stores.sql.plan import LostUpdate

Meaning = Literal["gone", "lost_race", "busy", "refused", "other"]
"""`gone`: the connection is lost, and perhaps the result of a commit. `lost_race`: nothing was
written because another writer was first; read again at once. `busy`: nothing was done, and an
immediate retry would not help. `refused`: nothing was done, and the same work will be refused
again. `other`: not caused by the database."""


_GONE = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.DatabaseDroppedError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    # A standby, or a server that was made read-only: a new connection may reach the primary.
    asyncpg.ReadOnlySQLTransactionError,
)
_LOST_RACE = (
    LostUpdate,
    asyncpg.UniqueViolationError,
    # The gate of a log found no number: the log no longer ends there.
    asyncpg.NotNullViolationError,
    asyncpg.ForeignKeyViolationError,
    asyncpg.TransactionRollbackError,
    # The schema changed after a statement was prepared; the connection has dropped it.
    asyncpg.InvalidCachedStatementError,
)
_BUSY = (
    asyncpg.OperatorInterventionError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    asyncpg.InvalidTransactionStateError,
)


def meaning(exc: BaseException) -> Meaning:
    """Classify an exception."""
    if isinstance(exc, _LOST_RACE):
        return "lost_race"
    if isinstance(exc, asyncpg.InterfaceError) and isinstance(exc, ValueError):
        return "refused"  # raised by the client for input that no column can store
    if isinstance(exc, _GONE):
        return "gone"
    if isinstance(exc, _BUSY):
        return "busy"
    return "refused" if isinstance(exc, asyncpg.PostgresError) else "other"


def explain(exc: Exception) -> Exception:
    """Return the error for our callers. The database's message is cut to one line."""
    match meaning(exc):
        case "other":
            return exc
        case "refused" if isinstance(exc, asyncpg.CharacterNotInRepertoireError):
            explained: Exception = InvalidInput("text must not contain U+0000")
        case "refused":
            explained = StoreError(f"the store refused a value: {first_line(exc)}")
        case "lost_race" if isinstance(exc, asyncpg.IntegrityConstraintViolationError):
            explained = StoreError(f"the store refused a value: {first_line(exc)}")
        case _:
            explained = StoreUnavailable(f"the store cannot be used now: {first_line(exc)}")
    explained.__cause__ = exc
    return explained


def first_line(exc: Exception) -> str:
    """Return the first line; details may contain message content, which is not logged."""
    if isinstance(exc, asyncpg.InterfaceError) and isinstance(exc, ValueError):
        return "a value that no column can take"
    if isinstance(exc, OSError) and exc.errno is not None:
        # Names that cannot be resolved have negative numbers, which the system does not know.
        return os.strerror(exc.errno) if exc.errno > 0 else str(exc.strerror)
    lines = str(exc).splitlines()
    return lines[0] if lines else type(exc).__name__
