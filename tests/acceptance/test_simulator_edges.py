"""Edge cases of the simulator: invalid input and races."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from holdfast.simulator.server.server import SimulatorServer
from holdfast.simulator.state.scenario import InvalidScenario, Scenario, read_scenario
from holdfast.testing.simulator.provider import ProviderSimulator, SimulatorError

BODY = {"model": "gpt-4.1", "input": "hello"}
HEADERS = {"authorization": "Bearer sk-a"}


@pytest.fixture(name="simulator")
def _simulator() -> Iterator[ProviderSimulator]:
    with ProviderSimulator(seed=7) as running:
        yield running


@pytest.fixture(name="http")
def _http(simulator: ProviderSimulator) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=simulator.base_url, headers=HEADERS, timeout=60) as client:
        yield client


def address_of(simulator: ProviderSimulator) -> tuple[str, int]:
    host, port = simulator.url.removeprefix("http://").split(":")
    return host, int(port)


def test_a_request_without_its_body_is_not_a_call(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    with socket.create_connection(address_of(simulator)) as half:
        half.sendall(b"POST /v1/responses HTTP/1.1\r\nhost: s\r\ncontent-length: 99\r\n\r\n{")
        half.shutdown(socket.SHUT_WR)
        assert half.recv(1) == b""
    assert http.post("/responses", json=BODY).status_code == 200
    assert [request.number for request in simulator.requests()] == [1]


async def test_closing_the_listener_cancels_an_earlier_reopening() -> None:
    server = SimulatorServer(Scenario())
    await server.start()
    try:
        await server.shut(0.01)
        await server.shut(None)
        loop = asyncio.get_running_loop()
        passed = loop.create_future()
        loop.call_later(0.05, passed.set_result, None)  # the earlier timer comes before this one
        await passed
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", server.port)
        await server.open()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.close()
    finally:
        await server.stop()


def test_an_unnamed_barrier_gets_an_unused_name(simulator: ProviderSimulator) -> None:
    place = f"{simulator.url}/_sim/barriers"
    assert httpx.post(place, json={"name": "barrier-2"}).status_code == 200
    simulator.hold()
    simulator.hold()
    ids = [barrier["id"] for barrier in simulator.state()["barriers"]]
    assert len(ids) == len(set(ids)) == 3
    assert httpx.post(place, json={"name": "barrier-2"}).status_code == 409


def test_two_barriers_of_one_name_are_refused_in_a_scenario() -> None:
    twice = {"barrier": [{"name": "door"}, {"name": "door"}]}
    with pytest.raises(InvalidScenario, match="barrier\\[1\\]: barrier 'door' already exists"):
        read_scenario(twice)


def test_background_responses_must_be_stored(http: httpx.Client) -> None:
    answer = http.post("/responses", json=BODY | {"background": True, "store": False})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "background"


def test_the_fault_forget_also_applies_to_conversations(
    simulator: ProviderSimulator, http: httpx.Client
) -> None:
    conversation = http.post("/conversations", json={}).json()["id"]
    simulator.add_fault("forget", times=1)
    body = BODY | {"conversation": conversation}
    assert http.post("/responses", json=body).status_code == 200
    assert http.get(f"/conversations/{conversation}/items").json()["data"] == []
    http.post("/responses", json=body)
    assert len(http.get(f"/conversations/{conversation}/items").json()["data"]) == 2


@pytest.mark.parametrize("seconds", ["soon", "1\r\nx-evil: 1", "€"])
def test_seconds_of_a_listed_fault_are_a_number(
    simulator: ProviderSimulator, http: httpx.Client, seconds: str
) -> None:
    with pytest.raises(SimulatorError, match="expected a number"):
        simulator.add_fault("C05", values={"seconds": seconds})
    simulator.add_fault("C05", values={"seconds": "2.5"})
    assert http.post("/responses", json=BODY).headers["retry-after"] == "2.5"


def test_an_invalid_fault_header_is_reported_once(http: httpx.Client) -> None:
    answer = http.post("/responses", json=BODY, headers={"x-sim-fault": "nope"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("x-sim-fault: Invalid value 'nope'")


def test_only_the_control_api_is_the_control_api(http: httpx.Client) -> None:
    assert http.get("/../_simulated").status_code == 404


@pytest.mark.parametrize(
    ("place", "wrong", "said"),
    [
        ("responses", {"model": 5}, "'model': expected a string, but got an integer"),
        ("responses", {"stream": "yes"}, "'stream': expected a boolean, but got a string"),
        ("responses", {"store": "no"}, "'store': expected a boolean, but got a string"),
        ("responses", {"metadata": 5}, "'metadata': expected an object, but got an integer"),
        (
            "responses",
            {"max_output_tokens": "9"},
            "'max_output_tokens': expected an integer, but got a string",
        ),
        (
            "responses",
            {"previous_response_id": []},
            "'previous_response_id': expected a string, but got an array",
        ),
        ("chat/completions", {"metadata": [1]}, "'metadata': expected an object, but got an array"),
        ("chat/completions", {"max_tokens": 1.5}, "'max_tokens': expected an integer, but got a"),
        ("conversations", {"metadata": "x"}, "'metadata': expected an object, but got a string"),
    ],
)
def test_a_field_of_a_wrong_type_is_refused_by_name(
    http: httpx.Client, place: str, wrong: dict[str, Any], said: str
) -> None:
    good = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in place else {"input": "hi"}
    answer = http.post(f"/{place}", json={"model": "gpt-4.1", **good, **wrong})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(f"Invalid type for {said}")
    assert (error["param"], error["code"]) == (next(iter(wrong)), "invalid_type")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("responses", "max_output_tokens"),
        ("chat/completions", "max_completion_tokens"),
        ("chat/completions", "max_tokens"),
    ],
)
def test_a_limit_below_one_is_refused(http: httpx.Client, place: str, name: str) -> None:
    body = BODY | {"messages": [{"role": "user", "content": "hi"}], name: -5}
    answer = http.post(f"/{place}", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": f"Invalid '{name}': integer below minimum value. Expected a value >= 1, but "
        "got -5 instead.",
        "type": "invalid_request_error",
        "param": name,
        "code": "integer_below_min_value",
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_tokens": -5}, "max_tokens: Input should be greater than or equal to 1"),
        ({"max_tokens": "9"}, "max_tokens: Input should be a valid integer"),
        ({"model": 5}, "model: Input should be a valid string"),
    ],
)
def test_anthropic_refuses_invalid_fields_in_its_own_form(
    http: httpx.Client, wrong: dict[str, Any], said: str
) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    answer = http.post("/messages", json=body | wrong)
    assert answer.status_code == 400
    assert answer.json()["error"] == {"type": "invalid_request_error", "message": said}


def test_strict_alternation_lets_an_agent_use_its_tools() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    traffic: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "out"},
    ]
    said = {"role": "assistant", "content": "b"}
    again = {"role": "user", "content": "c"}
    with ProviderSimulator(profile="strict-alternation") as simulator:

        def status(*messages: dict[str, Any]) -> int:
            body = {"model": "m", "messages": [*traffic, *messages]}
            return httpx.post(f"{simulator.base_url}/chat/completions", json=body).status_code

        assert status() == 200
        assert status(said, again) == 200
        assert status(again) == 400
        assert status(said, said) == 400


@pytest.mark.parametrize("raw", ["{", "[1]", '{"model": NaN}', "null"])
def test_the_record_has_the_text_of_a_body_that_is_no_json_object(
    simulator: ProviderSimulator, http: httpx.Client, raw: str
) -> None:
    assert http.post("/responses", content=raw).status_code == 400
    (entry,) = map(json.loads, simulator.record_jsonl().splitlines())
    assert entry["body"] == raw
