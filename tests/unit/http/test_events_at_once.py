"""Events are pushed to the socket while the client keeps up, and queued when it does not."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from holdfast.engine.settings import StreamSettings
from holdfast.engine.streaming.live_response import READ_BYTES
from holdfast.http.server.exchange import Exchange
from holdfast.http.server.types import ValueT
from tests.in_process import RunningGateway, open_gateway
from tests.streaming import Stream, TalkingModel, kinds, numbers

WORDS = tuple(f"word {number} " for number in range(12))


class CountingExchange(Exchange):
    """An exchange that accepts pushed chunks only as `keeps_up` says, and counts them."""

    keeps_up: Iterator[bool]
    pushed: list[int]

    def push(self, encode: Callable[[ValueT], bytes], value: ValueT) -> bool:
        """Push a value if the client keeps up, and count its chunk."""

        def counted(value: ValueT) -> bytes:
            chunk = encode(value)
            if chunk:
                self.pushed.append(len(chunk))
            return chunk

        return next(self.keeps_up) and super().push(counted, value)


async def _say_all(model: TalkingModel, words: tuple[str, ...] = WORDS) -> None:
    for _ in range(len(words) + 5):
        model.allow()
        await model.sent.acquire()
    model.allow_all()


def _stream(
    gateway: RunningGateway, path: str, keeps_up: Iterator[bool], **more: Any
) -> tuple[Stream, list[int]]:
    """Start a stream; return it with the sizes of the chunks that are pushed."""
    pushed: list[int] = []
    attributes = {"keeps_up": keeps_up, "pushed": pushed}
    gateway.server.protocol.exchange_class = type("Exchange", (CountingExchange,), attributes)
    body = {"model": "scripted", "stream": True, **more}
    return Stream(gateway.server, "POST", path, body, headers={"X-Session-Key": "k"}), pushed


@pytest.mark.parametrize(
    ("pattern", "most", "least"),
    [((True,), 99, 12), ((False,), 0, 0), ((True, False), 99, 5), ((False, False, True), 99, 3)],
    ids=["always", "never", "by-turns", "seldom"],
)
@pytest.mark.parametrize("asked", [{}, {"store": False}, {"background": True}], ids=str)
async def test_every_event_arrives_once_and_in_order_pushed_or_queued(
    pattern: tuple[bool, ...], most: int, least: int, asked: dict[str, bool]
) -> None:
    model = TalkingModel(*WORDS, is_gated=True)
    async with open_gateway(model) as gateway:
        stream, pushed = _stream(
            gateway, "/v1/responses", itertools.cycle(pattern), input="hi", **asked
        )
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
        assert (least if "background" not in asked else 0) <= len(pushed) <= most


async def test_a_large_event_is_queued_instead_of_pushed_and_arrives_in_order() -> None:
    words = ("a word", "x" * 2 * READ_BYTES, "another")
    model = TalkingModel(*words, is_gated=True)
    async with open_gateway(model) as gateway:
        stream, pushed = _stream(gateway, "/v1/responses", itertools.repeat(True), input="hi")
        told = await stream.take(1)
        await _say_all(model, words)
        told += await stream.rest()
        assert numbers(told) == list(range(len(told)))
        deltas = [event["delta"] for event in told if event["type"].endswith("text.delta")]
        assert deltas == list(words)
        assert max(pushed) <= READ_BYTES


async def test_a_client_that_keeps_up_also_gets_keep_alive_comments() -> None:
    model = TalkingModel(*WORDS, is_gated=True)
    async with open_gateway(model, streams=StreamSettings(keep_alive_seconds=0.01)) as gateway:
        stream, pushed = _stream(gateway, "/v1/responses", itertools.repeat(True), input="hi")
        await stream.take(1)
        model.allow(3)
        for _ in range(3):
            await model.sent.acquire()
        assert pushed
        text = await stream.text()
        while text is not None and not text.startswith(":"):
            text = await stream.text()
        assert text == ": keep-alive"
        model.allow_all()
        assert (await stream.rest())[-1]["type"] == "response.completed"


@pytest.mark.parametrize("pattern", [(True,), (False,), (True, False)])
async def test_chat_chunks_arrive_once_and_in_order_pushed_or_queued(
    pattern: tuple[bool, ...],
) -> None:
    model = TalkingModel(*WORDS, is_gated=True)
    async with open_gateway(model) as gateway:
        messages = [{"role": "user", "content": "hi"}]
        stream, pushed = _stream(
            gateway, "/v1/chat/completions", itertools.cycle(pattern), messages=messages
        )
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
        assert (len(pushed) > 0) == any(pattern)
