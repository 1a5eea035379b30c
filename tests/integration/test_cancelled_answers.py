"""A cancelled or interrupted answer keeps all that was shown of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.engine.settings import StreamSettings
from tests.in_process import RunningGateway, open_gateway
from tests.streaming import Stream, TalkingModel

WORDS = tuple(f"word{number} " for number in range(24))
pytestmark = pytest.mark.usefixtures("slow_stops")


@pytest.fixture(name="gateway")
async def _gateway(store_url: str) -> AsyncIterator[RunningGateway]:
    model = TalkingModel(*WORDS, "and more", is_gated=True)
    async with open_gateway(model, store_url=store_url) as gateway:
        yield gateway
        model.allow_all()


async def _start(gateway: RunningGateway, **more: Any) -> tuple[Stream, str]:
    """Stream a turn until all words but the last were received; return it and its text."""
    body = {"model": "scripted", "input": "go", "stream": True, **more}
    headers = {"X-Session-Key": "k"}
    stream = Stream(gateway.server, "POST", "/v1/responses", body, headers=headers)
    assert isinstance(gateway.model, TalkingModel)
    gateway.model.allow(2 + len(WORDS))
    shown = ""
    while len(shown.split()) < len(WORDS):
        event = await stream.next()
        assert event is not None
        shown += event["delta"] if event["type"] == "response.output_text.delta" else ""
    return stream, shown


def _text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def test_a_cancelled_turn_keeps_every_word_that_was_delivered(
    gateway: RunningGateway,
) -> None:
    stream, shown = await _start(gateway)
    cancelled = await gateway.client.post(f"/v1/turns/{stream.headers['x-turn-id']}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    end = (await stream.rest())[-1]
    assert end["type"] == "response.incomplete"
    assert _text(end["response"]) == shown
    assert await gateway.log() == ["go", shown]


async def test_the_journal_and_the_final_response_of_a_cancelled_background_turn_agree(
    gateway: RunningGateway,
) -> None:
    stream, shown = await _start(gateway, background=True)
    name = stream.headers["x-turn-id"].replace("turn_", "resp_")
    final = (await gateway.client.post(f"/v1/responses/{name}/cancel")).json()
    assert final["status"] == "cancelled"
    assert _text(final) == shown
    reader = Stream(gateway.server, "GET", f"/v1/responses/{name}?stream=true")
    events = await reader.rest()
    deltas = [one["delta"] for one in events if one["type"] == "response.output_text.delta"]
    assert "".join(deltas) == shown
    assert events[-1]["type"] == "response.incomplete"
    assert _text(events[-1]["response"]) == shown


async def test_a_turn_that_cuts_in_leaves_every_word_that_was_delivered(
    gateway: RunningGateway,
) -> None:
    stream, shown = await _start(gateway)
    asked = asyncio.create_task(gateway.respond("stop", headers={"X-On-Busy": "interrupt"}))
    await gateway.model.entered.acquire()
    await gateway.model.entered.acquire()
    assert (await stream.rest())[-1]["type"] == "response.incomplete"
    assert isinstance(gateway.model, TalkingModel)
    gateway.model.allow_all()
    await asked
    assert (await gateway.log())[:3] == ["go", shown, "stop"]


async def test_a_client_that_leaves_keeps_what_it_was_shown_where_that_cancels(
    store_url: str,
) -> None:
    model = TalkingModel(*WORDS, "and more", is_gated=True)
    streams = StreamSettings(on_disconnect="cancel")
    async with open_gateway(model, store_url=store_url, streams=streams) as gateway:
        stream, shown = await _start(gateway)
        await stream.leave()
        assert await gateway.log() == ["go", shown]
        model.allow_all()


async def test_a_turn_that_is_cancelled_at_another_replica_keeps_every_word(
    gateway: RunningGateway, store_url: str
) -> None:
    async with open_gateway(store_url=store_url) as other:
        stream, shown = await _start(gateway)
        path = f"/v1/turns/{stream.headers['x-turn-id']}/cancel"
        assert (await other.client.post(path)).json()["status"] == "cancelled"
        assert (await stream.rest())[-1]["type"] == "response.incomplete"
        assert await other.log() == ["go", shown]


async def test_a_client_that_is_still_reading_is_not_superseded_by_another_replica(
    gateway: RunningGateway, store_url: str
) -> None:
    async with open_gateway(store_url=store_url) as other:
        stream, shown = await _start(gateway)
        history = [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": shown},
            {"role": "user", "content": "and then?"},
        ]
        asked = asyncio.create_task(other.respond(history))
        await other.until_queued(1)
        assert isinstance(gateway.model, TalkingModel)
        gateway.model.allow_all()
        assert (await stream.rest())[-1]["type"] == "response.completed"
        await asked
        # What the history repeats of the turn in flight is not new.
        assert await other.log() == ["go", f"{shown}and more", "and then?", "re:and then?"]


async def test_a_turn_that_cuts_in_at_another_replica_leaves_every_word(
    gateway: RunningGateway, store_url: str
) -> None:
    async with open_gateway(store_url=store_url) as other:
        stream, shown = await _start(gateway)
        await other.respond("stop", headers={"X-On-Busy": "interrupt"})
        assert (await stream.rest())[-1]["type"] == "response.incomplete"
        assert await other.log() == ["go", shown, "stop", "re:stop"]
