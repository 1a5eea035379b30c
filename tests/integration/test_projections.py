"""What the model was shown: every request is rebuilt from the log and proved by its digest."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from holdfast.engine.settings import HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.in_process import ScriptedModel, called, open_gateway, said
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway, upstream

Json = dict[str, Any]
QUICK = HealSettings(first_pause_seconds=0.001, busy_wait_seconds=1.0)


@pytest.fixture
def simulator() -> Iterator[ProviderSimulator]:
    """A provider."""
    with ProviderSimulator() as simulator:
        yield simulator


@pytest.fixture
async def gateway(simulator: ProviderSimulator, store_url: str) -> AsyncIterator[UpstreamGateway]:
    """A gateway that replays whole histories to the provider."""
    async with open_upstream_gateway(
        upstream(simulator), heals=QUICK, store_url=store_url
    ) as gateway:
        yield gateway


async def session_id(gateway: UpstreamGateway, key: str = "k") -> str:
    listed = (await gateway.client.get("/v1/sessions", params={"key": key})).json()
    return str(listed["data"][0]["id"])


async def turn_ids(gateway: UpstreamGateway, key: str = "k") -> list[str]:
    session = await session_id(gateway, key)
    listed = (await gateway.client.get(f"/v1/sessions/{session}/turns?limit=100")).json()
    return [turn["id"] for turn in listed["data"]]


async def projection(gateway: UpstreamGateway, turn_id: str, **query: Any) -> Json:
    answer = await gateway.client.get(f"/v1/turns/{turn_id}/projection", params=query)
    assert answer.status_code == 200, answer.text
    value: Json = answer.json()
    return value


async def all_proven(gateway: UpstreamGateway, key: str = "k") -> list[Json]:
    """Return the projections of a key's turns, each of which must be proven."""
    found = [await projection(gateway, turn_id) for turn_id in await turn_ids(gateway, key)]
    assert [one["proof"]["is_same"] for one in found] == [True] * len(found)
    assert all(one["proof"]["recorded"] == one["proof"]["rebuilt"] for one in found)
    return found


def texts(request: Json) -> list[str]:
    """Return the texts of a request's messages."""
    found = []
    for item in request["input"]:
        content = item.get("content")
        if isinstance(content, str):
            found.append(content)
        elif item.get("type", "message") == "message":
            found.append("".join(part.get("text", "") for part in content or ()))
    return found


async def test_a_request_is_what_the_provider_received(
    gateway: UpstreamGateway, simulator: ProviderSimulator
) -> None:
    await gateway.respond("one", instructions="Be brief.", temperature=0.5)
    await gateway.respond("two")
    first, second = await all_proven(gateway)
    received = simulator.requests(operation="create")
    assert texts(first["request"]) == texts(received[0].body) == ["one"]
    assert texts(second["request"]) == texts(received[1].body)
    assert first["request"]["instructions"] == received[0].body["instructions"] == "Be brief."
    assert first["request"]["temperature"] == 0.5
    assert "instructions" not in second["request"]
    assert second["difference"]["previous_turn_id"] == first["turn_id"]
    assert second["difference"]["counts"]["added"] == len(second["items"]) - 1
    assert second["difference"]["counts"]["unchanged"] == 1
    assert [attempt["outcome"] for attempt in second["attempts"]] == ["completed"]


async def test_an_edit_is_shown_as_hidden_with_its_record(gateway: UpstreamGateway) -> None:
    chat: list[Json] = [{"role": "user", "content": "one"}]
    answer = await gateway.chat(chat)
    chat += [answer["choices"][0]["message"], {"role": "user", "content": "two"}]
    await gateway.chat(chat)
    await gateway.chat([*chat[:-1], {"role": "user", "content": "two, edited"}])
    *_, last = await all_proven(gateway)
    assert texts(last["request"])[-1] == "two, edited"
    hidden = [one for one in last["difference"]["changes"] if one["change"] == "hidden"]
    assert {one["cause"]["kind"] for one in hidden} == {"rewind"}


async def test_a_compaction_is_shown_with_what_it_replaced(gateway: UpstreamGateway) -> None:
    for number in range(6):
        await gateway.respond(f"message {number} " + "with some more words to leave out " * 20)
    session = await session_id(gateway)
    compacted = await gateway.client.post(f"/v1/sessions/{session}/compact", json={})
    assert compacted.status_code == 200, compacted.text
    await gateway.respond("and now")
    *_, compaction, last = await turn_ids(gateway)
    assert (await gateway.client.get(f"/v1/turns/{compaction}/projection")).status_code == 404
    found = await projection(gateway, last)
    assert found["proof"]["is_same"] is True
    assert "summary" in [item["origin"] for item in found["items"]]
    assert found["difference"]["counts"]["compacted"] > 0


async def test_a_forgotten_response_shows_the_dropped_state_and_both_attempts(
    simulator: ProviderSimulator, store_url: str
) -> None:
    async with open_upstream_gateway(
        upstream(simulator, state="chain"), heals=QUICK, store_url=store_url
    ) as gateway:
        await gateway.respond("one")
        await gateway.respond("two")
        for asked in simulator.requests(operation="create"):
            assert asked.answer_id is not None
            simulator.forget(asked.answer_id)
        await gateway.respond("three")
        _, second, third = await all_proven(gateway)
        assert second["provider_state"]["is_used"] is True
        assert second["provider_state"]["sent_items"] == 1
        assert third["provider_state"]["is_used"] is False
        assert third["provider_state"]["was_dropped"] is True
        failed, completed = third["attempts"]
        assert failed["error"]["failure_class"] == "stale_state"
        assert failed["action"]["kind"] == "dropped_state"
        assert failed["used_provider_state"] is True
        assert completed["outcome"] == "completed"
        assert failed["digest"] != completed["digest"]


async def test_stripped_reasoning_is_reported(
    gateway: UpstreamGateway, simulator: ProviderSimulator
) -> None:
    await gateway.respond("one")
    simulator.add_fault("R07", times=1)
    await gateway.respond("two")
    _, second = await all_proven(gateway)
    assert second["difference"]["strips_encrypted_content"] is True


async def test_a_failed_turn_shows_what_was_sent_and_the_error(
    gateway: UpstreamGateway, simulator: ProviderSimulator
) -> None:
    await gateway.respond("one")
    simulator.add_fault("R01", times=2)
    failed = await gateway.post("/v1/responses", input="two")
    assert failed.status_code == 404
    *_, last = await all_proven(gateway)
    assert [attempt["outcome"] for attempt in last["attempts"]] == ["failed", "failed"]
    assert "not found" in last["attempts"][-1]["error"]["message"]


async def test_each_step_of_a_turn_with_tools_has_its_own_request(store_url: str) -> None:
    def script(items: list[Json]) -> list[Json]:
        is_answered = items[-1]["type"] == "function_call_output"
        return [said("sunny")] if is_answered else [called("weather", "call_1")]

    async with open_gateway(ScriptedModel(script), store_url=store_url) as running:
        asked = await running.respond("how is it outside?")
        output = {"type": "function_call_output", "call_id": "call_1", "output": "20 degrees"}
        await running.respond([output])
        turn_id = asked.headers["x-turn-id"]
        path = f"/v1/turns/{turn_id}/projection"
        first = (await running.client.get(path, params={"step": 0})).json()
        last = (await running.client.get(path)).json()
        assert (first["step"], last["step"]) == (0, 1)
        assert first["proof"]["is_same"] is last["proof"]["is_same"] is True
        kinds = [item["type"] for item in last["request"]["input"]]
        assert kinds == ["message", "function_call", "function_call_output"]
        assert last["difference"]["previous_turn_id"] == turn_id
        assert last["difference"]["previous_step"] == 0
        assert last["difference"]["counts"] == {"added": 2, "unchanged": 1}
        missing = await running.client.get(path, params={"step": 7})
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "projection_not_found"


async def test_an_item_that_the_provider_refused_is_shown_as_a_placeholder(
    gateway: UpstreamGateway, simulator: ProviderSimulator
) -> None:
    message = "Could not process image"
    simulator.add_fault("error", status=400, when={"text": "gone.png"}, message=message)
    picture = [{"type": "input_image", "image_url": "https://example.com/gone.png"}]
    await gateway.respond("hello")
    await gateway.respond([{"type": "message", "role": "user", "content": picture}])
    await gateway.respond("and now?")
    _, second, third = await all_proven(gateway)
    assert [item["origin"] for item in second["items"]][-1] == "placeholder"
    assert second["attempts"][0]["action"]["kind"] == "quarantined"
    assert "gone.png" not in str(third["request"]["input"])


async def test_a_long_request_is_listed_in_pages(gateway: UpstreamGateway) -> None:
    await gateway.respond("start")
    session = await session_id(gateway)
    items = [{"type": "message", "role": "user", "content": f"note {n}"} for n in range(30)]
    added = await gateway.client.post(f"/v1/sessions/{session}/items", json={"items": items})
    assert added.status_code == 200
    await gateway.respond("end")
    turn_id = (await turn_ids(gateway))[-1]
    newest = await projection(gateway, turn_id, limit=2)
    assert texts(newest["request"]) == ["note 29", "end"]
    assert newest["input_offset"] == newest["input_count"] - 2
    oldest = await projection(gateway, turn_id, limit=1, offset=0)
    assert texts(oldest["request"]) == ["start"]
    wrong = await gateway.client.get(f"/v1/turns/{turn_id}/projection?limit=x")
    assert wrong.status_code == 400


async def test_a_turn_without_a_model_call_has_no_projection(gateway: UpstreamGateway) -> None:
    await gateway.respond("one")
    session = await session_id(gateway)
    items = [{"type": "message", "role": "user", "content": "note"}]
    await gateway.client.post(f"/v1/sessions/{session}/items", json={"items": items})
    last = (await turn_ids(gateway))[-1]
    answer = await gateway.client.get(f"/v1/turns/{last}/projection")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "projection_not_found")
    unknown = await gateway.client.get("/v1/turns/turn_unknown/projection")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "turn_not_found")


async def test_a_fork_shows_what_it_inherited(gateway: UpstreamGateway) -> None:
    await gateway.respond("one")
    fork = (await gateway.client.post(f"/v1/sessions/{await session_id(gateway)}/fork")).json()
    answer = await gateway.post(
        "/v1/responses", None, input="two", headers={"X-Session-Id": fork["id"]}
    )
    found = await projection(gateway, answer.headers["x-turn-id"])
    assert found["proof"]["is_same"] is True
    assert texts(found["request"])[0] == "one"
    assert texts(found["request"])[-1] == "two"


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_body_that_the_upstream_was_sent_is_shown_on_request(
    simulator: ProviderSimulator, api: str, *, is_stream: bool
) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
        await gateway.respond("one")
        await gateway.respond(
            "two",
            instructions="be brief",
            temperature=0.3,
            tools=[tool],
            metadata={"a": "b"},
            stream=is_stream,
        )
        turn_id = (await turn_ids(gateway))[-1]
        found = await projection(gateway, turn_id, wire="true")
        plain = await projection(gateway, turn_id)
    assert found["wire"] == simulator.requests(operation="create")[-1].body
    assert found["proof"]["is_same"] is True
    assert found["proof"]["covers"] == "model_call"
    assert plain["wire"] is None


async def test_a_body_with_ids_of_the_upstream_is_not_shown(
    simulator: ProviderSimulator, store_url: str
) -> None:
    async with open_upstream_gateway(
        upstream(simulator, state="chain"), heals=QUICK, store_url=store_url
    ) as gateway:
        await gateway.respond("one")
        await gateway.respond("two")
        first, second = [
            (await projection(gateway, turn_id, wire="true"))["wire"]
            for turn_id in await turn_ids(gateway)
        ]
    assert first == simulator.requests(operation="create")[0].body
    assert second is None
