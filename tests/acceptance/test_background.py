"""Background runs and streams through real processes that are killed, on both databases."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from openai.types.responses import FunctionToolParam, Response, ResponseStreamEvent

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway

MODEL = "gpt-4.1"
TEXT = "one two three four five six"
LOOK: FunctionToolParam = {
    "type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False,
}  # fmt: skip
SECONDS = 60.0


@pytest.fixture(name="simulator")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(seed=7) as simulator:
        simulator.add_answer(TEXT)
        yield simulator


@pytest.fixture(name="gateway")
def _gateway(
    store_url: str, simulator: ProviderSimulator, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GatewayProcess]:
    monkeypatch.setenv("HOLDFAST_UPSTREAM_KEY", "sk-a")
    arguments = ("--upstream", simulator.base_url, "--upstream-api", "responses")
    with running_gateway(store_url, *arguments) as gateway:
        yield gateway


@contextlib.contextmanager
def _client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{gateway.url}/v1", api_key="none", max_retries=0, timeout=SECONDS
    ) as client:
        yield client


def _until_ended(client: openai.OpenAI, name: str) -> Response:
    """Return a response once its stream is over."""
    for _ in client.responses.retrieve(name, stream=True):
        pass
    return client.responses.retrieve(name)


def _until_shown(client: openai.OpenAI, name: str, text: str) -> None:
    """Wait until a text that was finished is durable: that much is shown of a running response."""
    until = time.monotonic() + SECONDS
    while True:
        shown = [item for item in client.responses.retrieve(name).output if item.type == "message"]
        if shown and shown[0].status == "completed":
            assert shown[0].content[0].to_dict()["text"] == text
            return
        assert time.monotonic() < until, shown


def _check(events: list[ResponseStreamEvent]) -> None:
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert sum(event.type == "response.created" for event in events) == 1


def test_background_runs_survive_the_death_of_the_process(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    with simulator.hold() as barrier, _client(gateway) as client:
        begun = [
            client.responses.create(
                model=MODEL,
                input=f"job {number}",
                background=True,
                extra_headers={"X-Session-Key": f"k{number % 2}"},
            )
            for number in range(4)
        ]
        assert [one.status for one in begun] == ["in_progress", "in_progress", "queued", "queued"]
        barrier.wait_held(2)
        gateway.kill()
    gateway.start()
    with _client(gateway) as client:
        ended = [_until_ended(client, one.id) for one in begun]
        assert [one.status for one in ended] == ["completed"] * 4
        assert [one.output_text for one in ended] == [TEXT] * 4
        for key in ("k0", "k1"):
            found = httpx.get(f"{gateway.url}/v1/sessions", params={"key": key}).json()["data"][0]
            assert found["status"] == "idle"
            assert found["item_count"] == 4


def test_a_background_stream_is_resumed_after_the_death_of_the_process(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    told: list[ResponseStreamEvent] = []
    with simulator.hold(at="event", event=7) as barrier, _client(gateway) as client:
        stream = client.responses.create(model=MODEL, input="go", background=True, stream=True)
        for event in stream:
            told.append(event)
            if event.type == "response.output_text.delta":
                break
        barrier.wait_held(1)
        gateway.kill()
        stream.close()
    gateway.start()
    with _client(gateway) as client:
        created = told[0]
        assert created.type == "response.created"
        name, after = created.response.id, told[-1].sequence_number
        rest = list(client.responses.retrieve(name, stream=True, starting_after=after))
        _check(told + rest)
        assert client.responses.retrieve(name).output_text == TEXT
        whole = list(client.responses.retrieve(name, stream=True))
        assert whole == told + rest
        for place in range(len(whole)):
            again = client.responses.retrieve(name, stream=True, starting_after=place)
            assert list(again) == whole[place + 1 :]


def test_a_foreground_stream_is_resumed_after_its_end_and_a_restart(
    gateway: GatewayProcess,
) -> None:
    with _client(gateway) as client:
        told = list(client.responses.create(model=MODEL, input="go", stream=True))
        _check(told)
        created = told[0]
        assert created.type == "response.created"
        name = created.response.id
    gateway.kill()
    gateway.start()
    with _client(gateway) as client:
        for place in range(len(told)):
            again = client.responses.retrieve(name, stream=True, starting_after=place)
            assert list(again) == told[place + 1 :]


def test_a_client_that_leaves_finds_its_response_afterwards(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    with simulator.hold(at="event", event=6) as barrier, _client(gateway) as client:
        stream = client.responses.create(model=MODEL, input="go", stream=True)
        created = next(iter(stream))
        assert created.type == "response.created"
        barrier.wait_held(1)
        stream.close()
    with _client(gateway) as client:
        assert _until_ended(client, created.response.id).output_text == TEXT


def test_text_that_was_streamed_survives_the_death_of_the_process(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    with simulator.hold(at="event", event=8) as barrier, _client(gateway) as client:
        stream = client.responses.create(
            model=MODEL, input="go", stream=True, extra_headers={"X-Session-Key": "k"}
        )
        said = ""
        name = ""
        for event in stream:
            if event.type == "response.created":
                name = event.response.id
            if event.type == "response.output_text.delta":
                said += event.delta
                break
        barrier.wait_held(1)
        # What is durable of a running response is shown of it.
        while not client.responses.retrieve(name).output_text:
            pass
        gateway.kill()
        stream.close()
    gateway.start()
    with _client(gateway) as client:
        torn = client.responses.retrieve(name)
        assert torn.status == "incomplete"
        assert torn.output_text.startswith(said)
        items = httpx.get(f"{gateway.url}/v1/sessions", params={"key": "k"}).json()["data"][0]
        assert items["last_turn"]["status"] == "interrupted"


@pytest.mark.parametrize("is_background", [False, True], ids=["foreground", "background"])
def test_an_item_that_was_finished_survives_a_death_during_the_next_one(
    gateway: GatewayProcess, simulator: ProviderSimulator, is_background: bool
) -> None:
    simulator.reset()
    simulator.add_answer(TEXT, tool_calls=[{"name": "look", "arguments": {"at": "it " * 20}}])
    with simulator.hold(at="event", event=16) as barrier, _client(gateway) as client:
        stream = client.responses.create(
            model=MODEL, input="go", stream=True, background=is_background, tools=[LOOK],
            extra_headers={"X-Session-Key": "k"},
        )  # fmt: skip
        name, begun = "", []
        for event in stream:
            if event.type == "response.created":
                name = event.response.id
            if event.type == "response.output_item.added":
                begun.append(event.item.type)
            if begun == ["message", "function_call"]:
                break
        barrier.wait_held(1)
        _until_shown(client, name, TEXT)
        gateway.kill()
        stream.close()
        gateway.start()
    with _client(gateway) as client:
        if is_background:
            told = list(client.responses.retrieve(name, stream=True))
            assert [event.sequence_number for event in told] == list(range(len(told)))
            done = [event for event in told if event.type == "response.output_text.done"]
            assert done[0].text == TEXT
            return
        torn = client.responses.retrieve(name)
        assert (torn.status, torn.output_text) == ("incomplete", TEXT)
        [message] = [item for item in torn.output if item.type == "message"]
        assert message.status == "completed"
        session = httpx.get(f"{gateway.url}/v1/sessions", params={"key": "k"}).json()["data"][0]
        path = f"{gateway.url}/v1/sessions/{session['id']}/items"
        kept = [item for item in httpx.get(path).json()["data"] if item["type"] == "message"]
        assert [item["content"][0]["text"] for item in kept] == ["go", TEXT]


def test_two_processes_tell_one_background_stream(
    store_url: str, gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    arguments = ("--upstream", simulator.base_url, "--upstream-api", "responses")
    with (
        running_gateway(store_url, *arguments) as other,
        simulator.hold(at="event", event=7) as barrier,
        _client(gateway) as here,
        _client(other) as there,
        ThreadPoolExecutor(1) as pool,
    ):
        first = here.responses.create(model=MODEL, input="go", background=True, stream=True)
        created = next(iter(first))
        assert created.type == "response.created"
        barrier.wait_held(1)
        reading = pool.submit(
            lambda: list(there.responses.retrieve(created.response.id, stream=True))
        )
        barrier.release()
        told = [created, *first]
        _check(told)
        assert reading.result(SECONDS) == told
        cancelled = there.responses.create(model=MODEL, input="x", background=True)
        assert there.responses.cancel(cancelled.id).id == cancelled.id


def test_a_server_that_stops_lets_running_turns_end_and_keeps_the_waiting(
    gateway: GatewayProcess, simulator: ProviderSimulator
) -> None:
    with (
        simulator.hold(at="event", event=7, times=1) as barrier,
        _client(gateway) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        headers = {"X-Session-Key": "k"}
        stream = client.responses.create(
            model=MODEL, input="first", stream=True, extra_headers=headers
        )
        waiting = client.responses.create(
            model=MODEL, input="second", background=True, extra_headers=headers
        )
        assert waiting.status == "queued"
        barrier.wait_held(1)
        reading = pool.submit(lambda: list(stream))
        stopping = pool.submit(gateway.stop)
        barrier.release()
        _check(reading.result(SECONDS))
        assert stopping.result(SECONDS) == 0
    gateway.start()
    with _client(gateway) as client:
        assert _until_ended(client, waiting.id).output_text == TEXT
