"""What PostgreSQL says, and what it means: the whole table."""

import asyncio
import errno
import socket

import asyncpg
import pytest

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.stores.postgres.errors import Meaning, explain, first_line, meaning
from holdfast.stores.sql.plan import LostUpdate

TABLE: list[tuple[BaseException, Meaning]] = [
    (ConnectionRefusedError("refused"), "gone"),
    (FileNotFoundError("no socket"), "gone"),
    (TimeoutError(), "gone"),
    (asyncpg.InterfaceError("connection is closed"), "gone"),
    (asyncpg.InternalClientError("mixed up"), "gone"),
    (asyncpg.ConnectionDoesNotExistError("closed in the middle"), "gone"),
    (asyncpg.AdminShutdownError("terminating connection"), "gone"),
    (asyncpg.CrashShutdownError("terminating connection"), "gone"),
    (asyncpg.CannotConnectNowError("starting up"), "gone"),
    (asyncpg.TooManyConnectionsError("too many clients"), "gone"),
    (asyncpg.IdleInTransactionSessionTimeoutError("too long"), "gone"),
    (LostUpdate("save_session"), "lost_race"),
    (asyncpg.UniqueViolationError("duplicate key"), "lost_race"),
    (asyncpg.ForeignKeyViolationError("no such session"), "lost_race"),
    (asyncpg.DeadlockDetectedError("deadlock"), "lost_race"),
    (asyncpg.SerializationError("could not serialize"), "lost_race"),
    (asyncpg.QueryCanceledError("statement timeout"), "busy"),
    (asyncpg.LockNotAvailableError("lock timeout"), "busy"),
    (asyncpg.DiskFullError("no space left"), "busy"),
    (asyncpg.OutOfMemoryError("no memory left"), "busy"),
    (asyncpg.ReadOnlySQLTransactionError("a standby"), "gone"),
    (asyncpg.PostgresIOError("could not write"), "busy"),
    (asyncpg.DataCorruptedError("invalid page"), "busy"),
    (asyncpg.CheckViolationError("lane_is_whole"), "refused"),
    (asyncpg.NotNullViolationError("null"), "lost_race"),
    (asyncpg.UndefinedTableError("no table"), "refused"),
    (asyncpg.InvalidPasswordError("wrong"), "refused"),
    (asyncpg.exceptions._base.DataError("for query argument $1: 'secret'"), "refused"),
    (RuntimeError("ours"), "other"),
    (asyncio.CancelledError(), "other"),
]


@pytest.mark.parametrize(("exc", "expected"), TABLE, ids=lambda one: type(one).__name__)
def test_every_failure_has_a_meaning(exc: BaseException, expected: Meaning) -> None:
    assert meaning(exc) == expected


ANSWERABLE = [(exc, expected) for exc, expected in TABLE if isinstance(exc, Exception)]


@pytest.mark.parametrize(("exc", "expected"), ANSWERABLE, ids=lambda one: type(one).__name__)
def test_errors_say_whether_to_retry(exc: Exception, expected: Meaning) -> None:
    told = explain(exc)
    if expected == "other":
        assert told is exc
        return
    assert told.__cause__ is exc
    is_broken_rule = isinstance(exc, asyncpg.IntegrityConstraintViolationError)
    kind = StoreError if expected == "refused" or is_broken_rule else StoreUnavailable
    assert type(told) is kind


def test_what_was_to_be_written_is_not_repeated() -> None:
    broken = asyncpg.UniqueViolationError("duplicate key\nDETAIL: Key (id)=(secret) exists.")
    assert "secret" not in str(explain(broken))
    unfit = asyncpg.exceptions._base.DataError("invalid input for query argument $1: 'secret'")
    assert "secret" not in str(explain(unfit))


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (
            OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 5432)"),
            "Connection refused",
        ),
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), "Name not known"),
    ],
)
def test_the_reason_of_a_failed_connection_is_in_words(exc: OSError, reason: str) -> None:
    assert first_line(exc) == reason
