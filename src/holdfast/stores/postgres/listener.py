"""LISTEN connection and advisory locks.

One connection receives wake-ups and holds the advisory locks (tokens) of this process's workers.
PostgreSQL releases both when the connection or the process ends. If the connection is lost, a new
one takes the locks again and reports that notifications may have been missed.
"""

import asyncio
import contextlib
import hashlib
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import msgspec

from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.core.ids import RunId, SessionId, WorkerId
from holdfast.core.transaction.changes import Decision, LogAppended
from holdfast.ports.store import Listener
from holdfast.stores.postgres.clock import READ_CLOCK, ServerClock
from holdfast.stores.postgres.connect import (
    CLOSE_SECONDS,
    Connector,
    close_quietly,
)
from holdfast.stores.postgres.errors import explain

CHANNEL = "holdfast"
NOTIFY = "select pg_notify($1, $2)"
# Notify of aborted runs, and of the sessions that others may wait for: not of those in which turns
# of this process alone run and wait, unless it is certain that a turn of another one is concerned.
NOTIFY_OTHERS = """
with needed as (
  select w.id from unnest($3::text[], $4::boolean[]) as w(id, is_certain)
  left join sessions s on s.id = w.id
  cross join lateral (
    select count(*) as holders, count(*) filter (where h.owner <> all($5::text[])) as others from (
      select q.owner from queue q where q.session = s.no
      union all select l.owner from lanes l where l.session = s.no offset 0) h) as found
  where w.is_certain or found.others > 0 or found.holders = 0
)
select pg_notify($1, json_build_object('origin', $2::text, 'aborted', to_json($6::text[]),
  'woken', (select coalesce(json_agg(id), '[]'::json) from needed))::text)
where cardinality($6::text[]) > 0 or exists (select 1 from needed)
"""
IDS_PER_MESSAGE = 80
"""A message has at most 8000 bytes, an id about 35, and there are two lists of them."""
MAX_UNTOLD = 10_000
"""How many sessions are remembered that others are not told of yet; they also look themselves."""

HEARTBEAT_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
RECHECK_SECONDS = 1.5
"""Longer than a live process needs to reconnect; a token that is free for longer has no owner."""
RECONNECT_SECONDS = 5.0
"""The same if this process has just reconnected itself: the server may have been restarted."""
RECHECK_INTERVAL_SECONDS = 0.25
DISCONNECTED_POLL_SECONDS = 1.0

TAKE = "select pg_try_advisory_lock($1)"
DROP = "select pg_advisory_unlock($1)"
TAKE_HERE = "select pg_backend_pid(), pg_try_advisory_lock($1)"
HELD_HERE = """
select pg_backend_pid(), exists (select 1 from pg_locks
  where locktype = 'advisory' and granted and objsubid = 1 and pid = pg_backend_pid()
  and classid::bigint = ($1::bigint >> 32 & 4294967295) and objid::bigint = ($1 & 4294967295))
"""
CHECK_SECONDS = 3.0
"""How long a notification may take that this process sends to itself."""

# Select the workers whose token is held. A restarted server has dropped the tokens of live workers
# too: those that enlisted before its start have five seconds to take theirs again.
HELD = """
select w.id from unnest($1::text[], $2::bigint[], $3::bigint[]) as w(id, high, low)
where exists (
  select 1 from pg_locks l
  where l.locktype = 'advisory' and l.granted and l.objsubid = 1
    and l.database = (select oid from pg_database where datname = current_database())
    and l.classid::bigint = w.high and l.objid::bigint = w.low)
or (clock_timestamp() < pg_postmaster_start_time() + interval '5 seconds' and exists (
  select 1 from workers k
  where k.id = w.id and k.started_at < extract(epoch from pg_postmaster_start_time())))
"""


class _Message(msgspec.Struct):
    origin: str
    woken: list[SessionId] = []
    aborted: list[RunId] = []
    is_outbox: bool = False
    """Whether the outbox has messages to send."""


_read_message = msgspec.json.Decoder(_Message).decode


def lock_number(worker: WorkerId) -> int:
    """Return the number of a worker's advisory lock."""
    digest = hashlib.blake2b(worker.encode(), digest_size=8, person=b"holdfast").digest()
    return int.from_bytes(digest, "big", signed=True)


class NotificationListener:
    """Holds the LISTEN connection and the workers' tokens. Implements `WorkerTokens`."""

    def __init__(self, connector: Connector, clock: ServerClock, *, origin: str) -> None:
        self._connector = connector
        self._clock = clock
        self._origin = origin
        self._tokens: dict[WorkerId, int] = {}
        # Tokens that the server still holds for a lost connection of this process.
        self._ghosts: set[int] = set()
        self._connection: asyncpg.Connection | None = None
        self._is_lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._announce: Listener | None = None
        self._announce_outbox: Callable[[], None] = lambda: None
        self._has_messages = False
        self._woken: dict[SessionId, bool] = {}
        """The sessions to tell of, and whether another process is concerned for certain."""
        self._aborted: dict[RunId, None] = {}
        self._telling: asyncio.Task[None] | None = None
        self._has_heard_itself = asyncio.Event()
        self._has_missed = False
        self._reconnected_at = -math.inf
        self._polled_at = 0.0
        # A connection runs one query at a time.
        self._asking = asyncio.Lock()

    async def start(self, announce: Listener | None, announce_outbox: Callable[[], None]) -> None:
        """Start to listen, and reconnect when the connection is lost.

        Without `announce` nothing is listened for: a standby does not allow it.
        """
        self._announce = announce
        self._announce_outbox = announce_outbox
        try:
            await self._connect()
        except Exception as exc:
            raise explain(exc) from exc
        self._keeper = asyncio.create_task(self._keep_connected(), name="holdfast-listener")

    async def close(self) -> None:
        """Close the connection once others are told; the server releases the tokens."""
        if self._telling is not None and self._connection is not None:
            await asyncio.wait([self._telling], timeout=CLOSE_SECONDS)
        tasks = [task for task in (self._keeper, self._telling) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await close_quietly(connection)

    def has_missed(self) -> bool:
        """Whether notifications may have been missed."""
        if (
            self._connection is None
            and time.monotonic() - self._polled_at > DISCONNECTED_POLL_SECONDS
        ):
            self._polled_at = time.monotonic()
            return True
        has_missed, self._has_missed = self._has_missed, False
        return has_missed

    @property
    def reconnected_at(self) -> float:
        """When the connection was made again after a loss, by the monotonic clock.

        That is now as long as there is no connection: readers may have a new one already.
        """
        return self._reconnected_at if self._connection is not None else time.monotonic()

    def tell(self, decision: Decision[Any]) -> None:
        """Notify other processes soon, if they wait for its sessions or have its runs."""
        is_certain = bool(decision.aborted) or any(
            entry.turn is not None and entry.turn.owner not in self._tokens
            for change in decision.changes
            if isinstance(change, LogAppended)
            for entry in change.entries
        )
        for session_id in decision.woken:
            self._woken[session_id] = is_certain or self._woken.get(session_id, False)
        self._aborted.update(dict.fromkeys(decision.aborted))
        self._tell_soon()

    def tell_outbox(self) -> None:
        """Notify other processes soon that the outbox has messages; they also poll."""
        self._has_messages = True
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_others(), name="holdfast-tell-others")

    async def _tell_others(self) -> None:
        """Send what has come together; a process that is not told looks after half a lease."""
        with contextlib.suppress(StoreError):
            while self._woken or self._aborted or self._has_messages:
                if self._has_messages:
                    self._has_messages = False
                    message = _Message(self._origin, is_outbox=True)
                    await self._ask(NOTIFY, CHANNEL, msgspec.json.encode(message).decode())
                woken = list(self._woken)[:IDS_PER_MESSAGE]
                aborted = list(self._aborted)[:IDS_PER_MESSAGE]
                if woken or aborted:
                    is_certain = [self._woken[session_id] for session_id in woken]
                    await self._ask(
                        NOTIFY_OTHERS, CHANNEL, self._origin, woken, is_certain,
                        list(self._tokens), aborted,
                    )  # fmt: skip
                for session_id in woken:
                    self._woken.pop(session_id, None)
                for run_id in aborted:
                    self._aborted.pop(run_id, None)
        for untold in (self._woken, self._aborted):
            if len(untold) > MAX_UNTOLD:
                untold.clear()

    # ── poolers ─────────────────────────────────────────────────────────────────────────────

    async def check_session(self, writer: asyncpg.Connection) -> None:
        """Reject a pooler that does not leave a server's connection to its client.

        The writer begins a transaction between two questions of the listener: a pooler in
        transaction mode gives it the connection that took the token. And a notification that the
        writer sends reaches the listener only if `listen` is still in force.
        """
        connection = self._connection
        assert connection is not None
        number = secrets.randbits(63)
        message = msgspec.json.encode(_Message(self._origin)).decode()
        try:
            async with self._asking, asyncio.timeout(CHECK_SECONDS):
                ((first, _),) = await connection.fetch(TAKE_HERE, number)
                async with writer.transaction():
                    await writer.fetch(NOTIFY, CHANNEL, message)
                    await connection.fetch(READ_CLOCK)
                    ((second, is_held),) = await connection.fetch(HELD_HERE, number)
                if first != second or not is_held:
                    raise StoreError(self._connector.why_not_pooled())
                await self._has_heard_itself.wait()
                await connection.fetch(DROP, number)
        except TimeoutError:
            raise StoreError(self._connector.why_not_pooled()) from None
        except StoreError:
            raise
        except Exception as exc:
            raise self._connector.explain(exc) from exc

    # ── tokens ──────────────────────────────────────────────────────────────────────────────

    async def take(self, worker: WorkerId) -> None:
        """Hold the worker's token from now on, also across reconnects."""
        number = lock_number(worker)
        ((is_taken,),) = await self._ask(TAKE, number)
        self._tokens[worker] = number
        if not is_taken:
            self._ghosts.add(number)

    async def living(self, workers: Sequence[WorkerId]) -> set[WorkerId]:
        """Return the workers whose token is held now or taken again a moment later."""
        held = await self.held(workers)
        give_up_at = time.monotonic() + RECHECK_SECONDS
        give_up_at = max(give_up_at, self._reconnected_at + RECONNECT_SECONDS)
        while len(held) < len(workers) and time.monotonic() < give_up_at:
            await asyncio.sleep(RECHECK_INTERVAL_SECONDS)
            held |= await self.held([worker for worker in workers if worker not in held])
        return held

    async def drop(self, worker: WorkerId) -> None:
        """Release the token if this process holds it; that of a dead process is already free."""
        number = self._tokens.pop(worker, None)
        if number is None:
            return
        if number in self._ghosts:
            self._ghosts.discard(number)
        else:
            await self._ask(DROP, number)

    async def held(self, workers: Sequence[WorkerId]) -> set[WorkerId]:
        """Return the workers whose token is held at this moment."""
        if not workers:
            return set()
        numbers = [lock_number(worker) for worker in workers]
        high = [number >> 32 & 0xFFFFFFFF for number in numbers]
        low = [number & 0xFFFFFFFF for number in numbers]
        rows = await self._ask(HELD, list(workers), high, low)
        return {row[0] for row in rows}

    async def _ask(self, text: str, *parameters: Any) -> list[Any]:
        connection = self._connection
        if connection is None:
            raise StoreUnavailable("the database is unreachable; reconnecting")
        try:
            async with self._asking:
                return await connection.fetch(text, *parameters)
        except Exception as exc:
            raise explain(exc) from exc

    # ── connection ──────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> None:
        connection = await self._connector.connect()
        try:
            connection.add_termination_listener(self._on_connection_lost)
            self._is_lost.clear()
            if self._announce is not None:
                await connection.add_listener(CHANNEL, self._on_notification)
            self._ghosts = set(self._tokens.values())
            await self._catch_up(connection)
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection

    def _on_connection_lost(self, connection: object) -> None:
        if connection is self._connection:
            self._connection = None
        self._is_lost.set()

    async def _keep_connected(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._is_lost.wait()
            if self._connection is not None:
                await self._on_heartbeat(self._connection)
            if self._connection is None:
                await self._reconnect()

    async def _on_heartbeat(self, connection: asyncpg.Connection) -> None:
        """Query the time; drop a connection that does not answer."""
        try:
            async with self._asking:
                await self._catch_up(connection)
        except Exception:  # noqa: BLE001 - whatever it is, a new connection is made
            self._on_connection_lost(connection)
            connection.terminate()

    async def _catch_up(self, connection: asyncpg.Connection) -> None:
        for number in list(self._ghosts):
            if await connection.fetchval(TAKE, number, timeout=HEARTBEAT_SECONDS):
                self._ghosts.discard(number)
        self._clock.observe(await connection.fetchval(READ_CLOCK, timeout=HEARTBEAT_SECONDS))

    async def _reconnect(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._connect()
            except Exception:  # noqa: BLE001 - retried until it succeeds
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                self._has_missed = True
                self._reconnected_at = time.monotonic()
                self._tell_soon()
                return

    def _on_notification(
        self, _connection: object, _pid: int, _channel: str, payload: object
    ) -> None:
        try:
            message = _read_message(str(payload))
        except msgspec.DecodeError:
            return  # not from a gateway: anybody may notify on this channel
        if message.origin == self._origin:
            self._has_heard_itself.set()
            return
        if self._announce is None:
            return
        if message.is_outbox:
            self._announce_outbox()
        elif message.woken or message.aborted:  # not another process that hears itself
            self._announce(message.woken, message.aborted)
