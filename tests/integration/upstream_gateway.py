"""A gateway in the test's own loop, with the provider simulator as its upstream."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from holdfast.app import open_application
from holdfast.core.ids import DEFAULT_TENANT, SessionId
from holdfast.core.transaction.commands import Reset
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.providers.settings import UpstreamSettings
from holdfast.settings import ResetSettings, Settings, StoreSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.http_server import HttpServer, serving

Json = dict[str, Any]


class UpstreamGateway:
    """A served application with real upstreams, and an HTTP client."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.engine: Gateway = server.application._gateway
        self.client = httpx.AsyncClient(base_url=server.url, timeout=30)

    async def chat(self, text: str | list[Json], key: str | None = "k", **more: Any) -> Json:
        """Post a chat completion and return it; a stream comes back as its chunks."""
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        answer = await self.post("/v1/chat/completions", key, messages=messages, **more)
        assert answer.status_code == 200, answer.text
        return read(answer)

    async def respond(self, text: Any, key: str | None = "k", **more: Any) -> Json:
        """Post a response and return it; of a stream, its last response and all events."""
        answer = await self.post("/v1/responses", key, input=text, **more)
        assert answer.status_code == 200, answer.text
        return read(answer)

    async def reset(self, session_id: SessionId) -> None:
        """Start the key's next generation."""
        new_id = self.engine.new_session_id()
        command = Reset(tenant=DEFAULT_TENANT, session_id=session_id, new_id=new_id)
        await self.engine.submit(command)

    async def post(self, path: str, key: str | None = "k", **body: Any) -> httpx.Response:
        """Post a request."""
        headers = {"X-Session-Key": key} if key is not None else {}
        headers |= body.pop("headers", {})
        return await self.client.post(path, json={"model": "gpt-5.4", **body}, headers=headers)


def read(answer: httpx.Response) -> Json:
    """Return a JSON body, or the events of a stream under `events`."""
    if "text/event-stream" not in answer.headers["content-type"]:
        value: Json = answer.json()
        return value
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    return {"events": events, **(events[-1].get("response") or {})}


def text_of(response: Json) -> str:
    """Return the text of a response or a completion."""
    if "choices" in response:
        return str(response["choices"][0]["message"]["content"])
    return "".join(
        part.get("text", "")
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def upstream(simulator: ProviderSimulator, **more: Any) -> UpstreamSettings:
    """Return the simulator as an upstream."""
    told = {"url": simulator.base_url, "key": simulator.key, "api": "responses"}
    return UpstreamSettings(**{**told, **more})


@asynccontextmanager
async def open_upstream_gateway(
    *upstreams: UpstreamSettings,
    heals: HealSettings | None = None,
    context: ContextSettings | None = None,
    store_url: str = "memory:",
    reset: ResetSettings | None = None,
) -> AsyncIterator[UpstreamGateway]:
    """Run a gateway for the length of a block."""
    settings = Settings(
        store=StoreSettings(url=store_url),
        upstreams=upstreams,
        heals=heals or HealSettings(),
        context=context or ContextSettings(),
        reset=reset or ResetSettings(),
    )
    async with open_application(settings) as application, serving(application) as server:
        gateway = UpstreamGateway(server)
        try:
            yield gateway
        finally:
            await gateway.client.aclose()
