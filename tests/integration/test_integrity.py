"""Provider conversations are compared with the log; lost items are sent again."""

from typing import Any

import httpx
import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_heals import QUICK, heals
from tests.integration.test_upstreams import TOOL
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

Json = dict[str, Any]


async def codes(gateway: UpstreamGateway) -> list[str]:
    """Return the codes of what was healed, as the session's events tell them."""
    view = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
    listed = await gateway.client.get(f"/v1/sessions/{view['id']}/turns?order=asc&limit=100")
    turns = listed.json()["data"]
    found = []
    for turn in turns:
        told = (await gateway.client.get(f"/v1/turns/{turn['id']}")).json()
        found += [heal["code"] for run in told["runs"] for heal in run["heals"] or ()]
    return found


@pytest.mark.parametrize("is_stream", [False, True])
async def test_f56_items_that_a_conversation_lost_are_noticed_and_sent_again(
    is_stream: bool,
) -> None:
    with ProviderSimulator({"unlink_models": ["gpt-5.4"]}) as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            for number, said in enumerate(["one", "two", "three", "four"]):
                simulator.clear_record()
                answer = await gateway.respond(said, stream=is_stream)
                assert text_of(answer) == f"Messages seen: {2 * number + 1}. Last text: {said}"
                # The model is never asked twice: what is missing is seen before.
                assert len(simulator.requests(api="responses")) == 1
            assert set(await codes(gateway)) == {"conversation_items_missing"}


async def test_f56_a_conversation_that_expired_is_replaced_and_the_heal_is_recorded() -> None:
    with ProviderSimulator({"forget": {"after_seconds": 100}}) as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await gateway.respond("one")
            simulator.advance_clock(1000)
            simulator.clear_record()
            assert text_of(await gateway.respond("two")) == "Messages seen: 3. Last text: two"
            assert len(simulator.requests(api="responses")) == 1
            assert await codes(gateway) == ["conversation_expired"]


async def test_f56_items_that_somebody_else_added_or_took_are_noticed() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await gateway.respond("one")
            conversation = simulator.requests(api="responses")[-1].body["conversation"]
            place = f"{simulator.base_url}/conversations/{conversation}/items"
            key = {"authorization": f"Bearer {simulator.key}"}
            async with httpx.AsyncClient(headers=key) as other:
                stray = {"type": "message", "role": "user", "content": "not from us"}
                await other.post(place, json={"items": [stray]})
                assert text_of(await gateway.respond("two")) == "Messages seen: 3. Last text: two"
                assert await codes(gateway) == ["conversation_items_added"]
                last = simulator.requests(api="responses")[-1].body["conversation"]
                place = f"{simulator.base_url}/conversations/{last}/items"
                held = (await other.get(place, params={"order": "asc"})).json()["data"]
                await other.delete(f"{place}/{held[0]['id']}")
            assert text_of(await gateway.respond("three")) == "Messages seen: 5. Last text: three"
            assert (await codes(gateway))[1:] == ["conversation_items_missing"]


async def test_an_intact_conversation_is_not_rebuilt() -> None:
    with ProviderSimulator(faults=["constant_call_ids"]) as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            for city in ("Ulm", "Bonn"):
                asked: Json = {"tools": [TOOL]}
                called = await gateway.respond(f'call weather {{"city": "{city}"}}', **asked)
                [call] = [item for item in called["output"] if item["type"] == "function_call"]
                output = {"type": "function_call_output", "call_id": call["call_id"]}
                said = await gateway.respond([{**output, "output": f"rain in {city}"}], **asked)
                assert text_of(said).endswith(f"rain in {city}")
            await gateway.respond("thanks")
            assert await heals(gateway) == []
            used = {request.body["conversation"] for request in simulator.requests(api="responses")}
            assert len(used) == 1


async def test_of_a_long_conversation_the_newest_and_the_oldest_are_compared() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            for number in range(54):
                await gateway.respond(f"turn {number}", model="gpt-4.1")
            assert await codes(gateway) == []
            simulator.add_fault("unlink", when={"api": "responses"}, times=1)
            await gateway.respond("one more", model="gpt-4.1")
            said = await gateway.respond("and the last", model="gpt-4.1")
            assert text_of(said) == "Messages seen: 111. Last text: and the last"
            assert await codes(gateway) == ["conversation_items_missing"]
            conversation = simulator.requests(api="responses")[-1].body["conversation"]
            place = f"{simulator.base_url}/conversations/{conversation}/items"
            key = {"authorization": f"Bearer {simulator.key}"}
            async with httpx.AsyncClient(headers=key) as other:
                oldest = (await other.get(f"{place}?order=asc&limit=1")).json()["data"][0]
                gone = await other.delete(f"{place}/{oldest['id']}")
                assert gone.status_code == 200
            said = await gateway.respond("once more", model="gpt-4.1")
            assert text_of(said) == "Messages seen: 113. Last text: once more"
            assert await codes(gateway) == ["conversation_items_missing"] * 2


async def test_the_comparison_can_be_switched_off() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation", verify_conversation=False)
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await gateway.respond("one")
            await gateway.respond("two")
            assert simulator.requests(operation="list_items") == []


LONG = "a long story that has a good many words in it, so that its tokens can be counted"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_f57_a_server_that_ignores_its_memory_is_detected_and_sent_everything(
    is_stream: bool,
) -> None:
    with ProviderSimulator(profile="ignores-previous-id") as simulator:
        async with open_upstream_gateway(
            upstream(simulator, state="chain"), heals=QUICK
        ) as gateway:
            await gateway.respond(LONG, stream=is_stream)
            said = await gateway.respond("two", stream=is_stream)
            assert text_of(said) == "Messages seen: 3. Last text: two"
            assert await heals(gateway) == [("stale_state", "dropped_state")]
            assert await codes(gateway) == ["previous_response_ignored"]
            simulator.clear_record()
            said = await gateway.respond("three", stream=is_stream)
            assert text_of(said) == "Messages seen: 5. Last text: three"
            [asked] = simulator.requests()
            assert "previous_response_id" not in asked.body


async def test_f57_a_server_that_has_shown_its_memory_is_streamed_from_at_once() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(
            upstream(simulator, state="chain"), heals=QUICK
        ) as gateway:
            await gateway.respond(LONG, stream=True)
            for said in ("two", "three"):
                await gateway.respond(said, stream=True)
            streams = [bool(request.body.get("stream")) for request in simulator.requests()]
            assert streams == [True, False, True]
            assert await heals(gateway) == []
