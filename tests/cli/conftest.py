"""One real gateway with a conversation, for the commands that use a gateway."""

from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.store_urls import sqlite_url


class GatewayUnderTest:
    """A gateway, and shortcuts to use it."""

    def __init__(self, gateway: GatewayProcess, store: str = "") -> None:
        self.url = gateway.url
        self.store = store
        self.env = {"HOLDFAST_URL": gateway.url}

    def say(self, key: str, text: str) -> dict[str, str]:
        """Send a turn to a session; return the ids of both."""
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
