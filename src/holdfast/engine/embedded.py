"""The Python front door: sessions and turns as objects, with no server in between."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.core.commands import (
    Accept,
    Append,
    Delete,
    Finish,
    Fork,
    Queued,
    Repeated,
    Reserve,
    Reset,
    Restore,
    Started,
)
from holdfast.core.errors import (
    HoldfastError,
    InvalidItem,
    RunFenced,
    SessionNotFound,
    TurnAlreadyDone,
    TurnCancelled,
    TurnFailed,
    TurnInterrupted,
)
from holdfast.core.ids import Key, RunId, SessionId, Tenant, TurnId, read_key
from holdfast.core.items import NewItem, message, read_item, write_item
from holdfast.core.provider_state import ProviderState
from holdfast.core.reset import NEVER, ResetPolicy
from holdfast.core.session import Session, Usage
from holdfast.core.turn import OnBusy, Source, Turn
from holdfast.engine.gateway import Gateway
from holdfast.engine.turn_runner import ActiveRun
from holdfast.ports.store import ItemQuery, SessionQuery, SessionView, TurnView

Item: TypeAlias = dict[str, Any]
Said: TypeAlias = str | Item | bytes
"""Text, an item, or an item's own JSON bytes."""
Model: TypeAlias = Callable[[list[Item]], Awaitable["Said | Sequence[Said]"]]


def as_items(said: Said | Iterable[Said], role: str) -> tuple[NewItem, ...]:
    """Return what a caller said as items; bytes are kept as they are."""
    if isinstance(said, str | dict | bytes):
        said = (said,)
    return tuple(_as_item(one, role) for one in said)


def _as_item(said: Said, role: str) -> NewItem:
    match said:
        case str():
            return message(role, said)
        case bytes():
            return read_item(said)
        case dict():
            return write_item(said)
        case _:
            raise InvalidItem(f"an item is text, a dict or JSON bytes, not {type(said).__name__}")


class SessionHandle:
    """One conversation. With a key it follows the key's live generation, also across resets."""

    def __init__(
        self, gateway: Gateway, tenant: Tenant, session: Session, reset: ResetPolicy
    ) -> None:
        self._gateway = gateway
        self._tenant = tenant
        self._session = session
        self._policy = reset

    @property
    def id(self) -> str:
        """The session id, as last seen."""
        return self._session.id

    @property
    def key(self) -> str | None:
        """The key, unchanged."""
        return self._session.key

    @property
    def generation(self) -> int:
        """Which of its key's sessions this is, as last seen."""
        return self._session.generation

    async def view(self) -> SessionView:
        """Return the session as it is now."""
        if self._session.key is not None:
            view = await self._gateway.read.session(self._tenant, key=self._session.key)
        else:
            view = await self._gateway.read.session(self._tenant, session_id=self._session.id)
        if view is None:
            raise SessionNotFound(f"no session {self._session.id}")
        self._session = view.session
        return view

    def turn(
        self,
        said: Said | Iterable[Said] = (),
        *,
        idempotency_key: str | None = None,
        on_busy: OnBusy | None = None,
        source: Source = "user",
        internal: bool = False,
        request: bytes = b"",
    ) -> "TurnHandle":
        """Return a turn to enter with `async with`: serial in the session, durable once entered."""
        items = as_items(said, "user")
        accept = Accept(
            tenant=self._tenant,
            turn_id=TurnId(self._gateway.ids.new("turn")),
            run_id=RunId(self._gateway.ids.new("run")),
            worker=self._gateway.worker.id,
            candidate_id=self._gateway.new_session_id(),
            items=items,
            request=request,
            source=source,
            on_busy=on_busy or self._gateway.settings.on_busy,
            is_internal=internal,
            idempotency_key=idempotency_key,
            body_hash=_hash(self._session, items, request),
            limits=self._gateway.limits,
            reset=self._policy,
            **self._target(),
        )
        return TurnHandle(self._gateway, accept, self._follow)

    def _target(self) -> dict[str, Any]:
        if self._session.key is not None:
            return {"key": self._session.key}
        return {"session_id": self._session.id}

    def _follow(self, session: Session) -> None:
        if session.is_visible:
            self._session = session

    async def run(
        self, said: Said | Iterable[Said], model: Model, *, idempotency_key: str | None = None
    ) -> list[Item]:
        """Return what `model` answered, calling it at most once per idempotency key."""
        async with self.turn(said, idempotency_key=idempotency_key) as turn:
            if not turn.is_done:
                answer = await model(await turn.context())
                turn.add(answer)
        return await turn.output()

    async def append(
        self, said: Said | Iterable[Said], *, role: str = "user", batch_id: str | None = None
    ) -> None:
        """Add items without a run; with a `batch_id`, once, however often it is sent."""
        items = as_items(said, role)
        appended = await self._gateway.append(
            Append(
                tenant=self._tenant,
                turn_id=TurnId(self._gateway.ids.new("turn")),
                worker=self._gateway.worker.id,
                candidate_id=self._gateway.new_session_id(),
                items=items,
                idempotency_key=batch_id,
                body_hash=_hash(self._session, items, b"append"),
                **self._target(),
            )
        )
        self._follow(appended.session)

    async def items(
        self, *, last: int | None = None, view: Literal["visible", "log"] = "visible"
    ) -> list[Item]:
        """Return the transcript, oldest first: all of it, or its last so many items."""
        session = (await self.view()).session
        order: Literal["asc", "desc"] = "asc" if last is None else "desc"
        stored = await self._gateway.read.items(
            session, ItemQuery(limit=last, order=order, view=view)
        )
        if last is not None:
            stored.reverse()
        return [msgspec.json.decode(item.body) for item in stored]

    async def turns(self, *, limit: int = 20) -> list[TurnView]:
        """Return the latest turns, newest first."""
        session = (await self.view()).session
        return await self._gateway.read.turns(session.id, limit=limit, order="desc")

    async def reset(self, *, expected_session_id: str | None = None) -> str:
        """Start the next generation under the key; return its id. The old one stays readable."""
        session = (await self.view()).session
        fresh = await self._gateway.submit(
            Reset(
                tenant=self._tenant,
                session_id=session.id,
                new_id=self._gateway.new_session_id(),
                expected_id=SessionId(expected_session_id) if expected_session_id else None,
            )
        )
        self._session = fresh
        return fresh.id

    async def restore(self, session_id: str) -> None:
        """Make an old generation of this key live again."""
        self._session = await self._gateway.submit(
            Restore(tenant=self._tenant, session_id=SessionId(session_id))
        )

    async def fork(self, *, after_item: int | None = None) -> "SessionHandle":
        """Return a new, keyless session that shares the history up to an item."""
        child = await self._gateway.submit(
            Fork(
                tenant=self._tenant,
                session_id=SessionId(self.id),
                new_id=self._gateway.new_session_id(),
                after_seq=after_item,
            )
        )
        return SessionHandle(self._gateway, self._tenant, child, NEVER)

    async def delete(self, *, cascade: bool = False) -> None:
        """Erase the session for good."""
        await self._gateway.submit(
            Delete(tenant=self._tenant, session_id=SessionId(self.id), cascade=cascade)
        )


def _hash(session: Session, items: Sequence[NewItem], more: bytes) -> bytes:
    digest = hashlib.blake2b((session.key or session.id).encode(), digest_size=16)
    digest.update(more)
    for item in items:
        digest.update(b"\0" + item.body)
    return digest.digest()


class TurnHandle:
    """One turn. Inside `async with`, this task alone writes to the session."""

    def __init__(self, gateway: Gateway, accept: Accept, follow: Callable[[Session], None]) -> None:
        self._gateway = gateway
        self._accept = accept
        self._follow = follow
        self._run: ActiveRun | None = None
        self._done: Turn | None = None
        self._added: list[NewItem] = []
        self._usage: Usage | None = None
        self._state: ProviderState | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_aborted = False

    @property
    def id(self) -> str:
        """The turn's id: that of the first request, for a repeat."""
        if self._run is not None:
            return self._run.turn.id
        return self._done.id if self._done is not None else self._accept.turn_id

    @property
    def is_done(self) -> bool:
        """Whether this request was carried out before; then there is nothing left to do."""
        return self._run is None and self._done is not None

    async def __aenter__(self) -> "TurnHandle":
        admission = await self._gateway.accept(self._accept)
        self._follow(admission.session)
        if isinstance(admission, Repeated):
            await self._attach(admission)
            return self
        await self._enter(admission)
        return self

    async def _enter(self, admission: Started | Queued) -> None:
        try:
            self._run = await self._gateway.enter(admission)
        except asyncio.CancelledError:
            # Accepted is durable: a waiter that goes away leaves its turn to be resumed.
            raise
        self._follow(self._run.session)
        self._task = asyncio.current_task()
        self._run.on_lost(self._abort)

    async def _attach(self, repeated: Repeated) -> None:
        """Wait for the one turn of this request, and take its end as ours."""
        turn = repeated.turn
        if not repeated.is_settled:
            view = await self._gateway.wait_until_ended(turn.tenant, turn.id, step=repeated.step)
            turn = view.turn
            if view.status == "interrupted" and turn.outcome is None:
                raise TurnInterrupted(f"turn {turn.id} lost its worker; send it again")
        if turn.outcome == "cancelled":
            raise TurnCancelled(turn.id, turn.error_code)
        if turn.outcome == "failed":
            raise TurnFailed(
                turn.error_message or "the turn failed",
                failure_code=turn.error_code or "turn_failed",
            )
        if turn.outcome == "interrupted" and turn.is_retryable:
            raise TurnInterrupted(f"turn {turn.id} was interrupted; send it again")
        self._done = turn

    def _abort(self) -> None:
        self._is_aborted = True
        if self._task is not None:
            self._task.cancel()

    def _active(self) -> ActiveRun:
        if self._run is None:
            if self._done is not None:
                raise TurnAlreadyDone(f"turn {self._done.id} is done; its answer is recorded")
            raise TurnInterrupted("enter the turn first: async with session.turn(…) as turn")
        return self._run

    async def context(self) -> list[Item]:
        """Return valid input items for a model call: the history and this turn's input."""
        shown = await self._active().context()
        return [msgspec.json.decode(body) for body in shown]

    def add(self, said: Said | Sequence[Said]) -> None:
        """Add what the model answered; committed together when the block ends."""
        self._active()
        self._added.extend(as_items(said, "assistant"))

    def spent(self, usage: Usage) -> None:
        """Record the tokens that were used."""
        self._usage = usage

    def remember(self, state: ProviderState) -> None:
        """Keep provider state, if and only if the turn completes."""
        self._state = state

    async def checkpoint(self) -> None:
        """Commit what was added so far, so that a crash keeps it."""
        run = self._active()
        added, self._added = tuple(self._added), []
        await run.extend(added)

    async def output(self) -> list[Item]:
        """Return what the turn answered, as recorded."""
        turn = self._done
        if turn is None or turn.first_seq is None or turn.last_seq is None:
            return []
        view = await self._gateway.read.session(turn.tenant, session_id=turn.session_id)
        if view is None:
            return []
        first = turn.first_seq + len(self._accept.items)
        query = ItemQuery(after=first - 1, limit=max(turn.last_seq - first + 1, 0), view="log")
        stored = await self._gateway.read.items(view.session, query)
        return [msgspec.json.decode(item.body) for item in stored if not item.is_partial]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        run = self._run
        if run is None:
            return False
        try:
            if self._is_aborted and isinstance(error, asyncio.CancelledError):
                if self._task is not None:
                    self._task.uncancel()
                raise await self._why_lost(run) from error
            await self._finish(run, error)
        finally:
            self._gateway.leave(run)
        return False

    async def _finish(self, run: ActiveRun, error: BaseException | None) -> None:
        """End the run; not even a cancelled caller keeps the end from being written."""
        ending = asyncio.ensure_future(run.finish(self._ending(run, error)))
        try:
            ended = await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.gather(ending, return_exceptions=True)
            raise
        except RunFenced as exc:
            raise await self._why_lost(run) from exc
        self._done = ended.turn
        self._run = None
        self._follow(ended.session)

    def _ending(self, run: ActiveRun, error: BaseException | None) -> Finish:
        items = tuple(self._added)
        if error is None:
            return Finish(
                fence=run.fence,
                outcome="completed",
                items=items,
                usage=self._usage,
                provider_state=self._state,
            )
        is_cancelled = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
        return Finish(
            fence=run.fence,
            outcome="interrupted" if is_cancelled else "failed",
            items=items,
            usage=self._usage,
            error_code="caller_left" if is_cancelled else "turn_failed",
            error_message=f"{type(error).__name__}: {error}"[:2000],
            is_retryable=True,
        )

    async def _why_lost(self, run: ActiveRun) -> HoldfastError:
        view = await self._gateway.read.turn(run.turn.tenant, run.turn.id)
        if view is None or view.turn.outcome == "cancelled":
            return TurnCancelled(run.turn.id, view.turn.error_code if view else "session_deleted")
        return RunFenced(f"turn {run.turn.id} was taken over by another worker")


class Holdfast:
    """An open store with an engine: what `holdfast.open` gives."""

    def __init__(self, gateway: Gateway, tenant: Tenant, reset: ResetPolicy) -> None:
        self.gateway = gateway
        self._tenant = tenant
        self._policy = reset

    async def session(self, key: str | None = None, *, id: str | None = None) -> SessionHandle:  # noqa: A002
        """Return the conversation of a key, made if it is new; or the session of an id."""
        if id is not None:
            view = await self.gateway.read.session(self._tenant, session_id=SessionId(id))
            if view is None:
                raise SessionNotFound(f"no session {id}")
            return SessionHandle(self.gateway, self._tenant, view.session, self._policy)
        checked: Key | None = read_key(key) if key is not None else None
        if checked is not None:
            view = await self.gateway.read.session(self._tenant, key=checked)
            if view is not None:
                return SessionHandle(self.gateway, self._tenant, view.session, self._policy)
        session = await self.gateway.submit(
            Reserve(tenant=self._tenant, candidate_id=self.gateway.new_session_id(), key=checked)
        )
        return SessionHandle(self.gateway, self._tenant, session, self._policy)

    async def sessions(
        self, *, key: str | None = None, generations: bool = False, limit: int = 20,
        after: str | None = None,
    ) -> list[SessionView]:  # fmt: skip
        """Return the newest sessions; with `generations`, retired ones too."""
        query = SessionQuery(
            key=Key(key) if key else None,
            generations=generations,
            limit=limit,
            after=SessionId(after) if after else None,
        )
        return await self.gateway.read.sessions(self._tenant, query)
