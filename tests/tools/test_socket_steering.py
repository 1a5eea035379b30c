"""`response.steer` over WebSocket: input for a response that the connection is receiving."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai.types.responses.response_steer_accepted_event import ResponseSteerAcceptedEvent
from openai.types.responses.response_steer_failed_event import ResponseSteerFailedEvent
from openai.types.responses.response_steer_pending_event import ResponseSteerPendingEvent

from holdfast.engine.settings import LaneSettings
from tests.in_process import Item, RunningGateway, ScriptedModel, called, open_gateway, said
from tests.socket_client import SocketClient
from tests.streaming import Event
from tests.tools.toolboxes import SERVER, Gate, RecordingTools

MINE = {"type": "function", "name": "mine", "parameters": {"type": "object"}}


@asynccontextmanager
async def _connected(gateway: RunningGateway) -> AsyncIterator[SocketClient]:
    client = SocketClient(gateway.server)
    try:
        yield client
    finally:
        await client.leave()


async def _next(client: SocketClient, kind: str) -> Event:
    """Return the next event of a type; skip those before it."""
    while True:
        event = await client.next()
        assert event is not None
        if event["type"] == kind:
            return event
        assert event["type"] not in ("error", "response.failed", "response.steer.failed"), event


def _steer(client: SocketClient, previous: str, text: Any = "also this", **more: Any) -> None:
    client.send({"type": "response.steer", "previous_response_id": previous, "input": text, **more})


def _says_after_outputs(*calls: Item) -> ScriptedModel:
    def script(items: list[Item]) -> list[Item]:
        if any(item["type"] == "function_call_output" for item in items):
            return [said(f"seen {len(items)}")]
        return list(calls)

    return ScriptedModel(script)


async def test_input_joins_the_running_response_and_its_successor_has_the_answer() -> None:
    gate = Gate()
    model = _says_after_outputs(called("desk__slow", "c1"))
    async with (
        open_gateway(model, toolbox=lambda _: RecordingTools(slow=gate)) as gateway,
        _connected(gateway) as client,
    ):
        client.create("go", tools=[SERVER], stream_id="lane")
        previous = (await _next(client, "response.created"))["response"]["id"]
        await gate.entered.wait()
        for text in ("also this", [{"role": "user", "content": "and that"}]):
            _steer(client, previous, text)
            accepted = await _next(client, "response.steer.accepted")
            ResponseSteerAcceptedEvent.model_validate(accepted, strict=True)
            assert accepted["steer"]["previous_response_id"] == previous
            assert accepted["stream_id"] == "lane"
        gate.opened.set()
        ended = [await _next(client, "response.completed") for _ in range(3)]
    assert model.shown == [["go"], ["go", "desk__slow()", "=opened", "also this", "and that"]]
    assert {event["stream_id"] for event in ended} == {"lane"}
    assert len({event["response"]["id"] for event in ended}) == 3
    texts = [event["response"]["output"][-1]["content"][0]["text"] for event in ended]
    assert texts == ["seen 5"] * 3


async def test_without_a_further_model_call_the_successor_is_the_next_turn() -> None:
    model = ScriptedModel()
    model.gate.clear()
    async with open_gateway(model) as gateway, _connected(gateway) as client:
        client.create("one")
        client.create("later")
        previous = (await _next(client, "response.created"))["response"]["id"]
        await model.entered.acquire()
        _steer(client, previous, "two")
        await _next(client, "response.steer.accepted")
        model.gate.set()
        ended = [await _next(client, "response.completed") for _ in range(3)]
        again = ended[1]["response"]["id"]
        _steer(client, again, "too late")
        failed = await client.next()
    assert model.shown == [["one"], ["one", "re:one", "two"], ["later"]]
    assert failed is not None
    ResponseSteerFailedEvent.model_validate(failed, strict=True)
    assert failed["error"]["code"] == "response_already_completed"


async def test_input_for_a_response_that_waits_for_the_clients_tools_joins_their_outputs() -> None:
    gate = Gate()
    model = _says_after_outputs(called("desk__slow", "c1"), called("mine", "c2"))
    async with (
        open_gateway(model, toolbox=lambda _: RecordingTools(slow=gate)) as gateway,
        _connected(gateway) as client,
    ):
        client.create("go", tools=[SERVER, MINE])
        previous = (await _next(client, "response.created"))["response"]["id"]
        await gate.entered.wait()
        _steer(client, previous)
        accepted = await _next(client, "response.steer.accepted")
        gate.opened.set()
        await _next(client, "response.completed")
        pending = await client.next()
        assert pending is not None
        ResponseSteerPendingEvent.model_validate(pending, strict=True)
        assert pending["steer"] == accepted["steer"]
        required = [{"type": "function_call_output", "call_id": "c2", "name": "mine"}]
        assert pending["required_input"] == required
        output = {"type": "function_call_output", "call_id": "c2", "output": "mine"}
        client.create([output], previous_response_id=previous, tools=[SERVER, MINE])
        last = await _next(client, "response.completed")
        # The continuation is the successor: nothing else follows.
        client.create("next", tools=[SERVER, MINE])
        created = await _next(client, "response.created")
    assert model.shown[1][-2:] == ["=mine", "also this"]
    assert last["response"]["output"][-1]["content"][0]["text"] == f"seen {len(model.shown[1])}"
    assert created["response"]["id"] not in (previous, last["response"]["id"])


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"previous_response_id": "resp_unknown", "input": "x"}, "response_not_found"),
        ({"previous_response_id": "resp_unknown", "input": []}, "invalid_input"),
        ({"previous_response_id": 7, "input": "x"}, "invalid_input"),
        ({"input": "x"}, "invalid_input"),
        ({"previous_response_id": "r", "input": "x", "model": "m"}, "invalid_input"),
        (
            {"previous_response_id": "r", "input": [{"role": "system", "content": "x"}]},
            "invalid_input",
        ),
        (
            {
                "previous_response_id": "r",
                "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}],
            },
            "invalid_input",
        ),
    ],
)
async def test_what_cannot_steer_is_given_back(frame: dict[str, Any], code: str) -> None:
    async with open_gateway() as gateway, _connected(gateway) as client:
        client.send({"type": "response.steer", **frame})
        failed = await client.next()
        assert failed is not None
        assert failed["type"] == "response.steer.failed"
        assert failed["error"]["code"] == code
        assert failed["steer"]["input"] == frame["input"]
        client.create("still there")
        assert (await client.response())[-1]["type"] == "response.completed"


async def test_a_lane_without_room_gives_the_input_back() -> None:
    model = ScriptedModel()
    model.gate.clear()
    lanes = LaneSettings(max_waiting=1)
    async with open_gateway(model, lanes=lanes) as gateway, _connected(gateway) as client:
        client.create("one")
        previous = (await _next(client, "response.created"))["response"]["id"]
        await model.entered.acquire()
        _steer(client, previous, "two")
        await _next(client, "response.steer.accepted")
        _steer(client, previous, "three")
        failed = await client.next()
        model.gate.set()
        assert failed is not None
        assert failed["error"]["code"] == "too_many_pending_steers"
        assert failed["steer"]["input"] == "three"
        for _ in range(2):
            await _next(client, "response.completed")
    assert model.shown[-1] == ["one", "re:one", "two"]
