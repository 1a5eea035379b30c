"""The text of a stream is checkpointed when due, together with others that are."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.core.errors import RunFenced
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.response import ResponseFacts
from holdfast.core.openai.stream_events import Delta
from holdfast.engine.streaming.journal_writer import SHORT_CHARACTERS, JournalWriter
from holdfast.engine.streaming.live_response import LiveResponse

CHECKPOINT_MS = 200
BATCH_MS = 40


class HandMovedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time goes on when it is told to, by whole milliseconds."""

    ms = 0

    def time(self) -> float:
        return self.ms / 1000

    async def move(self, ms: int) -> None:
        """Let time pass, and what is due then be done."""
        self.ms += ms
        for _ in range(5):
            await asyncio.sleep(0)


class Run:
    """A run that keeps what it is given."""

    def __init__(self) -> None:
        self.fence = SimpleNamespace(run_id="run_1")
        self.texts: list[str] = []
        self.is_fenced = False
        self.is_aborted = False
        self.journal_sizes: list[int] = []
        """How many texts were stored when each batch of the journal was."""

    async def extend(self, *, partial: Sequence[NewItem] | None, journal: Any) -> None:
        if self.is_fenced:
            raise RunFenced("the lane is lost")
        for item in partial or ():
            self.texts.append(msgspec.json.decode(item.body)["content"][0]["text"])
        if journal is not None:
            self.journal_sizes.append(len(self.texts))

    def abort(self) -> None:
        self.is_aborted = True


class Streaming:
    """A stream that says something when it is told to."""

    def __init__(self, *, is_background: bool = False) -> None:
        request = TurnRequest(
            api="responses", model="m", is_stream=True, is_background=is_background
        )
        live = LiveResponse(
            ResponseFacts(id="resp_1", request=request, created_at=0.0, status="in_progress")
        )
        self.run = Run()
        self.writer = JournalWriter(cast(Any, self.run), live)
        live.open("in_progress")
        self.writer.start()

    def say(self, words: str) -> None:
        kind = "response.output_text.delta"
        said = Delta(type=kind, item_id="msg_1", output_index=0, content_index=0, delta=words)
        self.writer.write([said])


def played(ms: int, scenario: Callable[[HandMovedLoop], Awaitable[None]]) -> None:
    loop = HandMovedLoop()
    loop.ms = ms

    async def play() -> None:
        await scenario(loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(play())


@pytest.mark.parametrize("ms", range(100_000, 100_020))
def test_text_is_kept_after_a_fifth_of_a_second_whatever_the_time(ms: int) -> None:
    async def scenario(loop: HandMovedLoop) -> None:
        stream = Streaming()
        stream.say("one")
        await loop.move(CHECKPOINT_MS)
        assert stream.run.texts == ["one"]
        stream.say(" two")
        await loop.move(CHECKPOINT_MS)
        assert stream.run.texts == ["one", "one two"]
        await stream.writer.settle()

    played(ms, scenario)


def test_a_background_stream_stores_its_text_with_each_batch_of_its_journal() -> None:
    async def scenario(loop: HandMovedLoop) -> None:
        stream = Streaming(is_background=True)
        stream.say("one")
        await loop.move(BATCH_MS)
        stream.say(" two")
        await loop.move(BATCH_MS)
        # If the process dies or is stopped now, a cancel keeps all that readers were shown.
        assert stream.run.texts == ["one", "one two"]
        assert stream.run.journal_sizes == [1, 2]
        await stream.writer.settle()

    played(100_000, scenario)


def test_a_run_that_lost_its_lane_is_aborted_at_its_next_checkpoint() -> None:
    async def scenario(loop: HandMovedLoop) -> None:
        stream = Streaming()
        stream.say("one")
        stream.run.is_fenced = True
        await loop.move(CHECKPOINT_MS)
        # The upstream may be silent for long, so the run would not notice by itself.
        assert stream.run.is_aborted

    played(100_000, scenario)


def test_a_long_text_of_a_background_stream_is_stored_at_checkpoints_only() -> None:
    async def scenario(loop: HandMovedLoop) -> None:
        stream = Streaming(is_background=True)
        stream.say("x" * (SHORT_CHARACTERS + 1))
        await loop.move(BATCH_MS)
        assert stream.run.journal_sizes == [0]
        await loop.move(CHECKPOINT_MS)
        assert len(stream.run.texts) == 1
        await stream.writer.settle()

    played(100_000, scenario)


def test_texts_that_are_due_close_together_are_kept_together() -> None:
    async def scenario(loop: HandMovedLoop) -> None:
        first = Streaming()
        first.say("one")
        await loop.move(8)
        second = Streaming()
        second.say("two")
        await loop.move(CHECKPOINT_MS - 10)
        assert (first.run.texts, second.run.texts) == ([], [])
        await loop.move(1)
        assert (first.run.texts, second.run.texts) == (["one"], ["two"])
        await first.writer.settle()
        await second.writer.settle()

    # Where 20 ms begin, so that both are due when they end.
    played(100_001, scenario)
