"""Connections with the settings that durability needs; unsuitable servers are rejected."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from holdfast.core.errors import DurabilityRefused, InvalidSetting, StoreError, StoreUnavailable
from holdfast.stores.postgres.dsn import ALLOW_ASYNC_COMMIT, PostgresTarget
from holdfast.stores.postgres.errors import first_line, meaning
from holdfast.stores.postgres.hosts import connect_to_any

Connection = asyncpg.Connection | PoolConnectionProxy


class UncancelledConnection(asyncpg.Connection):
    """A connection that is dropped where asyncpg would ask the server to cancel a statement.

    A commit that waits for a standby has happened already. If its wait is cancelled, it can be read
    although no standby has it, and its repeat would be acknowledged.
    """

    def _cancel_current_command(self, *_: object) -> None:
        # Not at once: asyncpg is about to answer the caller.
        asyncio.get_running_loop().call_soon(self.terminate)


OLDEST_SERVER = 140000
CACHED_STATEMENTS = 512
CLOSE_SECONDS = 2.0

SERVER_SETTINGS: Mapping[str, str] = {
    "application_name": "holdfast",
    "statement_timeout": "10s",
    "lock_timeout": "3s",
    # Limits how long a process that is frozen within a transaction holds its row locks.
    "idle_in_transaction_session_timeout": "5s",
    # A machine that loses power closes no connection; its locks must not be held for hours.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    # Each statement finds its rows by indexes. Without these settings the planner may read whole
    # tables or sessions if statistics are missing (after a restore), old, or wrong for a session.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "random_page_cost": "0.1",
    "jit": "off",
}
ANSWER_SECONDS = 12.0
"""The limit for a server that stopped answering; longer than any statement may take."""
RETRY_SHARE = 0.25
"""The part of that time that is tried while the server is known not to answer."""

_OF_ANOTHER_CLIENT = (
    asyncpg.InvalidSQLStatementNameError,
    asyncpg.DuplicatePreparedStatementError,
)
"""Raised if a statement is not found, or found, that only another client can have prepared."""

PREPARE = (
    "select current_setting('server_version_num')::int, current_setting('synchronous_commit'), "
    "current_setting('server_version'), pg_postmaster_start_time(), made.settings "
    "from (select count(set_config(name, value, false)) as settings "
    "from unnest($1::text[], $2::text[]) as wanted(name, value)) as made"
)
"""Make the settings, then read what decides whether the server is suitable, in one statement."""


class ServerWatch:
    """Notices that another server answers, or the same one after a restart.

    A server that was restarted or promoted may lack what the one before has acknowledged. Every new
    connection asks, before anything is read on it.
    """

    def __init__(self) -> None:
        self.on_new_server: Callable[[], None] = lambda: None
        self._started: object = None

    def observe(self, started: object) -> None:
        """Note when the server of a new connection was started."""
        is_new = self._started is not None and started != self._started
        self._started = started
        if is_new:
            self.on_new_server()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """How to reach the database. `settings` override the defaults here; the URL overrides both."""

    target: PostgresTarget
    settings: Mapping[str, str] = field(default_factory=dict)
    answer_seconds: float = ANSWER_SECONDS
    watch: ServerWatch = field(default_factory=ServerWatch)

    @property
    def retry_seconds(self) -> float:
        """How long one attempt may take while the server is known not to answer."""
        # Somebody who has to allow for slow connections can use the store again, too.
        return max(self.answer_seconds * RETRY_SHARE, self.target.patient_seconds)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of asyncpg for one connection."""
        return {
            "dsn": self.target.dsn,
            "timeout": self.target.connect_seconds,
            "command_timeout": self.answer_seconds,
            "statement_cache_size": CACHED_STATEMENTS,
            "connection_class": UncancelledConnection,
        }

    async def connect(self) -> asyncpg.Connection:
        """Return a connection with our settings, to a suitable server."""
        try:
            connection = await connect_to_any(**self.arguments())
        except ValueError:
            # Without the cause: its text may contain parts of the URL.
            raise InvalidSetting("PostgreSQL does not understand the store url") from None
        except Exception as exc:
            raise self.explain(exc) from exc
        try:
            await self.prepare(connection)
        except BaseException as exc:
            connection.terminate()
            if isinstance(exc, Exception):
                raise self.explain(exc) from exc
            raise
        return connection

    async def prepare(self, connection: Connection) -> None:
        """Make the settings of a new connection; reject a server that is too old or loses commits.

        They are not startup parameters, because poolers refuse those that they do not know.
        """
        wanted = {**SERVER_SETTINGS, **self.settings, **self.target.settings}
        ((number, synchronous_commit, version, started, _),) = await connection.fetch(
            PREPARE, list(wanted), list(wanted.values())
        )
        if number < OLDEST_SERVER:
            raise StoreError(f"PostgreSQL {version} is too old; 14 is the oldest that works")
        if synchronous_commit == "off" and not self.target.allows_async_commit:
            raise DurabilityRefused(
                f"{self.target.shown} has synchronous_commit = off and would lose acknowledged "
                f"turns in a crash; turn it on, or accept that with ?{ALLOW_ASYNC_COMMIT}=true"
            )
        self.watch.observe(started)

    def explain(self, exc: Exception) -> Exception:
        """Return the error for a failed connection; a wrong name or password is not retried."""
        where = self.target.shown
        if isinstance(exc, _OF_ANOTHER_CLIENT):
            return StoreError(self.why_not_pooled())
        match meaning(exc):
            case "other":
                return exc
            case "refused":
                return StoreError(f"{where} refused the connection: {first_line(exc)}")
            case _:
                return StoreUnavailable(f"{where} cannot be reached: {first_line(exc)}")

    def why_not_pooled(self) -> str:
        """Return why a pooler cannot be used that gives a connection to many clients."""
        return (
            f"the pooler of {self.target.shown} is in transaction mode: notifications, locks and "
            "prepared statements do not stay with a connection, and live gateways would be taken "
            "for dead; set pool_mode = session for this database, or connect without the pooler"
        )


async def close_quietly(connection: asyncpg.Connection) -> None:
    """Close a connection; drop it if it does not answer."""
    try:
        await connection.close(timeout=CLOSE_SECONDS)
    except Exception:  # noqa: BLE001 - it is gone, which is what was wanted
        connection.terminate()
