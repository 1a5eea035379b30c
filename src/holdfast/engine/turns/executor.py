"""A turn carried out by a model: from its context to its committed answer.

The terminal event leaves only after the commit. What a model had begun when it broke off is kept
as an incomplete item and never becomes provider state.
"""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction.records import expand
from holdfast.core.errors import HoldfastError, ParentNotFound, ProviderFailure
from holdfast.core.history.history_hash import NO_TRAIL, extend_hash
from holdfast.core.model.items import NewItem, read_item
from holdfast.core.model.request import TurnRequest, conversation_id, response_id
from holdfast.core.model.session import Session
from holdfast.core.model.turn import RUN_AGAIN, Turn
from holdfast.core.openai.response import (
    RecordedAnswer,
    RecordedFailure,
    ResponseFacts,
    ResponseStatus,
    encode_answer,
    error_value,
    usage_value,
)
from holdfast.core.transaction.commands import Finish, StoredCompletion
from holdfast.engine.logging import log
from holdfast.engine.model_call.caller import CallRequest, Fallbacks, ModelCaller, Route
from holdfast.engine.model_call.compaction_events import compaction_events
from holdfast.engine.model_call.context_fitter import ContextFitter
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import HealSettings
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.engine.streaming.live_response import LiveResponse
from holdfast.engine.streaming.response_records import ResponseRecords, parent_of
from holdfast.ports.provider import Answer, ModelCall

_NOT_ASKED = frozenset({"item_reference", "compaction_trigger"})
"""Items that no model is shown as they are."""
CLIENT_CALLS = frozenset(
    {
        "function_call", "custom_tool_call", "local_shell_call", "shell_call",
        "apply_patch_call", "computer_call",
    }
)  # fmt: skip


class TurnResult(msgspec.Struct, frozen=True):
    """A turn's committed answer, as a Response and as what it was made of."""

    turn: Turn
    session: Session
    response: ResponseFacts


class TurnExecutor:
    """Carries turns out with models."""

    def __init__(
        self,
        gateway: Gateway,
        route: Route,
        heals: HealSettings | None = None,
        *,
        fallbacks: Fallbacks | None = None,
        fitting: ContextFitter | None = None,
    ) -> None:
        self._gateway = gateway
        self._route = route
        self._asker = ModelCaller(gateway, route, heals, fallbacks=fallbacks, fitting=fitting)
        self._fitting = fitting
        self._recorded = ResponseRecords(gateway.read)

    def check(self, request: TurnRequest, items: Sequence[NewItem]) -> None:
        """Raise for what the model's provider cannot be asked, before anything is kept."""
        request = self._asker.sent(request)
        self._route(request.model).check(
            ModelCall(
                model=request.model,
                items=[
                    expand(item.body) if item.kind == "compaction" else item.body
                    for item in items
                    if item.kind not in _NOT_ASKED
                ],
                fields=request.fields,
                chat_fields=request.chat_fields,
                is_stream=request.is_stream,
            )
        )

    async def respond(
        self, run: ActiveRun, request: TurnRequest, live: LiveResponse | None = None
    ) -> TurnResult:
        """Run the turn to its end. Failures of the model are recorded, then raised.

        Who calls has its task cancelled when the run's lane is taken away, and is told why.
        """
        writer = JournalWriter(run, live) if live is not None else None
        try:
            try:
                if writer is not None:
                    writer.start()
                if request.waits_for_parent:
                    await self._check_parent(run, request)
                if request.is_compaction and self._fitting is not None:
                    answer = await self._compact(self._fitting, run, request, writer)
                else:
                    answer = await self._asker.ask(
                        CallRequest(run=run, request=request, writer=writer)
                    )
            except BaseException as exc:
                await self._settle(run, request, exc, writer)
                raise
            return await self._complete(run, request, answer, writer)
        except (asyncio.CancelledError, HoldfastError) as exc:
            if not run.is_lost:
                raise
            task = asyncio.current_task()
            if task is not None and isinstance(exc, asyncio.CancelledError):
                task.uncancel()
            raise await self._gateway.why_lost(run.turn) from exc

    async def _settle(
        self,
        run: ActiveRun,
        request: TurnRequest,
        exc: BaseException,
        writer: JournalWriter | None,
    ) -> None:
        """Record the end of a run that gave no answer, if it still has its lane."""
        if isinstance(exc, HoldfastError):
            if not run.is_lost:
                await self._fail(run, request, exc, writer)
        elif isinstance(exc, Exception):
            # A fault of our own must not keep the lane either.
            log.exception("run.broke", run_id=run.fence.run_id)
            await self._fail(run, request, HoldfastError("something broke on our side"), writer)
        elif isinstance(exc, asyncio.CancelledError) and not run.is_lost:
            await asyncio.shield(self._break_off(run, writer))

    async def _check_parent(self, run: ActiveRun, request: TurnRequest) -> None:
        """A response that was waited for in the lane must have come to an end to go on from."""
        name = request.previous_response_id or ""
        view = await self._recorded.find(run.turn.tenant, name)
        if view is None or parent_of(view) is None:
            raise ParentNotFound(name)

    async def _compact(
        self,
        fitting: ContextFitter,
        run: ActiveRun,
        request: TurnRequest,
        writer: JournalWriter | None,
    ) -> Answer:
        """Answer with one item that stands for everything so far."""
        made = await fitting.compact(run, model=request.model, reason="trigger")
        if writer is not None:
            writer.write(list(compaction_events(made.item, 0, is_sampled=True)))
        return Answer(items=[made.item], usage=made.usage)

    async def _complete(
        self, run: ActiveRun, request: TurnRequest, answer: Answer, writer: JournalWriter | None
    ) -> TurnResult:
        items = tuple(map(read_item, answer.items))
        recorded = record_of(answer, self._gateway.clock.now())
        journal = await writer.settle() if writer is not None else None
        ended = await run.finish(
            Finish(
                fence=run.fence,
                outcome="completed",
                items=items,
                usage=answer.usage,
                result=encode_answer(recorded),
                provider_state=answer.state if answer.status == "completed" else None,
                completion=_stored_completion(request) if request.api == "chat" else None,
                pending_calls=_pending(items) if answer.status == "completed" else (),
                hold_seconds=self._gateway.settings.tool_wait_seconds,
                journal=journal,
                trail=_trail_behind(request.trail, items) if request.trail else NO_TRAIL,
            )
        )
        facts = facts_of(ended.turn.id, run, request, recorded.status, answer.items, recorded)
        if writer is not None:
            writer.end(journal, facts)
        return TurnResult(ended.turn, ended.session, facts)

    async def _fail(
        self,
        run: ActiveRun,
        request: TurnRequest,
        error: HoldfastError,
        writer: JournalWriter | None,
    ) -> None:
        failure = error if isinstance(error, ProviderFailure) else None
        code = (failure and failure.provider_code) or error.code
        finished, kept = writer.broken_off() if writer is not None else ((), ())
        journal = await writer.settle() if writer is not None else None
        await run.finish(
            Finish(
                fence=run.fence,
                outcome="failed",
                items=finished,
                partial=kept,
                error_code=code,
                error_message=error.message[:2000],
                is_retryable=(failure.failure_class == "transient" if failure else error.retryable),
                result=encode_answer(RecordedAnswer(status="failed", failure=self._told(error))),
                journal=journal,
            )
        )
        if writer is not None:
            output = [item.body for item in (*finished, *kept)]
            facts = facts_of(run.turn.id, run, request, "failed", output, None)
            shown = error_value(code, error.message)
            writer.end(journal, replace(facts, error=shown))

    def _told(self, error: HoldfastError) -> RecordedFailure:
        if not isinstance(error, ProviderFailure):
            return RecordedFailure(param=error.param)
        wait = error.retry_after
        return RecordedFailure(
            is_providers=True,
            status=error.status,
            provider_type=error.provider_type,
            param=error.param,
            retry_at=self._gateway.clock.now() + wait if wait is not None else None,
        )

    async def _break_off(self, run: ActiveRun, writer: JournalWriter | None) -> None:
        """Leave a run that this process may not finish: whoever comes next takes it up."""
        finished, kept = writer.broken_off() if writer is not None else ((), ())
        journal = await writer.settle() if writer is not None else None
        if run.turn.source in RUN_AGAIN:
            run.abandon()
            return
        try:
            await run.finish(
                Finish(
                    fence=run.fence,
                    outcome="interrupted",
                    items=finished,
                    partial=kept,
                    error_code="caller_left",
                    is_retryable=True,
                    journal=journal,
                )
            )
        except HoldfastError as exc:
            log.warning("run.not_settled", run_id=run.fence.run_id, code=exc.code)


def _pending(items: tuple[NewItem, ...]) -> tuple[str, ...]:
    """Return the calls that only the client's own tools can answer."""
    for item in items:
        if item.kind in CLIENT_CALLS:
            break
    else:
        return ()
    answered = {item.call_id for item in items if item.kind.endswith("_output")}
    return tuple(
        item.call_id
        for item in items
        if item.kind in CLIENT_CALLS and item.call_id and item.call_id not in answered
    )


def _trail_behind(trail: bytes, items: tuple[NewItem, ...]) -> bytes:
    """Return the trail of the history with this answer, where later requests may repeat it."""
    return extend_hash(trail, [(item.fingerprint, item.call_id) for item in items])


def _stored_completion(request: TurnRequest) -> StoredCompletion | None:
    """A chat completion is listed afterwards only if its client asked for that."""
    if not request.is_stored:
        return None
    return StoredCompletion(request.model, bytes(request.chat_fields.get("metadata", b"{}")))


def record_of(answer: Answer, completed_at: float) -> RecordedAnswer:
    """Return what is kept of an answer beside its items."""
    usage = answer.usage_detail
    if not usage and answer.usage is not None:
        usage = usage_value(answer.usage)
    return RecordedAnswer(
        status=answer.status,
        incomplete_reason=answer.incomplete_reason,
        usage=msgspec.Raw(usage or b"null"),
        fields=answer.fields,
        completed_at=completed_at,
    )


def facts_of(
    turn_id: str,
    run: ActiveRun,
    request: TurnRequest,
    status: ResponseStatus,
    output: list[bytes],
    recorded: RecordedAnswer | None,
) -> ResponseFacts:
    """Return what is known of the response that a run gives."""
    return ResponseFacts(
        id=response_id(turn_id, run.turn.step),
        request=request,
        created_at=run.turn.accepted_at,
        status=status,
        output=output,
        answer=recorded,
        conversation_id=conversation_id(run.session.id) if request.is_conversation else None,
    )
