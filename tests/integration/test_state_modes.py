"""Provider state: chained responses and conversations, and when they are not used."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_heals import QUICK, heals, states
from tests.integration.test_upstreams import TOOL
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

Json = dict[str, Any]
MODES = ["chain", "conversation"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_only_what_is_new_is_sent(mode: str, is_stream: bool) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            await gateway.respond("one", stream=is_stream)
            asked: Json = {"tools": [TOOL], "stream": is_stream}
            called = await gateway.respond('call weather {"city": "Ulm"}', **asked)
            call = next(item for item in called["output"] if item["type"] == "function_call")
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
            await gateway.respond([output], **asked)
            said = await gateway.respond("two", stream=is_stream)
            assert text_of(said) == "Messages seen: 5. Last text: two"
            sent = simulator.requests(api="responses", operation="create")
            assert [len(request.body["input"]) for request in sent] == [1, 1, 1, 1]
            assert all(request.body["store"] is True for request in sent)
            assert await heals(gateway) == []


@pytest.mark.parametrize("mode", MODES)
async def test_every_streamed_turn_is_sent_word_for_word(mode: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            for said in ("one", "two", "three"):
                body: Json = {"model": "gpt-4.1", "input": said, "stream": True}
                answer = await gateway.post("/v1/responses", **body)
                events = [
                    json.loads(line.removeprefix("data: "))
                    for line in answer.text.splitlines()
                    if line.startswith("data: {")
                ]
                deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
                assert "".join(deltas) == text_of(events[-1]["response"])
                assert "".join(deltas).endswith(f"Last text: {said}")


@pytest.mark.parametrize("mode", MODES)
async def test_a_chat_stream_says_what_was_answered(mode: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            for said in ("one", "two"):
                asked: Json = {"messages": [{"role": "user", "content": said}], "stream": True}
                body = {"model": "gpt-4.1", "store": True, **asked}
                answer = await gateway.post("/v1/chat/completions", **body)
                assert f"text: {said}" in "".join(
                    choice["delta"].get("content") or ""
                    for line in answer.text.splitlines()
                    if line.startswith("data: {")
                    for choice in json.loads(line.removeprefix("data: "))["choices"]
                )


@pytest.mark.parametrize("mode", MODES)
async def test_calls_that_the_server_names_alike_are_answered_in_its_names(mode: str) -> None:
    with ProviderSimulator(faults=["constant_call_ids"]) as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            called = await gateway.respond('call weather {"city": "Ulm"}', tools=[TOOL])
            call = next(item for item in called["output"] if item["type"] == "function_call")
            assert call["call_id"] != "call_1"
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
            said = await gateway.respond([output], tools=[TOOL])
            assert text_of(said).endswith("Last text: rain")
            assert await heals(gateway) == []


@pytest.mark.parametrize("mode", MODES)
async def test_store_false_is_replayed_and_leaves_nothing(mode: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            await gateway.respond("one")
            await gateway.respond("two", store=False)
            last = simulator.requests(api="responses")[-1].body
            assert last["store"] is False
            assert "previous_response_id" not in last
            assert "conversation" not in last
            assert await states(gateway) == 1
            said = await gateway.respond("three")
            assert text_of(said) == "Messages seen: 5. Last text: three"


@pytest.mark.parametrize("mode", MODES)
async def test_another_model_is_sent_everything_and_the_first_one_what_it_missed(
    mode: str,
) -> None:
    with ProviderSimulator(profile="azure-like") as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            await gateway.respond("one", model="gpt-5.4")
            said = await gateway.respond("two", model="gpt-5.5")
            assert text_of(said) == "Messages seen: 3. Last text: two"
            said = await gateway.respond("three", model="gpt-5.4")
            assert text_of(said) == "Messages seen: 5. Last text: three"
            assert await heals(gateway) == []
            assert await states(gateway) == 2


@pytest.mark.parametrize("mode", MODES)
async def test_an_edit_takes_the_state_with_it(mode: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            first = await gateway.respond("one")
            await gateway.respond("two")
            answer = {"role": "assistant", "content": text_of(first)}
            history = [{"role": "user", "content": "one"}, answer]
            edited = await gateway.respond([*history, {"role": "user", "content": "deux"}])
            assert text_of(edited) == "Messages seen: 3. Last text: deux"
            last = simulator.requests(api="responses")[-1].body
            assert "previous_response_id" not in last


async def test_a_conversation_that_a_broken_turn_may_have_changed_is_replaced() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await gateway.respond("one", model="gpt-4.1")
            simulator.add_fault("cut", event=9, stored=True, times=1, when={"api": "responses"})
            broken = await gateway.respond("two", model="gpt-4.1", stream=True)
            assert broken["status"] == "failed"
            said = await gateway.respond("three", model="gpt-4.1")
            assert text_of(said) == "Messages seen: 5. Last text: three"
            used = {r.body["conversation"] for r in simulator.requests(api="responses")}
            assert len(used) == 2


async def test_a_conversation_is_not_gone_on_with_after_a_call_whose_end_is_unknown() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await gateway.respond("one")
            simulator.add_fault("error", status=500, times=1, when={"api": "responses"})
            said = await gateway.respond("two")
            assert text_of(said) == "Messages seen: 3. Last text: two"
            sent = simulator.requests(api="responses", operation="create")
            first, refused, again = (request.body for request in sent)
            assert first["conversation"] == refused["conversation"] != again["conversation"]
            assert await heals(gateway) == [("transient", "retried")]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_turn_that_a_conversation_may_have_taken_is_not_sent_to_it_again(
    is_stream: bool,
) -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await gateway.respond("one", stream=is_stream)
            # The turn is carried out and kept; the kept connection closes without a byte.
            simulator.add_fault("drop", stored=True, times=1, when={"api": "responses"})
            said = await gateway.respond("two", stream=is_stream)
            assert text_of(said) == "Messages seen: 3. Last text: two"
            _, lost, again = simulator.requests(api="responses", operation="create")
            assert lost.body["conversation"] != again.body["conversation"]
            assert await heals(gateway) == [("transient", "retried")]


@pytest.mark.parametrize(
    ("mode", "more", "recorded"),
    [
        ("replay", {}, []),
        ("replay", {"tools": [{"type": "function", "name": "look", "parameters": {}}]}, []),
        ("replay", {"tools": [{"type": "web_search"}]}, [("transient", "retried")]),
        ("chain", {}, [("transient", "retried")]),
    ],
    ids=["nothing", "own-tools", "their-tools", "chain"],
)
async def test_only_a_call_that_changes_nothing_is_silently_sent_again(
    mode: str, more: Json, recorded: list[tuple[str, str]]
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            await gateway.respond("one", **more)
            simulator.add_fault("drop", stored=True, times=1)
            said = await gateway.respond("two", **more)
            assert text_of(said) == "Messages seen: 3. Last text: two"
            assert len(simulator.requests(operation="create")) == 3
            assert await heals(gateway) == recorded


async def test_a_conversation_that_expired_is_replaced() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await gateway.respond("one")
            simulator.forget()
            said = await gateway.respond("two")
            assert text_of(said) == "Messages seen: 3. Last text: two"
            assert await heals(gateway) == [("stale_state", "dropped_state")]


async def test_a_chain_survives_a_turn_that_failed_on_it() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="chain")
        none = HealSettings(transient_retries=0)
        async with open_upstream_gateway(settings, heals=none) as gateway:
            await gateway.respond("one")
            simulator.add_fault("error", status=500, times=1)
            assert (await gateway.post("/v1/responses", input="two")).status_code == 500
            said = await gateway.respond("three")
            assert text_of(said) == "Messages seen: 4. Last text: three"
            last = simulator.requests(api="responses")[-1].body
            assert last["previous_response_id"]
            assert len(last["input"]) == 2


@pytest.mark.parametrize("mode", MODES)
async def test_a_reset_begins_with_nothing_remembered(mode: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            await gateway.respond("one")
            view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
            assert view is not None
            await gateway.reset(view.session.id)
            said = await gateway.respond("two")
            assert text_of(said) == "Messages seen: 1. Last text: two"


async def _take_back(gateway: UpstreamGateway, path: str) -> None:
    listed = (await gateway.client.get(f"{path}/compactions")).json()["data"]
    undone = await gateway.client.post(f"{path}/compactions/{listed[-1]['id']}/undo")
    assert undone.status_code == 200


async def _delete_first(gateway: UpstreamGateway, path: str, query: str = "") -> None:
    items = (await gateway.client.get(f"{path}/items")).json()["data"]
    session_id = path.rpartition("/")[2]
    name = f"conv_{session_id.partition('_')[2]}"
    gone = await gateway.client.delete(f"/v1/conversations/{name}/items/{items[0]['id']}{query}")
    assert gone.status_code == 200


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("change", "seen"), [(_take_back, 11), (_delete_first, 10)], ids=["undo", "delete"]
)
async def test_state_that_was_made_while_the_history_changed_is_not_gone_on_from(
    mode: str, change: Callable[[UpstreamGateway, str], Awaitable[None]], seen: int
) -> None:
    with ProviderSimulator() as simulator:
        context = ContextSettings(mode="elide")
        settings = upstream(simulator, state=mode)
        async with open_upstream_gateway(settings, heals=QUICK, context=context) as gateway:
            for number in range(4):
                await gateway.respond(f"turn {number} " + "word " * 60, model="gpt-4.1")
            [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
            path = f"/v1/sessions/{session['id']}"
            if change is _take_back:
                assert (await gateway.client.post(f"{path}/compact")).status_code == 200
            held = simulator.hold(when={"api": "responses"})
            running = asyncio.create_task(gateway.respond("meanwhile", model="gpt-4.1"))
            await asyncio.to_thread(held.wait_held, 1)
            await change(gateway, path)
            held.remove()
            await running
            simulator.clear_record()
            said = await gateway.respond("after", model="gpt-4.1")
            assert text_of(said) == f"Messages seen: {seen}. Last text: after"
            last = simulator.requests(api="responses", operation="create")[-1].body
            first = "user" if change is _take_back else "assistant"
            assert last["input"][0]["role"] == first
            # From here on it is remembered again.
            await gateway.respond("and on", model="gpt-4.1")
            assert len(simulator.requests(api="responses")[-1].body["input"]) == 1


@pytest.fixture(name="store_url", params=["memory", "postgres"])
def _store_url(request: pytest.FixtureRequest) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory:"


@pytest.mark.parametrize("mode", MODES)
async def test_what_is_erased_from_a_session_is_forgotten_by_the_providers_of_its_forks(
    mode: str, store_url: str
) -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state=mode)
        async with open_upstream_gateway(settings, heals=QUICK, store_url=store_url) as gateway:
            for number in range(2):
                await gateway.respond(f"turn {number}", model="gpt-4.1")
            [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
            path = f"/v1/sessions/{session['id']}"
            fork = (await gateway.client.post(f"{path}/fork", json={})).json()
            inside = {"X-Session-Id": fork["id"]}
            await gateway.respond("in the fork", None, model="gpt-4.1", headers=inside)
            await _delete_first(gateway, path, "?erase=true")
            said = await gateway.respond("again", None, model="gpt-4.1", headers=inside)
            assert text_of(said) == "Messages seen: 6. Last text: again"
            last = simulator.requests(api="responses", operation="create")[-1].body
            assert len(last["input"]) == 6
