"""Fixtures of the acceptance tests: a misbehaving provider, a gateway, both databases."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess, running_gateway

MODEL = "gpt-4.1"


@contextmanager
def gateway_before(
    simulator: ProviderSimulator,
    store_url: str,
    folder: Path,
    *,
    upstream: str = "",
    more: str = "",
) -> Iterator[GatewayProcess]:
    """Run a gateway whose only upstream is the simulator."""
    config = folder / "holdfast.toml"
    config.write_text(
        f'[[upstream]]\nurl = "{simulator.base_url}"\nkey_env = "STORY_KEY"\n{upstream}\n{more}\n'
    )
    with running_gateway(
        store_url, "--config", str(config), env={"STORY_KEY": "sk-story"}
    ) as gateway:
        yield gateway


class HttpUser:
    """A user of a gateway over plain HTTP."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway

    def say(self, key: str, text: str, **more: Any) -> httpx.Response:
        """Send one keyed turn."""
        headers = {"X-Session-Key": key, **more.pop("headers", {})}
        body = {"model": MODEL, "input": text, **more}
        return httpx.post(
            f"{self._gateway.url}/v1/responses", json=body, headers=headers, timeout=60
        )

    def session(self, key: str) -> dict[str, Any]:
        """Return a key's live session."""
        found = httpx.get(f"{self._gateway.url}/v1/sessions", params={"key": key}).json()["data"]
        assert len(found) == 1
        session: dict[str, Any] = found[0]
        return session

    def get(self, path: str) -> Any:
        """Return the JSON reply of a path."""
        reply = httpx.get(self._gateway.url + path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def post(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Post to a path."""
        return httpx.post(self._gateway.url + path, json=body or {})


def answer_text(reply: httpx.Response) -> str:
    """Return the text of a response."""
    assert reply.status_code == 200, reply.text
    return "".join(
        part["text"]
        for item in reply.json()["output"]
        if item["type"] == "message"
        for part in item["content"]
    )
