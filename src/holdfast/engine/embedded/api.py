"""The Python API: sessions and turns as objects, without a server in between."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from holdfast.core.compaction.records import CompactionView, list_compactions
from holdfast.core.errors import InvalidInput, ModelNotFound, SessionNotFound
from holdfast.core.ids import (
    Key,
    RunId,
    SessionId,
    Tenant,
    TurnId,
    read_idempotency_key,
    read_key,
)
from holdfast.core.model.items import NewItem, item_value
from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.session import Session
from holdfast.core.model.turn import OnBusy, Source
from holdfast.core.transaction import commands as cmd
from holdfast.engine.embedded.function_model import FunctionModel
from holdfast.engine.embedded.turn_handle import Item, ItemInput, TurnHandle
from holdfast.engine.embedded.validation import (
    as_items,
    require_choice,
    require_count,
    require_id,
    require_instance,
)
from holdfast.engine.model_call.compaction_turns import CompactionRequest, CompactionTurns
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.appending import append_items
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ContextMode, ContextSettings
from holdfast.ports.store import ItemQuery, SessionQuery, SessionView, TurnView

Model: TypeAlias = Callable[[list[Item]], Awaitable["ItemInput | Sequence[ItemInput]"]]


class SessionHandle:
    """One conversation.

    A handle made from a key means the key's live generation, even after a reset by others. A handle
    made from an id means that session, until a reset through this handle.
    """

    def __init__(
        self,
        gateway: Gateway,
        tenant: Tenant,
        session: Session,
        reset: ResetPolicy,
        *,
        is_pinned: bool = False,
    ) -> None:
        self._gateway = gateway
        self._tenant = tenant
        self._session = session
        self._policy = reset
        self._is_pinned = is_pinned or session.key is None

    @property
    def id(self) -> str:
        """The session id, as last read."""
        return self._session.id

    @property
    def key(self) -> str | None:
        """The key, unchanged."""
        return self._session.key

    @property
    def generation(self) -> int:
        """The generation of the session, as last read."""
        return self._session.generation

    async def view(self) -> SessionView:
        """Return the current state of the session."""
        if not self._is_pinned:
            view = await self._gateway.read.session(self._tenant, key=self._session.key)
        else:
            view = await self._gateway.read.session(self._tenant, session_id=self._session.id)
        if view is None:
            raise SessionNotFound(f"no session {self._session.id}")
        self._session = view.session
        return view

    def turn(
        self,
        input: ItemInput | Iterable[ItemInput] = (),  # noqa: A002
        *,
        idempotency_key: str | None = None,
        on_busy: OnBusy | None = None,
        source: Source = "user",
        internal: bool = False,
        request: bytes = b"",
    ) -> "TurnHandle":
        """Return a turn to enter with `async with`; it is durable once entered, and runs alone."""
        items = as_items(input, "user")
        if idempotency_key is not None:
            read_idempotency_key(idempotency_key)
        accept = cmd.Accept(
            tenant=self._tenant,
            turn_id=TurnId(self._gateway.ids.new("turn")),
            run_id=RunId(self._gateway.ids.new("run")),
            worker=self._gateway.worker.id,
            candidate_id=self._gateway.new_session_id(),
            items=items,
            request=require_instance("request", request, bytes),
            source=require_choice("source", source, Source),
            on_busy=require_choice("on_busy", on_busy or self._gateway.settings.on_busy, OnBusy),
            is_internal=internal,
            idempotency_key=idempotency_key,
            body_hash=_hash(self._session, items, request),
            limits=self._gateway.limits,
            reset=self._policy,
            **self._target(),
        )
        return TurnHandle(self._gateway, accept, self._advance)

    def _target(self) -> dict[str, Any]:
        if self._is_pinned:
            return {"session_id": self._session.id}
        return {"key": self._session.key}

    def _advance(self, session: Session) -> None:
        """Update the session; a repeat may have run in another generation."""
        is_ours = session.id == self._session.id if self._is_pinned else session.is_live
        if is_ours and session.is_visible:
            self._session = session

    async def run(
        self,
        input: ItemInput | Iterable[ItemInput],  # noqa: A002
        model: Model,
        *,
        idempotency_key: str | None = None,
    ) -> list[Item]:
        """Return the answer of `model`, which is called at most once per idempotency key."""
        if not callable(model):
            raise InvalidInput(f"model must be callable with items, not {type(model).__name__}")
        async with self.turn(input, idempotency_key=idempotency_key) as turn:
            if not turn.is_done:
                answer = await model(await turn.context())
                turn.add(answer)
        return await turn.output()

    async def append(
        self,
        input: ItemInput | Iterable[ItemInput],  # noqa: A002
        *,
        role: str = "user",
        batch_id: str | None = None,
    ) -> None:
        """Append items without a run; a batch with a `batch_id` is added only once."""
        items = as_items(input, role)
        if batch_id is not None:
            read_idempotency_key(batch_id)
        appended = await append_items(
            self._gateway,
            cmd.Append(
                tenant=self._tenant,
                turn_id=TurnId(self._gateway.ids.new("turn")),
                worker=self._gateway.worker.id,
                candidate_id=self._gateway.new_session_id(),
                items=items,
                idempotency_key=batch_id,
                body_hash=_hash(self._session, items, b"append"),
                **self._target(),
            ),
        )
        self._advance(appended.session)

    async def items(
        self, *, last: int | None = None, view: Literal["visible", "log"] = "visible"
    ) -> list[Item]:
        """Return the transcript, oldest first: all of it, or its `last` items."""
        require_count("last", last)
        require_choice("view", view, Literal["visible", "log"])
        session = (await self.view()).session
        order: Literal["asc", "desc"] = "asc" if last is None else "desc"
        stored = await self._gateway.read.items(
            session, ItemQuery(limit=last, order=order, view=view)
        )
        if last is not None:
            stored.reverse()
        return [item_value(item.body) for item in stored]

    async def turns(self, *, limit: int = 20) -> list[TurnView]:
        """Return the latest turns, newest first."""
        require_count("limit", limit)
        session = (await self.view()).session
        return await self._gateway.read.turns(session.id, limit=limit, order="desc")

    async def reset(self, *, expected_session_id: str | None = None) -> str:
        """Start the next generation under the key; return its id. The old one stays readable."""
        if expected_session_id is not None:
            require_id("expected_session_id", expected_session_id)
        session = (await self.view()).session
        fresh = await self._gateway.submit(
            cmd.Reset(
                tenant=self._tenant,
                session_id=session.id,
                new_id=self._gateway.new_session_id(),
                expected_id=None if expected_session_id is None else SessionId(expected_session_id),
            )
        )
        self._session = fresh
        return fresh.id

    async def restore(self, session_id: str) -> None:
        """Make an old generation of this key live again."""
        old_id = SessionId(require_id("session_id", session_id))
        view = await self._gateway.read.session(self._tenant, session_id=old_id)
        if view is None or view.session.key != self.key:
            raise SessionNotFound(f"the key has no generation {old_id}")
        self._session = await self._gateway.submit(
            cmd.Restore(tenant=self._tenant, session_id=old_id)
        )

    async def fork(self, *, after_item: int | None = None) -> "SessionHandle":
        """Return a new, keyless session that shares the history up to an item."""
        require_count("after_item", after_item)
        session = (await self.view()).session
        child = await self._gateway.submit(
            cmd.Fork(
                tenant=self._tenant,
                session_id=session.id,
                new_id=self._gateway.new_session_id(),
                after_seq=after_item,
            )
        )
        return SessionHandle(self._gateway, self._tenant, child, NEVER)

    async def compact(self, model: Model | None = None) -> bool:
        """Replace the history by one summary if that is shorter; return whether it was.

        `model` writes the summary; without one, the summary quotes the beginning and the end.
        """
        if model is not None and not callable(model):
            raise InvalidInput(f"model must be callable with items, not {type(model).__name__}")
        session = (await self.view()).session
        mode: ContextMode = "elide" if model is None else "model"
        writer = FunctionModel(model) if model is not None else None
        compactor = Compactor(
            self._gateway, lambda _: _required(writer), settings=ContextSettings(mode=mode)
        )
        request = CompactionRequest(tenant=self._tenant, session_id=session.id, model="function")
        done = await CompactionTurns(self._gateway, compactor).compact(request)
        self._advance(done)
        return done.record_no > session.record_no

    async def compactions(self) -> list[CompactionView]:
        """Return the compactions of the session, oldest first."""
        session = (await self.view()).session
        return list_compactions(session, await self._gateway.read.records(session))

    async def undo_compaction(self, compaction_id: str) -> None:
        """Undo a compaction: the whole log is shown again."""
        self._session = await self._gateway.submit(
            cmd.UndoCompaction(
                tenant=self._tenant,
                session_id=(await self.view()).session.id,
                compaction_id=require_id("compaction_id", compaction_id),
            )
        )

    async def delete(self, *, cascade: bool = False) -> None:
        """Erase the session for good."""
        session = (await self.view()).session
        await self._gateway.submit(
            cmd.Delete(tenant=self._tenant, session_id=session.id, cascade=bool(cascade))
        )


def _required(writer: FunctionModel | None) -> FunctionModel:
    if writer is None:
        raise ModelNotFound("no model was given")
    return writer


def _hash(session: Session, items: Sequence[NewItem], more: bytes) -> bytes:
    digest = hashlib.blake2b((session.key or session.id).encode(), digest_size=16)
    digest.update(more)
    for item in items:
        digest.update(b"\0" + item.body)
    return digest.digest()


class Holdfast:
    """An open store with an engine: what `holdfast.open` returns."""

    def __init__(self, gateway: Gateway, tenant: Tenant, reset: ResetPolicy) -> None:
        self.gateway = gateway
        self._tenant = tenant
        self._policy = reset

    async def session(self, key: str | None = None, *, id: str | None = None) -> SessionHandle:  # noqa: A002
        """Return the conversation of a key, which is created if needed, or the session of an id."""
        if id is not None:
            if key is not None:
                raise InvalidInput("pass a key or an id, not both")
            return await self._session_of_id(SessionId(require_id("id", id)))
        checked: Key | None = read_key(key) if key is not None else None
        if checked is not None:
            view = await self.gateway.read.session(self._tenant, key=checked)
            if view is not None:
                return SessionHandle(self.gateway, self._tenant, view.session, self._policy)
        session = await self.gateway.submit(
            cmd.Reserve(
                tenant=self._tenant, candidate_id=self.gateway.new_session_id(), key=checked
            )
        )
        return SessionHandle(self.gateway, self._tenant, session, self._policy)

    async def _session_of_id(self, session_id: SessionId) -> SessionHandle:
        view = await self.gateway.read.session(self._tenant, session_id=session_id)
        if view is None:
            raise SessionNotFound(f"no session {session_id}")
        return SessionHandle(self.gateway, self._tenant, view.session, self._policy, is_pinned=True)

    async def sessions(
        self, *, key: str | None = None, generations: bool = False, limit: int = 20,
        after: str | None = None,
    ) -> list[SessionView]:  # fmt: skip
        """Return the newest sessions; with `generations`, including retired ones."""
        query = SessionQuery(
            key=read_key(key) if key is not None else None,
            generations=bool(generations),
            limit=require_count("limit", limit) or 0,
            after=SessionId(require_id("after", after)) if after is not None else None,
        )
        return await self.gateway.read.sessions(self._tenant, query)
