"""A gateway behind the nginx of `deploy/nginx.conf`: what clients and browsers get through it."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from websockets.sync.client import connect

from tests.acceptance.gateway_process import running_gateway
from tests.acceptance.nginx import SERVED_BY, TIMEOUT, Nginx
from tests.clients.environments import apt_program

BODY_LIMIT = 1_000_000
HELLO = {"model": "holdfast-demo", "input": "hello"}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Nginx]:
    """An nginx in front of one gateway without keys, whose bodies are limited."""
    program = apt_program("nginx-light", "nginx")
    assert program is not None, "this test needs nginx: install it, or run as root"
    env = {"HOLDFAST_LIMITS_BODY_BYTES": str(BODY_LIMIT)}
    with (
        running_gateway("memory:", env=env) as gateway,
        Nginx(program, [gateway.url], tmp_path) as it,
    ):
        yield it


def test_the_console_may_write_through_the_proxy_and_other_pages_may_not(proxy: Nginx) -> None:
    assert httpx.get(f"{proxy.url}/console", timeout=TIMEOUT).status_code == 200
    own = proxy.post("/v1/responses", HELLO, {"Origin": proxy.url})
    assert own.status_code == 200, own.text
    other = proxy.post("/v1/responses", HELLO, {"Origin": "http://127.0.0.1:1"})
    assert (other.status_code, other.json()["error"]["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize("size", [BODY_LIMIT + 1, 70_000_000])
def test_the_gateway_rejects_a_large_body_in_its_own_words(proxy: Nginx, size: int) -> None:
    reply = proxy.post("/v1/responses", {**HELLO, "input": "x" * size}, {})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


def test_streams_and_websockets_pass_and_metrics_do_not(proxy: Nginx) -> None:
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="any", max_retries=0)
    stream = client.responses.create(
        model="holdfast-demo", input="hello", stream=True, extra_headers={"X-Session-Key": "k"}
    )
    assert [event.type for event in stream][-1] == "response.completed"
    address = proxy.url.replace("http", "ws", 1) + "/v1/responses"
    with connect(address, additional_headers={"X-Session-Key": "k"}) as socket:
        for text in ("one", "two"):
            socket.send(json.dumps({"type": "response.create", **HELLO, "input": text}))
            while json.loads(socket.recv(TIMEOUT))["type"] != "response.completed":
                pass
    [session] = httpx.get(f"{proxy.url}/v1/sessions", params={"key": "k"}).json()["data"]
    assert session["turn_count"] == 3
    for path in ("/metrics", "/%6detrics", "/metrics/"):
        assert httpx.get(proxy.url + path, timeout=TIMEOUT).status_code == 403


@pytest.fixture
def balancer(tmp_path: Path) -> Iterator[Nginx]:
    """An nginx in front of two gateways."""
    program = apt_program("nginx-light", "nginx")
    assert program is not None, "this test needs nginx: install it, or run as root"
    with (
        running_gateway("memory:") as one,
        running_gateway("memory:") as two,
        Nginx(program, [one.url, two.url], tmp_path) as it,
    ):
        yield it


def _served_by(
    balancer: Nginx, path: str = "/v1/models", headers: dict[str, str] | None = None
) -> str:
    reply = httpx.get(balancer.url + path, headers=headers, timeout=TIMEOUT)
    return reply.headers[SERVED_BY]


def test_what_names_one_session_goes_to_one_gateway(balancer: Nginx) -> None:
    names = [f"n{number}" for number in range(16)]
    ways = {
        "key": [{"X-Session-Key": name} for name in names],
        "id": [{"X-Session-Id": f"ses_{name}"} for name in names],
        "client": [{"x-claude-code-session-id": name} for name in names],
    }
    served = {
        way: [{_served_by(balancer, headers=headers) for _ in range(3)} for headers in several]
        for way, several in ways.items()
    }
    assert all(len(gateways) == 1 for found in served.values() for gateways in found)
    assert all(len(set.union(*found)) == 2 for found in served.values())
    # A session is the same in a header and in a path, and as a conversation.
    paths = ("/v1/sessions/ses_{}", "/v1/sessions/ses_{}/turns", "/v1/conversations/conv_{}/items")
    for path in paths:
        assert [{_served_by(balancer, path.format(name))} for name in names] == served["id"]


@pytest.mark.parametrize("rank", range(3), ids=["key", "id", "client"])
def test_a_key_comes_before_an_id_then_a_clients_own_then_a_path(
    balancer: Nginx, rank: int
) -> None:
    for number in range(16):
        named = [
            {"X-Session-Key": f"k{number}"},
            {"X-Session-Id": f"ses_{number}"},
            {"x-claude-code-session-id": f"c{number}"},
        ]
        expected = _served_by(balancer, headers=named[rank])
        headers = {name: value for one in named[rank:] for name, value in one.items()}
        path = f"/v1/responses/resp_{number}"
        assert _served_by(balancer, path, headers) == expected
        assert len({_served_by(balancer, path) for _ in range(3)}) == 1


def test_requests_that_name_no_session_go_to_all_gateways_in_turn(balancer: Nginx) -> None:
    served = [_served_by(balancer) for _ in range(10)]
    assert sorted(served.count(address) for address in set(served)) == [5, 5]
