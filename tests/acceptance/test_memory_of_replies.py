"""Clients that do not read cost a bounded amount of memory, whatever they ask for."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import gateway_before

MiB = 1024 * 1024
KEY = {"X-Session-Key": "large"}
ITEMS, ITEM_BYTES = 52, MiB
CLIENTS = 60
GROWTH = 400 * MiB
"""Without bounds these clients cost 700 MiB within ten seconds, and more later."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway with a session of 52 MiB."""
    store = f"sqlite:///{tmp_path}/gateway.db"
    with ProviderSimulator() as simulator, gateway_before(simulator, store, tmp_path) as running:
        for first in range(0, ITEMS, 4):
            items = [
                {"role": "user", "content": f"{number:02} " + "x" * ITEM_BYTES}
                for number in range(first, first + 4)
            ]
            added = httpx.post(
                f"{running.url}/v1/transcript", json={"items": items}, headers=KEY, timeout=60
            )
            assert added.status_code == 200, added.text
        yield running


def _memory(gateway: GatewayProcess) -> int:
    status = Path(f"/proc/{gateway.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def _ask(gateway: GatewayProcess, path: str) -> socket.socket:
    """Ask for something and read nothing."""
    url = httpx.URL(gateway.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((url.host, url.port))
    head = f"GET {path} HTTP/1.1\r\nhost: {url.host}:{url.port}\r\nx-session-key: large\r\n\r\n"
    client.sendall(head.encode())
    return client


@pytest.mark.parametrize("path", ["/v1/sessions/{id}/items?limit=100", "/v1/transcript"])
def test_clients_that_do_not_read_cost_little(gateway: GatewayProcess, path: str) -> None:
    (session,) = httpx.get(f"{gateway.url}/v1/sessions", params={"key": "large"}).json()["data"]
    before = peak = _memory(gateway)
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(_ask(gateway, path.format(id=session["id"])))
        # Long enough for all of them to be read without the bound; the peak is what counts.
        ends_at = time.monotonic() + 10
        while time.monotonic() < ends_at:
            peak = max(peak, _memory(gateway))
            assert httpx.get(f"{gateway.url}/healthz", timeout=30).status_code == 200
        assert peak - before < GROWTH
    whole = httpx.get(f"{gateway.url}/v1/transcript", headers=KEY, timeout=60)
    assert len(whole.json()["data"]) == ITEMS


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("view", ["visible", "log"])
def test_pages_are_bounded_in_bytes_and_lead_to_every_item(
    gateway: GatewayProcess, order: str, view: str
) -> None:
    (session,) = httpx.get(f"{gateway.url}/v1/sessions", params={"key": "large"}).json()["data"]
    found: list[str] = []
    query = {"limit": "100", "order": order, "view": view}
    while True:
        reply = httpx.get(f"{gateway.url}/v1/sessions/{session['id']}/items", params=query)
        assert len(reply.content) < 2 * ITEM_BYTES
        page = reply.json()
        ids = [item["id"] for item in page["data"]]
        assert (page["first_id"], page["last_id"]) == (ids[0], ids[-1])
        found += [json.dumps(item)[:200] for item in page["data"]]
        if not page["has_more"]:
            break
        query["after"] = page["last_id"]
    assert len(found) == len(set(found)) == ITEMS
