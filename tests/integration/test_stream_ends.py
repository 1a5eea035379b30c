"""However a stream ends, what its readers were told is what its journal tells later."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core.errors import ProviderFailure, StoreUnavailable
from holdfast.core.transaction.commands import Command, Extend
from holdfast.ports.provider import Answer, EventSink, ModelCall, ModelEvent
from holdfast.ports.store import Store
from tests.in_process import RunningGateway, open_gateway
from tests.streaming import Stream, TalkingModel, model_events, numbers

WORDS = ("one ", "two ", "three ", "four")
SAID = 5
"""Events that the model says before a test looks."""


class EndingModel(TalkingModel):
    """Says some events, waits until it may go on, says the rest at once, and ends as it is told."""

    def __init__(self, end: str) -> None:
        super().__init__(*WORDS)
        self._end = end
        self.may_end = asyncio.Event()

    async def stream(self, call: ModelCall, listener: EventSink) -> Answer:
        """Say the words, or break off before the last of them."""
        self.calls.append(call)
        events = model_events("msg_1", self.words)
        for number, (kind, data) in enumerate(events):
            if number == SAID:
                await self.may_end.wait()
            if self._end == "failed" and number == len(events) - 3:
                raise ProviderFailure("it broke", failure_class="terminal", status=400)
            listener.write([ModelEvent(kind, data)])
        is_cut = self._end == "incomplete"
        return Answer(
            items=[],
            status="incomplete" if is_cut else "completed",
            incomplete_reason="max_output_tokens" if is_cut else None,
        )


class _Unreliable:
    """A store that answers nothing that is written while a run lasts."""

    def __init__(self, store: Store, *, is_written: bool) -> None:
        self._store = store
        self._is_written = is_written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Command[Any]) -> Any:
        """Fail to answer, whether the command was carried out or not."""
        if isinstance(command, Extend):
            if self._is_written:
                await self._store.submit(command)
            raise StoreUnavailable("not now")
        return await self._store.submit(command)


def _follow(gateway: RunningGateway, name: str, after: int | None = None) -> Stream:
    more = f"&starting_after={after}" if after is not None else ""
    return Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true{more}")


WRAPS: dict[str, Callable[[Store], Any]] = {
    "kept as it comes": lambda store: store,
    "kept at the end": lambda store: _Unreliable(store, is_written=False),
    "kept unheard of": lambda store: _Unreliable(store, is_written=True),
}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("is_background", [True, False], ids=["background", "foreground"])
@pytest.mark.parametrize("end", ["completed", "incomplete", "failed"])
async def test_after_the_end_the_journal_has_every_event_and_number_that_was_sent(
    store_url: str, end: str, is_background: bool, wrap: str
) -> None:
    model = EndingModel(end)
    body = {"model": "scripted", "input": "hi", "stream": True, "background": is_background}
    async with open_gateway(model, store_url=store_url, wrap=WRAPS[wrap]) as gateway:
        stream = Stream(gateway.server, "POST", "/v1/responses", body)
        told = await stream.take(2)
        if not is_background or wrap == "kept as it comes":
            told += await stream.take(SAID)
        model.may_end.set()
        told += await stream.rest()
        assert told[-1]["type"] == f"response.{end}"
        assert numbers(told) == list(range(len(told)))
        deltas = [event["delta"] for event in told if event["type"].endswith("text.delta")]
        assert tuple(deltas) == WORDS, "all that the model said is told"
        name = told[0]["response"]["id"]
    async with open_gateway(store_url=store_url) as later:
        assert await _follow(later, name).rest() == told
        for after in range(len(told)):
            assert await _follow(later, name, after).rest() == told[after + 1 :]
