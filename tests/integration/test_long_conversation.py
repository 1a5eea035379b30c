"""A conversation far longer than its model's window never fails and keeps its beginning."""

import json
from typing import Any

import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.settings import ContextSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway, upstream

Json = dict[str, Any]
WINDOW = 16_000
FIRST = "My name is Ada, and the code word is heliotrope. Never forget it."
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


async def talk(
    gateway: UpstreamGateway, turns: int, simulator: ProviderSimulator, **more: Any
) -> None:
    """Have a conversation in which every turn calls a tool; look at everything that was sent."""
    for number in range(turns):
        said = FIRST if number == 0 else f"Turn {number}."
        first = await gateway.respond(f'{said} call look {{"n": {number}}}', tools=TOOLS, **more)
        [call] = [item for item in first["output"] if item["type"] == "function_call"]
        output = {
            "type": "function_call_output",
            "call_id": call["call_id"],
            "output": f"result {number}: " + "lorem ipsum " * (100 + number * 137 % 600),
        }
        await gateway.respond([output], tools=TOOLS, **more)
        if number % 10 == 9:
            check(simulator)
    check(simulator)


def check(simulator: ProviderSimulator) -> None:
    """Nothing was refused, and whoever was told everything was told how it began."""
    for sent in simulator.requests(operation="create"):
        assert sent.fault is None, (sent.fault, sent.status)
        is_summary = "tools" not in sent.body
        told = sent.body.get("input", sent.body.get("messages"))
        goes_on = "previous_response_id" in sent.body or "conversation" in sent.body
        assert is_summary or goes_on or FIRST in json.dumps(told)
    simulator.clear_record()


async def compactions(gateway: UpstreamGateway, key: str = "k") -> list[Json]:
    """Return what a session's events tell of its compactions."""
    view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    events = await gateway.engine.read.events(view.session.id, after=0, limit=100_000)
    return [json.loads(event.body) for event in events if event.kind == "session.compacted"]


async def converse(turns: int, mode: str, api: str, state: str = "replay") -> None:
    with ProviderSimulator({"context_tokens": WINDOW}) as simulator:
        behind = upstream(simulator, api=api, state=state, context_tokens=WINDOW)
        context = ContextSettings(mode=mode)  # type: ignore[arg-type]  # one of its choices
        async with open_upstream_gateway(behind, context=context) as gateway:
            await talk(gateway, turns, simulator)
            made = await compactions(gateway)
            assert len(made) >= turns // 20
            for told in made:
                assert told["tokens_after"] < told["tokens_before"]
            view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
            assert view is not None
            assert view.session.turn_count == turns
            assert view.session.item_count >= turns * 4


@pytest.mark.parametrize(
    ("mode", "api", "state"),
    [
        ("model", "responses", "replay"),
        ("elide", "chat", "replay"),
        ("elide", "responses", "chain"),
        ("model", "responses", "conversation"),
    ],
)
async def test_sixty_turns_with_tools_pass_through_a_small_window(
    mode: str, api: str, state: str
) -> None:
    await converse(60, mode, api, state)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["model", "elide"])
async def test_two_thousand_turns_with_tools_pass_through_a_small_window(mode: str) -> None:
    await converse(2000, mode, "responses")
