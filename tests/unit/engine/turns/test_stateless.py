"""Stateless requests: how their streams begin, and how they end after a failure."""

from collections.abc import Sequence

import msgspec
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.model.items import message
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.stream_events import StreamEvent
from holdfast.engine.turns.stateless import StatelessExecutor
from holdfast.ports.provider import Answer, AnyEvent, EventSink, ModelCall
from tests.in_process import ScriptedModel

ASKED = TurnRequest(api="responses", model="m", is_stored=False, is_stream=True)


class BreakingModel(ScriptedModel):
    """Says so many events of its answer, then breaks."""

    def __init__(self, events: int) -> None:
        super().__init__()
        self._events = events

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Begin as scripted."""
        return await super().stream(call, Interrupted(sink, self._events))


class Interrupted:
    """Hears so many events, and no more."""

    def __init__(self, sink: EventSink, count: int) -> None:
        self._sink = sink
        self._left = count
        self.drain = sink.drain

    def write(self, events: Sequence[AnyEvent]) -> bool:
        if not self._left:
            raise ProviderFailure("broke", failure_class="transient")
        self._left -= 1
        return self._sink.write(events)


async def kinds(model: ScriptedModel, *, is_open: bool) -> list[str]:
    passing = StatelessExecutor(lambda _: model, lambda prefix: f"{prefix}_1")
    stream = passing.stream(ASKED, [message("user", "hi")])
    events: list[StreamEvent] = []
    if not is_open:
        await stream.begin(60)
    while (told := await stream.take(60)) is not None:
        events += told
    await stream.close()
    assert [event.number for event in events] == list(range(len(events)))
    assert all(msgspec.json.decode(e.body)["sequence_number"] == e.number for e in events)
    return [event.type.removeprefix("response.") for event in events]


async def test_a_failure_before_the_first_word_is_raised() -> None:
    with pytest.raises(ProviderFailure):
        await kinds(BreakingModel(0), is_open=False)


async def test_where_a_stream_was_promised_the_failure_ends_it() -> None:
    assert await kinds(BreakingModel(0), is_open=True) == ["created", "in_progress", "failed"]


async def test_a_failure_in_mid_stream_ends_it() -> None:
    said = await kinds(BreakingModel(2), is_open=False)
    assert said[:3] == ["created", "in_progress", "output_item.added"]
    assert said[-1] == "failed"


async def test_an_answer_ends_in_its_terminal_event() -> None:
    assert (await kinds(ScriptedModel(), is_open=False))[-1] == "completed"
