"""HTTP framing: oversized heads and bodies, invalid bytes, and a server that stops."""

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator, provider_simulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway

__all__ = ["provider_simulator"]

ASKED = {"model": "gpt-4.1", "input": "hello"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    with running_gateway("memory:") as started:
        yield started


def talk(gateway: GatewayProcess, *pieces: bytes) -> tuple[int, dict[str, Any]]:
    """Send bytes, and return the answer to which the server closes the connection."""
    address = urlsplit(gateway.url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 0), timeout=30) as line:
        try:
            for piece in pieces:
                line.sendall(piece)
        except ConnectionError:
            pass
        answer = bytearray()
        while piece := _received(line):
            answer += piece
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def _received(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except ConnectionResetError:
        return b""


def test_a_header_without_end_is_refused_while_it_comes(gateway: GatewayProcess) -> None:
    opening = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-long: "
    status, error = talk(gateway, opening, b"a" * 200_000, b"a" * 600_000)
    assert (status, error["code"], error["type"]) == (
        431, "headers_too_large", "invalid_request_error",
    )  # fmt: skip


def test_headers_that_are_many_or_long_are_refused(gateway: GatewayProcess) -> None:
    lines = b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(70))
    whole = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + lines + b"\r\n"
    assert talk(gateway, whole)[0] == 431
    short = b"".join(b"x-%04d: a\r\n" % n for n in range(7000))
    assert (
        talk(gateway, b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n" + short + b"\r\n")[0] == 431
    )
    fitting = {f"x-{n}": "a" * 1000 for n in range(60)}
    assert httpx.get(f"{gateway.url}/v1/models", headers=fitting).status_code == 200


def test_a_body_that_says_it_is_too_long_is_not_waited_for(gateway: GatewayProcess) -> None:
    head = (
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: 99999999999\r\n\r\n{"
    )
    status, error = talk(gateway, head)
    assert (status, error["code"]) == (413, "body_too_large")


def test_what_is_no_http_is_refused_in_the_one_shape(gateway: GatewayProcess) -> None:
    status, error = talk(gateway, b"HELO there\r\n\r\n")
    assert (status, error["code"]) == (400, "invalid_http")


def test_a_query_with_a_nul_is_refused(gateway: GatewayProcess) -> None:
    answer = httpx.get(f"{gateway.url}/v1/chat/completions?model=%00")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_caller_that_waits_when_the_grace_period_ends_learns_how_its_turn_ended(
    tmp_path: Path, provider_simulator: ProviderSimulator
) -> None:
    env = {"HOLDFAST_UPSTREAM_KEY": "k", "HOLDFAST_SERVER_GRACE_SECONDS": "0.2"}
    upstream = ("--upstream", provider_simulator.base_url)
    barrier = provider_simulator.hold()
    with (
        running_gateway(f"sqlite:///{tmp_path}/a.db", *upstream, env=env) as gateway,
        ThreadPoolExecutor() as pool,
    ):
        url = f"{gateway.url}/v1/responses"
        streamed = ASKED | {"stream": True}
        plain = pool.submit(httpx.post, url, json=ASKED, headers=_key("a"), timeout=60)
        waiting = pool.submit(httpx.post, url, json=ASKED, headers=_key("a"), timeout=60)
        stream = pool.submit(httpx.post, url, json=streamed, headers=_key("b"), timeout=60)
        barrier.wait_held(2)
        # The second request of the key has arrived when it waits for the first.
        while _session(gateway, "a")["queued_turns"] == 0:
            pass
        assert gateway.stop() == 0
        for answer in (plain.result(), waiting.result()):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "turn_interrupted")
            assert "retry-after" in answer.headers
        assert "event: response.incomplete\n" in stream.result().text
        assert stream.result().text.endswith("data: [DONE]\n\n")
        barrier.remove()


def _key(name: str) -> dict[str, str]:
    return {"X-Session-Key": name}


def _session(gateway: GatewayProcess, key: str) -> dict[str, Any]:
    [found] = httpx.get(f"{gateway.url}/v1/sessions", params={"key": key}).json()["data"]
    session: dict[str, Any] = found
    return session


def answers_to(gateway: GatewayProcess, *pieces: bytes) -> bytes:
    """Send bytes, the last of which ask to close; return all that is answered."""
    address = urlsplit(gateway.url)
    assert address.hostname is not None
    with socket.create_connection((address.hostname, address.port or 0), timeout=30) as line:
        for piece in pieces:
            line.sendall(piece)
        answer = bytearray()
        while piece := _received(line):
            answer += piece
    return bytes(answer)


def heads_of(gateway: GatewayProcess, *pieces: bytes) -> list[bytes]:
    """Send bytes, the last of which ask to close; return the status of every answer."""
    return re.findall(rb"HTTP/1\.1 (\d+)", answers_to(gateway, *pieces))


ANOTHER = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
UPGRADES = ["h2c", "TLS/1.0", "websocket", "h2c, websocket"]


def test_requests_in_one_segment_are_answered_in_their_order(gateway: GatewayProcess) -> None:
    names = [f"ses_{letter}" for letter in "abcdef"]
    asked = [f"GET /v1/sessions/{name} HTTP/1.1\r\nhost: localhost\r\n\r\n" for name in names]
    answers = answers_to(gateway, "".join(asked).encode() + ANOTHER)
    found = re.findall(r"no session (ses_\w)|(holdfast-demo)", answers.decode())
    assert found == [*((name, "") for name in names), ("", "holdfast-demo")]


@pytest.mark.parametrize("is_apart", [True, False], ids=["apart", "at once"])
@pytest.mark.parametrize("upgrade", UPGRADES)
def test_an_upgrade_that_is_not_taken_leaves_the_body_a_body(
    gateway: GatewayProcess, upgrade: str, is_apart: bool
) -> None:
    body = json.dumps({"model": "holdfast-demo", "input": "hello"}).encode()
    for sent, expected in ((body, b"200"), (ANOTHER, b"400")):
        head = (
            f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n"
            f"upgrade: {upgrade}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(sent)}\r\n\r\n"
        ).encode()
        pieces = [head, sent, ANOTHER] if is_apart else [head + sent + ANOTHER]
        assert heads_of(gateway, *pieces) == [expected, b"200"]


def test_a_request_that_would_be_upgraded_closes_if_it_says_so(gateway: GatewayProcess) -> None:
    asked = (
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close, Upgrade\r\n"
        b"upgrade: h2c\r\n\r\n"
    )
    assert heads_of(gateway, asked + ANOTHER) == [b"200"]


def test_nothing_is_read_behind_a_request_for_a_tunnel(gateway: GatewayProcess) -> None:
    asked = b"CONNECT example.org:443 HTTP/1.1\r\nhost: example.org\r\n\r\n"
    found = heads_of(gateway, asked + ANOTHER)
    assert len(found) == 1
    assert found[0].startswith(b"4")
