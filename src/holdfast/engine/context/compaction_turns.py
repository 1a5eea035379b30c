"""Compaction asked for on its own: a short turn in the lane, behind whatever runs."""

import asyncio

import msgspec

from holdfast.core.errors import HoldfastError, TurnCancelled, TurnFailed, TurnInterrupted
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.request import read_request
from holdfast.core.model.session import Session
from holdfast.core.model.turn import OnBusy
from holdfast.core.transaction.commands import Accept, Finish, Repeated
from holdfast.engine.model_call.context_fitter import ContextFitter
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway

_LOOK_BACK = 20
"""Turns that are looked at for a model that may write a summary."""


class CompactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which session is to be compacted, and how."""

    tenant: Tenant
    session_id: SessionId
    model: str | None = None
    prompt: str | None = None
    on_busy: OnBusy = "enqueue"
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class CompactionTurns:
    """Compacts sessions, one turn each."""

    def __init__(self, gateway: Gateway, fitting: ContextFitter) -> None:
        self._gateway = gateway
        self._fitting = fitting

    async def compact(self, wanted: CompactionRequest) -> Session:
        """Return the session once one summary stands for what was said, if that is less."""
        admission = await self._gateway.accept(
            Accept(
                tenant=wanted.tenant,
                turn_id=TurnId(self._gateway.ids.new("turn")),
                run_id=RunId(self._gateway.ids.new("run")),
                worker=self._gateway.worker.id,
                candidate_id=self._gateway.new_session_id(),
                session_id=wanted.session_id,
                source="system",
                on_busy=wanted.on_busy,
                idempotency_key=wanted.idempotency_key,
                body_hash=wanted.body_hash,
                limits=self._gateway.limits,
            )
        )
        if isinstance(admission, Repeated):
            return await self._done_before(admission)
        run = await self._gateway.enter(admission)
        try:
            return await self._while_ours(run, wanted)
        finally:
            self._gateway.leave(run)

    async def _while_ours(self, run: ActiveRun, wanted: CompactionRequest) -> Session:
        """Carry the compaction out; stop as soon as the lane is taken away, the model too."""
        work = asyncio.ensure_future(self._carry_out(run, wanted))

        def stop() -> None:
            work.cancel()

        run.on_lost(stop)
        try:
            return await work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not run.is_lost or (task is not None and task.cancelling()):
                raise
            raise await self._gateway.why_lost(run.turn) from None
        except HoldfastError as exc:
            if run.is_lost:
                raise await self._gateway.why_lost(run.turn) from exc
            raise

    async def _carry_out(self, run: ActiveRun, wanted: CompactionRequest) -> Session:
        try:
            model = wanted.model or await self._last_model(run)
            made = await self._fitting.compact(run, model=model, prompt=wanted.prompt)
        except HoldfastError as error:
            if not run.is_lost:
                failed = Finish(
                    fence=run.fence, outcome="failed", error_code=error.code,
                    error_message=error.message, is_retryable=error.retryable,
                )  # fmt: skip
                await run.finish(failed)
            raise
        ended = await run.finish(
            Finish(fence=run.fence, outcome="completed", usage=made.usage)
        )  # fmt: skip
        return ended.session

    async def _done_before(self, repeated: Repeated) -> Session:
        """Wait for the one turn of a repeated request, and take its end as this one's."""
        turn = repeated.turn
        if turn.is_open:
            turn = (await self._gateway.wait_until_ended(turn.tenant, turn.id)).turn
        if turn.outcome == "completed":
            return repeated.session
        if turn.outcome == "cancelled":
            raise TurnCancelled(turn.id, turn.error_code)
        if turn.outcome == "failed":
            message = turn.error_message or "the compaction failed"
            raise TurnFailed(message, failure_code=turn.error_code or TurnFailed.code)
        raise TurnInterrupted(f"turn {turn.id} was interrupted; send it again")

    async def _last_model(self, run: ActiveRun) -> str | None:
        """Return the model that was asked last in the session."""
        turns = await self._gateway.read.turns(
            run.session.id, after=run.turn.number, limit=_LOOK_BACK, order="desc"
        )
        for view in turns:
            if view.turn.request:
                return read_request(view.turn.request).model
        return None
