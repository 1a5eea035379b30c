"""The SQL store: a driver, a group committer and listeners for wake-ups."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

from holdfast.core.errors import (
    HoldfastError,
    SessionLost,
    SessionNotFound,
    StoreClosed,
    StoreUnavailable,
)
from holdfast.core.history.history_hash import HistoryHashRow
from holdfast.core.ids import Key, RunId, SessionId, Tenant, WorkerId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import quarantined
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.projection.growing_list import LargePrefix, SharedPrefix, share
from holdfast.core.transaction.changes import (
    ApprovalEnded,
    Change,
    OutboxAdded,
    PlaceholderStopped,
)
from holdfast.core.transaction.commands import Command, ExpireWorker, Renew
from holdfast.ports.clock import Clock
from holdfast.ports.outbox import ChannelReader
from holdfast.ports.reports import UsageSums
from holdfast.ports.schedules import ScheduleReader
from holdfast.ports.search import SearchIndex
from holdfast.ports.store import (
    ExportPage,
    ItemQuery,
    ListedItem,
    Listener,
    LostHistory,
    Outage,
    Outline,
    OwnedRun,
    Reader,
    SessionQuery,
    SessionView,
    Transcript,
    WorkerState,
)
from holdfast.stores.cache.context_cache import ContextCache, is_as_stored, size_of
from holdfast.stores.cache.lineage_cache import LineageCache
from holdfast.stores.commit.availability import Availability
from holdfast.stores.commit.group_commit import BatchDriver, GroupCommitter
from holdfast.stores.sql import export, lookups, queries, record_queries
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.channels.queries import SqlChannelReader
from holdfast.stores.sql.entries import EXPIRED, read_turn
from holdfast.stores.sql.erasure import idle_sessions
from holdfast.stores.sql.plan import Plan, QueryRunner, SnapshotReader, every, every_as, reading
from holdfast.stores.sql.schedules import SqlScheduleReader
from holdfast.stores.sql.schema_info import Risk
from holdfast.stores.sql.search.activity import sessions_by_activity
from holdfast.stores.sql.search.index import SqlSearchIndex
from holdfast.stores.sql.usage import SqlUsage
from holdfast.stores.sql.worker_locks import WorkerTokens

OutcomeT = TypeVar("OutcomeT")
ResultT = TypeVar("ResultT")


LONG_ROWS = 4000
"""A longer context is read in pieces of as many items."""
SHORT_ROWS = 100
"""A read of more rows is not expected to be short."""


class SqlDriver(BatchDriver, Protocol):
    """A database used by the store."""

    reads_inline: bool = False
    """Whether `read_inline` avoids a thread, so that it is worth a second try if it fails."""
    sorts_matches: bool = True
    """Whether a search sorts all its matches before it returns the first one."""
    learn_items: Callable[[Session, Sequence[StoredItem]], None] = lambda *_: None
    """Called with items of other processes that a commit has read, and their session then."""
    clock: Clock
    """The clock that commands are decided by; reading it takes no round trip."""
    availability: Availability = Availability()
    """What the store knows about failures; set by it."""

    @property
    def reconnected_at(self) -> float:
        """When a database that could not be reached was reached again, by the monotonic clock.

        What answers then may be another server, or a restored one. A file is never another one.
        """
        return -math.inf

    async def read(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Run a read in one snapshot; `query` gets the database's time."""
        ...

    async def read_inline(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Run a read that is expected to be short, on the event loop if that is fast."""
        return await self.read(query)

    async def check_room(self) -> None:
        """Raise `StoreUnavailable` if the disk is known to have no room for a turn."""
        return  # its server alone knows

    async def risk(self) -> Risk | None:
        """Return what endangers acknowledged commits beside the disk of the database."""
        return None

    async def has_news(self) -> bool:
        """Whether another process may have written since the last call."""
        ...

    def abandon(self) -> None:
        """Release resources after the event loop was closed."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


LOST_SECONDS = 600.0
"""How long after a reconnection a session that is missing may come back: an operator may repair it.
Later it counts as unknown."""


LOST_NAMES = 10_000
"""How many sessions are remembered from before a reconnection."""
LOST_CHECKED = 500
"""How many of them, the last used ones, are compared with the database."""


class LostSessions:
    """Finds sessions, and ends of them, that a database lacks since it was reached again."""

    def __init__(self, driver: SqlDriver, contexts: ContextCache) -> None:
        self._driver = driver
        self._contexts = contexts
        self._before: dict[SessionId, int] = {}
        """The sessions known before another server answered, and their last items."""
        self._is_unchecked = False

    def doubt(self) -> None:
        """Forget the contexts: items of the same numbers may be others from now on."""
        large = list(self._contexts.large)
        known = self._contexts.clear()
        self._before |= dict.fromkeys(large, 0) | known
        for name in list(self._before)[:-LOST_NAMES]:
            del self._before[name]
        self._is_unchecked = True

    async def find(self) -> list[LostHistory]:
        """Return what the database lacks of the sessions that were used last; once."""
        if not self._is_unchecked:
            return []
        known = dict(list(self._before.items())[-LOST_CHECKED:])

        def compare(_: float) -> Plan[list[LostHistory]]:
            lost = []
            for name, known_items in known.items():
                session = yield from lookups.find_session(name)
                found_items = session.head_seq if session is not None else 0
                if session is None or found_items < known_items:
                    lost.append(LostHistory(name, known_items, found_items))
            return lost

        lost = await self._driver.read(compare)
        self._is_unchecked = False
        return lost

    async def check(self, session_id: object) -> None:
        """Raise `SessionLost` if this process has seen a session whose row is missing now.

        Erasing leaves the row.
        """
        if time.monotonic() - self._driver.reconnected_at > LOST_SECONDS:
            return
        name = SessionId(str(session_id))
        if name in self._before or self._contexts.knows(name):
            row = await self._driver.read(lambda _: lookups.find_session(name))
            if row is None:
                raise SessionLost(name)


class SqlReader(SnapshotReader):
    """Reads, each in one snapshot; see `ports.store.Reader`."""

    def __init__(
        self,
        run: QueryRunner,
        transcripts: ContextCache | None = None,
        *,
        inline: QueryRunner | None = None,
        lost: LostSessions | None = None,
    ) -> None:
        super().__init__(run, inline)
        self._lost = lost
        self._inline = inline
        """Runs short reads on the event loop if the driver can."""
        self._transcripts = transcripts or ContextCache()
        self._lines = LineageCache()

    _session = reading(queries.session, is_short=True)
    _find_session = reading(queries.session_alone, is_short=True)
    any_session = reading(lookups.find_session, is_short=True)
    forks = reading(record_queries.forks)
    descendants = reading(record_queries.descendants)
    stored_bytes = reading(queries.stored_bytes)
    provider_state = reading(queries.provider_state, is_short=True)
    item_places = reading(queries.item_places, is_short=True)
    busy_sessions_with = reading(lookups.find_busy_sessions)
    hidden = reading(queries.hidden, is_short=True)
    records = reading(queries.records, is_short=True)
    lineage_records = reading(queries.lineage_records, is_short=True)
    turn = reading(queries.turn, is_short=True)
    turns = reading(queries.turns)
    runs = reading(lookups.find_runs, is_short=True)
    response = reading(queries.response, is_short=True)
    journal = reading(queries.journal)
    completion = reading(queries.completion, is_short=True)
    completions = reading(queries.completions)
    api_keys = reading(queries.api_keys)
    stop_requests = reading(queries.stop_requests, is_short=True)
    events = reading(queries.events)
    feed = reading(queries.feed)
    log_end = reading(queries.log_end, is_short=True)
    event_place = reading(queries.event_place, is_short=True)
    own_place = reading(queries.own_place, is_short=True)
    turns_as_of = reading(export.turns_as_of)
    count_sessions = reading(export.count_sessions)

    async def session(
        self, tenant: Tenant, *, session_id: SessionId | None = None, key: Key | None = None
    ) -> SessionView | None:
        """Return one session as the API shows it."""
        view = await self._session(tenant, session_id=session_id, key=key)
        if view is None and session_id is not None and self._lost is not None:
            await self._lost.check(session_id)
        return view

    async def find_session(
        self, tenant: Tenant, *, session_id: SessionId | None = None, key: Key | None = None
    ) -> Session | None:
        """Return one session without its queue and its last turn."""
        session = await self._find_session(tenant, session_id=session_id, key=key)
        if session is None and session_id is not None and self._lost is not None:
            await self._lost.check(session_id)
        return session

    async def find_history(
        self, tenant: Tenant, history_hashes: Sequence[bytes]
    ) -> HistoryHashRow | None:
        """Return where a history with one of these hashes ends; earlier hashes are preferred."""
        contexts = self._transcripts
        return await self._read_bounded(
            lambda _, at_most: queries.find_history(tenant, history_hashes, contexts, at_most),
            queries.MAX_HASHED,
        )

    async def _read_bounded(
        self, query: Callable[[float, int], Plan[ResultT | queries.Long]], at_most: int
    ) -> ResultT:
        """Run a read on the event loop if it takes no more than `at_most`, else in the thread."""
        result: ResultT | queries.Long = queries.Long(0)
        if self._inline is not None:
            result = await self._inline(lambda now: query(now, at_most))
        if isinstance(result, queries.Long):
            result = await self._run(lambda now: query(now, lookups.EVERYTHING))
        assert not isinstance(result, queries.Long)
        return result

    async def sessions(self, tenant: Tenant, query: SessionQuery) -> list[SessionView]:
        """Return one page of a tenant's sessions."""
        if query.sort == "activity":
            return await self._run(lambda _: sessions_by_activity(tenant, query))
        return await self._run(lambda _: queries.sessions(tenant, query))

    async def items(self, session: Session, query: ItemQuery) -> list[StoredItem]:
        """Return a page of a session's items."""
        run = self._page_runner(query, SHORT_ROWS)
        return await run(lambda _: queries.items(session, query, self._lines))

    def _page_runner(self, query: ItemQuery, short: int) -> QueryRunner:
        is_short = query.limit is not None and query.limit <= short
        return self._run_short if is_short else self._run

    async def context(self, session: Session) -> SharedPrefix[StoredItem]:
        """Return the log as a model sees it; only read what is not cached."""
        cached = self._transcripts.find(session)
        if cached is not None:
            items, is_plain = SharedPrefix(cached.items, len(cached.items)), cached.is_plain
            if cached.head_seq == session.head_seq:
                return items
            query = ItemQuery(after=cached.head_seq, limit=None)
            read = self._runner_of(session, session.head_seq - cached.head_seq)
            new = await read(lambda _: queries.items(session, query))
            # An item that was erased meanwhile: others may be in the cached part.
            if is_as_stored(new):
                items = items.grown(new)
                self._transcripts.keep(session, items, is_plain=is_plain)
                return items
        size = None
        if session.head_seq > LONG_ROWS:
            shown, is_plain, size = await self._long_context(session)
        else:
            read = self._runner_of(session, session.head_seq)
            shown, is_plain = await read(lambda _: record_queries.context(session))
        items = share(shown)
        self._transcripts.keep(session, items, is_plain=is_plain, size=size)
        is_large = session.id in self._transcripts.large
        return LargePrefix(items.shared, items.length) if is_large else items

    async def _long_context(self, session: Session) -> tuple[list[StoredItem], bool, int]:
        """Read a context piece by piece, so that other reads come in between; also its size.

        Each piece is of another snapshot. A log only grows, so they agree, except that what is
        erased meanwhile is shown as erased from then on.
        """
        parts = await self._run(lambda _: record_queries.context_parts(session))
        items: list[StoredItem] = []
        for start, end in parts.spans:
            for first in range(start, end + 1, LONG_ROWS):
                last = min(first + LONG_ROWS - 1, end)
                items += await self._run(partial(self._piece, session, first, last))

        def show() -> tuple[list[StoredItem], bool, int]:
            shown, is_plain = parts.show(items)
            return shown, is_plain, size_of(shown)

        return await asyncio.to_thread(show)

    def _piece(
        self, session: Session, first: int, last: int, _now: float
    ) -> Plan[list[StoredItem]]:
        return lookups.find_items(session, first, last, self._lines)

    def _runner_of(self, session: Session, rows: int) -> QueryRunner:
        """Return how to read so many items: on the event loop, if they are few and all its own."""
        is_short = (
            rows + session.record_no <= SHORT_ROWS
            and session.parent_id is None
            and session.id not in self._transcripts.large
        )
        return self._inline if self._inline is not None and is_short else self._run

    async def quarantined(self, session: Session) -> frozenset[int]:
        """Return the items that a provider could not process."""
        cached = self._transcripts.quarantined(session)
        if cached is None:
            cached = quarantined(await self.lineage_records(session))
            self._transcripts.keep_quarantined(session, cached)
        return cached

    async def outline(
        self,
        tenant: Tenant,
        *,
        session_id: SessionId | None = None,
        key: Key | None = None,
        last: int | None = None,
    ) -> Outline | None:
        """Return the settled, visible log, or its end, without content."""
        contexts = self._transcripts
        return await self._read_bounded(
            lambda now, at_most: record_queries.outline(
                tenant, session_id, key, last, now, contexts, at_most
            ),
            SHORT_ROWS,
        )

    async def idle_sessions(
        self, seconds: float, *, after: SessionId, limit: int
    ) -> list[tuple[Tenant, SessionId]]:
        """Return sessions that have been inactive for at least `seconds`."""
        return await self._run(lambda now: idle_sessions(seconds, after, limit, now))

    async def transcript(
        self,
        tenant: Tenant,
        *,
        session_id: SessionId | None = None,
        key: Key | None = None,
        last: int | None = None,
    ) -> Transcript | None:
        """Return the last visible items as bytes; only read what is not cached."""
        readings, lines = self._transcripts.readings, self._lines
        result = await self._read_bounded(
            lambda _, at_most: queries.transcript(
                tenant, session_id, key, last, readings, at_most, lines
            ),
            SHORT_ROWS,
        )
        if result is None and session_id is not None and self._lost is not None:
            await self._lost.check(session_id)
        if result is not None and last is None:
            readings.keep(result.session, result.listed)
        return result

    async def listing(self, session: Session, query: ItemQuery) -> list[ListedItem]:
        """Return a page of a session's items with a name for each."""
        run = self._page_runner(query, SHORT_ROWS // 2)
        return await run(lambda _: queries.listing(session, query, self._lines))

    async def export_page(
        self, tenant: Tenant, *, after: SessionId, generations: bool, limit: int
    ) -> ExportPage:
        """Return the next sessions of an export: small ones complete, or one large one."""
        lines = self._lines
        return await self._run(
            lambda _: export.export_page(tenant, after, generations, limit, lines)
        )

    async def item(self, session: Session, name: str) -> ListedItem | None:
        """Return the item with a name, hidden or not."""
        return await self._run_short(lambda _: queries.find_listed(session, name, self._lines))


_OUTBOX_CHANGES = frozenset({OutboxAdded, PlaceholderStopped, ApprovalEnded})
"""Changes that put messages into the outbox or change them."""


class SqlStore:
    """One store for every database that has a driver."""

    def __init__(self, driver: SqlDriver, tokens: WorkerTokens) -> None:
        self._driver = driver
        self._tokens = tokens
        self.availability = driver.availability = Availability()
        """Whether the store answers, and since when it does not."""
        self._committer = GroupCommitter(driver, self.availability)
        self.commits = self._committer.commits
        """Counts of transactions, for metrics."""
        self._listeners: list[Listener] = []
        self._outbox_listeners: list[tuple[Callable[[], None], Collection[str]]] = []
        self.tell_outbox: Callable[[], None] | None = None
        """Notifies other processes of messages that this one does not send itself."""
        self._transcripts = ContextCache()
        driver.learn_items = self._transcripts.extend
        inline = self._query_inline if driver.reads_inline else None
        self._lost = LostSessions(driver, self._transcripts)
        self.read: Reader = SqlReader(self.query, self._transcripts, inline=inline, lost=self._lost)
        """The reading side."""
        self.channels: ChannelReader = SqlChannelReader(self.query)
        """The reading side of channels."""
        self.schedules: ScheduleReader = SqlScheduleReader(self.query)
        """The reading side of schedules."""
        self.search: SearchIndex = SqlSearchIndex(
            self.query, self._query_inline, is_staged=driver.sorts_matches
        )
        """Full-text search."""
        self.usage: UsageSums = SqlUsage(self.query, self._query_inline)
        """Sums of usage."""
        self._is_closed = False

    @property
    def clock(self) -> Clock:
        """The clock of the store: the database's, or of this machine if it has none."""
        return self._driver.clock

    def limit_cache(self, max_bytes: int) -> None:
        """Bound the memory that cached contexts take; 0 caches none."""
        self._transcripts.limit(max_bytes)

    async def query(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        """Run a read in one snapshot; also used by `holdfast doctor`."""
        self._check_open()
        began = time.monotonic()
        try:
            return await self._driver.read(query)
        except StoreUnavailable as exc:
            self.availability.failed(exc, began)
            raise

    async def _query_inline(self, query: Callable[[float], Plan[ResultT]]) -> ResultT:
        self._check_open()
        try:
            return await self._driver.read_inline(query)
        except StoreUnavailable as exc:
            self.availability.failed(exc)
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosed("the store is closed")

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Carry out a command in one transaction; return once it is durable."""
        decision = await self._committer.submit(command)
        self._transcripts.note(decision.changes)
        if decision.woken or decision.aborted:
            self.announce(decision.woken, decision.aborted)
        if self._outbox_listeners or self.tell_outbox is not None:
            self._tell_senders(decision.changes)
        outcome: OutcomeT | HoldfastError = decision.outcome
        if isinstance(outcome, HoldfastError):
            try:
                if isinstance(outcome, SessionNotFound):
                    await self._lost.check(getattr(command, "session_id", None))
                raise outcome
            finally:
                # The traceback refers to this frame. A reference back to the error would keep the
                # command and its bodies alive until the next garbage collection.
                del decision, outcome
        return outcome

    def doubt_history(self) -> None:
        """Another server answers: do not take for granted that it has what the last one had."""
        self._lost.doubt()

    async def lost_history(self) -> list[LostHistory]:
        """Return what the database lacks of the sessions used last, if another server answers."""
        return await self._lost.find()

    @property
    def is_given_up(self) -> bool:
        """Whether the store has failed for so long that callers should get its error at once."""
        return self.availability.is_given_up

    def on_outage(self, listener: Callable[[Outage], None]) -> None:
        """Call `listener` when an outage begins, and when it is over."""
        self.availability.on_change = listener

    def listen(self, listener: Listener) -> None:
        """Call `listener` for wake-ups and aborts."""
        self._listeners.append(listener)

    def _tell_senders(self, changes: Sequence[Change]) -> None:
        """Wake the senders of changed outbox rows, here and in other processes."""
        outbox_changes = [change for change in changes if type(change) in _OUTBOX_CHANGES]
        if not outbox_changes:
            return
        self.announce_outbox()
        sent_here = {name for _, channels in self._outbox_listeners for name in channels}
        is_sent_here = all(
            isinstance(change, OutboxAdded) and change.row.channel in sent_here
            for change in outbox_changes
        )
        if self.tell_outbox is not None and not is_sent_here:
            self.tell_outbox()

    def on_outbox(self, wake: Callable[[], None], channels: Collection[str]) -> Callable[[], None]:
        """Call `wake` when there may be messages of these channels; return what ends that."""
        listener = (wake, channels)
        self._outbox_listeners.append(listener)
        return lambda: self._outbox_listeners.remove(listener)

    def announce_outbox(self) -> None:
        """Wake the senders of this process."""
        for wake, _ in self._outbox_listeners:
            wake()

    def announce(self, woken: Sequence[SessionId], aborted: Sequence[RunId]) -> None:
        """Pass a wake-up on to all listeners of this process."""
        for listener in self._listeners:
            listener(woken, aborted)

    async def check_room(self) -> None:
        """Raise `StoreUnavailable` if the disk is known to have no room for a turn."""
        self._check_open()
        await self._driver.check_room()

    async def risk(self) -> Risk | None:
        """Return what endangers acknowledged commits beside the disk of the database."""
        return await self._driver.risk()

    async def has_news(self) -> bool:
        """Whether another process may have written since the last call."""
        self._check_open()
        return await self._driver.has_news()

    async def enlist(self, worker: WorkerId, lease_seconds: float) -> None:
        """Add a worker: its token first, so that its row never exists without one."""
        self._check_open()
        await self._tokens.take(worker)
        await self.submit(Renew(worker=worker, lease_seconds=lease_seconds, is_new=True))

    async def workers(self) -> list[WorkerState]:
        """Return every worker, and what its lease and its token say about it."""

        def query(now: float) -> Plan[list[tuple[WorkerId, float, bool]]]:
            rows = yield from every(sql.WORKERS)
            return [(row[0], row[1], row[1] <= now) for row in rows]

        leases = await self.query(query)
        living = await self._tokens.living([name for name, lease, _ in leases if lease != EXPIRED])
        return [
            WorkerState(worker, lease, is_late, worker not in living)
            for worker, lease, is_late in leases
        ]

    async def orphaned_sessions(self, limit: int) -> list[SessionId]:
        """Return sessions with open work of a worker declared dead, or with an expired hold."""
        return await self.query(lambda now: every_as(SessionId, sql.ORPHANED_SESSIONS, now, limit))

    async def owned_turns(self, worker: WorkerId) -> list[Turn]:
        """Return the waiting turns of a worker."""

        def query(_: float) -> Plan[list[Turn]]:
            rows = yield from every(sql.OWNED_TURNS, worker)
            return [read_turn(row) for row in rows]

        return await self.query(query)

    async def owned_runs(self, worker: WorkerId) -> list[OwnedRun]:
        """Return the runs that still own a lane for this worker."""
        return await self.query(lambda _: every_as(OwnedRun, sql.OWNED_RUNS, worker))

    async def dismiss(self, worker: WorkerId) -> None:
        """Remove a worker."""
        await self.submit(ExpireWorker(worker=worker, drop=True))
        await self._tokens.drop(worker)

    def abandon(self) -> None:
        """Release the database after the event loop was closed before the store."""
        self._is_closed = True
        self._driver.abandon()

    async def close(self) -> None:
        """Finish the accepted commands, then close the database."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._committer.close()
            await self._driver.close()
        finally:
            await self._tokens.close()
