"""Requests that leave nothing behind: asked, answered, forgotten.

No turn, no row, no heal. What the client must know of the conversation it brings along, and what
it should keep of the answer it keeps itself.
"""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from holdfast.core.compaction import compaction_item
from holdfast.core.errors import HoldfastError
from holdfast.core.items import NewItem
from holdfast.core.request import TurnRequest
from holdfast.core.response import ResponseFacts, error_value
from holdfast.core.sealing import open_item, shows_sealed
from holdfast.core.stream import (
    CREATED,
    IN_PROGRESS,
    Delta,
    StreamEvent,
    begun,
    model_event,
    numbered,
    terminal,
)
from holdfast.core.summaries import transcript
from holdfast.engine.announcing import shifted, told_compaction
from holdfast.engine.compactor import WHOLE_BYTES, Compactor, as_stored
from holdfast.engine.responder import record_of
from holdfast.ports.provider import Answer, AnyEvent, ModelCall, Provider


class Passing:
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

    async def _events(
        self, request: TurnRequest, items: Sequence[NewItem]
    ) -> AsyncGenerator[AnyEvent | Answer, None]:
        """Yield what the model says, behind what is said for it."""
        if request.is_compaction and self._compactor is not None:
            answer = await self._digest(self._compactor, request, items)
            for told in told_compaction(answer.items[0], 0, is_sampled=True):
                yield told
            yield answer
            return
        provider = self._route(request.model)
        call, preface = await self._put(request, provider, items)
        is_begun = False
        async with aclosing(provider.stream(call)) as events:
            async for event in events:
                for index, body in enumerate(preface if not is_begun else ()):
                    for told in told_compaction(body, index):
                        yield told
                is_begun = True
                if isinstance(event, Answer):
                    yield replace(event, items=[*preface, *event.items])
                else:
                    yield shifted(event, len(preface))

    async def stream(
        self, request: TurnRequest, items: Sequence[NewItem], is_open: Callable[[], bool]
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the response's events. A failure before its first word is raised instead, unless
        `is_open` says that the client has been promised a stream by then."""
        facts = self._begin(request)
        hides_sealed = not shows_sealed(request)
        opening = [
            begun(CREATED, 0, facts, "in_progress"),
            begun(IN_PROGRESS, 1, facts, "in_progress"),
        ]
        number = len(opening)
        try:
            async with aclosing(self._events(request, items)) as events:
                async for event in events:
                    while opening:
                        yield opening.pop(0)
                    if isinstance(event, Answer):
                        yield terminal(number, _ended(facts, event))
                        return
                    yield _numbered(event, number, hides_sealed=hides_sealed)
                    number += 1
        except HoldfastError as error:
            if opening and not is_open():
                raise
            shown = error_value(None, error.message)
            for told in opening:
                yield told
            yield terminal(number, replace(facts, status="failed", error=shown))

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


def _numbered(event: AnyEvent, number: int, *, hides_sealed: bool) -> StreamEvent:
    if isinstance(event, Delta):
        return numbered(event, number)
    data, item = event.data, event.data.get("item")
    if hides_sealed and isinstance(item, dict):
        data = {**data, "item": open_item(item)}
    return model_event(event.type, number, data)


def _ended(facts: ResponseFacts, answer: Answer) -> ResponseFacts:
    return replace(
        facts, status=answer.status, output=answer.items, answer=record_of(answer, time.time())
    )
