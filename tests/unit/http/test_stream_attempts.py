"""Streams of turns that are attempted more than once: no reader joins the text of two attempts."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.core.ids import DEFAULT_TENANT
from holdfast.core.transaction.commands import ExpireWorker, Extend
from holdfast.engine.settings import LaneSettings
from holdfast.ports.store import Store
from tests.in_process import RunningGateway, open_gateway
from tests.streaming import Stream, TalkingModel, numbers
from tests.unit.http.test_streams import BIG, BreakingModel, ask

LANES = LaneSettings(lease_seconds=600, poll_seconds=600)
"""No process notices by itself that it, or another one, was paused."""
LONG = tuple(f"{number:05d}{BIG}" for number in range(60))
"""More than a stream keeps in memory, so that its journal begins before its end."""


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'holdfast.db'}"


def post(gateway: RunningGateway) -> Stream:
    headers = {"X-Session-Key": "k", "Idempotency-Key": "once"}
    return Stream(gateway.server, "POST", "/v1/responses", ask(), headers=headers)


def text(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if "delta" in event)


def paused_model(count: int, words: tuple[str, ...] = LONG) -> BreakingModel:
    model = BreakingModel(count, ProviderFailure("gone", failure_class="terminal"))
    model.words = words
    model.gate.clear()
    return model


async def lose(lost: RunningGateway, other: RunningGateway) -> None:
    """Let one process end the runs of the other, as if that were dead."""
    await other.engine.store.submit(ExpireWorker(worker=lost.engine.worker.id))
    await other.engine.worker.sweep()


async def all_blocks(stream: Stream) -> AsyncIterator[str]:
    while (block := await stream.text()) is not None:
        yield block


class JournalWatch:
    """A store that tells when a batch of a journal was written before the end of its run."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self.is_written = asyncio.Event()

    def wrap(self, store: Store) -> Any:
        self._store = store
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def submit(self, command: Any) -> Any:
        assert self._store is not None
        outcome = await self._store.submit(command)
        if isinstance(command, Extend) and command.journal is not None:
            self.is_written.set()
        return outcome


@pytest.mark.parametrize("words", [("four ", "five"), tuple(f"{n} " for n in range(200))])
async def test_a_repeat_elsewhere_gets_the_answer_of_the_attempt_that_it_resumes(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    url, paused, journal = url_in(tmp_path), paused_model(62), JournalWatch()
    async with (
        open_gateway(paused, store_url=url, lanes=LANES, wrap=journal.wrap) as first,
        open_gateway(TalkingModel(*words), store_url=url, lanes=LANES) as second,
    ):
        stream = post(first)
        told = await stream.take(64)
        await journal.is_written.wait()
        repeat = post(second)
        await repeat.is_answered.wait()
        await lose(first, second)
        again = await repeat.rest()
        assert (text(again), again[-1]["type"]) == ("".join(words), "response.completed")
        assert numbers(again) == list(range(len(again)))
        paused.gate.set()
        told += await stream.rest()
        assert text(told) == "".join(LONG)
        # A checkpoint may find the loss while the turn is still interrupted, or the end of the
        # call when the turn is completed elsewhere.
        assert told[-1]["type"] in ("response.incomplete", "response.failed")


async def test_a_reader_elsewhere_gets_nothing_of_an_earlier_attempt(tmp_path: Path) -> None:
    url = url_in(tmp_path)
    broken = BreakingModel(4, ProviderFailure("gone", failure_class="transient"))
    model = TalkingModel("four ", "five ", "six", is_gated=True)
    async with (
        open_gateway(broken, store_url=url, lanes=LANES) as first,
        open_gateway(model, store_url=url, lanes=LANES) as second,
    ):
        told = await post(first).rest()
        assert (text(told), told[-1]["type"]) == ("one two ", "response.failed")
        retry = post(second)
        await retry.take(2)
        name = told[0]["response"]["id"]
        reader = first.turn_service.reader(DEFAULT_TENANT, name)
        assert await reader.take(0.001) == ()
        repeat = post(first)
        await repeat.is_answered.wait()
        model.allow_all()
        for events in (await retry.rest(), await repeat.rest()):
            assert (text(events), events[-1]["type"]) == ("four five six", "response.completed")
        assert await second.log() == ["hi", "four five six"]


async def test_a_slow_reader_of_a_lost_run_gets_nothing_of_the_next_one(tmp_path: Path) -> None:
    url, paused, journal = url_in(tmp_path), paused_model(62), JournalWatch()
    async with (
        open_gateway(paused, store_url=url, lanes=LANES, wrap=journal.wrap) as first,
        open_gateway(TalkingModel(*reversed(LONG)), store_url=url, lanes=LANES) as second,
    ):
        stream = post(first)
        name = (await stream.take(1))[0]["response"]["id"]
        reader = first.turn_service.reader(DEFAULT_TENANT, name)
        await journal.is_written.wait()
        await lose(first, second)
        assert text(await post(second).rest()) == "".join(reversed(LONG))
        kinds = [event.type for event in await reader.take(1) or ()]
        assert kinds == ["response.failed"]
        assert await reader.take(1) is None
        paused.gate.set()
        await stream.rest()


async def test_a_reader_that_saw_more_than_the_journal_gets_the_end(tmp_path: Path) -> None:
    url, journal = url_in(tmp_path), JournalWatch()
    model = TalkingModel(*LONG[:40], "one ", "two ", "three", is_gated=True)
    async with (
        open_gateway(model, store_url=url, lanes=LANES, wrap=journal.wrap) as first,
        open_gateway(TalkingModel(), store_url=url, lanes=LANES) as second,
    ):
        stream = post(first)
        model.allow(42)
        told = await stream.take(44)
        name = told[0]["response"]["id"]
        await journal.is_written.wait()
        model.allow(2)
        told += await stream.take(2)
        await lose(first, second)
        path = f"/v1/responses/{name}?stream=true&starting_after={told[-1]['sequence_number']}"
        rest = await Stream(second.server, "GET", path).rest()
        assert [event["type"] for event in rest] == ["response.incomplete"]
        model.allow_all()
        await stream.rest()


@pytest.mark.parametrize("count", [0, 4])
async def test_a_chat_stream_of_a_lost_run_ends_with_an_error(count: int, tmp_path: Path) -> None:
    url, paused = url_in(tmp_path), paused_model(count, ("one ", "two ", "three"))
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with (
        open_gateway(paused, store_url=url, lanes=LANES) as first,
        open_gateway(TalkingModel(), store_url=url, lanes=LANES) as second,
    ):
        headers = {"X-Session-Key": "k"}
        stream = Stream(first.server, "POST", "/v1/chat/completions", body, headers=headers)
        await stream.is_answered.wait()
        for _ in range(count // 2):
            await stream.text()
        await lose(first, second)
        paused.gate.set()
        blocks = [block async for block in all_blocks(stream)]
        assert not [block for block in blocks if '"finish_reason":"stop"' in block]
        assert '"code":"turn_interrupted"' in blocks[-2]
        assert blocks[-1] == "data: [DONE]"
