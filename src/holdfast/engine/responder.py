"""A turn carried out by a model: from its context to its committed answer.

The terminal event leaves only after the commit. What a model had begun when it broke off is kept
as an incomplete item and never becomes provider state.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.core.commands import Finish, StoredCompletion
from holdfast.core.errors import HoldfastError, ProviderFailure, RunFenced
from holdfast.core.items import NewItem, read_item
from holdfast.core.request import TurnRequest, response_id
from holdfast.core.response import (
    RecordedAnswer,
    ResponseFacts,
    ResponseStatus,
    encode_answer,
    response_value,
    usage_value,
)
from holdfast.core.session import Session
from holdfast.core.turn import Turn
from holdfast.engine.gateway import Gateway
from holdfast.engine.live import LiveResponse
from holdfast.engine.log import log
from holdfast.engine.partial import PartialOutput
from holdfast.engine.turn_runner import ActiveRun
from holdfast.ports.provider import Answer, ModelCall, Provider

CHECKPOINT_SECONDS = 0.25
CLIENT_CALLS = frozenset(
    {
        "function_call", "custom_tool_call", "local_shell_call", "shell_call",
        "apply_patch_call", "computer_call",
    }
)  # fmt: skip

Route = Callable[[str], Provider]
"""Which provider serves a model."""


class Answered(msgspec.Struct, frozen=True):
    """A turn's committed answer, as a Response and as what it was made of."""

    turn: Turn
    session: Session
    response: ResponseFacts


class Responder:
    """Carries turns out with models."""

    def __init__(self, gateway: Gateway, route: Route) -> None:
        self._gateway = gateway
        self._route = route

    async def respond(
        self, run: ActiveRun, request: TurnRequest, live: LiveResponse | None = None
    ) -> Answered:
        """Run the turn to its end. Failures of the model are recorded, then raised."""
        partial = PartialOutput()
        try:
            answer = await self._ask(run, request, live, partial)
        except HoldfastError as error:
            if not run.is_lost:
                await self._fail(run, request, partial, error, live)
            raise
        except Exception:
            # A fault of our own must not keep the lane either.
            log.exception("run.broke", run_id=run.fence.run_id)
            ours = HoldfastError("something broke on our side")
            await self._fail(run, request, partial, ours, live)
            raise
        except asyncio.CancelledError:
            if not run.is_lost:
                await asyncio.shield(self._interrupt(run, partial))
            raise
        return await self._complete(run, request, answer, live)

    async def _ask(
        self,
        run: ActiveRun,
        request: TurnRequest,
        live: LiveResponse | None,
        partial: PartialOutput,
    ) -> Answer:
        provider = self._route(request.model)
        call = ModelCall(
            model=request.model,
            items=await run.context(),
            fields=request.fields,
            chat_fields=request.chat_fields,
            is_stream=live is not None,
            session_id=run.session.id,
        )
        if live is None:
            return await provider.answer(call)
        live.publish("response.in_progress", {"response": _as_running(run, request)})
        return await self._follow(run, provider, call, live, partial)

    async def _follow(
        self,
        run: ActiveRun,
        provider: Provider,
        call: ModelCall,
        live: LiveResponse,
        partial: PartialOutput,
    ) -> Answer:
        """Pass events on as they come, and make the text so far durable now and then."""
        saved_at = time.monotonic()
        saving: asyncio.Task[Any] | None = None
        try:
            async with aclosing(provider.stream(call)) as events:
                async for event in events:
                    if isinstance(event, Answer):
                        return event
                    partial.see(event)
                    live.publish(event.type, event.data)
                    is_due = time.monotonic() - saved_at >= CHECKPOINT_SECONDS
                    if is_due and partial.has_news and (saving is None or saving.done()):
                        saved_at = time.monotonic()
                        saving = asyncio.create_task(_checkpoint(run, partial.take()))
        finally:
            if saving is not None:
                await asyncio.gather(saving, return_exceptions=True)
        raise ProviderFailure("the stream ended without an answer", failure_class="transient")

    async def _complete(
        self, run: ActiveRun, request: TurnRequest, answer: Answer, live: LiveResponse | None
    ) -> Answered:
        items = tuple(read_item(body) for body in answer.items)
        recorded = _record(answer)
        ended = await run.finish(
            Finish(
                fence=run.fence,
                outcome="completed",
                items=items,
                usage=answer.usage,
                result=encode_answer(recorded),
                provider_state=answer.state if answer.status == "completed" else None,
                completion=_stored_completion(request),
                pending_calls=_pending(items) if answer.status == "completed" else (),
                hold_seconds=self._gateway.settings.tool_wait_seconds,
            )
        )
        facts = facts_of(ended.turn.id, run, request, recorded.status, answer.items, recorded)
        if live is not None:
            live.publish(f"response.{recorded.status}", {"response": response_value(facts)})
            live.end()
        return Answered(ended.turn, ended.session, facts)

    async def _fail(
        self,
        run: ActiveRun,
        request: TurnRequest,
        partial: PartialOutput,
        error: HoldfastError,
        live: LiveResponse | None,
    ) -> None:
        failure = error if isinstance(error, ProviderFailure) else None
        kept = partial.items()
        await run.finish(
            Finish(
                fence=run.fence,
                outcome="failed",
                items=tuple(read_item(body) for body in partial.finished()),
                partial=kept,
                error_code=(failure and failure.provider_code) or error.code,
                error_message=error.message[:2000],
                is_retryable=(failure.failure_class == "transient" if failure else error.retryable),
            )
        )
        if live is not None:
            output = [*partial.finished(), *(item.body for item in kept)]
            facts = facts_of(run.turn.id, run, request, "failed", output, None)
            shown = {"code": _closed_code(error), "message": error.message}
            value = response_value(msgspec.structs.replace(facts, error=shown))
            live.publish("response.failed", {"response": value})
            live.end()

    async def _interrupt(self, run: ActiveRun, partial: PartialOutput) -> None:
        try:
            await run.finish(
                Finish(
                    fence=run.fence,
                    outcome="interrupted",
                    items=tuple(read_item(body) for body in partial.finished()),
                    partial=partial.items(),
                    error_code="caller_left",
                    is_retryable=True,
                )
            )
        except HoldfastError as exc:
            log.warning("run.not_settled", run_id=run.fence.run_id, code=exc.code)


async def _checkpoint(run: ActiveRun, partial: tuple[NewItem, ...]) -> None:
    try:
        await run.extend(partial=partial)
    except RunFenced:
        return
    except HoldfastError as exc:
        log.warning("run.not_checkpointed", run_id=run.fence.run_id, code=exc.code)


def _pending(items: tuple[NewItem, ...]) -> tuple[str, ...]:
    """Return the calls that only the client's own tools can answer."""
    answered = {item.call_id for item in items if item.kind.endswith("_output")}
    return tuple(
        item.call_id
        for item in items
        if item.kind in CLIENT_CALLS and item.call_id and item.call_id not in answered
    )


def _stored_completion(request: TurnRequest) -> StoredCompletion | None:
    """A chat completion is listed afterwards only if its client asked for that."""
    if request.api != "chat" or not request.is_stored:
        return None
    return StoredCompletion(request.model, bytes(request.chat_fields.get("metadata", b"{}")))


def _record(answer: Answer) -> RecordedAnswer:
    usage = answer.usage_detail or (usage_value(answer.usage) if answer.usage else None)
    return RecordedAnswer(
        status=answer.status,
        incomplete_reason=answer.incomplete_reason,
        usage=msgspec.Raw(usage or b"null"),
        fields=answer.fields,
        completed_at=time.time(),
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


def _as_running(run: ActiveRun, request: TurnRequest) -> dict[str, Any]:
    return response_value(facts_of(run.turn.id, run, request, "in_progress", [], None))


def conversation_id(session_id: str) -> str:
    """Return the name that the Conversations API has for a session."""
    return "conv_" + session_id.removeprefix("ses_")


def _closed_code(error: HoldfastError) -> str:
    """Return one of the codes that a Response's error may have."""
    known = {"rate_limit_exceeded", "invalid_prompt", "server_error"}
    code = error.provider_code if isinstance(error, ProviderFailure) else None
    return code if code is not None and code in known else "server_error"
