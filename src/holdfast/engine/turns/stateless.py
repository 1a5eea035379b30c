"""Stateless requests, of which nothing is stored: no turn, no row, no heal.

The client sends its history and keeps the answer itself. Streams use the same live response as
turns do, but here the model waits for its one reader.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from holdfast.core.compaction.records import compaction_item
from holdfast.core.compaction.summary_prompts import transcript
from holdfast.core.errors import HoldfastError, ProviderFailure
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.response import ResponseFacts, error_of
from holdfast.core.openai.stream_events import StreamEvent
from holdfast.engine.model_call.compaction_events import PrefacedSink, compaction_events
from holdfast.engine.model_call.compactor import SHORT_LOG_BYTES, Compactor, as_stored_items
from holdfast.engine.streaming.live_response import LiveCursor, LiveResponse, PushCallback
from holdfast.engine.turns.executor import log_failed_turn, record_answer
from holdfast.ports.meter import Meter
from holdfast.ports.provider import Answer, AnyEvent, EventSink, ModelCall, Provider
from holdfast.ports.request_context import note_model

UNREAD_BYTES = 64 * 1024
"""How many bytes may be unread before the model has to wait."""


class StatelessExecutor:
    """Executes stateless requests."""

    def __init__(
        self,
        route: Callable[[str], Provider],
        new_id: Callable[[str], str],
        compactor: Compactor | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._route = route
        self._new_id = new_id
        self._compactor = compactor
        self._meter = meter or Meter()

    async def answer(self, request: TurnRequest, items: Sequence[NewItem]) -> ResponseFacts:
        """Return the whole response."""
        facts = self._initial_facts(request)
        provider = self._route(request.model)
        note_model(request.model, provider.name)
        if request.is_compaction and self._compactor is not None:
            return _with_answer(facts, await self._compact(self._compactor, request, items))
        call, preface = await self._build_call(request, provider, items)
        answer = await self._metered(provider, provider.answer(call))
        return _with_answer(facts, replace(answer, items=[*preface, *answer.items]))

    def stream(self, request: TurnRequest, items: Sequence[NewItem]) -> "StatelessStream":
        """Return the stream of a response; the caller must read and close it."""
        facts = self._initial_facts(request)
        return StatelessStream(facts, lambda sink: self._stream(request, items, sink))

    async def _stream(
        self, request: TurnRequest, items: Sequence[NewItem], sink: EventSink
    ) -> Answer:
        if request.is_compaction and self._compactor is not None:
            answer = await self._compact(self._compactor, request, items)
            sink.write(list(compaction_events(answer.items[0], 0, is_sampled=True)))
            return answer
        provider = self._route(request.model)
        note_model(request.model, provider.name)
        call, preface = await self._build_call(request, provider, items)
        if not preface:
            return await self._metered(provider, provider.stream(call, sink))
        prefaced = PrefacedSink(sink, preface)
        answer = await self._metered(provider, provider.stream(call, prefaced))
        prefaced.begin()
        return replace(answer, items=[*preface, *answer.items])

    async def _metered(self, provider: Provider, answering: Awaitable[Answer]) -> Answer:
        """Return an answer, and record how long the provider took."""
        started_at, outcome = time.monotonic(), "left"
        try:
            answer = await answering
            outcome = answer.status
            return answer
        except ProviderFailure as failure:
            outcome = failure.failure_class
            raise
        finally:
            seconds = time.monotonic() - started_at
            self._meter.upstream_answered(provider.name, outcome, seconds)

    async def _build_call(
        self, request: TurnRequest, provider: Provider, items: Sequence[NewItem]
    ) -> tuple[ModelCall, tuple[bytes, ...]]:
        """Return the call, and the compaction item that its answer begins with, if any."""
        bodies, preface = [item.body for item in items], tuple[bytes, ...]()
        if self._compactor is not None:
            fitted = await self._compactor.fit_stateless(request, provider, items)
            bodies, preface = fitted.items, fitted.preface
            request = self._compactor.strip_gateway_fields(request)
        if request.fields or request.chat_fields:
            # Without the items: a history may have some from another upstream.
            provider.check(_model_call(request, []))
        return _model_call(request, bodies), preface

    async def _compact(
        self, compactor: Compactor, request: TurnRequest, items: Sequence[NewItem]
    ) -> Answer:
        """Answer with one item that replaces all of the input."""
        stored = as_stored_items(items)
        max_bytes = sum(len(item.body) for item in stored)
        text, usage = await compactor.summarize_items(
            stored, model=request.model, prompt=None, max_bytes=max_bytes
        )
        if text is None:
            text = transcript(stored, SHORT_LOG_BYTES)
        return Answer(items=[compaction_item(self._new_id("cmp"), text)], usage=usage)

    def _initial_facts(self, request: TurnRequest) -> ResponseFacts:
        return ResponseFacts(
            id=self._new_id("resp"),
            request=request,
            created_at=time.time(),
            status="in_progress",
        )


def _model_call(request: TurnRequest, items: list[bytes]) -> ModelCall:
    return ModelCall(
        model=request.model,
        items=items,
        fields=request.fields,
        chat_fields=request.chat_fields,
        is_stream=request.is_stream,
        keeps_state=False,
    )


class StatelessStream:
    """The stream of a response for its one reader; a slow reader slows down the model."""

    def __init__(self, facts: ResponseFacts, run: Callable[[EventSink], Awaitable[Answer]]) -> None:
        self._live = LiveResponse(facts, drops_unread=False)
        self._cursor = LiveCursor(self._live)
        self._run = run
        self._task: asyncio.Task[Answer] | None = None
        self._has_output = False
        self._was_silent = False
        self._was_read = asyncio.Event()
        self._bug: BaseException | None = None
        self.is_over = False
        """Whether the last event was read."""

    # ── the model's side ────────────────────────────────────────────────────────────────────

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Publish events. False means that the reader has to catch up first."""
        self._has_output = True
        self._open()
        self._live.publish(events)
        return self._unread_bytes() <= UNREAD_BYTES

    async def drain(self) -> None:
        """Wait until the reader has caught up."""
        while self._unread_bytes() > UNREAD_BYTES:
            self._was_read.clear()
            await self._was_read.wait()

    def _open(self) -> None:
        if not self._live.next_number:
            self._live.open("in_progress")
            self._live.start()

    def _unread_bytes(self) -> int:
        """Drop events that the reader has, and return the size of the others."""
        self._live.release(self._cursor.position)
        return self._live.held_bytes

    def _finish(self, task: "asyncio.Task[Answer]") -> None:
        """Publish how the response ended."""
        if task.cancelled():
            return
        facts, error = self._live.facts, task.exception()
        if error is None:
            ended = _with_answer(facts, task.result())
        elif isinstance(error, HoldfastError):
            log_failed_turn(error)
            ended = replace(facts, status="failed", error=error_of(error))
        else:
            self._bug = error
            self._live.detach()
            return
        self._open()
        self._live.end(ended)

    # ── the reader's side ───────────────────────────────────────────────────────────────────

    async def begin(self, seconds: float) -> None:
        """Wait for the first event, at most `seconds`; raise a failure that comes before it."""
        task = self._start()
        if not self._has_output and not task.done():
            self._was_silent = not await self._cursor.wait(seconds)
        if not self._has_output and task.done():
            task.result()

    async def take(
        self, seconds: float, push: PushCallback | None = None
    ) -> Sequence[StreamEvent] | None:
        """Return the next events; see `StreamReader`."""
        self._start()
        if self._was_silent:
            # `begin` has already waited that long.
            self._was_silent = False
            return ()
        events = await self._cursor.read(seconds, push)
        self._was_read.set()
        if events is None and self._bug is not None:
            raise self._bug
        self.is_over = self._cursor.is_over
        return events

    @property
    def position(self) -> int:
        """The number of the last event that was taken or pushed."""
        return self._cursor.position

    def note_progress(self) -> None:
        """Do nothing: the model waits for its reader."""

    async def close(self) -> None:
        """Cancel the call."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start(self) -> "asyncio.Task[Answer]":
        if self._task is None:
            self._task = asyncio.ensure_future(self._run(self))
            self._task.add_done_callback(self._finish)
        return self._task


def _with_answer(facts: ResponseFacts, answer: Answer) -> ResponseFacts:
    recorded = record_answer(answer, time.time())
    return replace(facts, status=answer.status, output=answer.items, answer=recorded)
