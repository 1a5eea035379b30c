"""Executes a turn with a model, from its context to its committed answer.

The terminal event is published only after the commit. Unfinished output of a failed model is stored
as an incomplete item and never becomes provider state.
"""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction.records import expand
from holdfast.core.errors import (
    HoldfastError,
    InvalidInput,
    ParentNotFound,
    ProviderFailure,
    StoreUnavailable,
)
from holdfast.core.healing.redaction import plain_code
from holdfast.core.history.diff import BLANK_ANSWER, SentItem
from holdfast.core.history.history_hash import extend_hash, in_one_order
from holdfast.core.ids import Tenant
from holdfast.core.model.delivery import Delivery, OutboxMessage
from holdfast.core.model.gateway_items import ATTACHMENT, WORDS
from holdfast.core.model.items import NewItem, item_value, message, read_item
from holdfast.core.model.request import SentRequest, TurnRequest, conversation_id, response_id
from holdfast.core.model.session import Session
from holdfast.core.model.synthetic_outputs import OUTPUT_OF
from holdfast.core.model.turn import RUN_AGAIN, Source, Turn
from holdfast.core.openai.response import (
    RecordedAnswer,
    RecordedFailure,
    ResponseFacts,
    ResponseStatus,
    encode_answer,
    error_value,
    pack_answer,
    usage_value,
)
from holdfast.core.tools.approval_words import approval_markdown
from holdfast.core.tools.requested import read_tools, show_functions
from holdfast.core.tools.tool_choice import forced_function
from holdfast.core.transaction.commands import Finish, StoredCompletion
from holdfast.core.transaction.outgoing import bound_files, output_files, output_text, to_message
from holdfast.engine.logging import log
from holdfast.engine.model_call.caller import Fallbacks, ModelCaller, Route
from holdfast.engine.model_call.compaction_events import compaction_events
from holdfast.engine.model_call.compactor import Compactor
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import HealSettings, ToolSettings
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.engine.streaming.live_response import LiveResponse
from holdfast.engine.streaming.response_records import ResponseRecords, parent_of
from holdfast.engine.turns.agent_approvals import AgentApprovals
from holdfast.engine.turns.attachments import load_attachments
from holdfast.engine.turns.tool_loop import UNATTENDED, ToolLoop
from holdfast.engine.turns.tool_progress import ToolTurn, chat_words
from holdfast.ports.channel import ChannelMessages
from holdfast.ports.provider import Answer, ModelCall
from holdfast.ports.request_context import current_request
from holdfast.ports.tools import Toolbox

_NOT_SENT = frozenset({"item_reference", "compaction_trigger", ATTACHMENT})
"""Kinds of items that are never sent to a model as they are."""
INLINE_ITEMS = 500
"""How many items are checked on the event loop; more are checked in a thread."""
NO_REPLY = "NO_REPLY"
"""The answer of a scheduled turn that has nothing to report."""
COMPACTED = "What was said so far was replaced by a summary, where that is shorter."
EMPTY_ANSWER = "(The answer has no text.)"


class TurnResult(msgspec.Struct, frozen=True):
    """A turn's committed answer."""

    turn: Turn
    session: Session
    response: ResponseFacts


class TurnExecutor:
    """Executes turns with models."""

    def __init__(
        self,
        gateway: Gateway,
        route: Route,
        heals: HealSettings | None = None,
        *,
        fallbacks: Fallbacks | None = None,
        compactor: Compactor | None = None,
        channels: ChannelMessages | None = None,
        toolbox: Toolbox | None = None,
        tools: ToolSettings | None = None,
    ) -> None:
        self._channels = channels
        self._gateway = gateway
        self._route = route
        self._compactor = compactor or Compactor(gateway, route)
        self._caller = ModelCaller(
            gateway, route, heals, fallbacks=fallbacks, compactor=self._compactor
        )
        self._tools = (
            ToolLoop(gateway, self._caller, toolbox, tools, channels)
            if toolbox is not None
            else None
        )
        self._agents = AgentApprovals(gateway, self._caller, tools)
        self._records = ResponseRecords(gateway.read)

    async def check(
        self,
        tenant: Tenant,
        request: TurnRequest,
        items: Sequence[NewItem],
        source: Source = "user",
    ) -> None:
        """Raise for a request that the model's provider cannot express, before it is accepted."""
        if self._tools is not None and (
            "tools" in request.fields or "tools" in request.chat_fields
        ):
            request = self._tools.check(tenant, request, source)
        if "context_management" in request.fields:
            request = self._compactor.strip_gateway_fields(request)
        bodies: list[bytes] = []
        for item in items:
            if item.kind == "compaction":
                bodies.append(expand(item.body))
            elif item.kind not in _NOT_SENT:
                bodies.append(item.body)
        call = ModelCall(
            model=request.model,
            items=bodies,
            fields=request.fields,
            chat_fields=request.chat_fields,
            is_stream=request.is_stream,
        )
        provider = self._route(request.model)
        if provider.detect is not None:
            await provider.detect()
            provider = self._route(request.model)
        context = current_request.get()
        if context is not None:
            context.model, context.upstream = request.model, provider.name
        if len(bodies) <= INLINE_ITEMS:
            provider.check(call)
        else:
            await asyncio.to_thread(provider.check, call)

    async def execute(
        self, run: ActiveRun, request: TurnRequest, live: LiveResponse | None = None
    ) -> TurnResult:
        """Run the turn to its end. Failures of the model are committed, then raised.

        If the run loses its lane, the calling task must be cancelled: this method converts the
        cancellation into an error that describes the state of the turn.
        """
        writer = JournalWriter(run, live) if live is not None else None
        run.writer = writer
        try:
            try:
                if writer is not None or request.delivery is not None or request.waits_for_parent:
                    await self._prepare(run, request, writer)
                has_tools = "tools" in request.fields or "tools" in request.chat_fields
                is_special = has_tools or request.is_compaction or request.fixed_answer is not None
                if is_special or run.turn.step or run.turn.attempts > 1:
                    answer, tool_turn = await self._answer(run, request, writer)
                else:
                    tool_turn = None
                    if run.turn.source not in UNATTENDED:
                        run.approval_seconds = self._agents.approval_seconds
                    answer = await self._caller.call(run, request, writer)
                    if answer.request is not None:
                        answer, tool_turn = await self._agents.pause(run, request, answer, writer)
            except BaseException as exc:
                await self._end_unanswered(run, request, exc, writer)
                raise
            return await self._complete(run, request, answer, writer, tool_turn)
        except (asyncio.CancelledError, HoldfastError) as exc:
            if run.stop_code is not None and not run.is_ended:
                # Shielded: a second cancellation must not interrupt the commit of the end.
                await asyncio.shield(self._cancel(run, request, run.stop_code, writer))
            elif not run.is_lost:
                raise
            task = asyncio.current_task()
            if task is not None and isinstance(exc, asyncio.CancelledError):
                task.uncancel()
            raise await self._gateway.why_lost(run.turn) from exc
        finally:
            run.writer = None  # it refers back to the run, and to everything that was streamed

    async def _answer(
        self, run: ActiveRun, request: TurnRequest, writer: JournalWriter | None
    ) -> tuple[Answer, ToolTurn | None]:
        """Return the answer of any turn, and the result of its tool steps.

        The answer is a fixed text, a compaction, or that of a model, with or without tools.
        """
        if request.fixed_answer is not None:
            return await self._answer_fixed(request, request.fixed_answer)
        if request.is_compaction:
            return await self._compact(run, request, writer), None
        requested = read_tools(request) if self._tools is not None else None
        if requested is not None:
            run.requested = request
        if requested is not None and not self._takes_functions(request.model):
            # They come from the configuration: a client's request would have been rejected.
            log.info("tool.left_out", turn_id=run.turn.id, model=request.model)
            request, requested = show_functions(request, requested, ()), None
        if self._tools is not None and requested is not None:
            tool_turn = await self._tools.run(run, request, writer)
            return tool_turn.answer, tool_turn
        return await self._agents.run(run, request, writer)

    def _takes_functions(self, model: str) -> bool:
        """Whether the provider of a model accepts functions; a command-line agent does not."""
        tools = msgspec.Raw(msgspec.json.encode([{"type": "function", "name": "any"}]))
        try:
            self._route(model).check(ModelCall(model=model, items=(), fields={"tools": tools}))
        except InvalidInput:
            return False
        return True

    async def _prepare(
        self, run: ActiveRun, request: TurnRequest, writer: JournalWriter | None
    ) -> None:
        """Prepare streams, turns of channels and turns that continue a running parent."""
        if request.delivery is not None and self._channels is not None:
            await load_attachments(run, request.delivery, self._channels)
        if writer is not None:
            writer.start()
        if request.waits_for_parent:
            await self._check_parent(run, request)

    async def _answer_fixed(
        self, request: TurnRequest, text: str
    ) -> tuple[Answer, ToolTurn | None]:
        """Answer with a text, and send the files of another answer with it."""
        answer = Answer(items=[message("assistant", text).body])
        name = request.files_of
        view = await self._records.find(name.tenant, name.id) if name is not None else None
        if view is None:
            return answer, None
        output = (await self._records.facts(view)).output
        return answer, ToolTurn(answer=answer, output=[*answer.items, *output])

    async def _check_parent(self, run: ActiveRun, request: TurnRequest) -> None:
        """Raise if the parent response that this turn waited for cannot be continued."""
        name = request.previous_response_id or ""
        view = await self._records.find(run.turn.tenant, name)
        if view is None or parent_of(view) is None:
            raise ParentNotFound(name)

    async def _compact(
        self, run: ActiveRun, request: TurnRequest, writer: JournalWriter | None
    ) -> Answer:
        """Answer with one item that replaces the whole history."""
        result = await self._compactor.compact(run, model=request.model, reason="trigger")
        if writer is not None:
            writer.write(list(compaction_events(result.item, 0, is_sampled=True)))
        return Answer(items=[result.item], usage=result.usage)

    # ── how a run ends ──────────────────────────────────────────────────────────────────────

    async def _complete(
        self,
        run: ActiveRun,
        request: TurnRequest,
        answer: Answer,
        writer: JournalWriter | None,
        tool_turn: ToolTurn | None = None,
    ) -> TurnResult:
        plain = answer.plain
        if plain is not None and (len(answer.items) != 1 or answer.items[0] is not plain.item.body):
            plain = None  # something was added to the answer
        items = (plain.item,) if plain is not None else tuple(map(read_item, answer.items))
        if tool_turn is None and len(items) > 1:
            items = (*items, *self._words(request, items))
        recorded = record_answer(answer, self._gateway.clock.now(), run.sent, run.earlier)
        is_completed = answer.status == "completed"
        if writer is not None:
            writer.release()
        journal = await writer.settle() if writer is not None else None
        command = Finish(
            fence=run.fence,
            outcome="completed",
            items=items,
            usage=answer.usage,
            result=pack_answer(recorded, answer.usage),
            provider_state=answer.state if is_completed else None,
            hold_seconds=self._gateway.settings.tool_wait_seconds,
            journal=journal,
        )
        output = answer.items if tool_turn is None else tool_turn.output
        is_usual = plain is not None and tool_turn is None and request.delivery is None
        if not is_usual or request.is_stored or request.history_hash:
            command = self._with_options(run, command, request, answer, tool_turn)
        ended = await run.finish(command)
        text = plain.text if plain is not None and is_usual else None
        facts = response_facts(run, request, recorded.status, output, recorded, text)
        if writer is not None:
            writer.end(journal, facts)
        return TurnResult(ended.turn, ended.session, facts)

    def _words(self, request: TurnRequest, items: Sequence[NewItem]) -> list[NewItem]:
        """Return what a Chat client gets of an answer with several texts, as an item."""
        texts = [
            item for item in items if item.kind == "message" and item.fingerprint != BLANK_ANSWER
        ]
        if len(texts) < 2:
            return []
        return chat_words(request, (), items, self._gateway.ids.new)

    def _with_options(
        self,
        run: ActiveRun,
        command: Finish,
        request: TurnRequest,
        answer: Answer,
        tool_turn: ToolTurn | None,
    ) -> Finish:
        """Return the end of a run with what only some turns need: calls, tools, deliveries."""
        items, is_completed = command.items, answer.status == "completed"
        for item in items:
            if item.kind in OUTPUT_OF and is_completed:
                command = replace(command, pending_calls=_pending_calls(items))
                break
        if tool_turn is not None:
            command = _with_tools(command, tool_turn)
        if command.pending_calls and not run.turn.step:
            command = _without_forced_calls(command, request, tool_turn)
        if request.is_stored and request.api == "chat":
            metadata = bytes(request.chat_fields.get("metadata", b"{}"))
            command = replace(command, completion=StoredCompletion(request.model, metadata))
        if request.history_hash:
            # Later requests find this answer by the hash of the history up to it.
            answered = _hashed_items(items)
            history_hash = extend_hash(request.history_hash, answered)
            command = replace(command, history_hash=history_hash)
        output = answer.items if tool_turn is None else tool_turn.output
        if request.delivery is not None and not command.pending_calls:
            outbox = self._messages(request, request.delivery, answer, output)
            command = replace(command, outbox=outbox)
        elif request.delivery is not None and tool_turn is not None:
            command = replace(command, outbox=self._requests(request, request.delivery, output))
        return command

    def _messages(
        self, request: TurnRequest, delivery: Delivery, answer: Answer, output: Sequence[bytes]
    ) -> tuple[OutboxMessage, ...]:
        """Return the messages that a channel sends for an answer: its text, then its files."""
        text = COMPACTED if request.is_compaction else output_text(answer.items).strip()
        if delivery.is_quiet and text == NO_REPLY:
            return ()
        files, text = self._files(delivery, output, text)
        texts = self._split(delivery, text or EMPTY_ANSWER) if text or not files else []
        return (*texts, *files)

    def _files(
        self, delivery: Delivery, output: Sequence[bytes], text: str
    ) -> tuple[list[OutboxMessage], str]:
        """Return the files of an answer, and its text with a line for each that is not sent."""
        found = output_files(output)
        if not found:
            return [], text
        max_bytes = self._channels.file_bytes(delivery.channel) if self._channels is not None else 0
        files, notes = bound_files(found, max_bytes)
        messages = [replace(to_message(delivery, ""), file=file) for file in files]
        return messages, "\n\n".join(filter(None, (text, *notes)))

    def _requests(
        self, request: TurnRequest, delivery: Delivery, output: Sequence[bytes]
    ) -> tuple[OutboxMessage, ...]:
        """Return what a channel sends when a turn waits for approvals: text so far, then requests.

        Only one person reads a direct chat, so the approvers are asked in their own chats.
        """
        files, text = self._files(delivery, output, output_text(output).strip())
        messages = [*(self._split(delivery, text) if text else []), *files]
        copies: list[OutboxMessage] = []
        for item in map(item_value, output):
            if item.get("type") != "mcp_approval_request":
                continue
            text, approval_id = approval_markdown(item), item["id"]
            messages += self._request(delivery, text, approval_id)
            if delivery.is_direct:
                text += f"\nRequested in the direct chat of {delivery.sender}."
                for number, chat in enumerate(_other_approvers(request, delivery)):
                    place = Delivery(channel=delivery.channel, chat=chat)
                    copies += self._request(place, text, approval_id, f"{approval_id}_{number}")
        return (*messages, *copies)

    def _request(
        self, delivery: Delivery, text: str, approval_id: str, source: str = ""
    ) -> list[OutboxMessage]:
        """Return the messages of one approval request; its buttons are below the last one."""
        parts = [replace(part, source=source) for part in self._split(delivery, text)]
        return [*parts[:-1], replace(parts[-1], approval=approval_id)]

    def _split(self, delivery: Delivery, text: str) -> list[OutboxMessage]:
        parts: Sequence[str] = [text]
        if self._channels is not None:
            parts = self._channels.split(delivery.channel, text)
        return [to_message(delivery, part) for part in parts]

    async def _end_unanswered(
        self,
        run: ActiveRun,
        request: TurnRequest,
        exc: BaseException,
        writer: JournalWriter | None,
    ) -> None:
        """Commit the end of a run without an answer, if it still has its lane."""
        if isinstance(exc, HoldfastError):
            if not run.is_lost:
                await self._fail(run, request, exc, writer)
        elif isinstance(exc, Exception):
            # A bug of the gateway must not keep the lane.
            log.exception("run.failed", run_id=run.fence.run_id)
            await self._fail(run, request, HoldfastError("internal error"), writer)
        elif not (run.is_lost or run.stop_code) and isinstance(exc, asyncio.CancelledError):
            # Shielded: a second cancellation must not interrupt the commit of the end.
            await asyncio.shield(self._interrupt(run, writer))

    async def _fail(
        self,
        run: ActiveRun,
        request: TurnRequest,
        error: HoldfastError,
        writer: JournalWriter | None,
    ) -> None:
        failure = error if isinstance(error, ProviderFailure) else None
        code = (failure and failure.provider_code) or error.code
        log_failed_turn(error, turn_id=run.turn.id, session_id=run.session.id)
        run.is_rejected = _is_clients_mistake(error)
        finished, partial = writer.interrupted_output() if writer is not None else ((), ())
        journal = await writer.settle() if writer is not None else None
        recorded = RecordedAnswer(
            status="failed",
            failure=self._record_failure(error),
            sent=run.sent,
            earlier=run.earlier,
        )
        is_refused = failure is not None and failure.refuses_content
        refused_from = await run.question() if is_refused else None
        await run.finish(
            Finish(
                fence=run.fence,
                outcome="failed",
                items=finished,
                partial=partial,
                error_code=code,
                error_message=error.message[:2000],
                is_retryable=(failure.failure_class == "transient" if failure else error.retryable),
                result=encode_answer(recorded),
                journal=journal,
                refused_from=refused_from,
            )
        )
        if writer is not None:
            output = [item.body for item in (*finished, *partial)]
            facts = response_facts(run, request, "failed", output, None)
            writer.end(journal, replace(facts, error=error_value(code, error.message)))

    def _record_failure(self, error: HoldfastError) -> RecordedFailure:
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

    async def _cancel(
        self, run: ActiveRun, request: TurnRequest, code: str, writer: JournalWriter | None
    ) -> None:
        """End a run that was stopped, with all output that was shown."""
        command = Finish(fence=run.fence, outcome="cancelled", error_code=code)
        ended = await self._finish_early(run, command, writer)
        if ended is not None and writer is not None:
            output = [item.body for item in (*ended.items, *ended.partial)]
            writer.end(ended.journal, response_facts(run, request, "cancelled", output, None))

    async def _interrupt(self, run: ActiveRun, writer: JournalWriter | None) -> None:
        """Leave a run that this process cannot finish; a retry or another worker continues it."""
        if run.turn.source in RUN_AGAIN:
            if writer is not None:
                await writer.settle()
            run.abandon()
            return
        command = Finish(
            fence=run.fence, outcome="interrupted", error_code="caller_left", is_retryable=True
        )
        await self._finish_early(run, command, writer)

    async def _finish_early(
        self, run: ActiveRun, command: Finish, writer: JournalWriter | None
    ) -> Finish | None:
        """Commit the end of a run with its output so far; return it, or None if that fails."""
        if writer is not None:
            finished, partial = writer.interrupted_output()
            journal = await writer.settle()
            command = replace(command, items=finished, partial=partial, journal=journal)
        try:
            await run.finish(command)
        except HoldfastError as exc:
            log.failed("run.end_not_committed", exc, run_id=run.fence.run_id)
            return None
        return command


def _is_clients_mistake(error: HoldfastError) -> bool:
    """Whether a turn fails because of its request, so that an operator need not act."""
    if isinstance(error, ProviderFailure):
        return error.refuses_content or error.may_refuse_input
    return isinstance(error, InvalidInput)


def log_failed_turn(error: HoldfastError, **ids: str) -> None:
    """Log that a turn failed after its heals; a failed attempt alone is not logged here.

    An outage of the store is one event, whatever fails by it.
    """
    if isinstance(error, StoreUnavailable):
        return
    code = error.provider_code if isinstance(error, ProviderFailure) else None
    request = current_request.get()
    log.warning(
        "turn.failed",
        code=plain_code(code) or error.code,
        **ids,
        **({"request_id": request.request_id} if request is not None else {}),
    )


def _other_approvers(request: TurnRequest, delivery: Delivery) -> list[str]:
    """Return the approvers on the platform of a turn, except its sender."""
    prefix = f"{delivery.channel}:"
    known = (name.removeprefix(prefix) for name in request.approvers if name.startswith(prefix))
    return [name for name in dict.fromkeys(known) if name != delivery.sender]


def _with_tools(command: Finish, tool_turn: ToolTurn) -> Finish:
    """Return the end of a run with the calls that its tools leave open."""
    seconds = tool_turn.hold_seconds
    return replace(
        command,
        pending_calls=tool_turn.pending,
        hold_seconds=command.hold_seconds if seconds is None else seconds,
        counted=tool_turn.counted,
    )


def _without_forced_calls(
    command: Finish, request: TurnRequest, tool_turn: ToolTurn | None
) -> Finish:
    """Return the end of a run that waits for no output of a function that its request named.

    That is how clients ask for structured output: nobody runs the function. An output that comes
    nevertheless finds its call.
    """
    fields = request.chat_fields if request.api == "chat" else request.fields
    name = forced_function(fields.get("tool_choice"))
    if name is None:
        return command
    output = command.items if tool_turn is None else map(read_item, tool_turn.output)
    names = {
        item.call_id: item_value(item.body).get("name") for item in output if item.kind in OUTPUT_OF
    }
    if any(names.get(call_id) != name for call_id in command.pending_calls):
        return command
    return replace(command, pending_calls=())


def _hashed_items(items: Sequence[NewItem]) -> list[tuple[bytes, str | None]]:
    """Return fingerprint and call id of an answer's items, in the order in which they are hashed.

    Words stand for the texts that they repeat.
    """
    has_words = any(item.kind == WORDS for item in items)
    hashed = [item for item in items if not (has_words and item.kind == "message")]
    sent = [
        SentItem(item.fingerprint, "message" if item.kind == WORDS else item.kind)
        for item in hashed
    ]
    return [(hashed[at].fingerprint, hashed[at].call_id) for at in in_one_order(sent)]


def _pending_calls(items: tuple[NewItem, ...]) -> tuple[str, ...]:
    """Return the ids of the calls that only the client's own tools can answer."""
    answered = {item.call_id for item in items if item.kind.endswith("_output")}
    return tuple(
        item.call_id
        for item in items
        if item.kind in OUTPUT_OF and item.call_id and item.call_id not in answered
    )


def record_answer(
    answer: Answer,
    completed_at: float,
    sent: SentRequest | None = None,
    earlier: tuple[SentRequest, ...] = (),
) -> RecordedAnswer:
    """Return what is stored of an answer besides its items."""
    usage = answer.usage_detail
    if not usage and answer.usage is not None:
        usage = usage_value(answer.usage)
    return RecordedAnswer(
        status=answer.status,
        incomplete_reason=answer.incomplete_reason,
        usage=msgspec.Raw(usage or b"null"),
        fields=answer.fields,
        completed_at=completed_at,
        sent=sent,
        earlier=earlier,
    )


def response_facts(
    run: ActiveRun,
    request: TurnRequest,
    status: ResponseStatus,
    output: Sequence[bytes],
    recorded: RecordedAnswer | None,
    text: str | None = None,
) -> ResponseFacts:
    """Return the response of a run; `text` is set if its output is one plain message."""
    return ResponseFacts(
        id=response_id(run.turn.id, run.turn.step),
        request=request,
        created_at=run.turn.accepted_at,
        status=status,
        output=output,
        text=text,
        answer=recorded,
        conversation_id=conversation_id(run.session.id) if request.is_conversation else None,
    )
