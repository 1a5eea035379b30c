"""A message that joined a turn has a response of its own, whose answer is that of the turn."""

import asyncio
import json
from typing import Any

import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.transaction.commands import Cancel
from holdfast.ports.meter import Meter
from tests.in_process import Item, RunningGateway, ScriptedModel, called, open_gateway, said
from tests.tools.toolboxes import SERVER, Gate, RecordingTools

STEER = {"X-On-Busy": "steer", "X-Session-Key": "k"}
MINE = {"type": "function", "name": "mine", "parameters": {"type": "object"}}


def _script(items: list[Item]) -> list[Item]:
    if any(item["type"] == "function_call_output" for item in items):
        return [said(f"seen {len(items)}")]
    return [called("desk__slow", "c1")]


class Steered:
    """A turn whose tool runs, and a message that joins it when the tool ends."""

    def __init__(self, gateway: RunningGateway, gate: Gate, model: ScriptedModel) -> None:
        self.gateway = gateway
        self.model = model
        self._gate = gate

    async def begin(self) -> None:
        self.first = asyncio.create_task(self.gateway.respond("go", tools=[SERVER]))
        await self._gate.entered.wait()

    async def join(self, path: str, body: Item) -> Any:
        """Post a steering message, let the tool end and return the answer to the message."""
        body = {"model": "scripted", **body}
        post = self.gateway.client.post(path, json=body, headers=STEER)
        steer = asyncio.create_task(post)
        await self.gateway.until_queued(1)
        self._gate.opened.set()
        await self.first
        return await steer

    async def get(self, name: str) -> Item:
        return dict((await self.gateway.client.get(f"/v1/responses/{name}")).json())


@pytest.fixture
async def steered() -> Any:
    gate, model = Gate(), ScriptedModel(_script)
    async with open_gateway(model, toolbox=lambda _: RecordingTools(slow=gate)) as gateway:
        found = Steered(gateway, gate, model)
        await found.begin()
        yield found


def _events(text: str) -> list[Item]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def test_its_stored_response_has_the_answer_and_its_own_input(steered: Steered) -> None:
    answer = (await steered.join("/v1/responses", {"input": "also this"})).json()
    stored = await steered.get(answer["id"])
    assert stored["output"] == answer["output"]
    assert stored["output"][-1]["content"][0]["text"] == "seen 4"
    assert (stored["id"], stored["status"]) == (answer["id"], "completed")
    given = await steered.get(f"{answer['id']}/input_items?order=asc")
    texts = [item["content"][0]["text"] for item in given["data"] if item["type"] == "message"]
    assert texts == ["go", "also this"]


async def test_a_background_one_is_in_progress_until_the_turn_has_answered(
    steered: Steered,
) -> None:
    body = {"input": "also this", "background": True, "model": "scripted"}
    steered.model.gate.clear()
    posted = (await steered.gateway.client.post("/v1/responses", json=body, headers=STEER)).json()
    assert posted["status"] == "queued"
    steered._gate.opened.set()
    for _ in range(2):
        await steered.model.entered.acquire()
    assert (await steered.get(posted["id"]))["status"] == "in_progress"
    steered.model.gate.set()
    await steered.first
    stored = await steered.get(posted["id"])
    assert stored["status"] == "completed"
    assert stored["output"][-1]["content"][0]["text"] == "seen 4"
    streamed = await steered.gateway.client.get(f"/v1/responses/{posted['id']}?stream=true")
    events = _events(streamed.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event.get("delta", "") for event in events).endswith("seen 4")


class Repeats(Meter):
    """Tells when a request was recognised as a repeat."""

    def __init__(self) -> None:
        self.one = asyncio.Event()

    def turn_accepted(self, source: str, admission: str, *, is_new: bool = True) -> None:
        if admission == "repeated":
            self.one.set()


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_repeat_waits_for_the_turn_that_it_joined_and_resumes_it(
    store_url: str, *, is_stream: bool, is_lost: bool
) -> None:
    gate, model, repeats = Gate(), ScriptedModel(_script), Repeats()
    more: Item = {"headers": {**STEER, "Idempotency-Key": "once"}, "stream": is_stream}
    here = open_gateway(model, store_url=store_url, toolbox=lambda _: RecordingTools(slow=gate))
    there = open_gateway(model, store_url=store_url, toolbox=lambda _: RecordingTools())
    async with here as gateway, there as other:
        steered = Steered(gateway, gate, model)
        await steered.begin()
        model.gate.clear()
        sent = [asyncio.create_task(gateway.respond("also this", **more))]
        await gateway.until_queued(1)
        gate.opened.set()
        for _ in range(2):
            await model.entered.acquire()
        other.engine.meter = repeats
        sent.append(asyncio.create_task(other.respond("also this", **more)))
        await repeats.one.wait()
        if is_lost:
            await _lose(other)
            await model.entered.acquire()
        model.gate.set()
        first, repeat = await asyncio.gather(*sent)
    assert repeat.status_code == 200
    assert "seen 4" in repeat.text
    assert repeat.headers["x-turn-id"] == first.headers["x-turn-id"]
    assert is_lost or "seen 4" in first.text
    assert model.shown[-1] == ["go", "desk__slow()", "=opened", "also this"]


async def _lose(gateway: RunningGateway) -> None:
    """End the running turn as if its worker had died."""
    view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
    assert view is not None
    assert view.session.active_turn_id is not None
    lost = Cancel(
        tenant=DEFAULT_TENANT, turn_id=view.session.active_turn_id, outcome="interrupted",
        code="worker_lost", is_retryable=True,
    )  # fmt: skip
    await gateway.engine.submit(lost)


async def test_a_turn_may_continue_from_it(steered: Steered) -> None:
    answer = (await steered.join("/v1/responses", {"input": "also this"})).json()
    follow = await steered.gateway.respond("follow", None, previous_response_id=answer["id"])
    assert follow.status_code == 200
    assert steered.model.shown[-1][-3:] == ["also this", "seen 4", "follow"]


async def test_its_stream_has_the_whole_answer(steered: Steered) -> None:
    reply = await steered.join("/v1/responses", {"input": "also this", "stream": True})
    events = _events(reply.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(text) == "seen 4"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


async def test_its_chat_stream_has_the_whole_answer(steered: Steered) -> None:
    body = {"messages": [{"role": "user", "content": "also this"}], "stream": True}
    reply = await steered.join("/v1/chat/completions", body)
    deltas = [chunk["choices"][0]["delta"] for chunk in _events(reply.text) if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "seen 4"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_what_joined_with_the_outputs_of_the_client_is_not_part_of_the_answer(
    path: str,
) -> None:
    def script(items: list[Item]) -> list[Item]:
        if any(item["type"] == "function_call_output" for item in items):
            return [said("fine")]
        return [called("mine", "c2")]

    said_so = {"messages": [{"role": "user", "content": "also this"}]}
    body = {"model": "scripted", **(said_so if "chat" in path else {"input": "also this"})}
    async with open_gateway(ScriptedModel(script)) as gateway:
        await gateway.respond("go", tools=[MINE])
        steer = asyncio.create_task(gateway.client.post(path, json=body, headers=STEER))
        await gateway.until_queued(1)
        output = {"type": "function_call_output", "call_id": "c2", "output": "mine"}
        await gateway.respond([output], tools=[MINE])
        answer = (await steer).json()
    if "chat" in path:
        assert answer["choices"][0]["message"]["content"] == "fine"
    else:
        assert [item["role"] for item in answer["output"]] == ["assistant"]
