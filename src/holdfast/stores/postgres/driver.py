"""The PostgreSQL driver: runs plans in group commits, with the database's clock."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import asyncpg

from holdfast.core.errors import StoreClosed, StoreError, StoreUnavailable
from holdfast.core.ids import SessionId
from holdfast.core.transaction.commands import Command
from holdfast.ports.clock import Clock
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.commit.availability import Availability
from holdfast.stores.commit.group_commit import Result
from holdfast.stores.postgres.batch import carry_out, read_changed, waves, write_from_cache
from holdfast.stores.postgres.clock import READ_CLOCK, ServerClock
from holdfast.stores.postgres.connect import ANSWER_SECONDS, CLOSE_SECONDS, Connector, close_quietly
from holdfast.stores.postgres.dialect import TYPES, in_dollars, spelled
from holdfast.stores.postgres.dsn import read_target
from holdfast.stores.postgres.errors import explain, meaning
from holdfast.stores.postgres.hosts import connect_to_any
from holdfast.stores.postgres.inspect import (
    check_names,
    foreign,
    read_columns,
    read_replication,
)
from holdfast.stores.postgres.listener import NotificationListener
from holdfast.stores.postgres.optimistic_batch import (
    CachedDecisions,
    decide_batch_from_cache,
    foreign_lanes,
)
from holdfast.stores.postgres.row_locks import lock
from holdfast.stores.sql import migrations
from holdfast.stores.sql.plan import Ask, Plan, Row
from holdfast.stores.sql.schema_info import Risk
from holdfast.stores.sql.store import SqlDriver, SqlStore

ResultT = TypeVar("ResultT")

READERS = 8
SINGLE_TRIES = 10
SINGLE_SECONDS = 6.0
"""How long the commands of a failed batch are tried one by one; the rest fail as unavailable."""
CHECKED_BATCHES = 64
"""After a stale lane, so many batches read first which lanes changed: other processes write to the
same sessions, and a failed write costs more than this read."""
MIGRATION_LOCK = 0x686F6C64
MIGRATION_LOCK_SECONDS = 60

END_OF_WAIT = "SyncRepWaitForLSN"
"""The function of PostgreSQL that warns if a wait for a standby is ended before its time."""
NUMBERING = (
    "select txid - pg_snapshot_xmin(pg_current_snapshot())::text::bigint, "
    "(select max(txid) from log), pg_current_xact_id()::text::bigint from feed_horizon"
)
"""How far numbers in the log are ahead of the server's, the last one, and the server's own."""
NO_ANSWER = "the store cannot be used now: it does not answer"
BEGIN = "begin isolation level read committed"
"""Not `read write`: a database that was made read-only, as before a failover, stays unchanged."""
BEGIN_READ = "begin isolation level repeatable read read only"


class PostgresDriver(SqlDriver):
    """Run plans on PostgreSQL with one writer, a pool of readers and one listener."""

    def __init__(
        self,
        connector: Connector,
        clock: ServerClock,
        listener: NotificationListener,
        *,
        origin: str,
    ) -> None:
        self._connector = connector
        self.clock: ServerClock = clock
        self._listener = listener
        self._origin = origin
        self._writer: asyncpg.Connection | None = None
        """The connection for writing, while it is idle."""
        self.availability = Availability()
        self._lanes = LaneCache()
        self._batches_to_check = 0
        self._is_unreplicated = False
        """Whether a commit was reported that ended its wait for a standby."""
        self._readers: asyncpg.Pool | None = None
        self._is_closed = False

    async def open(self, *, is_read_only: bool = False) -> None:
        """Bring the schema up to date; two processes that start together do it once."""
        if not is_read_only:
            connection = await self._acquire_writer()
            try:
                async with connection.transaction():
                    await self._migrate(connection)
            except BaseException as exc:
                self._forget_writer(connection)
                if isinstance(exc, Exception):
                    raise explain(exc) from exc
                raise
            self._return_writer(connection)
        self._readers = await asyncpg.create_pool(
            min_size=0,
            max_size=READERS,
            init=self._connector.prepare,
            reset=_skip_reset,
            connect=connect_to_any,
            **self._connector.arguments(),
        )

    async def check_session(self) -> None:
        """Reject a pooler in transaction mode."""
        connection = await self._acquire_writer()
        try:
            await self._listener.check_session(connection)
        except BaseException:
            self._forget_writer(connection)
            raise
        self._return_writer(connection)

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Carry out a batch in one transaction, or each on its own where that fails.

        Those that have to be read for may take a second transaction.
        """
        if not self.availability.is_out:
            return await self._commit(commands)
        try:
            # Those who met the outage first have waited for long; so have these, behind them.
            async with asyncio.timeout(self._connector.retry_seconds):
                return await self._commit(commands)
        except TimeoutError:
            return _answers(StoreUnavailable(NO_ANSWER), len(commands))

    async def _commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        try:
            results, rest = await self._write_from_cache(commands)
            if rest:
                return await self._complete(commands, results, rest)
        except Exception as exc:  # noqa: BLE001 - each command gets its own answer
            return await self._answer_failure(commands, exc)
        return results

    async def _complete(
        self, commands: Sequence[Command[Any]], results: list[Result], rest: Sequence[int]
    ) -> list[Result]:
        """Carry out the rest of a batch after reading; `results` are those of the others."""
        if len(rest) == len(commands):
            return [*await self._transact(commands)]
        left = [commands[at] for at in rest]
        try:
            read = await self._transact(left)
        except Exception as exc:  # noqa: BLE001 - the others are durable
            read = await self._answer_failure(left, exc)
        for at, result in zip(rest, read, strict=True):
            results.insert(at, result)
        return results

    async def _answer_failure(
        self, commands: Sequence[Command[Any]], exc: Exception
    ) -> list[Result]:
        if _is_out_of_reach(exc):
            # The outcome is unknown; only the same commands sent with `again` can tell.
            return _answers(exc, len(commands))
        return await self._commit_singly(commands)

    async def read(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Run a read in one snapshot, on a connection that never waits for the writer."""
        if not self.availability.is_out:
            return await self._read_twice(query)
        try:
            async with asyncio.timeout(self._connector.retry_seconds):
                return await self._read_twice(query)
        except TimeoutError as exc:
            raise StoreUnavailable(NO_ANSWER) from exc

    async def _read_twice(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        try:
            return await self._read(query)
        except Exception as exc:
            if not _is_cut_off(exc):
                raise explain(exc) from exc
        try:
            # An idle connection may have died: try once on a new one.
            return await self._read(query)
        except Exception as exc:
            raise explain(exc) from exc

    async def risk(self) -> Risk | None:
        """Return what endangers acknowledged commits: how the server is replicated."""
        if self._readers is None:
            raise StoreClosed("the store is closed")
        try:
            async with self._readers.acquire(timeout=self._connector.answer_seconds) as connection:
                return (await read_replication(connection)).risk()
        except Exception as exc:
            raise explain(exc) from exc

    async def has_news(self) -> bool:
        """Whether notifications may have been missed."""
        return self._listener.has_missed()

    @property
    def reconnected_at(self) -> float:
        """When the database was reached again after it could not be, by the monotonic clock."""
        return self._listener.reconnected_at

    async def close(self) -> None:
        """Close every connection; drop those that do not answer."""
        self._is_closed = True
        await self._listener.close()
        if self._writer is not None:
            connection, self._writer = self._writer, None
            await close_quietly(connection)
        if self._readers is not None:
            readers, self._readers = self._readers, None
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await readers.close()
            except (TimeoutError, asyncpg.InterfaceError, OSError):
                readers.terminate()

    def abandon(self) -> None:
        """Drop the connections: their loop is closed, and garbage collection closes them."""
        self._writer = None
        self._readers = None

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    async def _write_from_cache(
        self, commands: Sequence[Command[Any]]
    ) -> tuple[list[Result], Sequence[int]]:
        """Write a batch on its cached lanes in one round trip.

        Return the results, and the places of the commands that have to be read for and have none.
        """
        everything = range(len(commands))
        if self._batches_to_check:
            self._batches_to_check -= 1
            await self._renew_lanes(foreign_lanes(commands, self._lanes))
        cached = decide_batch_from_cache(commands, self.clock.now(), self._lanes)
        if cached is None:
            return [], everything
        if await self._write_at_once(cached):
            return list(cached.decisions), ()
        sessions = cached.sessions()
        known = [(name, self._lanes.find(name)) for name in sessions if name is not None]
        versions = {name: lane[0].session.version for name, lane in known if lane is not None}
        is_changed = await self._renew_lanes(versions)
        # Only where the lane cannot be cached, or the session was taken for new, more is read.
        rest = [
            at for at, name in enumerate(sessions)
            if name is not None and self._lanes.find(name) is None
        ]  # fmt: skip
        if not is_changed and not rest:
            return [], everything
        left = [command for at, command in enumerate(commands) if at not in rest]
        cached = decide_batch_from_cache(left, self.clock.now(), self._lanes) if left else None
        if cached is None or not await self._write_at_once(cached):
            return [], everything
        return list(cached.decisions), rest

    async def _write_at_once(self, cached: CachedDecisions) -> bool:
        """Write decisions made from the cache; return whether their lanes were as cached."""
        connection = await self._acquire_writer()
        try:
            server_time = await write_from_cache(connection, cached.writes)
        except BaseException as exc:
            await self._roll_back(connection, exc)
            raise
        self._return_writer(connection)
        self._check_replicated()
        if server_time is None:
            self._lanes.rollback()
            return False
        self.clock.observe(server_time)
        self._lanes.commit()
        self._tell(cached.decisions)
        return True

    async def _renew_lanes(self, versions: Mapping[SessionId, int]) -> bool:
        """Read the lanes that are no longer at these versions; return whether there are any."""
        if not versions:
            return False
        connection = await self._acquire_writer()
        try:
            changed = await read_changed(connection, versions, self.clock.now())
        except BaseException as exc:
            await self._roll_back(connection, exc)
            raise
        self._return_writer(connection)
        for facts, items in changed:
            self._lanes.renew(facts)
            if facts.session is not None:
                self.learn_items(facts.session, items)
        if changed:
            self._batches_to_check = CHECKED_BATCHES
        return bool(changed)

    async def _commit_singly(self, commands: Sequence[Command[Any]]) -> list[Result]:
        loop = asyncio.get_running_loop()
        until = loop.time() + SINGLE_SECONDS
        results: list[Result] = []
        for command in commands:
            if loop.time() > until:
                break
            try:
                results.append(await self._transact_single(command))
            except Exception as exc:  # noqa: BLE001 - unreachable: the others would fail too
                return results + _answers(exc, len(commands) - len(results))
        late = StoreUnavailable("the store is too slow now; nothing was done")
        return results + _answers(late, len(commands) - len(results))

    async def _transact_single(self, command: Command[Any]) -> Result:
        """Carry out one command; run it again after a lost race.

        If two commands create the same session, the second run finds it. PostgreSQL aborts one of
        two deadlocked transactions; it has written nothing.
        """
        for tries_left in reversed(range(SINGLE_TRIES)):
            try:
                return (await self._transact([command]))[0]
            except Exception as exc:
                if _is_out_of_reach(exc):
                    raise
                if meaning(exc) != "lost_race" or not tries_left:
                    return explain(exc)
        raise AssertionError("the last try returns")

    async def _transact(self, commands: Sequence[Command[Any]]) -> list[Result]:
        connection = await self._begin()
        try:
            results = await self._carry_out(connection, commands)
            await connection.execute("commit")
        except BaseException as exc:
            await self._roll_back(connection, exc)
            raise
        self._return_writer(connection)
        self._check_replicated()
        self._tell(results)
        return results

    async def _begin(self) -> asyncpg.Connection:
        """Begin a transaction; replace an idle connection that has died."""
        connection = await self._acquire_writer()
        try:
            await connection.execute(BEGIN)
        except BaseException as exc:
            self._forget_writer(connection)
            if not _is_cut_off(exc):
                raise
            connection = await self._connect_writer()
            try:
                await connection.execute(BEGIN)
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def _acquire_writer(self) -> asyncpg.Connection:
        """Return the connection for writing; the caller gives it back or forgets it."""
        connection, self._writer = self._writer, None
        if connection is not None and not connection.is_closed():
            return connection
        # Another server may answer now, which need not have what the last one committed.
        self._lanes.clear()
        return await self._connect_writer()

    async def _connect_writer(self) -> asyncpg.Connection:
        connection = await self._connector.connect()
        connection.add_log_listener(self._on_message)
        return connection

    def _return_writer(self, connection: asyncpg.Connection) -> None:
        """Keep a connection for the next write; one that comes back after `close` is dropped."""
        if self._is_closed:
            connection.terminate()
        else:
            self._writer = connection

    def _on_message(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        """Note that a commit did not wait for a standby, because somebody ended its wait."""
        if getattr(message, "server_source_function", None) == END_OF_WAIT:
            self._is_unreplicated = True

    def _check_replicated(self) -> None:
        """Raise if the last commit was reported although no standby has it.

        Its repeat locks the same session, which is a commit of its own: that one waits.
        """
        if self._is_unreplicated:
            self._is_unreplicated = False
            self._lanes.clear()
            raise StoreUnavailable("the commit was not replicated; its outcome is unknown")

    def _forget_writer(self, connection: asyncpg.Connection) -> None:
        """Drop a connection and the lane cache: another server may answer the next one."""
        self._lanes.clear()
        connection.terminate()

    async def _roll_back(self, connection: asyncpg.Connection, exc: BaseException) -> None:
        """Roll back a failed transaction; drop a connection that cannot."""
        self._lanes.clear()
        if connection.is_closed() or meaning(exc) == "gone" or not isinstance(exc, Exception):
            self._forget_writer(connection)
            return
        try:
            await connection.execute("rollback")
        except Exception:  # noqa: BLE001 - the original failure is being raised
            self._forget_writer(connection)
        else:
            self._return_writer(connection)

    async def _carry_out(
        self, connection: asyncpg.Connection, commands: Sequence[Command[Any]]
    ) -> list[Result]:
        """Lock the sessions of the commands, then carry them out in waves."""
        locked = await lock(connection, commands)
        now = self.clock.observe(locked.now)
        results: dict[int, Result] = {}
        for wave in waves(commands, locked):
            batch = [commands[index] for index in wave]
            decisions = await carry_out(connection, batch, now, self._lanes)
            results.update(zip(wave, decisions, strict=True))
        return [results[index] for index in range(len(commands))]

    def _tell(self, results: Sequence[Any]) -> None:
        """Notify the other processes of what was committed."""
        for decision in results:
            if decision.woken or decision.aborted:
                self._listener.tell(decision)

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    async def _read(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        if self._readers is None:
            raise StoreClosed("the store is closed")
        async with self._readers.acquire(timeout=self._connector.answer_seconds) as connection:
            try:
                await connection.execute(BEGIN_READ)
                result = await _drive(connection, query(self.clock.now()))
                await connection.execute("rollback")
            except BaseException as exc:
                if meaning(exc) == "gone":
                    await self._readers.expire_connections()
                # The next reader must not get a connection with an open transaction.
                with contextlib.suppress(asyncpg.InterfaceError):
                    connection.terminate()
                raise
            return result

    # ── schema ──────────────────────────────────────────────────────────────────────────────

    async def _migrate(self, connection: asyncpg.Connection) -> None:
        await connection.execute(f"set local lock_timeout = '{MIGRATION_LOCK_SECONDS}s'")
        await connection.execute("set local statement_timeout = 0")
        await connection.execute(
            "select pg_advisory_xact_lock($1)", MIGRATION_LOCK, timeout=2 * MIGRATION_LOCK_SECONDS
        )
        await connection.execute(migrations.CREATE_VERSIONS.format_map(TYPES))
        try:
            applied = [(row[0], row[1]) for row in await connection.fetch(migrations.READ_VERSIONS)]
        except asyncpg.UndefinedColumnError as exc:
            raise foreign(self._connector.target.shown, ["schema_versions"]) from exc
        if not applied:
            check_names(await read_columns(connection), applied, self._connector.target.shown)
        now = self.clock.observe(await connection.fetchval(READ_CLOCK))
        for step in migrations.pending(applied, migrations.all_migrations()):
            for statement in step.statements(TYPES):
                await connection.execute(statement)
            await connection.execute(
                in_dollars(migrations.ADD_VERSION), step.version, step.name, now
            )
        await _continue_numbering(connection)


async def _continue_numbering(connection: asyncpg.Connection) -> None:
    """Number new transactions after those in the log, which may be of another server.

    After a restore there, new entries would be placed before the restored ones, and readers of the
    feed would miss both (decision 0010).
    """
    ((shift, last, current),) = await connection.fetch(NUMBERING)
    if last is not None and last >= current + shift:
        shift = last + 1 - current
        await connection.execute(
            f"alter table log alter column txid set default ({TYPES['txid']} + {shift})"
        )
        await connection.execute(
            f"create or replace view feed_horizon as select {TYPES['horizon']} + {shift} as txid"
        )


def _is_cut_off(exc: BaseException) -> bool:
    """Whether a connection is gone that may have died before; one that hangs may hang again."""
    return meaning(exc) == "gone" and not isinstance(exc, TimeoutError)


def _is_out_of_reach(exc: Exception) -> bool:
    return meaning(exc) == "gone" or isinstance(exc, StoreError)


def _answers(exc: Exception, count: int) -> list[Result]:
    """Return a copy of the exception for each command: raised exceptions are not shared."""
    return [copy(explain(exc)) for _ in range(count)]


async def _skip_reset(_: object) -> None:
    """Skip the reset: readers change no connection state, and a reset would undo our settings."""


async def _drive(connection: Any, steps: Generator[Ask, list[Row], ResultT]) -> ResultT:
    """Run a plan, fetching the rows it asks for."""
    try:
        ask = next(steps)
        while True:
            ask = steps.send(await connection.fetch(spelled(ask[0]), *ask[1]))
    except StopIteration as stop:
        result: ResultT = stop.value
        return result


async def open_postgres(
    url: str,
    *,
    clock: Clock | None = None,
    settings: Mapping[str, str] | None = None,
    answer_seconds: float = ANSWER_SECONDS,
    is_read_only: bool = False,
) -> SqlStore:
    """Return the store of a PostgreSQL database; to read only, its schema must be current.

    Time is the database's, unless a test passes a `clock`. `settings` are PostgreSQL's own
    (`statement_timeout`, `lock_timeout`, …) and override the defaults.
    """
    settings = settings or {}
    if is_read_only:
        settings = {**settings, "default_transaction_read_only": "on"}
    connector = Connector(target=read_target(url), settings=settings, answer_seconds=answer_seconds)
    server_clock = ServerClock(clock)
    origin = secrets.token_hex(8)
    listener = NotificationListener(connector, server_clock, origin=origin)
    driver = PostgresDriver(connector, server_clock, listener, origin=origin)
    store = SqlStore(driver, listener)
    store.availability.patience_seconds = answer_seconds
    connector.watch.on_new_server = store.doubt_history
    try:
        await driver.open(is_read_only=is_read_only)
        announce = None if is_read_only else store.announce
        await listener.start(announce, store.announce_outbox)
        if not is_read_only:
            await driver.check_session()
        store.tell_outbox = listener.tell_outbox
    except BaseException:
        await driver.close()
        raise
    return store
