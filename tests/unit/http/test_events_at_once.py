"""Events leave by the shortest way while their client keeps up; none is lost when it does not."""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.engine.settings import StreamSettings
from holdfast.engine.streaming.live_response import READ_BYTES
from holdfast.http.app import Application
from holdfast.http.server.types import AsgiRequest, Request, Wire
from tests.in_process import House, open_house
from tests.streaming import Stream, TalkingModel, kinds, numbers

WORDS = tuple(f"word {number} " for number in range(12))


class WiredStream(Stream):
    """A client on a wire that can be written to at once, whenever it keeps up."""

    def __init__(
        self, application: Application, path: str, body: Any, *, keeps_up: Iterator[bool]
    ) -> None:
        self.written = 0
        self.longest = 0
        self._keeps_up = keeps_up
        super().__init__(application, "POST", path, body, headers={"X-Session-Key": "k"})

    def _request(self, scope: dict[str, Any]) -> Request:
        request = WiredRequest(scope, self._receive, self._send)
        request.stream = self
        return request

    @property
    def is_writable(self) -> bool:
        """Whether the client keeps up."""
        return next(self._keeps_up)

    def write(self, body: bytes) -> None:
        """Take a piece at once."""
        assert body
        self.written += 1
        self.longest = max(self.longest, len(body))
        self._chunks.put_nowait(body)


class WiredRequest(AsgiRequest):
    """A request that came over such a wire."""

    stream: WiredStream

    @property
    def wire(self) -> Wire:
        """The client's end."""
        return self.stream


async def _say_all(model: TalkingModel, words: tuple[str, ...] = WORDS) -> None:
    for _ in range(len(words) + 5):
        model.allow()
        await model.said.acquire()
    model.let_go()


def _stream(house: House, path: str, keeps_up: Iterator[bool], **more: Any) -> WiredStream:
    asked = {"model": "scripted", "stream": True, **more}
    return WiredStream(house.application, path, asked, keeps_up=keeps_up)


@pytest.mark.parametrize(
    ("pattern", "most", "least"),
    [((True,), 99, 12), ((False,), 0, 0), ((True, False), 99, 5), ((False, False, True), 99, 3)],
    ids=["always", "never", "by-turns", "seldom"],
)
@pytest.mark.parametrize("asked", [{}, {"store": False}, {"background": True}], ids=str)
async def test_every_event_arrives_once_and_in_order_by_either_way(
    pattern: tuple[bool, ...], most: int, least: int, asked: dict[str, bool]
) -> None:
    model = TalkingModel(*WORDS, is_gated=True)
    async with open_house(model) as house:
        stream = _stream(house, "/v1/responses", itertools.cycle(pattern), input="hi", **asked)
        told = await stream.take(1)
        await _say_all(model)
        told += await stream.rest()
        assert stream.is_complete
        assert not stream.comments
        assert numbers(told) == list(range(len(told)))
        deltas = [event["delta"] for event in told if event["type"].endswith("text.delta")]
        assert deltas == list(WORDS)
        assert kinds(told)[-1] == "completed"
        # What is kept before it is told comes in batches.
        assert (least if "background" not in asked else 0) <= stream.written <= most


async def test_much_that_is_said_at_once_arrives_by_the_longer_way_and_in_order() -> None:
    words = ("a word", "x" * 2 * READ_BYTES, "another")
    model = TalkingModel(*words, is_gated=True)
    async with open_house(model) as house:
        stream = _stream(house, "/v1/responses", itertools.repeat(True), input="hi")
        told = await stream.take(1)
        await _say_all(model, words)
        told += await stream.rest()
        assert numbers(told) == list(range(len(told)))
        deltas = [event["delta"] for event in told if event["type"].endswith("text.delta")]
        assert deltas == list(words)
        assert stream.longest <= READ_BYTES


async def test_a_client_that_keeps_up_is_kept_alive_by_comments_all_the_same() -> None:
    model = TalkingModel(*WORDS, is_gated=True)
    async with open_house(model, streams=StreamSettings(keep_alive_seconds=0.01)) as house:
        stream = _stream(house, "/v1/responses", itertools.repeat(True), input="hi")
        await stream.take(1)
        model.allow(3)
        for _ in range(3):
            await model.said.acquire()
        assert stream.written
        text = await stream.text()
        while text is not None and not text.startswith(":"):
            text = await stream.text()
        assert text == ": keep-alive"
        model.let_go()
        assert (await stream.rest())[-1]["type"] == "response.completed"


@pytest.mark.parametrize("pattern", [(True,), (False,), (True, False)])
async def test_chat_chunks_arrive_once_and_in_order_by_either_way(
    pattern: tuple[bool, ...],
) -> None:
    model = TalkingModel(*WORDS, is_gated=True)
    async with open_house(model) as house:
        messages = [{"role": "user", "content": "hi"}]
        stream = _stream(house, "/v1/chat/completions", itertools.cycle(pattern), messages=messages)
        assert await stream.text() is not None
        await _say_all(model)
        text = ""
        finishes = []
        while (block := await stream.text()) != "data: [DONE]":
            assert block is not None
            chunk = msgspec.json.decode(block.removeprefix("data: "))
            choice = chunk["choices"][0]
            text += choice["delta"].get("content") or ""
            finishes.append(choice["finish_reason"])
        assert text == "".join(WORDS)
        assert [one for one in finishes if one] == ["stop"]
        assert (stream.written > 0) == any(pattern)
