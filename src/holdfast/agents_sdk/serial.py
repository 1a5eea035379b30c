"""One run at a time: the session's lane, taken for a block of code, and kept while it lasts."""

import asyncio
from contextvars import ContextVar, Token
from types import TracebackType

from msgspec.structs import replace

from holdfast.agents_sdk.embedded import EmbeddedBackend
from holdfast.core.commands import Accept, Continue, Finish, Hide, Queued, Repeated, Started
from holdfast.core.errors import (
    InvalidInput,
    RunFenced,
    RunStateUsed,
    StoreUnavailable,
    TurnAlreadyDone,
    TurnCancelled,
    TurnFailed,
)
from holdfast.core.ids import RunId, SessionId, TurnId
from holdfast.core.items import NewItem
from holdfast.core.records import RecordKind
from holdfast.core.turn import Run, Turn
from holdfast.engine.arguments import described
from holdfast.engine.gateway import Gateway
from holdfast.engine.turn_runner import ActiveRun
from holdfast.ports.store import ItemQuery

EXTEND_TRIES = 4
PAUSE_SECONDS = 0.1

_lanes: ContextVar[dict[str, "Lane"] | None] = ContextVar("holdfast_lanes", default=None)


def lane_here(place: str) -> "Lane | None":
    """Return the lane that the code which runs now was given, of the session at `place`."""
    lanes = _lanes.get()
    return lanes.get(place) if lanes else None


class Lane:
    """The lane of a session, for `async with`: others wait at the door until the block is left."""

    def __init__(
        self,
        backend: EmbeddedBackend,
        place: str,
        *,
        run_id: str | None = None,
        asked: bytes = b"",
        is_once: bool = False,
    ) -> None:
        self._backend = backend
        self._place = place
        self._run_id = run_id
        self._asked = asked
        self._is_once = is_once
        """A second time is refused, whatever became of the first."""
        self._gateway: Gateway | None = None
        self._run: ActiveRun | None = None
        self._token: Token[dict[str, Lane] | None] | None = None
        self._ordinal = 0
        self.done: Turn | None = None
        """The turn of an earlier run of the same id, which was carried out to its end."""
        self.result: bytes | None = None
        """What the run leaves behind for a repeat of it."""

    @property
    def session_id(self) -> SessionId:
        """The generation that the run has its place in."""
        return self._active().session.id

    def _active(self) -> ActiveRun:
        if self._run is None:
            raise InvalidInput("the lane is not taken: async with session.serial()")
        return self._run

    # ── taking it ───────────────────────────────────────────────────────────────────────────

    async def __aenter__(self) -> "Lane":
        await self.take()
        if self.done is not None:
            raise TurnAlreadyDone(f"run {self._run_id} is done; its answer is recorded")
        return self

    async def take(self) -> None:
        """Wait for the lane; afterwards it is taken, or an earlier run of this id is `done`."""
        gateway = self._gateway = await self._backend.lodging.gateway(started=True)
        accept = self._accept(gateway)
        while True:
            admission = await gateway.accept(accept)
            if self._is_once and admission.turn.id != accept.turn_id:
                await self._refuse_again(gateway, admission)
            if not isinstance(admission, Repeated):
                await self._enter(gateway, admission)
                return
            if await self._is_carried_out(gateway, admission):
                return
            accept = replace(accept, run_id=RunId(gateway.ids.new("run")))

    def _accept(self, gateway: Gateway) -> Accept:
        return Accept(
            tenant=self._backend.tenant,
            turn_id=TurnId(gateway.ids.new("turn")),
            run_id=RunId(gateway.ids.new("run")),
            worker=gateway.worker.id,
            candidate_id=gateway.new_session_id(),
            key=self._backend.key,
            idempotency_key=self._run_id,
            body_hash=self._asked,
            limits=gateway.limits,
        )

    async def _enter(self, gateway: Gateway, admission: Started | Queued) -> None:
        run = self._run = await gateway.enter(admission)
        turn = run.turn
        if turn.first_seq is not None and turn.last_seq is not None:
            # What an attempt left that was torn off: this one says it anew.
            await self._hide(turn.first_seq, turn.last_seq, "retry")
        self._token = _lanes.set({**(_lanes.get() or {}), self._place: self})

    async def _hide(self, first: int, last: int, kind: RecordKind) -> None:
        if first > last:
            return
        assert self._gateway is not None
        await self._gateway.submit(
            Hide(
                tenant=self._backend.tenant,
                session_id=self.session_id,
                from_seq=first,
                to_seq=last,
                kind=kind,
            )
        )

    async def _refuse_again(self, gateway: Gateway, admission: Started | Queued | Repeated) -> None:
        """Refuse a second time; one whose first was torn off stays so, for good."""
        if not isinstance(admission, Repeated):
            run = await gateway.enter(admission)
            try:
                await run.finish(
                    Finish(
                        fence=run.fence,
                        outcome="failed",
                        error_code=RunStateUsed.code,
                        error_message="it was torn off, and its tools may have run",
                    )
                )
            finally:
                gateway.leave(run)
        raise RunStateUsed(
            f"this run was resumed before, as turn {admission.turn.id}; its tools may have run"
        )

    async def _is_carried_out(self, gateway: Gateway, repeated: Repeated) -> bool:
        """Wait for the one turn of this id; say whether it came to an end that counts."""
        turn, is_torn = repeated.turn, False
        if not repeated.is_settled:
            view = await gateway.wait_until_ended(turn.tenant, turn.id, step=repeated.step)
            turn, is_torn = view.turn, view.status == "interrupted"
        if turn.outcome == "cancelled":
            raise TurnCancelled(turn.id, turn.error_code)
        if turn.outcome == "failed" and not turn.is_retryable:
            raise TurnFailed(
                turn.error_message or "the run failed",
                failure_code=turn.error_code or TurnFailed.code,
            )
        if is_torn or turn.outcome == "failed":
            return False
        self.done = turn
        return True

    async def recorded(self) -> Run | None:
        """Return the record of the run that is `done`."""
        assert self._gateway is not None
        assert self.done is not None
        runs = await self._gateway.read.runs(self.done.id)
        return runs[-1] if runs else None

    # ── using it ────────────────────────────────────────────────────────────────────────────

    async def add(self, items: tuple[NewItem, ...]) -> None:
        """Append to the run's block; what comes after a clear stays in the old generation."""
        run, given = self._active(), items
        for left in reversed(range(EXTEND_TRIES)):
            try:
                await run.extend(given)
            except RunFenced:
                await self._add_late(run, items)
            except StoreUnavailable:
                if not left:
                    raise
                given = ()  # the run has them in hand, and brings them along
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            return

    async def _add_late(self, run: ActiveRun, items: tuple[NewItem, ...]) -> None:
        """The lane is lost: to a clear, whose old generation keeps the tail, or to another run."""
        gateway = self._gateway
        assert gateway is not None
        turn, session = run.turn, run.session
        view = await gateway.read.session(turn.tenant, session_id=session.id)
        if view is None or view.session.is_live:
            raise RunFenced(f"run {run.fence.run_id} was taken for dead, and lost its lane")
        self._ordinal += 1
        await gateway.continue_turn(
            Continue(
                tenant=turn.tenant,
                turn_id=turn.id,
                ordinal=turn.step + self._ordinal,
                worker=gateway.worker.id,
                candidate_id=gateway.new_session_id(),
                session_id=session.id,
                items=items,
            )
        )

    def stand_aside(self) -> None:
        """Keep the lane, but have the session write by itself again."""
        if self._token is not None:
            _lanes.reset(self._token)
            self._token = None

    async def bring_up(self, first: int, last: int) -> None:
        """Move items from further back to the head, before what the run adds: they are its own."""
        gateway, run = self._gateway, self._active()
        assert gateway is not None
        if last >= run.session.head_seq:
            return
        query = ItemQuery(after=first - 1, limit=last - first + 1)
        found = [item for item in await gateway.read.items(run.session, query) if item.seq <= last]
        await self._hide(first, last, "move")
        await run.extend([item.anew() for item in found])

    # ── giving it back ──────────────────────────────────────────────────────────────────────

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run, gateway = self._run, self._gateway
        if run is None or gateway is None:
            return
        self.stand_aside()
        try:
            if not run.is_lost:
                await self._finish(run, error)
        finally:
            self._run = None
            gateway.leave(run)

    async def _finish(self, run: ActiveRun, error: BaseException | None) -> None:
        """End the run; not even a cancelled caller keeps the end from being written."""
        ending = asyncio.ensure_future(run.finish(self._ending(run, error)))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.gather(ending, return_exceptions=True)
            raise
        except RunFenced:
            # Cleared or taken over at the last moment: what was added is where it belongs.
            return

    def _ending(self, run: ActiveRun, error: BaseException | None) -> Finish:
        if error is None:
            return Finish(fence=run.fence, outcome="completed", result=self.result)
        is_left = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
        return Finish(
            fence=run.fence,
            outcome="interrupted" if is_left else "failed",
            error_code="caller_left" if is_left else "turn_failed",
            error_message=described(error),
            is_retryable=not self._is_once,
        )
