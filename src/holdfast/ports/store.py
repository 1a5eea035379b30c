"""What the engine needs from a store. The store contract checks each docstring."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from holdfast.core.history.history_hash import HistoryHashRow
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.records import Record, Span
from holdfast.core.model.session import ProviderState, Session, SessionStatus
from holdfast.core.model.turn import Run, Turn, TurnStatus
from holdfast.core.transaction.changes import (
    ApiKeyRow,
    CompletionRow,
    Event,
    JournalRow,
    StopRequestRow,
)
from holdfast.core.transaction.commands import Command
from holdfast.ports.outbox import ChannelReader
from holdfast.ports.reports import UsageSums
from holdfast.ports.schedules import ScheduleReader
from holdfast.ports.search import SearchIndex

OutcomeT = TypeVar("OutcomeT")

Order = Literal["asc", "desc"]
Listener = Callable[[Sequence[SessionId], Sequence[RunId]], None]
"""Called with sessions whose waiters should check again, and runs that should stop."""


class Outage(msgspec.Struct, frozen=True):
    """A time in which the store could not be used: it begins, or it is over."""

    reason: str
    seconds: float | None = None
    """How long it lasted; None if it has just begun."""


class LostHistory(msgspec.Struct, frozen=True):
    """A session whose end, or all of it, the database lacks: it was acknowledged before."""

    session_id: SessionId
    known_items: int
    found_items: int


class SessionView(msgspec.Struct, frozen=True):
    """A session as clients see it: `status` is the current one, from the lane."""

    session: Session
    status: SessionStatus
    queued_turns: int = 0
    last_turn: Turn | None = None


class TurnView(msgspec.Struct, frozen=True):
    """A turn and its current status."""

    turn: Turn
    status: TurnStatus


class ResponseView(msgspec.Struct, frozen=True):
    """The response of one step of a turn: the turn, its current status, and its last run."""

    turn: Turn
    turn_status: TurnStatus
    session: Session
    run: Run | None
    step: int
    joined: "ResponseView | None" = None
    """The response of the turn that this one joined; its answer is the answer of both."""


class ItemQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a transcript. `after` is exclusive, in the chosen order."""

    after: int | None = None
    limit: int | None = None
    order: Order = "asc"
    view: Literal["visible", "log"] = "visible"
    turn_id: TurnId | None = None
    """The turn that all requested items belong to; it makes the lookup faster."""


class ListedItem(msgspec.Struct, frozen=True):
    """An item as a list shows it; `name` is an id that is unique within its log."""

    item: StoredItem
    name: str
    hidden_by: Record | None = None


class TurnWithRuns(msgspec.Struct, frozen=True):
    """A turn and every attempt at it, oldest first."""

    view: TurnView
    runs: list[Run]


class ExportedSession(msgspec.Struct, frozen=True):
    """A session with all its turns and its whole log, of one snapshot.

    A large one has neither: they are read in parts, by `turns_as_of` and `listing`.
    """

    view: SessionView
    turns: list[TurnWithRuns] = []
    items: list[ListedItem] = []
    is_large: bool = False


class ExportPage(msgspec.Struct, frozen=True):
    """Sessions that follow each other by id, and whether others follow them."""

    sessions: list[ExportedSession] = []
    has_more: bool = False


class FeedPlace(msgspec.Struct, frozen=True, order=True, gc=False):
    """The position of an event among all events of a tenant, in commit order."""

    txid: int = 0
    position: int = 0


class PlacedEvent(msgspec.Struct, frozen=True):
    """An event and its position."""

    event: Event
    place: FeedPlace


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a tenant's sessions. Hidden and erased ones are never listed."""

    key: Key | None = None
    status: SessionStatus | None = None
    generations: bool = False
    after: SessionId | None = None
    limit: int = 20
    order: Order = "desc"
    sort: Literal["created", "activity"] = "created"
    """The sort order; by activity it is always descending."""


class OutlineEntry(msgspec.Struct, frozen=True, gc=False):
    """One item without its content; `torn_body` is the content of an incomplete answer."""

    seq: int
    kind: str
    fingerprint: bytes
    torn_body: bytes | None
    call_id: str | None = None
    is_refused: bool = False
    """Whether it is hidden because a provider refused it; other hidden items are left out."""
    is_instruction: bool = False
    """Whether it gives the session's instructions."""
    is_joined: bool = False
    """Whether it is a user's message after the tool outputs of its turn, which it may have joined
    from another client."""


class Outline(msgspec.Struct, frozen=True):
    """The settled part of a session's log, for comparison with a request."""

    session: Session
    settled_seq: int
    entries: list[OutlineEntry]
    running: list[OutlineEntry] = []
    """The items of the running turn so far."""
    open_from: int | None = None
    """The first item of the turn that runs or waits for its tools."""
    is_whole: bool = True
    """Whether the outline begins with the session's first item."""


class Transcript(msgspec.Struct, frozen=True):
    """The last visible items of a session, oldest first."""

    session: Session
    listed: bytes
    """The items as they were added, as a JSON list."""


class CompletionQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of stored completions; `after` is the turn and step of the last one seen."""

    model: str | None = None
    metadata: dict[str, str] = {}
    after: tuple[TurnId, int] | None = None
    limit: int = 20
    order: Order = "asc"


class WorkerState(msgspec.Struct, frozen=True, gc=False):
    """What a store knows about a worker at a moment."""

    id: WorkerId
    alive_until: float
    """The end of its lease; it changes with every renewal."""
    is_late: bool
    """Whether its lease is over by the store's clock, which may have stepped: a suspicion only."""
    is_dead: bool
    """Whether its process has ended, or it was declared dead."""

    @property
    def is_gone(self) -> bool:
        """Whether there is no sign that it is alive."""
        return self.is_late or self.is_dead


class OwnedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that holds its lane."""

    session_id: SessionId
    turn_id: TurnId
    run_id: RunId


class SessionReader(Protocol):
    """Reads sessions, and the storage of a tenant."""

    async def session(
        self, tenant: Tenant, *, session_id: SessionId | None = None, key: Key | None = None
    ) -> SessionView | None:
        """Return a session by id, or the live one of a key; a foreign or erased one is `None`."""
        ...

    async def find_session(
        self, tenant: Tenant, *, session_id: SessionId | None = None, key: Key | None = None
    ) -> Session | None:
        """Return the session that `session` returns, alone: a quarter of its statements."""
        ...

    async def any_session(self, session_id: SessionId) -> Session | None:
        """Return a session of any tenant, also if it was erased."""
        ...

    async def sessions(self, tenant: Tenant, query: SessionQuery) -> list[SessionView]:
        """Return one page of a tenant's sessions; retired generations only on request."""
        ...

    async def forks(self, tenant: Tenant, session_id: SessionId, limit: int) -> list[SessionView]:
        """Return the first sessions that were forked from a session; hidden ones are left out."""
        ...

    async def descendants(self, session_id: SessionId) -> list[SessionId]:
        """Return all forks of a session and of its forks, including erased ones."""
        ...

    async def idle_sessions(
        self, seconds: float, *, after: SessionId, limit: int
    ) -> list[tuple[Tenant, SessionId]]:
        """Return sessions of all tenants that have been idle for this long, by id.

        Sessions with forks are not included.
        """
        ...

    async def stored_bytes(self, tenant: Tenant) -> int:
        """Return the total bytes of a tenant's items; this reads all of them."""
        ...

    async def provider_state(self, session_id: SessionId) -> list[ProviderState]:
        """Return the provider state of a session."""
        ...


class HistoryReader(Protocol):
    """Reads the items of sessions and the records that hide or replace them."""

    async def items(self, session: Session, query: ItemQuery) -> list[StoredItem]:
        """Return a page of a session's items, including those inherited from its parents.

        The visible view leaves out what records hide; the log view has every item, without gaps.
        The cost grows with the page, not with the history before it.
        """
        ...

    async def listing(self, session: Session, query: ItemQuery) -> list[ListedItem]:
        """Return a page of items with a unique name for each, even if ids are shared or missing.

        In the log view each entry says which record hides it.
        """
        ...

    async def item(self, session: Session, name: str) -> ListedItem | None:
        """Return the item with this name, hidden or not."""
        ...

    async def item_places(self, tenant: Tenant, item_id: str) -> list[SessionId]:
        """Return a few keyless sessions that have an item of this id, newest first."""
        ...

    async def busy_sessions_with(self, tenant: Tenant, item_id: str) -> list[SessionId]:
        """Return sessions with a turn that runs or waits, and an item of this id; a few of them.

        The cost does not grow with the number of sessions. Ids of items that the store made, and
        other ids that end with the place of their item, are not found.
        """
        ...

    async def transcript(
        self,
        tenant: Tenant,
        *,
        session_id: SessionId | None = None,
        key: Key | None = None,
        last: int | None = None,
    ) -> Transcript | None:
        """Return the `last` visible items, or all of them, in one snapshot, as bytes.

        The cost grows with what is returned, not with the history before it.
        """
        ...

    async def outline(
        self,
        tenant: Tenant,
        *,
        session_id: SessionId | None = None,
        key: Key | None = None,
        last: int | None = None,
    ) -> Outline | None:
        """Return the settled log without its content, in one snapshot: visible and refused items.

        Items of a running turn are listed separately; those of a turn that waits for tools are not.
        With `last`, the outline has only that many items, the last ones.
        """
        ...

    async def context(self, session: Session) -> Sequence[StoredItem]:
        """Return the log as a model sees it: compacted ranges are replaced by their summary.

        Of an earlier state (`Session.as_of`), what was erased since then is left out. The cost
        grows with the result, not with what a summary replaces.
        """
        ...

    async def find_history(
        self, tenant: Tenant, history_hashes: Sequence[bytes]
    ) -> HistoryHashRow | None:
        """Return the end of the history with the first of these hashes that is stored.

        Histories with erased items and erased sessions are not found.
        """
        ...

    async def quarantined(self, session: Session) -> frozenset[int]:
        """Return the sequence numbers of items in the context that a provider could not process."""
        ...

    async def hidden(self, session: Session) -> list[Span]:
        """Return the ranges that records hide, merged and in order."""
        ...

    async def records(self, session: Session) -> list[Record]:
        """Return the session's own records, oldest first."""
        ...

    async def lineage_records(self, session: Session) -> list[Record]:
        """Return the records in force over a session's whole log, inherited ones first.

        Undone records are left out; those of an ancestor apply only to its shared part.
        """
        ...


class TurnReader(Protocol):
    """Reads turns, their runs and their responses."""

    async def turn(self, tenant: Tenant, turn_id: TurnId) -> TurnView | None:
        """Return a turn; a foreign one is `None`."""
        ...

    async def turns(
        self, session_id: SessionId, *, after: int = 0, limit: int = 20, order: Order = "asc"
    ) -> list[TurnView]:
        """Return a page of a session's turns by number; `after` is exclusive."""
        ...

    async def runs(self, turn_id: TurnId) -> list[Run]:
        """Return every attempt at a turn, oldest first."""
        ...

    async def stop_requests(self) -> list[StopRequestRow]:
        """Return the requests of other processes to end runs, from the last minute."""
        ...

    async def response(self, tenant: Tenant, turn_id: TurnId, step: int) -> ResponseView | None:
        """Return a response, in one snapshot; a foreign, deleted or unknown one is `None`."""
        ...

    async def journal(
        self, turn_id: TurnId, step: int, *, after: int, limit: int
    ) -> list[JournalRow]:
        """Return the first batches of a response's journal with events after `after`."""
        ...

    async def completion(self, tenant: Tenant, turn_id: TurnId, step: int) -> CompletionRow | None:
        """Return a stored completion; a foreign or deleted one is `None`."""
        ...

    async def completions(self, tenant: Tenant, query: CompletionQuery) -> list[CompletionRow]:
        """Return a page of a tenant's stored completions, in the requested order."""
        ...


class FeedReader(Protocol):
    """Reads events in commit order."""

    async def events(self, session_id: SessionId, *, after: int, limit: int) -> list[Event]:
        """Return a session's events after a cursor, in order."""
        ...

    async def feed(self, tenant: Tenant, *, after: FeedPlace, limit: int) -> list[PlacedEvent]:
        """Return the events of a tenant's visible sessions after a position, in commit order.

        An event that commits late has a position after every event that was returned before it.
        """
        ...

    async def event_place(
        self, tenant: Tenant, session_id: SessionId, number: int
    ) -> FeedPlace | None:
        """Return the position of a session's event; None if the tenant has no such event.

        Erased sessions keep the positions of their events.
        """
        ...

    async def own_place(self, tenant: Tenant, place: FeedPlace) -> FeedPlace | None:
        """Return a position if it is that of an event of this tenant, else None."""
        ...

    async def log_end(self) -> FeedPlace:
        """Return a position after every event that `feed` can return now, of any tenant.

        Events that commit later come after it.
        """
        ...


class ExportReader(Protocol):
    """Reads whole sessions, many at a time."""

    async def export_page(
        self, tenant: Tenant, *, after: SessionId, generations: bool, limit: int
    ) -> ExportPage:
        """Return the next sessions by id, at most `limit`, in one snapshot: as many as are small.

        Hidden and erased ones are left out, and retired generations unless they are asked for. A
        large session comes alone. The page is bounded in bytes.
        """
        ...

    async def turns_as_of(
        self, session: Session, *, is_running: bool, after: int, limit: int
    ) -> list[TurnWithRuns]:
        """Return a page of a session's turns by number, in the state that they had then.

        `is_running` is whether the owner of its lane was alive. An erased session has none.
        """
        ...

    async def count_sessions(
        self, tenant: Tenant, *, after: SessionId, generations: bool
    ) -> tuple[int, SessionId | None]:
        """Count the sessions that an export has after an id, in a slice of bounded work.

        Return the id to continue after; None after the last slice.
        """
        ...


class ApiKeyReader(Protocol):
    """Reads API keys."""

    async def api_keys(self) -> list[ApiKeyRow]:
        """Return all API keys, including revoked ones."""
        ...


class Reader(
    SessionReader, HistoryReader, TurnReader, FeedReader, ExportReader, ApiKeyReader, Protocol
):
    """All reads. They see everything that was acknowledged, and never wait for a run."""


class Store(Protocol):
    """All writes. A command that was answered survives a crash of the process and a power loss."""

    @property
    def read(self) -> Reader:
        """The reading side."""
        ...

    @property
    def channels(self) -> ChannelReader:
        """The reading side of channels."""
        ...

    @property
    def schedules(self) -> ScheduleReader:
        """The reading side of schedules."""
        ...

    @property
    def search(self) -> SearchIndex:
        """Full-text search."""
        ...

    @property
    def usage(self) -> UsageSums:
        """Sums of usage."""
        ...

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Execute a command in one transaction, and answer once it is durable.

        A refusal is raised as its error. `StoreUnavailable` means that nothing was answered:
        the command may be sent again with `again` set, and is then not done twice.
        """
        ...

    async def check_room(self) -> None:
        """Raise `StoreUnavailable` if the disk is known to have no room for a turn."""
        ...

    async def lost_history(self) -> list[LostHistory]:
        """Return what the database lacks of what this process had read or written; once.

        That happens if another server answers, such as a standby that was promoted.
        """
        ...

    @property
    def is_given_up(self) -> bool:
        """Whether the store has failed for so long that callers should get its error at once."""
        ...

    def on_outage(self, listener: Callable[[Outage], None]) -> None:
        """Call `listener` when an outage begins, and when it is over."""
        ...

    def listen(self, listener: Listener) -> None:
        """Call `listener` with wake-ups and aborts: at once for this process, soon for others."""
        ...

    def on_outbox(self, wake: Callable[[], None], channels: Collection[str]) -> Callable[[], None]:
        """Call `wake` when there may be messages of these channels; return what ends that.

        It is called for what this process writes. A store that can push calls it also for what
        other processes write to channels that they do not send for themselves.
        """
        ...

    async def has_news(self) -> bool:
        """Whether another process may have written since the last call.

        For stores without notifications; a store that notifies through `listen` returns `False`.
        """
        ...

    async def enlist(self, worker: WorkerId, lease_seconds: float) -> None:
        """Register a worker: its lease, and a token that the system releases with the process."""
        ...

    async def workers(self) -> list[WorkerState]:
        """Return every worker; `is_dead` is never set for one that is alive."""
        ...

    async def orphaned_sessions(self, limit: int) -> list[SessionId]:
        """Return sessions in which a worker declared dead left something, or a hold expired."""
        ...

    async def owned_turns(self, worker: WorkerId) -> list[Turn]:
        """Return the waiting turns that a worker is responsible for, in lane order."""
        ...

    async def owned_runs(self, worker: WorkerId) -> list[OwnedRun]:
        """Return the runs that hold a lane for this worker."""
        ...

    async def dismiss(self, worker: WorkerId) -> None:
        """Unregister a worker; others may take over at once what it left open."""
        ...

    async def close(self) -> None:
        """Close the store; everything that was acknowledged is durable."""
        ...
