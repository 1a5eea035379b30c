"""Compaction on request: thresholds, triggers, client-held items, endpoints, undo."""

import json
from typing import Any

import httpx
import pytest

from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.providers.items.seal_owner import SealOwner, account_of
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_heals import told
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

Json = dict[str, Any]
QUICK = HealSettings(first_pause_seconds=0.001)
SUMMARY = {"when": {"model": "sum"}, "text": "They spoke of words."}
BY_MODEL = ContextSettings(mode="model", model="sum")
AT_600 = [{"type": "compaction", "compact_threshold": 600}]


def talkative() -> ProviderSimulator:
    return ProviderSimulator({"answer": [SUMMARY]})


async def fill(gateway: UpstreamGateway, turns: int, key: str | None = "k", **more: Any) -> Json:
    last: Json = {}
    for number in range(turns):
        last = await gateway.respond(f"turn {number}: " + "word " * 100, key, **more)
    return last


async def session_of(gateway: UpstreamGateway) -> Json:
    found: Json = (await gateway.client.get("/v1/sessions")).json()["data"][0]
    return found


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_at_its_threshold_a_request_is_compacted_and_its_answer_begins_with_the_item(
    api: str, is_stream: bool
) -> None:
    with talkative() as simulator:
        async with open_upstream_gateway(
            upstream(simulator, api=api), heals=QUICK, context=BY_MODEL
        ) as gateway:
            said = [
                await fill(gateway, 1, context_management=AT_600, stream=is_stream)
                for _ in range(8)
            ]
            compacted = [one for one in said if "compaction" in kinds(one)]
            assert compacted
            assert await told(gateway, "session.compacted") == len(compacted)
            first = compacted[0]
            assert kinds(first)[0] == "compaction"
            assert kinds(first)[-1] == "message"
            stored = await gateway.client.get(f"/v1/responses/{first['id']}")
            assert kinds(stored.json()) == kinds(first)
            if is_stream:
                events = first["events"]
                [done] = [
                    e for e in events
                    if e["type"] == "response.output_item.done" and e["output_index"] == 0
                ]  # fmt: skip
                assert done["item"] == first["output"][0]
                last = [e for e in events if e["type"] == "response.output_item.done"][-1]
                assert last["output_index"] == len(first["output"]) - 1
            sent = [r for r in simulator.requests() if r.model != "sum"]
            assert not any("context_management" in r.body for r in sent)
            assert {r.fault for r in sent} == {None}
            # In its own session the record tells; the item is not shown beside it.
            told_last = sent[-1].body.get("input", sent[-1].body.get("messages"))
            users = [str(one["content"]) for one in told_last if one.get("role") == "user"]
            assert sum("They spoke of words." in content for content in users) == 1


async def test_an_item_that_a_client_carries_is_shown_as_its_summary_to_any_model() -> None:
    with talkative() as simulator:
        behind = (
            upstream(simulator, name="a", models=("a", "sum")),
            upstream(simulator, name="b", models=("b",), api="chat"),
        )
        async with open_upstream_gateway(*behind, heals=QUICK, context=BY_MODEL) as gateway:
            last = await fill(gateway, 6, model="a", context_management=AT_600)
            while "compaction" not in kinds(last):
                last = await fill(gateway, 1, model="a", context_management=AT_600)
            item = last["output"][0]
            carried = [item, {"role": "user", "content": "what was it about?"}]
            places: list[tuple[str | None, Json]] = [
                (None, {"store": False, "model": "a"}),
                (None, {"store": False, "model": "b"}),
                ("new a", {"model": "a"}),
                ("new b", {"model": "b"}),
            ]
            for key, more in places:
                simulator.clear_record()
                await gateway.respond(carried, key, **more)
                [sent] = simulator.requests()
                assert "They spoke of words." in str(sent.body)
                assert "turn 0: word" in str(sent.body)
                assert "hfc1." not in str(sent.body)


async def test_what_a_provider_sealed_goes_back_to_its_maker_alone() -> None:
    with ProviderSimulator() as simulator:
        behind = (
            upstream(simulator, name="a", models=("a",)),
            upstream(simulator, name="b", models=("b",), key="another"),
            upstream(simulator, name="c", models=("c",), api="chat"),
        )
        off = ContextSettings(mode="off")
        async with open_upstream_gateway(*behind, heals=QUICK, context=off) as gateway:
            async with httpx.AsyncClient() as client:
                made = await client.post(
                    f"{simulator.base_url}/responses/compact",
                    json={"model": "a", "input": "the beginning"},
                    headers={"authorization": f"Bearer {simulator.key}"},
                )
            sealed = made.json()["output"][-1]
            maker = SealOwner("a", account_of(simulator.base_url, simulator.key), "a")
            theirs = sealed["encrypted_content"]
            sealed["encrypted_content"] = maker.mark(theirs)
            said = await gateway.respond([sealed, {"role": "user", "content": "one"}], model="a")
            assert simulator.requests()[-1].body["input"][0]["type"] == "compaction"
            assert text_of(said).endswith("Last text: one")
            for model in ("b", "c", "a"):
                simulator.clear_record()
                assert text_of(await gateway.respond("and on", model=model))
                sent = simulator.requests()
                assert [r.status for r in sent][-1] == 200
                is_shown = theirs in str(sent[-1].body)
                assert is_shown == (model == "a")


async def test_a_trigger_is_answered_with_one_item_and_the_session_goes_on_from_it() -> None:
    trigger = {"type": "compaction_trigger"}
    with talkative() as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=BY_MODEL
        ) as gateway:
            await fill(gateway, 3)
            made = await gateway.respond([trigger], stream=True)
            assert kinds(made) == ["compaction"]
            assert made["usage"]["input_tokens"] > 0
            types = [event["type"] for event in made["events"]]
            assert "response.compaction.compacting" in types
            simulator.clear_record()
            await gateway.respond("and then?")
            [sent] = simulator.requests()
            assert len(sent.body["input"]) == 3
            assert "They spoke of words." in str(sent.body["input"][1])
            refused = await gateway.post(
                "/v1/responses", input=[trigger, {"role": "user", "content": "x"}]
            )
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


async def test_a_trigger_works_without_a_session_and_on_a_history_too_short_to_compact() -> None:
    said = [{"role": "user", "content": "the word is plum"}, {"type": "compaction_trigger"}]
    with talkative() as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=ContextSettings(mode="elide")
        ) as gateway:
            for key, is_stored in ((None, False), ("k", True)):
                made = await gateway.respond(said, key, store=is_stored)
                assert kinds(made) == ["compaction"]
            assert await told(gateway, "session.compacted") == 0
            assert text_of(await gateway.respond("go on")) == "Messages seen: 3. Last text: go on"
            assert "the word is plum" in str(simulator.requests()[-1].body)


async def test_the_compact_endpoint_answers_the_users_messages_and_one_item() -> None:
    with talkative() as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=BY_MODEL
        ) as gateway:
            first = await gateway.respond("one", None)
            second = await gateway.respond("two", None, previous_response_id=first["id"])
            answer = await gateway.post(
                "/v1/responses/compact", None, previous_response_id=second["id"], input="three"
            )
            value = answer.json()
            assert value["object"] == "response.compaction"
            assert kinds(value) == ["message", "message", "message", "compaction"]
            texts = [item["content"][0]["text"] for item in value["output"][:3]]
            assert texts == ["one", "two", "three"]
            assert all(item["role"] == "user" and item["id"] for item in value["output"][:3])
            assert value["usage"]["total_tokens"] > 0
            simulator.clear_record()
            again = [*value["output"], {"role": "user", "content": "four"}]
            said = await gateway.respond(again, None)
            assert text_of(said) == "Messages seen: 5. Last text: four"
            assert "They spoke of words." in str(simulator.requests()[0].body)
            # Nothing of it was kept, and the parent can still be continued.
            on = await gateway.respond("three", None, previous_response_id=second["id"])
            assert text_of(on) == "Messages seen: 5. Last text: three"


@pytest.mark.parametrize("mode", ["model", "elide"])
@pytest.mark.parametrize("size", [1, 3, 10, 30, 100, 300, 1000, 10_000])
async def test_the_compact_endpoint_answers_less_or_quotes_a_short_history(
    mode: Any, size: int
) -> None:
    told = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "w" * size},
        {"role": "user", "content": "and?"},
    ]
    with ProviderSimulator({"answer": [{"when": {"model": "sum"}, "words": 2000}]}) as simulator:
        context = ContextSettings(mode=mode, model="sum")
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=context
        ) as gateway:
            answer = await gateway.post("/v1/responses/compact", None, input=told)
            given = answer.json()["output"]
            assert kinds(answer.json()) == ["message", "message", "compaction"]
            is_quoted = size < 300
            if is_quoted:
                assert simulator.requests() == []
            else:
                item = {k: v for k, v in given[-1].items() if k != "id"}
                assert len(json.dumps(item)) < size + 50
            simulator.clear_record()
            said = await gateway.respond([*given, {"role": "user", "content": "go on"}], None)
            assert "go on" in text_of(said)
            sent = str(simulator.requests()[0].body)
            assert "be kind" in sent
            assert ("assistant: " + "w" * size in sent) or not is_quoted


async def test_the_compact_endpoint_explains_its_errors() -> None:
    with talkative() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            empty = await gateway.post("/v1/responses/compact", None)
            assert (empty.status_code, empty.json()["error"]["param"]) == (400, "input")
            unknown = await gateway.post(
                "/v1/responses/compact", None, previous_response_id="resp_nobody"
            )
            assert unknown.json()["error"]["code"] == "previous_response_not_found"
            headers = {"content-type": "application/json"}
            bare = await gateway.client.post(
                "/v1/responses/compact", content=b"{}", headers=headers
            )
            assert (bare.status_code, bare.json()["error"]["param"]) == (400, "model")


async def test_a_session_is_compacted_listed_read_and_undone() -> None:
    with talkative() as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=BY_MODEL
        ) as gateway:
            await fill(gateway, 4)
            before = await session_of(gateway)
            path = f"/v1/sessions/{before['id']}"
            done = await gateway.client.post(f"{path}/compact")
            assert done.json()["id"] == before["id"]
            assert done.json()["item_count"] == before["item_count"]
            [listed] = (await gateway.client.get(f"{path}/compactions")).json()["data"]
            read = (await gateway.client.get(f"{path}/compactions/{listed['id']}")).json()
            assert read == listed
            assert (read["status"], read["mode"], read["reason"]) == ("in_force", "model", "asked")
            assert "They spoke of words." in read["summary"]
            assert (read["first_sequence"], read["last_sequence"]) == (1, before["item_count"])
            assert read["tokens_after"] < read["tokens_before"]
            simulator.clear_record()
            await gateway.respond("after")
            assert len(simulator.requests()[0].body["input"]) == 3

            undone = await gateway.client.post(f"{path}/compactions/{listed['id']}/undo")
            assert undone.json()["status"] == "undone"
            simulator.clear_record()
            await gateway.respond("again")
            assert len(simulator.requests()[0].body["input"]) == before["item_count"] + 4
            unknown = await gateway.client.post(f"{path}/compactions/cmp_x/undo")
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (
                404,
                "compaction_not_found",
            )


async def test_a_requested_compaction_runs_once_per_idempotency_key() -> None:
    with talkative() as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=BY_MODEL
        ) as gateway:
            await fill(gateway, 4)
            path = f"/v1/sessions/{(await session_of(gateway))['id']}"
            headers = {"Idempotency-Key": "once"}
            for _ in range(2):
                done = await gateway.client.post(f"{path}/compact", headers=headers)
                assert done.status_code == 200
            assert await told(gateway, "session.compacted") == 1


async def test_settings_that_a_conversation_carries_outlive_compaction_and_reach_chat_servers() -> (
    None
):
    update = {"type": "configuration_update", "reasoning": {"effort": "high"}}
    with talkative() as simulator:
        behind = (
            upstream(simulator, name="a", models=("gpt-5.4", "sum")),
            upstream(simulator, name="b", models=("b",), api="chat"),
        )
        async with open_upstream_gateway(*behind, heals=QUICK, context=BY_MODEL) as gateway:
            await gateway.respond([update, {"role": "user", "content": "think hard"}])
            await fill(gateway, 3)
            await gateway.client.post(f"/v1/sessions/{(await session_of(gateway))['id']}/compact")
            await gateway.respond("go on")
            assert simulator.requests()[-1].body["input"][0]["type"] == "configuration_update"
            await gateway.respond("go on", model="b")
            sent = simulator.requests()[-1].body
            assert sent["reasoning_effort"] == "high"
            assert "configuration_update" not in str(sent["messages"])


async def test_without_new_items_there_is_nothing_to_compact() -> None:
    with talkative() as simulator:
        async with open_upstream_gateway(
            upstream(simulator), heals=QUICK, context=BY_MODEL
        ) as gateway:
            await fill(gateway, 3)
            session_id = (await session_of(gateway))["id"]
            for _ in range(3):
                made = await gateway.client.post(f"/v1/sessions/{session_id}/compact", json={})
                assert made.status_code == 200, made.text
            assert await told(gateway, "session.compacted") == 1
            assert len([r for r in simulator.requests() if r.model == "sum"]) == 1
            await fill(gateway, 2)
            await gateway.client.post(f"/v1/sessions/{session_id}/compact", json={})
            assert await told(gateway, "session.compacted") == 2
