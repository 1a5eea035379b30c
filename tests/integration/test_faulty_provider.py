"""A provider with every fault at once: each turn ends and the history stays complete."""

from typing import Any

import pytest

from holdfast.engine.settings import HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_upstreams import TOOL
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

Json = dict[str, Any]
HEALING = HealSettings(first_pause_seconds=0.001, max_pause_seconds=0.01, busy_wait_seconds=0.05)
FAULTS: list[Json] = [
    {"kind": kind, "chance": 0.05}
    for kind in ("R01", "R02", "R03", "R05", "R07", "R08", "R17", "C01", "A08", "G01")
]
FAULTS += [
    {"kind": "error", "status": 500, "chance": 0.1},
    {"kind": "rate_limit", "retry_after_seconds": 0, "chance": 0.1},
    {"kind": "drop", "ending": "reset", "chance": 0.05},
    {"kind": "cut", "event": 5, "ending": "clean", "chance": 0.1},
    {"kind": "incomplete", "words": 2, "chance": 0.05},
    {"kind": "constant_call_ids", "chance": 0.5},
    {"kind": "unlink", "chance": 0.1},
    {"kind": "forget", "chance": 0.2},
]
MOST_CALLS = 40
"""More than every heal of a turn, for the model and the one behind it."""


async def messages(gateway: UpstreamGateway) -> int:
    """Return how many messages of the user and the model the session shows."""
    session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
    assert session["status"] == "idle"
    listed = await gateway.client.get(f"/v1/sessions/{session['id']}/items?limit=100")
    said = [item for item in listed.json()["data"] if item["type"] == "message"]
    return sum(any(part.get("text") for part in item["content"]) for item in said)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", ["replay", "chain", "conversation"])
async def test_every_turn_ends_and_the_history_is_complete(mode: str, seed: int) -> None:
    with ProviderSimulator({"seed": seed, "forget": {"chance": 0.2}}, faults=FAULTS) as simulator:
        settings = [
            upstream(simulator, name="a", models=("gpt-5.4",), state=mode, fallback=("o3",)),
            upstream(simulator, name="b", api="chat"),
        ]
        ends: list[str] = []
        async with open_upstream_gateway(*settings, heals=HEALING) as gateway:
            for number in range(14):
                simulator.clear_record()
                words = 'call weather {"city": "Ulm"}' if number % 4 == 3 else f"turn {number}"
                more: Json = {"tools": [TOOL], "stream": number % 2 == 0}
                more["headers"] = {"X-On-Busy": "interrupt"}
                answer = await gateway.post("/v1/responses", input=words, **more)
                ends.append(answer.headers["content-type"][:16] + str(answer.status_code))
                assert answer.status_code == 200 or answer.json()["error"]["message"]
                assert len(simulator.requests()) <= MOST_CALLS
            simulator.clear_faults()
            before = await messages(gateway)
            said = await gateway.respond("the last", headers={"X-On-Busy": "interrupt"})
            assert said["status"] == "completed"
            assert text_of(said) == f"Messages seen: {before + 1}. Last text: the last"
            assert len(set(ends)) > 1, "the provider never failed"
