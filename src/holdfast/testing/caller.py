"""Somebody who speaks to a store as a worker's process would, and names everything by counting."""

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
    Appended,
    Claim,
    Command,
    Continue,
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
from holdfast.testing.ids import CountedIds

OutcomeT = TypeVar("OutcomeT")
LEASE_SECONDS = 10.0


def said(*texts: str) -> tuple[NewItem, ...]:
    """Return texts as a user's messages."""
    return tuple(message("user", text) for text in texts)


def answered(*texts: str) -> tuple[NewItem, ...]:
    """Return texts as an assistant's messages."""
    return tuple(message("assistant", text) for text in texts)


def text_of(item: StoredItem) -> str:
    """Return what a message says, or the type of anything else."""
    if item.kind != "message":
        return item.kind
    text: str = msgspec.json.decode(item.body)["content"][0]["text"]
    return text


class Caller:
    """One worker at a store. Everything it sends can be sent again: it keeps the last command."""

    def __init__(self, store: Store, name: str = "", *, tenant: str = DEFAULT_TENANT) -> None:
        self.store = store
        self.ids = CountedIds(name)
        self.tenant = Tenant(tenant)
        self.worker = WorkerId(self.ids.new("wrk"))
        self.last: Command[Any] | None = None

    @property
    def read(self) -> Reader:
        """The reading side of the store."""
        return self.store.read

    async def enlist(self, lease_seconds: float = LEASE_SECONDS) -> None:
        """Begin to live."""
        await self.store.enlist(self.worker, lease_seconds)

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Send a command and remember it."""
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
        """Return the command to take in some input; `more` are fields of `Accept`."""
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
        """Have some input taken in; see `arrival`."""
        return await self.submit(self.arrival(*texts, **more))

    async def start(self, *texts: str, **more: Any) -> Started:
        """Have some input taken in, and expect to be given the lane."""
        outcome = await self.accept(*texts, **more)
        assert isinstance(outcome, Started), outcome
        return outcome

    async def wait(self, *texts: str, **more: Any) -> Queued:
        """Have some input taken in, and expect to have to wait."""
        outcome = await self.accept(*texts, **more)
        assert isinstance(outcome, Queued), outcome
        return outcome

    async def repeat(self, *texts: str, **more: Any) -> Repeated:
        """Have some input taken in, and expect it to be known."""
        outcome = await self.accept(*texts, **more)
        assert isinstance(outcome, Repeated), outcome
        return outcome

    async def claim(self, turn: Turn, **more: Any) -> Started | Queued:
        """Ask for the lane for a turn that waits."""
        more.setdefault("limits", LaneLimits(can_run_again=True))
        return await self.submit(
            Claim(turn_id=turn.id, run_id=RunId(self.ids.new("run")), worker=self.worker, **more)
        )

    async def extend(self, run: Started, *texts: str, **more: Any) -> Session:
        """Write what a run has so far."""
        more.setdefault("items", answered(*texts))
        return await self.submit(Extend(fence=run.fence, **more))

    async def finish(self, run: Started | Fence, *texts: str, **more: Any) -> Ended:
        """End a run, completed if nothing else is said."""
        fence = run if isinstance(run, Fence) else run.fence
        more.setdefault("outcome", "completed")
        more.setdefault("items", answered(*texts))
        return await self.submit(Finish(fence=fence, **more))

    async def converse(self, text: str, answer: str, **more: Any) -> Ended:
        """Carry out a whole turn."""
        return await self.finish(await self.start(text, **more), answer)

    def batch(self, *texts: str, key: str | None = None, **more: Any) -> Append:
        """Return the command to add items without a run."""
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
        """Add items without a run."""
        return await self.submit(self.batch(*texts, key=key, **more))

    def part(
        self,
        name: str,
        ordinal: int,
        *texts: str,
        key: str | None = "k",
        session_id: str | None = None,
        **more: Any,
    ) -> Continue:
        """Return the command to add a batch to somebody else's turn, which `name` stands for."""
        return Continue(
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
        """Have the session of a key made or found."""
        return await self.submit(
            Reserve(
                tenant=self.tenant,
                candidate_id=SessionId(self.ids.new("ses")),
                key=Key(key) if key is not None else None,
            )
        )

    async def reset(self, session: Session, **more: Any) -> Session:
        """Have the next generation begun."""
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
        """Return a session as it is now."""
        session_id = SessionId(session if isinstance(session, str) else session.id)
        view = await self.read.session(self.tenant, session_id=session_id)
        assert view is not None, f"no session {session_id}"
        return view.session

    async def texts(self, session: Session | str, **query: Any) -> list[str]:
        """Return what is visible of a session, or another page of it."""
        items = await self.read.items(await self.session(session), ItemQuery(**query))
        return [text_of(item) for item in items]
