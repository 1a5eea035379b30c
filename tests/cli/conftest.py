"""One real gateway for the commands that talk to one, and something said to it."""

from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.store_urls import sqlite_url


class GatewayUnderTest:
    """A gateway, and people who talk to it."""

    def __init__(self, gateway: GatewayProcess, store: str = "") -> None:
        self.url = gateway.url
        self.store = store
        self.env = {"HOLDFAST_URL": gateway.url}

    def say(self, key: str, text: str) -> dict[str, str]:
        """Say something to a session; return its id and its turn's."""
        reply = httpx.post(
            f"{self.url}/v1/chat/completions",
            json={"model": "holdfast-demo", "messages": [{"role": "user", "content": text}]},
            headers={"X-Session-Key": key},
            timeout=60,
        )
        assert reply.status_code == 200, reply.text
        return {"session": reply.headers["x-session-id"], "turn": reply.headers["x-turn-id"]}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    """A gateway with the demo model."""
    store = sqlite_url(tmp_path_factory.mktemp("gateway"))
    with running_gateway(store) as gateway:
        yield GatewayUnderTest(gateway, store)
