"""A turn as an object: enter it, read its context, add items; it ends with its block."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeAlias

from msgspec.structs import replace

from holdfast.core.errors import (
    HoldfastError,
    InvalidInput,
    RunFenced,
    TurnAlreadyDone,
    TurnCancelled,
    TurnInterrupted,
)
from holdfast.core.ids import RunId
from holdfast.core.model.items import NewItem, item_value
from holdfast.core.model.session import ProviderState, Session, Usage
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import Accept, Finish, Queued, Repeated, Started
from holdfast.engine.embedded.validation import (
    as_items,
    describe_error,
    require_provider_state,
    require_usage,
)
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway, ended_error
from holdfast.ports.store import ItemQuery

Item: TypeAlias = dict[str, Any]
ItemInput: TypeAlias = str | Item | bytes
"""Text, an item, or an item's own JSON bytes."""


class TurnHandle:
    """One turn. Inside `async with`, this task alone writes to the session."""

    def __init__(
        self, gateway: Gateway, accept: Accept, on_session: Callable[[Session], None]
    ) -> None:
        self._gateway = gateway
        self._accept = accept
        self._on_session = on_session
        self._run: ActiveRun | None = None
        self._done: Turn | None = None
        self._added: list[NewItem] = []
        self._usage: Usage | None = None
        self._state: ProviderState | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0
        """How many cancellations the task had when it entered the block."""
        self._is_entered = False
        self._is_aborted = False
        self._has_cancelled = False
        """Whether the loss of the lane cancelled the task."""

    @property
    def id(self) -> str:
        """The turn's id; for a repeat, that of the first request."""
        if self._run is not None:
            return self._run.turn.id
        return self._done.id if self._done is not None else self._accept.turn_id

    @property
    def is_done(self) -> bool:
        """Whether this request was executed before, so that nothing is left to do."""
        return self._run is None and self._done is not None

    # ── entering ────────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> "TurnHandle":
        if self._is_entered:
            raise InvalidInput("a turn can be entered once; ask the session for another")
        self._is_entered = True
        while True:
            admission = await self._gateway.accept(self._accept)
            self._on_session(admission.session)
            if isinstance(admission, Repeated):
                is_in = await self._attach(admission)
            else:
                is_in = await self._enter(admission)
            if is_in:
                return self
            # The turn lost its worker or its caller while this task waited for it: run it here.
            self._accept = replace(self._accept, run_id=RunId(self._gateway.ids.new("run")))

    async def _enter(self, admission: Started | Queued) -> bool:
        """Wait for the lane; a turn that several requests share may end before it gets the lane."""
        try:
            self._run = await self._gateway.enter(admission)
        except TurnInterrupted:
            if self._accept.idempotency_key is None:
                raise
            return False
        self._on_session(self._run.session)
        self._task = asyncio.current_task()
        self._cancels = self._task.cancelling() if self._task is not None else 0
        self._run.on_lost(self._abort)
        return True

    async def _attach(self, repeated: Repeated) -> bool:
        """Wait for the turn that this request repeats; return whether it ended with a result."""
        turn, is_interrupted = repeated.turn, False
        if not repeated.is_settled:
            view = await self._gateway.wait_until_ended(turn.tenant, turn.id, step=repeated.step)
            turn = view.turn
            is_interrupted = view.status == "interrupted"
        if turn.outcome in ("cancelled", "failed"):
            raise ended_error(turn)
        if is_interrupted and (turn.outcome is None or turn.is_retryable):
            return False
        self._done = turn
        return True

    def _abort(self) -> None:
        self._is_aborted = True
        if self._task is not None:
            self._has_cancelled = self._task.cancel()

    # ── inside the block ────────────────────────────────────────────────────────────────────

    def _active(self) -> ActiveRun:
        if self._run is None:
            if self._done is not None:
                raise TurnAlreadyDone(f"turn {self._done.id} is done; its answer is recorded")
            raise InvalidInput("enter the turn first: async with session.turn(…) as turn")
        return self._run

    async def context(self) -> list[Item]:
        """Return valid input items for a model call: the history and this turn's input."""
        bodies = await self._active().context()
        return [item_value(body) for body in bodies]

    def add(self, items: ItemInput | Iterable[ItemInput]) -> None:
        """Add output of the model; everything is committed when the block ends."""
        self._active()
        self._added.extend(as_items(items, "assistant"))

    def spent(self, usage: Usage) -> None:
        """Record the token usage."""
        self._usage = require_usage(usage)

    def remember(self, state: ProviderState) -> None:
        """Save provider state, if and only if the turn completes."""
        self._state = require_provider_state(state)

    async def checkpoint(self) -> None:
        """Commit what was added so far, so that it survives a crash."""
        run = self._active()
        added, self._added = tuple(self._added), []
        await run.extend(added)

    async def output(self) -> list[Item]:
        """Return the recorded answer of the turn."""
        turn = self._done
        if turn is None or turn.first_seq is None or turn.last_seq is None:
            return []
        view = await self._gateway.read.session(turn.tenant, session_id=turn.session_id)
        if view is None:
            return []
        first = turn.first_seq + len(self._accept.items)
        query = ItemQuery(after=first - 1, limit=max(turn.last_seq - first + 1, 0), view="log")
        stored = await self._gateway.read.items(view.session, query)
        return [item_value(item.body) for item in stored if not item.is_partial]

    # ── leaving ─────────────────────────────────────────────────────────────────────────────

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
            if not self._is_aborted:
                await self._finish(run, error)
            elif not await self._is_cancelled_too(error):
                raise await self._why_lost(run) from error
        except HoldfastError:
            if not self._is_callers(error):
                raise
        finally:
            self._gateway.leave(run)
        return False

    def _is_callers(self, error: BaseException | None) -> bool:
        """Whether the caller itself was cancelled; that is always passed on."""
        return _is_cancellation(error) and not self._has_cancelled

    async def _is_cancelled_too(self, error: BaseException | None) -> bool:
        """Undo the cancellation that stopped the block; return whether there is another one."""
        task = self._task
        if task is None or not self._has_cancelled:
            return self._is_callers(error)
        if isinstance(error, asyncio.CancelledError):
            return task.uncancel() > self._cancels
        # The block ended before our cancellation was delivered: it would arrive at the next await
        # and must not reach code outside the block.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if task.uncancel() > self._cancels:
            raise asyncio.CancelledError
        return _is_cancellation(error)

    async def _finish(self, run: ActiveRun, error: BaseException | None) -> None:
        self._task = None  # from here on the commit itself reports a lost lane
        try:
            ended = await run.finish_shielded(self._build_finish(run, error))
        except RunFenced as exc:
            raise await self._why_lost(run) from exc
        self._done = ended.turn
        self._run = None
        self._on_session(ended.session)

    def _build_finish(self, run: ActiveRun, error: BaseException | None) -> Finish:
        items = tuple(self._added)
        if error is None:
            return Finish(
                fence=run.fence,
                outcome="completed",
                items=items,
                usage=self._usage,
                provider_state=self._state,
            )
        is_cancelled = _is_cancellation(error)
        return Finish(
            fence=run.fence,
            outcome="interrupted" if is_cancelled else "failed",
            items=items,
            usage=self._usage,
            error_code="caller_left" if is_cancelled else "turn_failed",
            error_message=describe_error(error),
            is_retryable=True,
        )

    async def _why_lost(self, run: ActiveRun) -> HoldfastError:
        view = await self._gateway.read.turn(run.turn.tenant, run.turn.id)
        if view is None and await self._gateway.is_lost(run.turn):
            return await self._gateway.why_gone(run.turn)
        if view is None or view.turn.outcome == "cancelled":
            return TurnCancelled(run.turn.id, view.turn.error_code if view else "session_deleted")
        return RunFenced(f"turn {run.turn.id} was taken over by another worker")


def _is_cancellation(error: BaseException | None) -> bool:
    """Whether a block was left because of a cancellation or exit, not because of an error."""
    return error is not None and not isinstance(error, Exception)
