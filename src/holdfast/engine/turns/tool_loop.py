"""Runs the gateway's tools in a turn: model, commit the call, tool, commit the output, model.

The remaining work is always read from the log, so that a turn continues in the same way after a
step, an approval and a crash. A call that may have run before is run again only if its tool is
declared safe; otherwise the model gets "outcome unknown" as the output.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import Tenant, TurnId
from holdfast.core.model.gateway_items import (
    CALL,
    COMPLETION,
    TOOL_LIST,
    GatewayCall,
    GatewayCompletion,
    GatewayReminder,
    ToolList,
    approval_request_id,
    client_output,
    complete,
    load_item,
    store_item,
)
from holdfast.core.model.items import NewItem, StoredItem, read_item
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import subtract_usage
from holdfast.core.model.synthetic_outputs import MAY_HAVE_RUN, NOT_APPROVED, OUTCOME_UNKNOWN
from holdfast.core.model.turn import Source
from holdfast.core.tools.approval_words import approval_code
from holdfast.core.tools.open_calls import OpenCalls, count_use, find_open_calls
from holdfast.core.tools.requested import read_tools, show_functions, without_tools
from holdfast.core.tools.tool_choice import FunctionTool
from holdfast.engine.logging import log
from holdfast.engine.model_call.caller import ModelCaller
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ToolSettings
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.engine.turns.tool_progress import (
    ToolProgress,
    ToolTurn,
    chat_words,
    commit_step,
    has_waiting,
    waiting_input,
)
from holdfast.engine.turns.tool_stream import (
    ToolSink,
    begin_events,
    end_events,
    list_events,
    request_events,
)
from holdfast.ports.channel import ChannelMessages
from holdfast.ports.provider import Answer
from holdfast.ports.store import ItemQuery
from holdfast.ports.tools import Tool, Toolbox, ToolCaller, ToolResult

NO_APPROVER = "The call was not run: it needs an approval, and nobody is there to give it."
TOOL_GONE = "The call was not run: the tool is not available any more."
TOOL_CHANGED = "The call was not run: the tool changed after the approval was requested."
CALL_LIMIT_REACHED = "The call was not run: the turn has reached its limit of tool calls."
ANY_FUNCTION = FunctionTool(
    function="any", description="", parameters=msgspec.Raw(b'{"type":"object"}')
)
"""Stands for a turn's functions before its tools are known."""
CONFIGURED: frozenset[Source] = frozenset({"channel", "cron"})
"""Sources of turns whose tools come from the configuration, not from a client."""
UNATTENDED = frozenset({"cron"})
"""Sources of turns in which nobody can approve a call."""


class ToolLoop:
    """Executes turns whose requests use tools of the gateway."""

    def __init__(
        self,
        gateway: Gateway,
        model: ModelCaller,
        toolbox: Toolbox,
        settings: ToolSettings | None = None,
        channels: ChannelMessages | None = None,
    ) -> None:
        self._channels = channels
        self._gateway = gateway
        self._model = model
        self._toolbox = toolbox
        self._settings = settings or ToolSettings()

    def check(self, tenant: Tenant, request: TurnRequest, source: Source) -> TurnRequest:
        """Raise for tools that do not exist; return the request as its upstream may see it.

        A client's request gets a function, so that a provider without functions refuses it.
        Configured tools are left out: they are dropped for such a provider.
        """
        requested = read_tools(request)
        if requested is None:
            return request
        self._toolbox.check(tenant, requested)
        functions = () if source in CONFIGURED else (ANY_FUNCTION,)
        return show_functions(request, requested, functions)

    async def run(
        self, run: ActiveRun, request: TurnRequest, writer: JournalWriter | None
    ) -> ToolTurn:
        """Run the turn until it is answered or the client has to act."""
        requested = read_tools(request)
        assert requested is not None
        caller = ToolCaller(
            tenant=run.turn.tenant,
            session=run.session,
            turn_id=run.turn.id,
            source=run.turn.source,
            model=request.model,
        )
        tools = await self._toolbox.open(caller, requested)
        progress = ToolProgress(run, request, requested, writer, tools, caller)
        if tools.servers:
            await self._show_lists(progress)
        own = await run.own_items()
        is_continued = run.turn.step > 0 or run.turn.attempts > 1
        if is_continued or _has_made_calls(run, own):
            progress.count(count_use(await self._logged_items(run)))
        if is_continued or _has_calls_left(own):
            end = await self._settle(progress)
            if end is not None:
                return end
        while True:
            ended = await self._step(progress)
            if ended is not None:
                return ended

    async def _show_lists(self, progress: ToolProgress) -> None:
        """Show the tools of servers that are new to the session or have changed."""
        known = _known_lists(await progress.run.items())
        lists = [
            ToolList(
                id=self._gateway.ids.new("mcpl"),
                server_label=server.label,
                tools=server.tools,
                error=server.error,
            )
            for server in progress.tools.servers
            if known.get(server.label) != (server.tools, server.error)
        ]
        if not lists:
            return
        index = len(progress.shown)
        await self._commit(progress, [store_item(each) for each in lists])
        if progress.writer is not None:
            for place, each in enumerate(lists, index):
                progress.writer.write(list_events(each, place))
            progress.writer.begin_step()

    # ── one step ────────────────────────────────────────────────────────────────────────────

    async def _step(self, progress: ToolProgress) -> ToolTurn | None:
        """Call the model and run the tools that it calls; return the end of the turn, or None."""
        progress.is_last = self._is_limit_reached(progress)
        answer, items = await self._ask(progress)
        if not any(item.kind == CALL for item in items) or answer.status != "completed":
            return self._end(progress, answer, items)
        await self._commit_calls(progress, answer, items)
        end = await self._settle(progress)
        if end is None and progress.is_last:
            # The model calls tools that it was not offered: asking again would not help.
            return self._pause(progress, ())
        return end

    def _is_limit_reached(self, progress: ToolProgress) -> bool:
        settings = self._settings
        if (
            progress.steps >= settings.max_tool_steps
            or monotonic() - progress.began >= settings.turn_seconds
            or progress.output_bytes >= settings.turn_bytes
        ):
            return True
        return self._has_no_calls_left(progress)

    def _has_no_calls_left(self, progress: ToolProgress) -> bool:
        allowed = _max_calls(progress.request)
        return allowed is not None and progress.calls >= allowed

    async def _ask(self, progress: ToolProgress) -> tuple[Answer, list[NewItem]]:
        """Return the model's answer, and its items in the form in which they are stored."""
        request, tools = progress.request, progress.tools.tools
        if progress.is_last:
            request = without_tools(request)
        else:
            is_first = not progress.steps and not progress.run.turn.step
            functions = list(tools.values())
            request = show_functions(request, progress.requested, functions, is_first=is_first)
        sink = None
        if progress.writer is not None:
            sink = ToolSink(
                progress.writer,
                progress.find,
                offset=len(progress.shown),
                new_id=self._gateway.ids.new,
            )
        answer = await self._model.call(progress.run, request, sink)
        progress.run.preface = ()
        progress.add_usage(answer)
        shown_ids = sink.item_ids if sink is not None else {}
        items = [
            self._stored(progress, body, shown_ids.get(index))
            for index, body in enumerate(answer.items)
        ]
        return answer, items

    def _stored(self, progress: ToolProgress, body: bytes, item_id: str | None) -> NewItem:
        """Return an item of an answer as it is stored: a gateway tool's call as `GatewayCall`."""
        item = read_item(body)
        if item.kind != "function_call" or not item.call_id:
            return item
        value = msgspec.json.decode(body)
        name = value.get("name")
        tool = progress.find(name) if isinstance(name, str) else None
        if tool is None:
            return item
        new_id = self._gateway.ids.new
        waits_for_approval = tool.needs_approval and not self._denies_at_once(progress)
        stored_id = approval_request_id(new_id("mcpr")) if waits_for_approval else new_id("mcpc")
        arguments = value.get("arguments")
        call = GatewayCall(
            id=stored_id,
            item_id=item_id or new_id("mcp"),
            call_id=item.call_id,
            function=tool.function,
            server_label=tool.server_label,
            name=tool.name,
            arguments=arguments if isinstance(arguments, str) else "",
            code=approval_code(stored_id) if waits_for_approval else None,
            digest=tool.digest,
        )
        return store_item(call)

    def _denies_at_once(self, progress: ToolProgress) -> bool:
        return progress.is_last or progress.run.turn.source in UNATTENDED

    async def _commit_calls(
        self, progress: ToolProgress, answer: Answer, items: Sequence[NewItem]
    ) -> None:
        """Commit the model's answer before any of its calls runs."""
        run = progress.run
        if run.sent is not None:
            run.earlier, run.sent = (*run.earlier, run.sent), None
        offset = len(progress.shown)
        if any(item.kind == CALL and _waits_for_approval(item) for item in items):
            items = [*items, *self._words(progress, items)]
        await self._commit(progress, items, answer)
        progress.steps += 1
        progress.latest = set()
        place = offset
        for item in items:
            if item.kind == CALL:
                call = load_item(item.body)
                assert isinstance(call, GatewayCall)
                progress.made.add(call.item_id)
                progress.latest.add(call.item_id)
                self._show_call(progress, call, place)
            place += 1

    def _words(self, progress: ToolProgress, items: Sequence[NewItem]) -> list[NewItem]:
        return chat_words(progress.request, progress.bodies, items, self._gateway.ids.new)

    def _show_call(self, progress: ToolProgress, call: GatewayCall, place: int) -> None:
        if call.code is None:
            progress.indexes[call.item_id] = place
            return
        progress.requests.add(call.id)
        if progress.writer is not None:
            progress.writer.write(request_events(call, place))
            progress.writer.begin_step()

    async def _commit(
        self,
        progress: ToolProgress,
        items: Sequence[NewItem],
        answer: Answer | None = None,
        merges: tuple[TurnId, ...] = (),
    ) -> None:
        files = progress.take_files()
        await commit_step(progress.run, progress.writer, items, answer, merges=merges, outbox=files)
        progress.bodies += [item.body for item in items]

    # ── what is left to do ──────────────────────────────────────────────────────────────────

    async def _may_have_run(self, progress: ToolProgress, due: Sequence[GatewayCall]) -> set[str]:
        """Return the item ids of the calls that an earlier run of the turn may have run.

        A run ends with calls that have not run only if they wait for an approval. Such a call is
        run by the first run after its approval, which has its own step.
        """
        run = progress.run
        earlier = [call for call in due if call.item_id not in progress.made]
        if not earlier:
            return set()
        is_repeated = run.turn.attempts > 1 or bool(await self._model.earlier_runs(run))
        return {call.item_id for call in earlier if is_repeated or call.code is None}

    async def _settle(self, progress: ToolProgress) -> ToolTurn | None:
        """Run the calls that are due; return the end of the run if the client has to act."""
        open_calls = await self._open_calls(progress)
        waiting = [call for call in open_calls.calls if _waits(call, open_calls)]
        due = [call for call in open_calls.calls if not _waits(call, open_calls)]
        tried = await self._may_have_run(progress, due)
        # In parallel: the slowest call determines how long the step takes.
        completions = self._bounded(
            progress,
            await asyncio.gather(
                *(self._complete(progress, call, open_calls, call.item_id in tried) for call in due)
            ),
        )
        reminders = [call for call in waiting if call.id not in progress.requests]
        items = [store_item(each) for each in completions]
        items += [self._reminder(call) for call in reminders]
        if reminders:
            items += self._words(progress, items)
        is_continuing = not waiting and not open_calls.client_calls
        joining = await self._joining(progress, is_step=bool(due)) if is_continuing else ()
        if items or joining:
            first_index = len(progress.shown)
            await self._commit(progress, items, merges=joining)
            self._show_completions(progress, due, completions, first_index)
            place = len(progress.shown) - len(reminders)
            for call in reminders:
                self._show_call(progress, call, place)
                place += 1
        if is_continuing:
            return None
        seconds = self._settings.approval_seconds if waiting else None
        pending = (*(call.id for call in waiting), *open_calls.client_calls)
        return self._pause(progress, pending, seconds)

    async def _open_calls(self, progress: ToolProgress) -> OpenCalls:
        """Return the calls of the turn without an outcome; a hidden outcome counts."""
        open_calls = find_open_calls(await progress.run.own_items())
        if all(call.item_id in progress.latest for call in open_calls.calls):
            return open_calls
        ended = {
            item.item_id
            for item in await self._logged_items(progress.run, view="log")
            if item.kind == COMPLETION
        }
        return replace(
            open_calls, calls=tuple(c for c in open_calls.calls if c.item_id not in ended)
        )

    def _reminder(self, call: GatewayCall) -> NewItem:
        """Return an item that shows an earlier approval request again."""
        return store_item(GatewayReminder(id=self._gateway.ids.new("gwr"), call=call))

    async def _joining(self, progress: ToolProgress, *, is_step: bool) -> tuple[TurnId, ...]:
        """Return the waiting turns that join at the next model call."""
        run = progress.run
        if is_step or has_waiting(run):
            return await waiting_input(self._gateway.read, run)
        return ()

    def _pause(
        self, progress: ToolProgress, pending: tuple[str, ...], hold_seconds: float | None = None
    ) -> ToolTurn:
        """Return the end of a run whose items are all committed."""
        return ToolTurn(
            answer=Answer(items=[], usage=progress.usage, usage_detail=progress.usage_detail),
            output=progress.shown,
            pending=pending,
            hold_seconds=hold_seconds,
            counted=progress.usage,
        )

    async def _logged_items(
        self, run: ActiveRun, view: Literal["visible", "log"] = "visible"
    ) -> list[StoredItem]:
        """Return the visible items of the run's turn, including those that a summary replaces.

        With the view `log`, return also those that are hidden or erased.
        """
        first = run.turn.first_seq
        query = ItemQuery(after=first - 1 if first else None, view=view)
        session_id, number = run.session.id, run.turn.number
        items = await self._gateway.read.items(run.session, query)
        return [
            item for item in items if (item.session_id, item.turn_number) == (session_id, number)
        ]

    async def _complete(
        self, progress: ToolProgress, call: GatewayCall, open_calls: OpenCalls, may_have_run: bool
    ) -> GatewayCompletion:
        """Run a call, or return why it is not run."""
        tool = progress.tools.tools.get(call.function)
        approval = open_calls.approvals.get(call.id)
        error: str | None = None
        if approval is not None and not approval.approve:
            error = f"{NOT_APPROVED} Reason: {approval.reason}" if approval.reason else NOT_APPROVED
        elif tool is None:
            error = TOOL_GONE
        elif may_have_run and not tool.is_repeatable:
            error = OUTCOME_UNKNOWN
        elif progress.is_last or self._has_no_calls_left(progress):
            error = CALL_LIMIT_REACHED
        elif tool.needs_approval and approval is None:
            error = NO_APPROVER
        elif call.code is not None and call.digest != tool.digest:
            error = TOOL_CHANGED
        if error is not None or tool is None:
            return complete(call, None, error)
        progress.calls += 1
        result = await self._call(progress, tool, call)
        delivery = progress.request.delivery
        if result.images and delivery is not None and self._channels is not None:
            max_bytes = self._channels.file_bytes(delivery.channel)
            progress.add_images(call.item_id, result.images, max_bytes)
        return complete(call, result.output, result.error)

    async def _call(self, progress: ToolProgress, tool: Tool, call: GatewayCall) -> ToolResult:
        try:
            arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as exc:
            return ToolResult(error=f"The arguments are not a JSON object: {exc}")
        started, outcome = monotonic(), "failed"
        try:
            async with asyncio.timeout(self._settings.tool_seconds):
                result = await self._toolbox.call(progress.caller, tool, arguments)
            outcome = "failed" if result.error else "completed"
            return result
        except TimeoutError:
            outcome = "timeout"
            limit = self._settings.tool_seconds
            return ToolResult(error=f"The tool did not answer within {limit:g} s. {MAY_HAVE_RUN}")
        except Exception as exc:  # noqa: BLE001 - the model gets the error; the turn continues
            log.exception("tool.failed", turn_id=progress.run.turn.id, tool=tool.function)
            return ToolResult(error=f"The tool failed: {type(exc).__name__}. {MAY_HAVE_RUN}")
        finally:
            seconds = monotonic() - started
            self._gateway.meter.tool_called(tool.function, call.call_id, outcome, seconds)
            log.info(
                "tool.called",
                turn_id=progress.run.turn.id,
                session_id=progress.run.session.id,
                tool=tool.function,
                outcome=outcome,
                ms=round(seconds * 1000),
            )

    def _bounded(
        self, progress: ToolProgress, completions: Sequence[GatewayCompletion]
    ) -> list[GatewayCompletion]:
        """Truncate outputs to the limits of one output and of a turn."""
        bounded: list[GatewayCompletion] = []
        for completion in completions:
            bytes_left = max(self._settings.turn_bytes - progress.output_bytes, 1024)
            limit = min(self._settings.output_bytes, bytes_left)
            output, error = cut(completion.output, limit), cut(completion.error, limit)
            progress.output_bytes += len((output or error or "").encode())
            bounded.append(replace(completion, output=output, error=error))
        return bounded

    def _show_completions(
        self,
        progress: ToolProgress,
        calls: Sequence[GatewayCall],
        completions: Sequence[GatewayCompletion],
        known: int,
    ) -> None:
        """Publish the ends of calls, after they were committed."""
        writer = progress.writer
        if writer is None:
            return
        for call, completion in zip(calls, completions, strict=True):
            index = progress.indexes.pop(call.item_id, None)
            if index is None:
                # The call belongs to an earlier answer.
                index, known = known, known + 1
                writer.write(begin_events(call, index))
            writer.write(end_events(completion, index))
        writer.begin_step()

    def _end(self, progress: ToolProgress, answer: Answer, items: Sequence[NewItem]) -> ToolTurn:
        """Return the end of a turn whose model has answered."""
        if progress.steps or progress.run.turn.step:
            items = [*items, *self._words(progress, items)]
        bodies = [item.body for item in items]
        counted = progress.usage
        if counted is not None and answer.usage is not None:
            counted = subtract_usage(counted, answer.usage)
        return ToolTurn(
            answer=replace(
                answer,
                items=bodies,
                usage=progress.usage,
                usage_detail=progress.usage_detail,
            ),
            output=client_output([*progress.bodies, *bodies]),
            pending=_client_calls(items) if answer.status == "completed" else (),
            counted=counted,
        )


def _has_made_calls(run: ActiveRun, own: Sequence[StoredItem]) -> bool:
    """Whether an earlier run of the turn may have made calls, given the items that are shown.

    A turn that is resumed after an interruption or a failure counts its attempts anew. Items that
    are not shown were hidden or replaced by a summary.
    """
    count = run.session.head_seq - (run.turn.first_seq or 1) + 1
    return len(own) < count or any(item.kind == CALL for item in own)


def _has_calls_left(own: Sequence[StoredItem]) -> bool:
    """Whether an earlier run of the turn left calls that wait for no approval."""
    open_calls = find_open_calls(own)
    return any(not _waits(call, open_calls) for call in open_calls.calls)


def _waits_for_approval(item: NewItem) -> bool:
    """Whether a call needs an approval."""
    call = load_item(item.body)
    return isinstance(call, GatewayCall) and call.code is not None


def _known_lists(
    items: Sequence[StoredItem],
) -> dict[str, tuple[list[msgspec.Raw], str | None]]:
    """Return the last known tools of each server, or why there are none."""
    lists: dict[str, tuple[list[msgspec.Raw], str | None]] = {}
    for item in items:
        if item.kind == TOOL_LIST:
            listed = load_item(item.body)
            assert isinstance(listed, ToolList)
            lists[listed.server_label] = listed.tools, listed.error
    return lists


def _waits(call: GatewayCall, open_calls: OpenCalls) -> bool:
    """Whether a call waits for its approval."""
    return call.code is not None and call.id not in open_calls.approvals


def _client_calls(items: Sequence[NewItem]) -> tuple[str, ...]:
    stored = [
        StoredItem("", place, 1, item.kind, None, item.call_id, b"", False, item.body)
        for place, item in enumerate(items, 1)
    ]
    return find_open_calls(stored).client_calls


def _max_calls(request: TurnRequest) -> int | None:
    raw = request.fields.get("max_tool_calls")
    value = msgspec.json.decode(raw) if raw is not None else None
    return value if isinstance(value, int) else None


def cut(text: str | None, limit: int) -> str | None:
    """Return text cut to about `limit` bytes, with a note where it was cut."""
    if text is None or len(text) * 4 <= limit:
        return text
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return text
    kept = encoded[:limit].decode("utf-8", "ignore")
    return f"{kept}\n[cut here: the first {limit} of {len(encoded)} bytes are shown]"
