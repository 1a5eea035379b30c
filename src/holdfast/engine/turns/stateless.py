"""Requests that leave nothing behind: asked, answered, forgotten.

No turn, no row, no heal. What the client must know of the conversation it brings along, and what
it should keep of the answer it keeps itself.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from holdfast.core.compaction.records import compaction_item
from holdfast.core.compaction.summary_prompts import transcript
from holdfast.core.errors import HoldfastError, ProviderFailure
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.encrypted_reasoning import shows_encrypted, without_encrypted
from holdfast.core.openai.response import ResponseFacts, error_value
from holdfast.core.openai.stream_events import (
    CREATED,
    IN_PROGRESS,
    Delta,
    StreamEvent,
    begun,
    model_event,
    numbered,
    terminal,
)
from holdfast.engine.context.compactor import WHOLE_BYTES, Compactor, as_stored
from holdfast.engine.model_call.compaction_events import (
    compaction_events,
    preface_events,
    shift_output_index,
)
from holdfast.engine.streaming.stream_reader import PushCallback
from holdfast.engine.turns.executor import record_of
from holdfast.ports.provider import Answer, AnyEvent, ModelCall, Provider

HELD_BYTES = 64 * 1024
"""How much is held unread before the model has to wait."""


class StatelessExecutor:
    """Asks models for requests of which nothing is kept."""

    def __init__(
        self,
        route: Callable[[str], Provider],
        new_id: Callable[[str], str],
        compactor: Compactor | None = None,
    ) -> None:
        self._route = route
        self._new_id = new_id
        self._compactor = compactor

    async def answer(self, request: TurnRequest, items: Sequence[NewItem]) -> ResponseFacts:
        """Return the whole response."""
        facts = self._begin(request)
        provider = self._route(request.model)
        if request.is_compaction and self._compactor is not None:
            return _ended(facts, await self._digest(self._compactor, request, items))
        call, preface = await self._put(request, provider, items)
        answer = await provider.answer(call)
        return _ended(facts, replace(answer, items=[*preface, *answer.items]))

    async def _put(
        self, request: TurnRequest, provider: Provider, items: Sequence[NewItem]
    ) -> tuple[ModelCall, tuple[bytes, ...]]:
        """Return the call, and what its answer begins with: the compaction that was asked for."""
        if self._compactor is None:
            return _call(request, [item.body for item in items]), ()
        passed = await self._compactor.pass_on(request, provider, items)
        return _call(self._compactor.sent(request), passed.items), passed.preface

    async def _digest(
        self, compactor: Compactor, request: TurnRequest, items: Sequence[NewItem]
    ) -> Answer:
        """Answer with one item that stands for everything that was sent."""
        shown = as_stored(items)
        most = sum(len(item.body) for item in shown)
        text, usage = await compactor.digest(
            shown, model=request.model, prompt=None, most_bytes=most
        )
        if text is None:
            text = transcript(shown, WHOLE_BYTES)
        return Answer(items=[compaction_item(self._new_id("cmp"), text)], usage=usage)

    async def _told(
        self, request: TurnRequest, items: Sequence[NewItem], stream: "StatelessStream"
    ) -> Answer:
        """Have a stream hear what the model says, behind what is said for it."""
        if request.is_compaction and self._compactor is not None:
            answer = await self._digest(self._compactor, request, items)
            stream.write(list(compaction_events(answer.items[0], 0, is_sampled=True)))
            return answer
        provider = self._route(request.model)
        call, stream.preface = await self._put(request, provider, items)
        answer = await provider.stream(call, stream)
        return replace(answer, items=[*stream.preface, *answer.items])

    def stream(self, request: TurnRequest, items: Sequence[NewItem]) -> "StatelessStream":
        """Return the response's events, to be read and closed."""
        return StatelessStream(self._begin(request), lambda told: self._told(request, items, told))

    def _begin(self, request: TurnRequest) -> ResponseFacts:
        return ResponseFacts(
            id=self._new_id("resp"),
            request=request,
            created_at=time.time(),
            status="in_progress",
        )


def _call(request: TurnRequest, items: list[bytes]) -> ModelCall:
    return ModelCall(
        model=request.model,
        items=items,
        fields=request.fields,
        chat_fields=request.chat_fields,
        is_stream=request.is_stream,
        keeps_state=False,
    )


class StatelessStream:
    """The events of a response for its one reader, who has the model wait if it is slow."""

    def __init__(
        self, facts: ResponseFacts, ask: Callable[["StatelessStream"], Awaitable[Answer]]
    ) -> None:
        self.preface: tuple[bytes, ...] = ()
        """What the answer begins with before the model speaks."""
        self._facts = facts
        self._hides_sealed = not shows_encrypted(facts.request)
        self._ask = ask
        self._asking: asyncio.Task[Answer] | None = None
        self._events: list[StreamEvent] = []
        self._number = 0
        self._size = 0
        self._is_quiet = False
        self.is_over = False
        """Whether the last event has been taken."""
        self._push: PushCallback | None = None
        self._heard_at = 0.0
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    # ── the model's side ────────────────────────────────────────────────────────────────────

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Number what the model says, and keep it until it is read."""
        told = [] if self._number else self._opening()
        by = len(self.preface)
        for event in events:
            told.append(self._numbered(shift_output_index(event, by)))
        self._tell(told)
        return self._size <= HELD_BYTES

    async def drain(self) -> None:
        """Wait for the reader."""
        while self._size > HELD_BYTES:
            self._room.clear()
            await self._room.wait()

    def _opening(self) -> list[StreamEvent]:
        facts = self._facts
        told = [
            begun(CREATED, self._next(), facts, "in_progress"),
            begun(IN_PROGRESS, self._next(), facts, "in_progress"),
        ]
        return told + [self._numbered(event) for event in preface_events(self.preface)]

    def _numbered(self, event: AnyEvent) -> StreamEvent:
        if isinstance(event, Delta):
            return numbered(event, self._next())
        data, item = event.data, event.data.get("item")
        if self._hides_sealed and isinstance(item, dict):
            data = {**data, "item": without_encrypted(item)}
        return model_event(event.type, self._next(), data)

    def _next(self) -> int:
        self._number += 1
        return self._number - 1

    def _tell(self, events: list[StreamEvent]) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        if self._push is not None and not self._events and self._push(events):
            return
        self._events += events
        self._size += sum(len(event.body) for event in events)
        self._news.set()

    # ── the reader's side ───────────────────────────────────────────────────────────────────

    async def begin(self, seconds: float) -> None:
        """Wait for the first event, for so long at most; a failure before it is raised."""
        await self._wait(seconds)
        if not self._events and self._asking is not None and self._asking.done():
            self._asking.result()
        self._is_quiet = not self._news.is_set()

    async def take(
        self, seconds: float, push: PushCallback | None = None
    ) -> Sequence[StreamEvent] | None:
        """Return the next events; see `StreamReader`."""
        if self._is_quiet:
            self._is_quiet = False
            return ()
        if not self._events and not self.is_over:
            self._push = push
            try:
                await self._wait(seconds)
            finally:
                self._push = None
        if not self._events and self._asking is not None and self._asking.done():
            self._end(self._asking)
        events, self._events, self._size = self._events, [], 0
        self._room.set()
        return events if events or not self.is_over else None

    async def close(self) -> None:
        """Ask no longer."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _wait(self, seconds: float) -> None:
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask(self))
            self._asking.add_done_callback(lambda _: self._news.set())
        if self._asking.done():
            return
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        self._news.clear()
        while not self._news.is_set() and (left := self._heard_at + seconds - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._news.wait()

    def _end(self, asking: "asyncio.Task[Answer]") -> None:
        """Tell how it ended, once."""
        if self.is_over:
            return
        self.is_over = True
        try:
            ended = _ended(self._facts, asking.result())
        except HoldfastError as error:
            code = error.provider_code if isinstance(error, ProviderFailure) else None
            shown = error_value(code, error.message)
            ended = replace(self._facts, status="failed", error=shown)
        told = [] if self._number else self._opening()
        self._events += [*told, terminal(self._next(), ended)]


def _ended(facts: ResponseFacts, answer: Answer) -> ResponseFacts:
    return replace(
        facts, status=answer.status, output=answer.items, answer=record_of(answer, time.time())
    )
