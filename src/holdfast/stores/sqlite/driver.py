"""SQLite: one writer, grouped commits; a reader beside it.

Every write begins with BEGIN IMMEDIATE, so that a second process on the same file waits its turn,
for a bounded time. Short ones run on the event loop itself while the disk is fast; they wait for
nothing but the disk.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Generator, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.transaction.commands import Accept, Command
from holdfast.ports.clock import Clock
from holdfast.ports.executor import Executor
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.commit.executors import Settle, ThreadExecutor
from holdfast.stores.commit.group_commit import Result
from holdfast.stores.sql import migrations
from holdfast.stores.sql.command_plans import plan
from holdfast.stores.sql.optimistic.plain_turns import PLANNERS
from holdfast.stores.sql.plan import Ask, LostUpdate, Plan, Row
from holdfast.stores.sql.store import SqlDriver
from holdfast.stores.sqlite.connection import (
    CHECKPOINT_PAGES,
    FILE_IS_GONE,
    Connect,
    ManagedConnection,
    applied_steps,
)
from holdfast.stores.sqlite.inline_commit import NOTABLE_SECONDS, DiskLatencyGate, is_short

ResultT = TypeVar("ResultT")

_REFUSALS = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    # Raised by the sqlite3 module for values that no column can store.
    OverflowError,
    UnicodeEncodeError,
)

DIALECT = {
    "text": "text",
    "int": "integer",
    "real": "real",
    "blob": "blob",
    "without_rowid": " without rowid",
    # The log never loses a row, so the next position is always new.
    "log_position": "integer primary key",
    # Positions are never given twice, also not after the newest was erased.
    "serial": "integer primary key autoincrement",
    "txid": "0",
    "horizon": "1",
    # Commits come one after the other: the position alone is the order.
    "feed_index": "",
    # Terms are made by us and separated by blanks: only ASCII separates them here.
    "terms": "text",
    # Only a ranking by length would need the sizes of columns.
    "search_dropped": "drop table search_text",
    "search_index": "create virtual table search_text using fts5(terms, tokenize = 'ascii', "
    "content = 'search_items', content_rowid = 'id', columnsize = 0)",
    # Rows must be added many at a time: FTS5 writes a segment at the end of every statement that
    # fires a trigger.
    "search_added": "create trigger search_added after insert on search_items begin "
    "insert into search_text (rowid, terms) values (new.id, new.terms); end",
    "search_removed": "create trigger search_removed after delete on search_items begin "
    "insert into search_text (search_text, rowid, terms) values ('delete', old.id, old.terms); "
    "end",
}


MAX_WAL_PAGES = 2 * CHECKPOINT_PAGES
"""A WAL with more pages is truncated at once, waiting for readers."""
CHECKPOINT_ROWS = 1_000
"""After so many rows the thread runs a checkpoint, between transactions."""


INLINE_ROWS = 160
"""A read on the event loop has fewer rows and statements than this."""
INLINE_TOTAL_BYTES = 512 * 1024
"""A read on the event loop ends at so many bytes in all; they are counted once it takes long."""
COUNT_AFTER_SECONDS = 0.0001
"""A read counts its bytes only after this time: counting would be a fifth of a short page."""
FETCHED_ROWS = 8
"""Rows that a read on the event loop fetches at a time."""
_Work = Callable[[], list[Result]]


def _is_full(error: sqlite3.Error) -> bool:
    """Return whether a write may have failed because the disk or the file is full.

    SQLite reports only ENOSPC as a full disk. A quota (EDQUOT) or a limit on the size of files
    (EFBIG) is a failed write like any other; what is done about it does no harm to others.
    """
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    return code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_WRITE


class SqliteDriver(SqlDriver):
    """Run plans on SQLite; open connections when first needed and again after a fault."""

    reads_inline = True
    # FTS5 returns matches from the newest on.
    sorts_matches = False

    def __init__(
        self,
        connect: Connect,
        *,
        clock: Clock,
        writer: Executor,
        reader: Executor | None = None,
        identity: Callable[[], object] = lambda: None,
        check_room: Callable[[], None] = lambda: None,
        is_in_memory: bool = False,
        pace: DiskLatencyGate | None = None,
    ) -> None:
        self.clock = clock
        self._check_room = check_room
        self._writer = writer
        self._reader = reader or writer
        self._write_link = ManagedConnection(connect, identity, is_only_copy=is_in_memory)
        self._read_link = self._write_link
        if reader is not None:
            self._read_link = ManagedConnection(connect, identity, is_read_only=True)
        self._data_version: int | None = None
        self._thread_writer = writer if isinstance(writer, ThreadExecutor) else None
        self.commit_then = self._commit_then if self._thread_writer is not None else None
        self.can_wait = self._is_queued if self._thread_writer is not None else None
        self._lanes = LaneCache()
        self._pace = pace or DiskLatencyGate()
        self._reading = pace or DiskLatencyGate()
        self._rows = self._rows_moved = 0
        """Rows written by this connection: in all, and until the last checkpoint."""

    async def migrate(self) -> None:
        """Bring the schema up to date; two processes that start together do it once."""
        await self._writer.run(self._migrate)
        # A WAL that filled the disk before the restart is truncated now.
        await self._writer.run(self._empty_log)

    async def commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Carry out a batch in one transaction, or each on its own where that fails."""
        return await self._writer.run(lambda: self._commit(commands))

    def _commit_then(self, commands: Sequence[Command[Any]], settle: Settle) -> None:
        writer, pace, link = self._thread_writer, self._pace, self._write_link
        assert writer is not None
        work: _Work = partial(self._commit, commands)
        is_quick = pace.paused_until == 0.0 or pace.is_quick()
        if is_quick and is_short(commands) and writer.try_acquire():
            results: list[Result] | None = None
            try:
                connection = link.impatient or link.at_once()
                if connection is not None:
                    connection.execute("begin immediate")
                    pace.began = pace.start() if pace.measured else perf_counter()
                    try:
                        results = self._transact(connection, commands)
                    except Exception as exc:  # noqa: BLE001 - it is answered, to its own command
                        if len(commands) == 1:
                            results = [_explain(exc)]
                        work = partial(self._commit_each, commands)
                    finally:
                        if pace.measured or perf_counter() - pace.began > NOTABLE_SECONDS:
                            pace.stop()
            except sqlite3.Error:
                pass  # the file is locked: the thread waits for it
            finally:
                writer.give_back()
            if results is not None:
                settle(results, None)
                if self._rows - self._rows_moved >= CHECKPOINT_ROWS:
                    self._post_checkpoint(writer)
                return
        writer.post(work, partial(self._settle_from_thread, writer, settle))

    def _settle_from_thread(
        self,
        writer: ThreadExecutor,
        settle: Settle,
        results: list[Result] | None,
        error: BaseException | None,
    ) -> None:
        settle(results, error)
        if self._rows - self._rows_moved >= CHECKPOINT_ROWS:
            self._post_checkpoint(writer)

    def _is_queued(self, command: Accept) -> bool:
        """Whether a turn only joins a queue, behind another turn that gets the lane first."""
        if command.again or command.on_busy != "enqueue":
            return False
        # Other threads may change the lanes meanwhile: this is only a hint.
        lanes = self._lanes
        session_id = command.session_id or lanes.keys.get((command.tenant, command.key))
        cached = lanes.find(session_id) if session_id is not None else None
        return cached is not None and cached[0].active is not None and bool(cached[0].waiting)

    def _post_checkpoint(self, writer: ThreadExecutor) -> None:
        self._rows_moved = self._rows
        writer.post(self._checkpoint_wal, _ignore)

    async def read(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Run a read on a connection that never waits for the writer."""
        return await self._reader.run(lambda: self._read(query))

    async def read_inline(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """The same for a short read: on the event loop itself, while the disk is quick.

        A read that turns out to be long is stopped and begins again in the thread.
        """
        reader = self._reader
        if isinstance(reader, ThreadExecutor) and self._reading.is_quick():
            await asyncio.sleep(0)  # a caller that reads in a loop must not starve others
            if reader.try_acquire():
                try:
                    result = self._read_in_place(query)
                finally:
                    reader.give_back()
                if result is not None:
                    return result[0]
        return await self.read(query)

    async def check_room(self) -> None:
        """Raise if the disk has no room for a turn; not on the event loop, which it may stall."""
        await asyncio.to_thread(self._check_room)

    async def has_news(self) -> bool:
        """Whether another connection than our writer's has committed since the last call."""
        writer = self._writer
        if isinstance(writer, ThreadExecutor) and writer.try_acquire():
            # A short read: if the thread did it, an inline commit would find it busy.
            try:
                connection = self._write_link.at_once()
                if connection is not None:
                    return self._note_version(connection)
            except sqlite3.Error:
                pass  # the thread reports the error
            finally:
                writer.give_back()
        return await writer.run(self._has_news)

    async def close(self) -> None:
        """Close both connections, then their threads."""
        try:
            await self._writer.run(self._write_link.close)
            await self._reader.run(self._read_link.close)
        finally:
            self._writer.close()
            if self._reader is not self._writer:
                self._reader.close()

    def abandon(self) -> None:
        """Stop the threads and close the connections."""
        self._writer.close()
        self._reader.close()
        self._write_link.close()
        self._read_link.close()

    # ── in the executor, or in its place ────────────────────────────────────────────────────

    def _commit(self, commands: Sequence[Command[Any]]) -> list[Result]:
        try:
            connection = self._begin()
        except sqlite3.Error as exc:
            return [_explain(exc) for _ in commands]
        try:
            return self._transact(connection, commands)
        except Exception as exc:  # noqa: BLE001 - it is answered, to its own command alone
            if len(commands) == 1:
                return [_explain(exc)]
        return self._commit_each(commands)

    def _commit_each(self, commands: Sequence[Command[Any]]) -> list[Result]:
        """Commit each command by itself, with `again`: the batch may have been written."""
        results: list[Result] = []
        for command in commands:
            try:
                connection = self._begin()
            except sqlite3.Error as exc:
                # The other commands would wait as long and fail the same way.
                return [*results, *(_explain(exc) for _ in commands[len(results) :])]
            try:
                results += self._transact(connection, [replace(command, again=True)])
            except Exception as exc:  # noqa: BLE001 - it is answered, to its own command alone
                results.append(_explain(exc))
        return results

    def _begin(self) -> sqlite3.Connection:
        try:
            connection = self._write_link.connection()
            connection.execute("begin immediate")
        except sqlite3.Error:
            self._forget_writer()
            raise
        return connection

    def _transact(
        self, connection: sqlite3.Connection, commands: Sequence[Command[Any]]
    ) -> list[Result]:
        try:
            # One cursor for all statements: a new one costs a third of a short statement.
            cursor = connection.cursor()
            now = self.clock.now()
            results: list[Result] = []
            for command in commands:
                results += (self._carry_out(cursor, command, now),)
            # Commits to a file that was removed are lost, although SQLite reports success.
            link = self._write_link
            if link.identity() != link.file:
                raise sqlite3.OperationalError(FILE_IS_GONE)
            cursor.execute("commit")
        except BaseException as exc:
            self._roll_back(connection, exc)
            raise
        self._rows = connection.total_changes
        return results

    def _roll_back(self, connection: sqlite3.Connection, exc: BaseException) -> None:
        self._lanes.clear()
        # After a disk error a connection may stay unusable: open a new one.
        is_faulty = isinstance(exc, sqlite3.Error)
        try:
            if connection.in_transaction:
                connection.execute("rollback")
        except sqlite3.Error:
            is_faulty = True
        if is_faulty:
            self._forget_writer()
        if isinstance(exc, sqlite3.Error) and _is_full(exc):
            # The WAL itself may have filled the disk: free its space for the next write.
            self._empty_log()

    def _forget_writer(self) -> None:
        self._data_version = None
        self._rows = self._rows_moved = 0
        self._lanes.clear()
        self._write_link.discard()

    def _checkpoint_wal(self) -> None:
        """Checkpoint the WAL, so that it is reused and does not grow."""
        try:
            connection = self._write_link.connection()
            _, pages, _ = connection.execute("pragma wal_checkpoint(passive)").fetchone()
        except sqlite3.Error:
            self._forget_writer()
            return
        if pages > MAX_WAL_PAGES:
            # Readers kept the WAL from being reused: wait for them.
            self._empty_log()

    def _empty_log(self) -> None:
        """Checkpoint the whole WAL and truncate its file, unless a reader prevents it."""
        try:
            connection = self._write_link.connection()
            connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        except sqlite3.Error:
            self._forget_writer()

    def _carry_out(self, cursor: sqlite3.Cursor, command: Command[Any], now: float) -> Any:
        planner, lanes, execute = PLANNERS.get(type(command)), self._lanes, cursor.execute
        foreseen = planner(command, now, lanes) if planner is not None else None
        is_current = False
        if foreseen is not None:
            planned, writes = foreseen, iter(foreseen.writes)
            gate, parameters = next(writes)
            try:
                is_current = execute(gate.text, parameters).rowcount == 1
            except sqlite3.IntegrityError:
                is_current = False
        if not is_current:
            planned = _drive(cursor, plan(command, now, lanes))
            writes = iter(planned.writes)
        for statement, parameters in writes:
            written = execute(statement.text, parameters)
            if statement.is_fenced and written.rowcount != 1:
                raise LostUpdate(statement.name)
        if is_current and planned.lane is not None:
            lanes.put(planned.lane)
        elif is_current:
            lanes.note(planned.decision.changes)
        return planned.decision

    def _read_in_place(self, query: Callable[[float], Plan[ResultT]]) -> tuple[ResultT] | None:
        """Return the result in a tuple, or None if the read has to run in the thread."""
        gate, link = self._reading, self._read_link
        gate.began = gate.start() if gate.measured else perf_counter()
        try:
            connection = link.impatient or link.at_once()
            if connection is None:
                return None
            return (self._run_query(connection, query, partial(_drive_inline, link)),)
        except (_TooLong, sqlite3.Error, *_REFUSALS):
            return None
        finally:
            if gate.measured or perf_counter() - gate.began > NOTABLE_SECONDS:
                gate.stop()

    def _run_query(
        self,
        connection: sqlite3.Connection,
        query: Callable[[float], Plan[ResultT]],
        drive: Callable[[sqlite3.Cursor, Plan[ResultT]], ResultT],
    ) -> ResultT:
        link = self._read_link
        link.check()
        if connection.in_transaction:
            return drive(connection.cursor(), query(self.clock.now()))
        link.has_called = False
        connection.execute("begin")
        try:
            return drive(connection.cursor(), query(self.clock.now()))
        finally:
            try:
                link.has_called = False
                connection.execute("rollback")
            except sqlite3.Error:
                link.discard()  # it would read this snapshot for ever
                raise

    def _read(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        try:
            return self._run_query(self._read_link.connection(), query, _drive)
        except _REFUSALS as exc:
            raise _explain(exc) from exc
        except sqlite3.Error as exc:
            self._read_link.discard()
            raise _explain(exc) from exc

    def _has_news(self) -> bool:
        try:
            return self._note_version(self._write_link.connection())
        except sqlite3.Error as exc:
            self._forget_writer()
            raise _explain(exc) from exc

    def _note_version(self, connection: sqlite3.Connection) -> bool:
        (version,) = connection.execute("pragma data_version").fetchone()
        # A new connection cannot tell what was written before: report it as a change.
        is_news: bool = version != self._data_version
        self._data_version = version
        return is_news

    def _migrate(self) -> None:
        try:
            connection = self._write_link.connection()
            connection.execute("begin immediate")
            try:
                self._apply_pending(connection)
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        except sqlite3.Error as exc:
            self._forget_writer()
            raise _explain(exc) from exc

    def _apply_pending(self, connection: sqlite3.Connection) -> None:
        applied = applied_steps(connection)
        connection.execute(migrations.CREATE_VERSIONS.format_map(DIALECT))
        for step in migrations.pending(applied, migrations.all_migrations()):
            for statement in step.statements(DIALECT):
                connection.execute(statement)
            row = (step.version, step.name, self.clock.now())
            connection.execute(migrations.ADD_VERSION, row)


def _ignore(_result: object, _error: BaseException | None) -> None:
    """Ignore the result."""


def _drive(cursor: sqlite3.Cursor, steps: Generator[Ask, list[Row], ResultT]) -> ResultT:
    """Run a plan to its end, answering each of its questions."""
    execute = cursor.execute
    try:
        ask = next(steps)
        while True:
            ask = steps.send(execute(ask[0].text, ask[1]).fetchall())
    except StopIteration as stop:
        result: ResultT = stop.value
        return result


class _TooLong(Exception):
    """A read on the event loop has more rows, statements or bytes than it may have."""


def _drive_inline(
    link: ManagedConnection, cursor: sqlite3.Cursor, steps: Generator[Ask, list[Row], ResultT]
) -> ResultT:
    """Run a plan that only reads; raise if it turns out to be long."""
    execute, fetch = cursor.execute, cursor.fetchmany
    rows_left, bytes_left = INLINE_ROWS, INLINE_TOTAL_BYTES
    count_from = perf_counter() + COUNT_AFTER_SECONDS
    try:
        ask = next(steps)
        while True:
            link.has_called = False
            execute(ask[0].text, ask[1])
            rows: list[Row] = []
            is_more = True
            while is_more:
                part = fetch(FETCHED_ROWS)
                rows += part
                rows_left -= len(part)
                if perf_counter() > count_from:
                    bytes_left -= _bytes_in(part)
                if rows_left <= 1 or bytes_left <= 0:
                    raise _TooLong
                is_more = len(part) == FETCHED_ROWS
            rows_left -= 1
            ask = steps.send(rows)
    except StopIteration as stop:
        result: ResultT = stop.value
        return result


def _bytes_in(rows: list[Row]) -> int:
    return sum([len(value) for row in rows for value in row if type(value) is bytes])


def _explain(exc: Exception) -> Exception:
    """Map an exception of SQLite to a Holdfast error."""
    if isinstance(exc, _REFUSALS):
        explained: Exception = StoreError(f"the store refused a value: {exc}")
    elif isinstance(exc, sqlite3.Error | LostUpdate):
        explained = StoreUnavailable(f"the store cannot be used now: {exc}{_remedy(exc)}")
    else:
        return exc
    explained.__cause__ = exc
    return explained


def _remedy(exc: Exception) -> str:
    if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
        return "; end the other program that writes to it, or try again"
    return ""
