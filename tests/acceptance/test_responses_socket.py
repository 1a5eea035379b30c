"""The Responses API over a real WebSocket: the official client, and raw frames."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.store_urls import sqlite_url


@pytest.fixture(name="gateway", scope="module")
def _gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with running_gateway(sqlite_url(tmp_path_factory.mktemp("socket"))) as gateway:
        yield gateway


def _url(gateway: GatewayProcess, path: str = "/v1/responses") -> str:
    return gateway.url.replace("http://", "ws://") + path


def test_the_official_client_talks_over_one_connection(gateway: GatewayProcess) -> None:
    with (
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client,
        client.responses.connect() as connection,
    ):
        connection.response.create(model="holdfast-demo", input="I am Ada", store=False)
        first = None
        for event in connection:
            if event.type == "response.completed":
                first = event.response
                break
        assert first is not None
        assert "I am Ada" in first.output_text
        connection.response.create(
            model="holdfast-demo", input="who am I?", store=False, previous_response_id=first.id
        )
        numbers, second = [], None
        for event in connection:
            numbers.append(event.sequence_number)
            if event.type == "response.completed":
                second = event.response
                break
        assert second is not None
        assert "the first was 'I am Ada'" in second.output_text
        assert numbers == list(range(len(numbers)))


def test_a_stored_response_can_be_fetched_over_http(gateway: GatewayProcess) -> None:
    with connect(_url(gateway)) as socket:
        frame = {"type": "response.create", "model": "holdfast-demo", "input": "hello"}
        socket.send(json.dumps(frame))
        last = json.loads(socket.recv(60))
        while not last["type"].endswith("completed"):
            last = json.loads(socket.recv(60))
    kept = httpx.get(f"{gateway.url}/v1/responses/{last['response']['id']}").json()
    assert kept == last["response"]


def test_a_client_that_leaves_in_the_middle_disturbs_nobody(gateway: GatewayProcess) -> None:
    for _ in range(5):
        with connect(_url(gateway)) as socket:
            frame = {"type": "response.create", "model": "holdfast-demo", "input": "x " * 300}
            socket.send(json.dumps(frame))
            socket.recv(60)
    assert httpx.get(f"{gateway.url}/readyz").status_code == 200


def test_other_paths_refuse_the_handshake_in_the_shape_of_any_error(
    gateway: GatewayProcess,
) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(_url(gateway, "/v1/nothing")):
        pass
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body or b"")["error"]["code"] == "unknown_url"


def test_a_server_that_stops_closes_its_connections(tmp_path: Path) -> None:
    with running_gateway(sqlite_url(tmp_path)) as gateway, connect(_url(gateway)) as socket:
        frame = {"type": "response.create", "model": "holdfast-demo", "input": "hello"}
        socket.send(json.dumps(frame))
        while not json.loads(socket.recv(60))["type"].endswith("completed"):
            pass
        assert gateway.stop() == 0
