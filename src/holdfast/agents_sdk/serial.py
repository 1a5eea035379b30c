"""One run at a time: the session's lane, taken for a block of code, and kept while it lasts."""

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

_lanes: ContextVar[dict[str, "Lane"] | None] = ContextVar("holdfast_lanes", default=None)

_LEAVING = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)


def lane_here(place: str) -> "Lane | None":
    """Return the lane that the code which runs now was given, of the session at `place`."""
    lanes = _lanes.get()
    lane = lanes.get(place) if lanes else None
    # What outlives the block, a task or the context of who began it, has the lane no more.
    return lane if lane is not None and lane.is_held else None


class LaneHolder(Protocol):
    """Who holds the lane for us: the engine in this process, or a gateway."""

    @property
    def session_id(self) -> SessionId:
        """The generation that the run has its place in."""
        ...

    @property
    def elsewhere(self) -> InRetiredGeneration | None:
        """Where a parked run goes on, if its generation was retired."""
        ...

    async def take(self) -> CompletedRun | None:
        """Wait for the lane; it is held afterwards, unless a run of this id is done."""
        ...

    async def add(self, items: tuple[NewItem, ...], batch_id: str | None = None) -> None:
        """Append to the run's block; of a `batch_id`, once."""
        ...

    async def end(self, end: LaneEnd) -> None:
        """End the run and give the lane back."""
        ...


class Lane:
    """The lane of a session, for `async with`: others wait at the door until the block is left."""

    def __init__(self, holder: LaneHolder, place: str) -> None:
        self._holder = holder
        self._place = place
        self._token: Token[dict[str, Lane] | None] | None = None
        self.is_held = False
        self.result: str | None = None
        """What the run leaves behind for a repeat of it."""
        self.failure: BaseException | None = None
        """What tore the run off, although its block was left in peace."""
        self.afterwards: Callable[[], Awaitable[None]] | None = None
        """What is to be done once the lane is free again."""

    @property
    def session_id(self) -> SessionId:
        """The generation that the run has its place in."""
        return self._holder.session_id

    @property
    def elsewhere(self) -> InRetiredGeneration | None:
        """Where a parked run goes on, if its generation was retired."""
        return self._holder.elsewhere

    async def take(self) -> CompletedRun | None:
        """Wait for the lane; it is held afterwards, unless a run of this id is done."""
        if self.is_held:
            raise InvalidInput("a lane is taken once; ask the session for another")
        if lane_here(self._place) is not None:
            raise InvalidInput("this code has the session's lane already")
        done = await self._holder.take()
        if done is None:
            self.is_held = True
            if self.elsewhere is None:
                self._token = _lanes.set({**(_lanes.get() or {}), self._place: self})
        return done

    async def __aenter__(self) -> "Lane":
        done = await self.take()
        if done is not None:
            raise TurnAlreadyDone(f"this run is done, as turn {done.turn_id}")
        return self

    async def add(self, items: tuple[NewItem, ...], batch_id: str | None = None) -> None:
        """Append to the run's block; what comes after a clear stays in the old generation."""
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
            # A generator that nobody reads any more is closed in another context than it began in.
            with contextlib.suppress(ValueError):
                _lanes.reset(self._token)
        error = error or self.failure
        await self._holder.end(self._end(error))
        if error is None and self.afterwards is not None:
            await self.afterwards()

    def _end(self, error: BaseException | None) -> LaneEnd:
        if error is None:
            return LaneEnd(result=self.result)
        is_left = isinstance(error, _LEAVING)
        return LaneEnd(
            outcome="interrupted" if is_left else "failed",
            code="caller_left" if is_left else "turn_failed",
            message=describe_error(error),
        )
