"""Compaction on request: a short turn in the lane, behind the turn that runs."""

import asyncio

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.request import find_request
from holdfast.core.model.session import Session
from holdfast.core.model.turn import OnBusy
from holdfast.core.transaction.commands import Accept, Finish, Repeated
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.appending import completed_turn
from holdfast.engine.sessions.gateway import Gateway

_SEARCHED_TURNS = 20
"""How many turns are searched for a model that may write the summary."""


class CompactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which session to compact, and how."""

    tenant: Tenant
    session_id: SessionId
    model: str | None = None
    prompt: str | None = None
    on_busy: OnBusy = "enqueue"
    idempotency_key: str | None = None
    body_hash: bytes | None = None


class CompactionTurns:
    """Compacts sessions, each in its own turn."""

    def __init__(self, gateway: Gateway, compactor: Compactor) -> None:
        self._gateway = gateway
        self._compactor = compactor

    async def compact(self, request: CompactionRequest) -> Session:
        """Compact a session's history if that makes it shorter, and return the session."""
        admission = await self._gateway.accept(
            Accept(
                tenant=request.tenant,
                turn_id=TurnId(self._gateway.ids.new("turn")),
                run_id=RunId(self._gateway.ids.new("run")),
                worker=self._gateway.worker.id,
                candidate_id=self._gateway.new_session_id(),
                session_id=request.session_id,
                source="system",
                on_busy=request.on_busy,
                idempotency_key=request.idempotency_key,
                body_hash=request.body_hash,
                limits=self._gateway.limits,
            )
        )
        if isinstance(admission, Repeated):
            await completed_turn(self._gateway, admission)
            return admission.session
        run = await self._gateway.enter(admission)
        try:
            return await self._run(run, request)
        finally:
            self._gateway.leave(run)

    async def _run(self, run: ActiveRun, request: CompactionRequest) -> Session:
        """Run the compaction; cancel it, and its model call, as soon as the lane is lost."""
        work = asyncio.ensure_future(self._compact(run, request))
        run.on_lost(work.cancel)
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

    async def _compact(self, run: ActiveRun, request: CompactionRequest) -> Session:
        try:
            model = request.model or await self._last_model(run)
            result = await self._compactor.compact(run, model=model, prompt=request.prompt)
        except HoldfastError as error:
            if not run.is_lost:
                failed = Finish(
                    fence=run.fence, outcome="failed", error_code=error.code,
                    error_message=error.message, is_retryable=error.retryable,
                )  # fmt: skip
                await run.finish(failed)
            raise
        ended = await run.finish(
            Finish(fence=run.fence, outcome="completed", usage=result.usage)
        )  # fmt: skip
        return ended.session

    async def _last_model(self, run: ActiveRun) -> str | None:
        """Return the model that was last called in the session."""
        turns = await self._gateway.read.turns(
            run.session.id, after=run.turn.number, limit=_SEARCHED_TURNS, order="desc"
        )
        for view in turns:
            request = find_request(view.turn.request)
            if request is not None:
                return request.model
        return None
