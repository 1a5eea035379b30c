"""A prompt that is refused as too large costs one turn, and leaves the history as it was."""

from typing import Any

import pytest

from holdfast.engine.settings import HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_context import small
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

QUICK = HealSettings(first_pause_seconds=0.001)


async def _compactions(gateway: UpstreamGateway) -> list[str]:
    session = (await gateway.client.get("/v1/sessions")).json()["data"][0]["id"]
    listed = (await gateway.client.get(f"/v1/sessions/{session}/compactions")).json()["data"]
    return [one["status"] for one in listed]


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("message", ["Payload Too Large", "Request Entity Too Large"])
async def test_a_small_prompt_refused_for_its_bytes_compacts_nothing(
    api: str, message: str, store_url: str
) -> None:
    with ProviderSimulator() as simulator:
        error: dict[str, Any] = {"status": 413, "message": message}
        simulator.add_fault("error", when={"text": "forbidden"}, **error)
        behind = upstream(simulator, api=api)
        async with open_upstream_gateway(behind, heals=QUICK, store_url=store_url) as gateway:
            for text in ("my name is Ada", "I like tea"):
                await gateway.respond(text)
            refused = await gateway.post("/v1/responses", input="forbidden")
            assert refused.status_code == 413
            assert len(simulator.requests()) == 3
            assert "Messages seen: 5." in text_of(await gateway.respond("weather"))
            assert await _compactions(gateway) == []


async def test_a_compaction_that_does_not_help_is_undone(store_url: str) -> None:
    with small() as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, store_url=store_url
        ) as gateway:
            for text in ("my name is Ada", "I like tea"):
                await gateway.respond(text + " word" * 100)
            refused = await gateway.post("/v1/responses", input="x" * 20_000)
            assert refused.status_code == 400
            found = await _compactions(gateway)
            assert found
            assert set(found) == {"undone"}
            assert "Messages seen: 5." in text_of(await gateway.respond("weather"))


async def test_a_compaction_that_helps_stays_in_force(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        error: dict[str, Any] = {"status": 413, "message": "Payload Too Large"}
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, store_url=store_url
        ) as gateway:
            for text in ("one", "two", "three"):
                await gateway.respond(text + " word" * 8_000)
            simulator.add_fault("error", times=1, **error)
            await gateway.respond("weather")
            assert await _compactions(gateway) == ["in_force"]
