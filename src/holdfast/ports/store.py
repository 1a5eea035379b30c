"""What we need from a store. Each docstring is a promise that the store contract checks."""

from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from holdfast.core.history.history_hash import HistoryHashRow
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.items import StoredItem
from holdfast.core.model.provider_state import ProviderState
from holdfast.core.model.records import Record, Span
from holdfast.core.model.session import Session, SessionStatus
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
from holdfast.ports.schedules import ScheduleReader
from holdfast.ports.search import SearchIndex

OutcomeT = TypeVar("OutcomeT")

Order = Literal["asc", "desc"]
Listener = Callable[[Sequence[SessionId], Sequence[RunId]], None]
"""Called with sessions whose waiters should look again, and runs that should stop."""


class SessionView(msgspec.Struct, frozen=True):
    """A session as the outside may see it: `status` comes from the lane, now."""

    session: Session
    status: SessionStatus
    queued_turns: int = 0
    last_turn: Turn | None = None


class TurnView(msgspec.Struct, frozen=True):
    """A turn and its state, now."""

    turn: Turn
    status: TurnStatus


class ResponseView(msgspec.Struct, frozen=True):
    """What one step of a turn answered, or will: the turn, its state now, and its last run."""

    turn: Turn
    turn_status: TurnStatus
    session: Session
    run: Run | None
    step: int
    joined: "ResponseView | None" = None
    """The response of the turn that this one joined: its answer is the answer of both."""


class ItemQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a transcript. `after` is exclusive, in the chosen order."""

    after: int | None = None
    limit: int | None = None
    order: Order = "asc"
    view: Literal["visible", "log"] = "visible"
    turn_id: TurnId | None = None
    """The turn that all these items are known to be of: then they are found by it."""


class ListedItem(msgspec.Struct, frozen=True):
    """An item as a list shows it: `name` is an id that no other entry of its log goes by."""

    item: StoredItem
    name: str
    hidden_by: Record | None = None


class FeedPlace(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where a fact stands among all of a tenant's, in the order of their commits."""

    txid: int = 0
    position: int = 0


class PlacedEvent(msgspec.Struct, frozen=True):
    """A fact and its place."""

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
    """What orders the list; by activity it is always descending."""


class OutlineEntry(msgspec.Struct, frozen=True, gc=False):
    """One item without its content; `torn_body` is there for an answer that broke off."""

    seq: int
    kind: str
    fingerprint: bytes
    torn_body: bytes | None
    call_id: str | None = None
    is_refused: bool = False
    """Whether it is hidden because a provider refused it; every other hidden item is left out."""
    is_instruction: bool = False
    """Whether it gives the session's instructions."""
    is_joined: bool = False
    """Whether it is a user's message behind the tool outputs of its turn, which it may have joined
    from another client."""


class Outline(msgspec.Struct, frozen=True):
    """What of a session is settled, to compare a request with."""

    session: Session
    settled_seq: int
    entries: list[OutlineEntry]
    running: list[OutlineEntry] = []
    """What the turn that runs has in the log so far."""
    open_from: int | None = None
    """Where the turn begins that runs or waits for its tools."""
    is_whole: bool = True
    """Whether the outline begins with the session's first item."""


class Transcript(msgspec.Struct, frozen=True):
    """What is visible of a session at its end, oldest first."""

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


class GoneWorker(msgspec.Struct, frozen=True, gc=False):
    """A worker taken for dead, and the lease on which it was judged."""

    id: WorkerId
    alive_until: float


class OwnedRun(msgspec.Struct, frozen=True, gc=False):
    """A run that has its lane."""

    session_id: SessionId
    turn_id: TurnId
    run_id: RunId


class SessionReader(Protocol):
    """Reads sessions, and what all sessions of a tenant take."""

    async def session(
        self, tenant: Tenant, *, session_id: SessionId | None = None, key: Key | None = None
    ) -> SessionView | None:
        """Return a session by id, or the live one of a key; a foreign or erased one is `None`."""
        ...

    async def sessions(self, tenant: Tenant, query: SessionQuery) -> list[SessionView]:
        """Return one page of a tenant's sessions, retired generations only when asked for."""
        ...

    async def forks(self, tenant: Tenant, session_id: SessionId, limit: int) -> list[SessionView]:
        """Return the first sessions that were forked from a session; hidden ones are left out."""
        ...

    async def descendants(self, session_id: SessionId) -> list[SessionId]:
        """Return all sessions that were forked from a session or its forks, erased ones too."""
        ...

    async def idle_sessions(
        self, seconds: float, *, after: SessionId, limit: int
    ) -> list[tuple[Tenant, SessionId]]:
        """Return sessions of all tenants in which nothing has happened for so long, by id.

        Sessions that others point into are not among them.
        """
        ...

    async def stored_bytes(self, tenant: Tenant) -> int:
        """Return how many bytes the items of a tenant's sessions have; it looks at all of them."""
        ...

    async def provider_state(self, session_id: SessionId) -> list[ProviderState]:
        """Return what providers remember for a session."""
        ...


class HistoryReader(Protocol):
    """Reads the items of sessions and the records that hide or replace them."""

    async def items(self, session: Session, query: ItemQuery) -> list[StoredItem]:
        """Return a page of a session's items, inherited ones of its parents included.

        The visible view leaves out what records hide; the log has every item, gap-free.
        The cost grows with the page, not with the history before it.
        """
        ...

    async def listing(self, session: Session, query: ItemQuery) -> list[ListedItem]:
        """Return a page of items with a name for each, also where ids are shared or missing.

        In the log's view each entry says what hides it.
        """
        ...

    async def item(self, session: Session, name: str) -> ListedItem | None:
        """Return the item that goes by a name, hidden or not."""
        ...

    async def item_places(self, tenant: Tenant, item_id: str) -> list[SessionId]:
        """Return unnamed sessions that have an item of this id, the newest first, a few of them."""
        ...

    async def transcript(
        self,
        tenant: Tenant,
        *,
        session_id: SessionId | None = None,
        key: Key | None = None,
        last: int | None = None,
    ) -> Transcript | None:
        """Return the last so many visible items, or all of them, in one snapshot, as bytes.

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

        Items of a turn that runs are kept apart; those of one that waits for tools are not. With
        `last`, the outline begins with the last so many items.
        """
        ...

    async def context(self, session: Session) -> Sequence[StoredItem]:
        """Return the log as a model may be shown it: ranges that were compacted as their summary.

        The cost grows with what is shown, not with what a summary stands for.
        """
        ...

    async def find_history(
        self, tenant: Tenant, history_hashes: Sequence[bytes]
    ) -> HistoryHashRow | None:
        """Return where a history ends that has one of these hashes, the first of them that is kept.

        What was erased in it since has no hash any more, nor has an erased session.
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
        """Return the records in force over everything a session shows, inherited ones first.

        Those that were undone are left out; an ancestor's reach no further than its shared part.
        """
        ...


class TurnReader(Protocol):
    """Reads turns, their runs and what was answered."""

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
        """Return the runs that other processes ask to end, those of the last minute."""
        ...

    async def response(self, tenant: Tenant, turn_id: TurnId, step: int) -> ResponseView | None:
        """Return a response, in one snapshot; a foreign, deleted or unknown one is `None`."""
        ...

    async def journal(
        self, turn_id: TurnId, step: int, *, after: int, limit: int
    ) -> list[JournalRow]:
        """Return the first batches of a response's journal that reach beyond event `after`."""
        ...

    async def completion(self, tenant: Tenant, turn_id: TurnId, step: int) -> CompletionRow | None:
        """Return a stored completion; a foreign or deleted one is `None`."""
        ...

    async def completions(self, tenant: Tenant, query: CompletionQuery) -> list[CompletionRow]:
        """Return a page of a tenant's stored completions, in the order they were asked for."""
        ...


class FeedReader(Protocol):
    """Reads facts in the order in which they were committed."""

    async def events(self, session_id: SessionId, *, after: int, limit: int) -> list[Event]:
        """Return a session's facts after a cursor, in order."""
        ...

    async def feed(self, tenant: Tenant, *, after: FeedPlace, limit: int) -> list[PlacedEvent]:
        """Return the facts of a tenant's visible sessions behind a place, as they were committed.

        A fact that commits late has a place behind every one that was returned before it.
        """
        ...

    async def feed_end(self, tenant: Tenant) -> FeedPlace:
        """Return the place of the newest fact that `feed` would return."""
        ...


class ApiKeyReader(Protocol):
    """Reads API keys."""

    async def api_keys(self) -> list[ApiKeyRow]:
        """Return every API key that was ever made, revoked ones included."""
        ...


class Reader(SessionReader, HistoryReader, TurnReader, FeedReader, ApiKeyReader, Protocol):
    """Reads see everything that was acknowledged, and never wait for a run."""


class Store(Protocol):
    """Writes. A command that was answered survives the death of the process and of the power."""

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

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Execute a command in one transaction, and answer once it is durable.

        A refusal is raised as its error. `StoreUnavailable` means that nothing was answered:
        the command may be sent again with `again` set, and is then not done twice.
        """
        ...

    def listen(self, listener: Listener) -> None:
        """Tell `listener` about wake-ups and aborts, of this process at once, of others soon."""
        ...

    def on_outbox(self, wake: Callable[[], None], channels: Collection[str]) -> Callable[[], None]:
        """Call `wake` when there may be messages of these channels; return what ends that.

        It is called for what this process writes. A store that can push calls it also for what
        other processes write to channels that they do not send for themselves.
        """
        ...

    async def has_news(self) -> bool:
        """Whether another process may have written since the last call.

        For stores that cannot push; one that pushes through `listen` answers `False`.
        """
        ...

    async def enlist(self, worker: WorkerId, lease_seconds: float) -> None:
        """Begin a worker's life: its lease, and a token that the system drops with the process."""
        ...

    async def gone_workers(self) -> list[GoneWorker]:
        """Return workers whose lease ran out or whose process is dead; no living one ever."""
        ...

    async def orphaned_sessions(self, limit: int) -> list[SessionId]:
        """Return sessions in which a gone worker left something, or a hold ran out."""
        ...

    async def owned_turns(self, worker: WorkerId) -> list[Turn]:
        """Return the waiting turns that a worker answers for, in the order of their lanes."""
        ...

    async def owned_runs(self, worker: WorkerId) -> list[OwnedRun]:
        """Return the runs that still own a lane for this worker."""
        ...

    async def dismiss(self, worker: WorkerId) -> None:
        """End a worker's life: nothing of its own is left open, or others may take it at once."""
        ...

    async def close(self) -> None:
        """Close the store; what was acknowledged stays."""
        ...
