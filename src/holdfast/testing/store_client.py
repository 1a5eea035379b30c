"""A client of a store that acts like a worker process, with sequential ids."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.core.ids import DEFAULT_TENANT, Key, RunId, SessionId, Tenant, TurnId, WorkerId
from holdfast.core.model.items import NewItem, StoredItem, message
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Fence, Turn
from holdfast.core.transaction.commands import (
    Accept,
    Append,
    AppendBatch,
    Appended,
    Claim,
    Command,
    Ended,
    Extend,
    Finish,
    LaneLimits,
    Queued,
    Repeated,
    Reserve,
    Reset,
    Started,
)
from holdfast.ports.store import ItemQuery, Reader, Store
from holdfast.testing.ids import SequentialIds

OutcomeT = TypeVar("OutcomeT")
LEASE_SECONDS = 10.0


def said(*texts: str) -> tuple[NewItem, ...]:
    """Return texts as a user's messages."""
    return tuple(message("user", text) for text in texts)


def answered(*texts: str) -> tuple[NewItem, ...]:
    """Return texts as an assistant's messages."""
    return tuple(message("assistant", text) for text in texts)


def text_of(item: StoredItem) -> str:
    """Return the text of a message, or the type of another item."""
    if item.kind != "message":
        return item.kind
    text: str = msgspec.json.decode(item.body)["content"][0]["text"]
    return text


class StoreClient:
    """One worker of a store; it records its last command, so that tests can submit it again."""

    def __init__(self, store: Store, name: str = "", *, tenant: str = DEFAULT_TENANT) -> None:
        self.store = store
        self.ids = SequentialIds(name)
        self.tenant = Tenant(tenant)
        self.worker = WorkerId(self.ids.new("wrk"))
        self.last: Command[Any] | None = None

    @property
    def read(self) -> Reader:
        """The reading side of the store."""
        return self.store.read

    async def enlist(self, lease_seconds: float = LEASE_SECONDS) -> None:
        """Register the worker with a lease."""
        await self.store.enlist(self.worker, lease_seconds)

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Submit a command and record it."""
        self.last = command
        return await self.store.submit(command)

    # ── writing ─────────────────────────────────────────────────────────────────────────────

    def arrival(
        self,
        *texts: str,
        key: str | None = None,
        session_id: str | None = None,
        items: Iterable[NewItem] = (),
        **more: Any,
    ) -> Accept:
        """Return the command that accepts some input; `more` are fields of `Accept`."""
        more.setdefault("limits", LaneLimits(can_run_again=True))
        return Accept(
            tenant=self.tenant,
            turn_id=TurnId(self.ids.new("turn")),
            run_id=RunId(self.ids.new("run")),
            worker=self.worker,
            candidate_id=SessionId(self.ids.new("ses")),
            key=Key(key) if key is not None else None,
            session_id=SessionId(session_id) if session_id is not None else None,
            items=(*said(*texts), *items),
            **more,
        )

    async def accept(self, *texts: str, **more: Any) -> Started | Queued | Repeated:
        """Submit some input; see `arrival`."""
        return await self.submit(self.arrival(*texts, **more))

    async def start(self, *texts: str, **more: Any) -> Started:
        """Submit some input, and expect it to start."""
        outcome = await self.accept(*texts, **more)
        assert isinstance(outcome, Started), outcome
        return outcome

    async def wait(self, *texts: str, **more: Any) -> Queued:
        """Submit some input, and expect it to be queued."""
        outcome = await self.accept(*texts, **more)
        assert isinstance(outcome, Queued), outcome
        return outcome

    async def repeat(self, *texts: str, **more: Any) -> Repeated:
        """Submit some input, and expect it to be recognised as a repeat."""
        outcome = await self.accept(*texts, **more)
        assert isinstance(outcome, Repeated), outcome
        return outcome

    async def claim(self, turn: Turn, **more: Any) -> Started | Queued:
        """Claim the lane for a queued turn."""
        more.setdefault("limits", LaneLimits(can_run_again=True))
        return await self.submit(
            Claim(turn_id=turn.id, run_id=RunId(self.ids.new("run")), worker=self.worker, **more)
        )

    async def extend(self, run: Started, *texts: str, **more: Any) -> Session:
        """Append the output of a run so far."""
        more.setdefault("items", answered(*texts))
        return await self.submit(Extend(fence=run.fence, **more))

    async def finish(self, run: Started | Fence, *texts: str, **more: Any) -> Ended:
        """End a run, completed by default."""
        fence = run if isinstance(run, Fence) else run.fence
        more.setdefault("outcome", "completed")
        more.setdefault("items", answered(*texts))
        return await self.submit(Finish(fence=fence, **more))

    async def converse(self, text: str, answer: str, **more: Any) -> Ended:
        """Execute a whole turn."""
        return await self.finish(await self.start(text, **more), answer)

    def batch(self, *texts: str, key: str | None = None, **more: Any) -> Append:
        """Return the command that appends items without a run."""
        return Append(
            tenant=self.tenant,
            turn_id=TurnId(self.ids.new("turn")),
            worker=self.worker,
            candidate_id=SessionId(self.ids.new("ses")),
            key=Key(key) if key is not None else None,
            items=said(*texts),
            **more,
        )

    async def append(self, *texts: str, key: str | None = None, **more: Any) -> Appended:
        """Append items without a run."""
        return await self.submit(self.batch(*texts, key=key, **more))

    def part(
        self,
        name: str,
        ordinal: int,
        *texts: str,
        key: str | None = "k",
        session_id: str | None = None,
        **more: Any,
    ) -> AppendBatch:
        """Return the command that appends a batch to the external turn `name`."""
        return AppendBatch(
            tenant=self.tenant,
            turn_id=TurnId(f"turn_{name}"),
            ordinal=ordinal,
            worker=self.worker,
            candidate_id=SessionId(self.ids.new("ses")),
            key=Key(key) if key is not None and session_id is None else None,
            session_id=SessionId(session_id) if session_id is not None else None,
            items=said(*texts),
            **more,
        )

    async def reserve(self, key: str | None = None) -> Session:
        """Find or create the session of a key."""
        return await self.submit(
            Reserve(
                tenant=self.tenant,
                candidate_id=SessionId(self.ids.new("ses")),
                key=Key(key) if key is not None else None,
            )
        )

    async def reset(self, session: Session, **more: Any) -> Session:
        """Start the next generation."""
        return await self.submit(
            Reset(
                tenant=self.tenant,
                session_id=session.id,
                new_id=SessionId(self.ids.new("ses")),
                **more,
            )
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    async def session(self, session: Session | str) -> Session:
        """Return the current state of a session."""
        session_id = SessionId(session if isinstance(session, str) else session.id)
        view = await self.read.session(self.tenant, session_id=session_id)
        assert view is not None, f"no session {session_id}"
        return view.session

    async def texts(self, session: Session | str, **query: Any) -> list[str]:
        """Return the texts of a session's visible items, or of another query."""
        items = await self.read.items(await self.session(session), ItemQuery(**query))
        return [text_of(item) for item in items]
