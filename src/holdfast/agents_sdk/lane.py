"""One run at a time: hold the session's lane for a block of code."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Protocol

from holdfast.core.errors import InvalidInput, TurnAlreadyDone
from holdfast.core.ids import SessionId
from holdfast.core.model.items import NewItem
from holdfast.engine.embedded.external_lane import CompletedRun, InRetiredGeneration, LaneEnd
from holdfast.engine.embedded.validation import describe_error

_lanes: ContextVar[dict[str, "SessionLane"] | None] = ContextVar("holdfast_lanes", default=None)

_INTERRUPTIONS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


def current_lane(scope: str) -> "SessionLane | None":
    """Return the lane that the current context holds for the session `scope`."""
    lanes = _lanes.get()
    lane = lanes.get(scope) if lanes else None
    # A task that outlives the block inherits the context, but no longer holds the lane.
    return lane if lane is not None and lane.is_held else None


class LaneHolder(Protocol):
    """Holds a lane for a run: the engine in this process, or a gateway."""

    @property
    def session_id(self) -> SessionId:
        """The generation that the run writes to."""
        ...

    @property
    def elsewhere(self) -> InRetiredGeneration | None:
        """Where an interrupted run continues if its generation was retired."""
        ...

    async def take(self) -> CompletedRun | None:
        """Wait for the lane and hold it, unless a run of this id is done already."""
        ...

    async def add(self, items: tuple[NewItem, ...], batch_id: str | None = None) -> None:
        """Append to the run's block, at most once per `batch_id`."""
        ...

    async def end(self, end: LaneEnd) -> None:
        """End the run and release the lane."""
        ...


class SessionLane:
    """The lane of a session, for `async with`: other runs wait until the block ends."""

    def __init__(self, holder: LaneHolder, scope: str) -> None:
        self._holder = holder
        self._scope = scope
        self._token: Token[dict[str, SessionLane] | None] | None = None
        self.is_held = False
        self.result: str | None = None
        """Recorded result for a repeat of the run."""
        self.failure: BaseException | None = None
        """Why the run failed, if its block ended normally."""
        self.after_release: Callable[[], Awaitable[None]] | None = None
        """Called once the lane is released."""

    @property
    def session_id(self) -> SessionId:
        """The generation that the run writes to."""
        return self._holder.session_id

    @property
    def elsewhere(self) -> InRetiredGeneration | None:
        """Where an interrupted run continues if its generation was retired."""
        return self._holder.elsewhere

    async def take(self) -> CompletedRun | None:
        """Wait for the lane and hold it, unless a run of this id is done already."""
        if self.is_held:
            raise InvalidInput("this lane is held already; request another from the session")
        if current_lane(self._scope) is not None:
            raise InvalidInput("this code holds the session's lane already")
        done = await self._holder.take()
        if done is None:
            self.is_held = True
            if self.elsewhere is None:
                self._token = _lanes.set({**(_lanes.get() or {}), self._scope: self})
        return done

    async def __aenter__(self) -> "SessionLane":
        done = await self.take()
        if done is not None:
            raise TurnAlreadyDone(f"this run is done, as turn {done.turn_id}")
        return self

    async def add(self, items: tuple[NewItem, ...], batch_id: str | None = None) -> None:
        """Append to the run's block; after a clear, this still writes to the old generation."""
        await self._holder.add(items, batch_id)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.is_held:
            return
        self.is_held = False
        if self._token is not None:
            # An abandoned generator is closed in another context than it was started in.
            with contextlib.suppress(ValueError):
                _lanes.reset(self._token)
        error = error or self.failure
        await self._holder.end(self._end(error))
        if error is None and self.after_release is not None:
            await self.after_release()

    def _end(self, error: BaseException | None) -> LaneEnd:
        if error is None:
            return LaneEnd(result=self.result)
        is_interrupted = isinstance(error, _INTERRUPTIONS)
        return LaneEnd(
            outcome="interrupted" if is_interrupted else "failed",
            code="caller_left" if is_interrupted else "turn_failed",
            message=describe_error(error),
        )
