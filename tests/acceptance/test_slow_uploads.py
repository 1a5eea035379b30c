"""Clients that send slowly stop nobody else: bodies count as they arrive, and must keep coming."""

import asyncio
import base64
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import MODEL, gateway_before

MiB = 1024 * 1024
DECLARED = 60 * MiB
SECONDS = 60
CHANNEL = """
[[channel]]
name = "hook"
kind = "slack"
receive = "webhook"
url = "http://127.0.0.1:9"
bot_token_env = "STORY_KEY"
signing_secret_env = "STORY_KEY"
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway with a webhook, before a simulated provider."""
    store = f"sqlite:///{tmp_path}/gateway.db"
    with (
        ProviderSimulator() as simulator,
        gateway_before(simulator, store, tmp_path, more=CHANNEL) as running,
    ):
        yield running


def _address(gateway: GatewayProcess) -> tuple[str, int]:
    url = httpx.URL(gateway.url)
    assert url.port is not None
    return url.host, url.port


def _upload(gateway: GatewayProcess, path: str, sent: bytes, length: int) -> socket.socket:
    """Declare a body and send its beginning."""
    host, port = _address(gateway)
    client = socket.create_connection((host, port), SECONDS)
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {length}\r\n\r\n"
    )
    client.sendall(head.encode() + sent)
    return client


def _ask(gateway: GatewayProcess, size: int) -> httpx.Response:
    body = {"model": MODEL, "input": "x" * size, "store": False}
    # Retrying is the client's matter; so is waiting longer than this.
    return httpx.post(f"{gateway.url}/v1/responses", json=body, timeout=20)


@pytest.mark.parametrize(
    ("path", "declared", "count"),
    [("/v1/responses", DECLARED, 4), ("/v1/channels/hook/webhook", MiB, 64)],
)
def test_slow_uploads_do_not_stop_other_bodies(
    gateway: GatewayProcess, path: str, declared: int, count: int
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(_upload(gateway, path, b" " * 100_000, declared))
        assert _ask(gateway, 200_000).status_code == 200


def test_a_body_that_stops_coming_is_given_up(gateway: GatewayProcess) -> None:
    with _upload(gateway, "/v1/responses", b"{" + b" " * 100_000, DECLARED) as client:
        reply = b"".join(iter(lambda: client.recv(65536), b""))
        assert reply.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in reply


def test_a_webhook_of_unknown_origin_is_short(gateway: GatewayProcess) -> None:
    with _upload(gateway, "/v1/channels/hook/webhook", b"{", 65 * 1024) as client:
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")
    unsigned = httpx.post(f"{gateway.url}/v1/channels/hook/webhook", content=b"x" * 65536)
    assert unsigned.status_code == 401


def _frame_head(size: int) -> bytes:
    """Return the beginning of a masked text frame."""
    return b"\x81\xff" + size.to_bytes(8, "big") + b"\0\0\0\0"


def _open_socket(gateway: GatewayProcess) -> socket.socket:
    host, port = _address(gateway)
    client = socket.create_connection((host, port), SECONDS)
    key = base64.b64encode(os.urandom(16)).decode()
    head = (
        f"GET /v1/responses HTTP/1.1\r\nhost: {host}:{port}\r\nupgrade: websocket\r\n"
        f"connection: Upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n"
    )
    client.sendall(head.encode())
    assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
    return client


def _count_sent(client: socket.socket, data: bytes) -> int:
    """Send until the server stops reading."""
    client.settimeout(1)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < len(data):
            sent += client.send(data[sent : sent + MiB])
    return sent


def test_messages_that_are_not_complete_have_a_bound_in_sum(gateway: GatewayProcess) -> None:
    content = b" " * (40 * MiB)
    with contextlib.ExitStack() as stack:
        sent = 0
        for _ in range(3):
            client = stack.enter_context(_open_socket(gateway))
            client.sendall(_frame_head(DECLARED))
            sent += _count_sent(client, content)
        # A party has three quarters at most; some more is in the buffers of the system.
        assert 40 * MiB < sent < 90 * MiB


def test_a_message_that_stops_coming_is_given_up(gateway: GatewayProcess) -> None:
    with _open_socket(gateway) as client:
        client.sendall(_frame_head(DECLARED) + b" " * 200_000)
        told = b"".join(iter(lambda: client.recv(65536), b""))
        assert b'"request_timeout"' in told
        assert b'"status":408' in told


def test_a_large_message_is_accepted(gateway: GatewayProcess) -> None:
    async def ask() -> Any:
        url = gateway.url.replace("http://", "ws://") + "/v1/responses"
        async with connect(url, proxy=None, max_size=None) as client:
            message = {"type": "response.create", "model": MODEL, "input": "x" * (9 * MiB)}
            text = msgspec.json.encode(message).decode()
            await client.send([text[: 2 * MiB], text[2 * MiB :]])
            async with asyncio.timeout(SECONDS):
                return msgspec.json.decode(await client.recv())["type"]

    assert asyncio.run(ask()) == "response.created"
