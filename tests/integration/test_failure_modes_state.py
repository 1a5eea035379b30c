"""Failures that others had with what a provider remembers, and with providers that fail.

The numbers are those of the failure modes in the documentation.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.ports.store import ItemQuery
from holdfast.providers.settings import UpstreamSettings
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
MODES = ["replay", "chain", "conversation"]


async def kinds(gateway: UpstreamGateway, key: str = "k") -> list[str]:
    """Return what kinds of items a key's log has."""
    view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    return [item.kind for item in await gateway.engine.read.items(view.session, ItemQuery())]


async def last_turn(gateway: UpstreamGateway) -> Json:
    """Return the newest turn, as the Turns API tells of it."""
    session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
    turns = (await gateway.client.get(f"/v1/sessions/{session['id']}/turns?order=desc")).json()
    turn: Json = (await gateway.client.get(f"/v1/turns/{turns['data'][0]['id']}")).json()
    return turn


def three(simulator: ProviderSimulator) -> list[UpstreamSettings]:
    """Return an upstream of one model, which falls back to two others of another one."""
    return [
        upstream(simulator, name="first", models=("gpt-4.1",), fallback=("gpt-4o", "o3", "gpt-4o")),
        upstream(simulator, name="others", key="other"),
    ]


FAILING: list[Json] = [
    {"kind": "error", "status": 500},
    {"kind": "rate_limit", "retry_after_seconds": 3600},
    {"kind": "quota"},
    {"kind": "drop", "ending": "reset"},
    {"kind": "error", "status": 401, "message": "bad key", "code": "invalid_api_key"},
]


@pytest.mark.parametrize("fault", FAILING, ids=["broken", "limited", "quota", "dropped", "key"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_f36_the_users_message_is_stored_once_however_many_models_are_called(
    fault: Json, is_stream: bool
) -> None:
    with ProviderSimulator() as simulator:
        for model in ("gpt-4.1", "gpt-4o"):
            simulator.add_fault(**{"kind": "", **fault}, when={"model": model})
        async with open_upstream_gateway(*three(simulator), heals=QUICK) as gateway:
            said = await gateway.respond("one", model="gpt-4.1", stream=is_stream)
            assert text_of(said) == "Messages seen: 1. Last text: one"
            assert said["model"] == "o3"
            assert await kinds(gateway) == ["message", "reasoning", "message"]
            turn = await last_turn(gateway)
            [run] = turn["runs"]
            fell = [heal for heal in run["heals"] if heal["action"] == "fell_back"]
            assert [(heal["model"], heal["next_model"]) for heal in fell] == [
                ("gpt-4.1", "gpt-4o"),
                ("gpt-4o", "o3"),
            ]
            assert [heal["upstream"] for heal in fell] == ["first", "others"]
            simulator.clear_faults()
            back = await gateway.respond("two", model="gpt-4.1", stream=is_stream)
            assert text_of(back) == "Messages seen: 3. Last text: two"
            assert back["model"] == "gpt-4.1"


async def test_f36_when_all_fail_the_last_error_is_returned_and_the_next_turn_is_accepted() -> None:
    with ProviderSimulator(faults=["quota"]) as simulator:
        async with open_upstream_gateway(*three(simulator), heals=QUICK) as gateway:
            failed = await gateway.post("/v1/responses", input="one", model="gpt-4.1")
            assert failed.status_code == 429
            assert failed.json()["error"]["code"] == "insufficient_quota"
            asked = [request.model for request in simulator.requests()]
            assert asked == ["gpt-4.1", "gpt-4o", "o3"]
            assert await kinds(gateway) == ["message"]
            simulator.clear_faults()
            said = await gateway.respond("two", model="gpt-4.1")
            assert text_of(said) == "Messages seen: 2. Last text: two"


async def test_f37_every_model_is_asked_the_same_committed_turn() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(*three(simulator), heals=QUICK) as gateway:
            await gateway.respond("one", model="gpt-4.1")
            simulator.add_fault("error", status=500, when={"model": "gpt-4.1"})
            simulator.clear_record()
            await gateway.respond("two", model="gpt-4.1", instructions="be kind")
            inputs = [request.body["input"] for request in simulator.requests()]
            assert len(inputs) == 4
            assert all(sent == inputs[0] for sent in inputs)
            told = {request.body["instructions"] for request in simulator.requests()}
            assert told == {"be kind"}


async def test_f37_a_model_that_cannot_be_asked_this_is_passed_over() -> None:
    with ProviderSimulator() as simulator:
        settings = [
            upstream(simulator, name="first", models=("gpt-4.1",), fallback=("chatty", "o3")),
            upstream(simulator, name="chat", api="chat", models=("chatty",)),
            upstream(simulator, name="rest"),
        ]
        simulator.add_fault("quota", when={"model": "gpt-4.1"})
        async with open_upstream_gateway(*settings, heals=QUICK) as gateway:
            said = await gateway.respond(
                "one", model="gpt-4.1", tools=[{"type": "web_search"}], tool_choice="required"
            )
            assert said["model"] == "o3"
            assert [request.model for request in simulator.requests()] == ["gpt-4.1", "o3"]


async def test_a_request_that_is_itself_at_fault_asks_no_other_model() -> None:
    with ProviderSimulator(faults=[{"kind": "error", "status": 400, "type": "x"}]) as simulator:
        async with open_upstream_gateway(*three(simulator), heals=QUICK) as gateway:
            failed = await gateway.post("/v1/responses", input="one", model="gpt-4.1")
            assert failed.status_code == 400
            assert len(simulator.requests()) == 1


@pytest.mark.parametrize(
    "fault",
    [
        {"code": "unsupported_parameter", "message": "Unsupported parameter: 'temperature'"},
        {"message": "temperature is not supported with this model."},
        {"message": "The model gpt-4.1 does not support image inputs"},
    ],
    ids=["code", "words", "pictures"],
)
async def test_f37_what_one_model_cannot_do_is_asked_of_the_next(fault: Json) -> None:
    with ProviderSimulator() as simulator:
        simulator.add_fault("error", status=400, when={"model": "gpt-4.1"}, **fault)
        async with open_upstream_gateway(*three(simulator), heals=QUICK) as gateway:
            said = await gateway.respond("one", model="gpt-4.1")
            assert said["model"] == "gpt-4o"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_f54_a_provider_may_forget_anything_at_any_time_for_one_call_more(
    mode: str, is_stream: bool
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            for number in range(5):
                simulator.clear_record()
                said = await gateway.respond(f"turn {number}", stream=is_stream)
                assert text_of(said) == (
                    f"Messages seen: {2 * number + 1}. Last text: turn {number}"
                )
                assert len(simulator.requests(api="responses")) <= 2
                simulator.forget()


@pytest.mark.parametrize("seed", range(3))
async def test_f54_whatever_a_provider_forgets_by_chance_the_answers_are_the_same(
    seed: int,
) -> None:
    scenario: Json = {"seed": seed, "forget": {"chance": 0.5}}
    with ProviderSimulator(scenario) as simulator:
        async with open_upstream_gateway(
            upstream(simulator, state="chain"), heals=QUICK
        ) as gateway:
            for number in range(6):
                simulator.clear_record()
                said = await gateway.respond(f"turn {number}")
                assert text_of(said).startswith(f"Messages seen: {2 * number + 1}.")
                assert len(simulator.requests()) <= 2


@pytest.mark.parametrize("mode", ["chain", "conversation"])
@pytest.mark.parametrize("event", range(1, 10))
async def test_f55_a_stream_cut_at_any_event_leaves_nothing_to_go_on_from(
    mode: str, event: int
) -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state=mode)
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            cut: Json = {"event": event, "ending": "clean", "stored": True}
            simulator.add_fault("cut", **cut, when={"api": "responses"})
            broken = await gateway.respond("one two three", model="gpt-4.1", stream=True)
            assert broken["status"] == "failed"
            assert await states(gateway) == 0
            simulator.clear_faults()
            said = await gateway.respond("and now?", model="gpt-4.1")
            assert text_of(said).endswith("Last text: and now?")
            last = simulator.requests(api="responses")[-1].body
            assert "previous_response_id" not in last
            assert "one two three" in str(last["input"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_f58_models_and_accounts_may_change_in_the_middle(mode: str, is_stream: bool) -> None:
    with ProviderSimulator(profile="azure-like") as simulator:
        settings = [
            upstream(simulator, name="a", models=("gpt-5.4",), state=mode),
            upstream(simulator, name="b", models=("gpt-5.5",), state=mode, key="another"),
            upstream(simulator, name="c", models=("o3",), api="chat"),
        ]
        async with open_upstream_gateway(*settings, heals=QUICK) as gateway:
            models = ["gpt-5.4", "gpt-5.5", "o3", "gpt-5.4", "gpt-5.5", "o3", "gpt-5.4"]
            for number, model in enumerate(models):
                said = await gateway.respond(f"turn {number}", model=model, stream=is_stream)
                assert text_of(said).startswith(f"Messages seen: {2 * number + 1}.")
            assert await heals(gateway) == []
            assert all(request.fault is None for request in simulator.requests())


@pytest.mark.parametrize("mode", MODES)
async def test_f58_an_account_that_changes_between_two_starts_is_sent_everything(
    mode: str, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/store.db"
    with ProviderSimulator() as simulator:
        for number, key in enumerate(["first", "second", "first"]):
            settings = upstream(simulator, state=mode, key=key)
            async with open_upstream_gateway(settings, heals=QUICK, store_url=store) as gateway:
                said = await gateway.respond(f"turn {number}")
                assert text_of(said) == f"Messages seen: {2 * number + 1}. Last text: turn {number}"
                assert await heals(gateway) == []
        assert all(request.fault is None for request in simulator.requests())


async def test_f58_seals_that_are_refused_are_left_out_once_and_the_session_goes_on() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            await gateway.respond("one")
            simulator.add_fault("R07", when={"text": 'encrypted_content":'})
            assert text_of(await gateway.respond("two")).startswith("Messages seen: 3.")
            assert await heals(gateway) == [("foreign_opaque", "stripped_opaque")]
            simulator.clear_faults()
            assert text_of(await gateway.respond("three")).startswith("Messages seen: 5.")


async def test_f61_a_conversation_that_is_locked_is_waited_for_inside_the_turn() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await gateway.respond("one")
            simulator.add_fault("lock", times=3, when={"api": "responses"})
            said = await gateway.respond("two")
            assert text_of(said) == "Messages seen: 3. Last text: two"
            assert await heals(gateway) == [("busy", "waited")] * 3


async def test_f61_two_turns_at_once_never_meet_in_one_conversation() -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, state="conversation")
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            await asyncio.gather(*(gateway.respond(f"turn {number}") for number in range(4)))
            assert all(request.fault != "R08" for request in simulator.requests())
            assert await heals(gateway) == []


@pytest.mark.parametrize("status", [400, 404, 500])
@pytest.mark.parametrize("mode", ["chain", "conversation"])
async def test_f62_a_session_that_its_server_no_longer_finds_is_forgotten_at_once(
    mode: str, status: int
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            await gateway.respond("one")
            # The words of a command-line agent that was asked to resume what it does not have.
            gone = "No conversation found with session ID: 0b5c1f5e-8e7e-4c0e-9d53-1f0f6c1c2a10"
            simulator.add_fault(
                "error", status=status, message=gone, times=1, when={"api": "responses"}
            )
            assert text_of(await gateway.respond("two")) == "Messages seen: 3. Last text: two"
            assert await heals(gateway) == [("stale_state", "dropped_state")]
            assert text_of(await gateway.respond("three")) == "Messages seen: 5. Last text: three"
            assert await heals(gateway) == [("stale_state", "dropped_state")]


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("ending", ["clean", "eof"])
async def test_f63_an_answer_without_its_end_is_no_answer(api: str, ending: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
            simulator.add_fault("cut", event=7, ending=ending)
            broken = await gateway.respond("one two three", model="gpt-4.1", stream=True)
            assert broken["status"] == "failed"
            assert broken["events"][-1]["type"] == "response.failed"
            simulator.clear_faults()
            again = await gateway.respond("and now?", model="gpt-4.1")
            assert text_of(again).endswith("Last text: and now?")


async def test_heals_are_in_the_turn_the_events_and_the_metrics() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(*three(simulator), heals=QUICK) as gateway:
            simulator.add_fault("error", status=500, message="oh no", when={"model": "gpt-4.1"})
            await gateway.respond("one", model="gpt-4.1")
            turn = await last_turn(gateway)
            first = turn["runs"][0]["heals"][0]
            assert first["failure_class"] == "transient"
            assert (first["status"], first["message"]) == (500, "oh no")
            metrics: httpx.Response = await gateway.client.get("/metrics")
            assert 'holdfast_heals_total{failure_class="transient"} 3.0' in metrics.text
            view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
            assert view is not None
            events = await gateway.engine.read.events(view.session.id, after=0, limit=100)
            assert [event.kind for event in events].count("turn.healed") == 3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_f58_a_call_of_one_model_is_answered_to_another(mode: str, is_stream: bool) -> None:
    with ProviderSimulator(faults=["constant_call_ids"]) as simulator:
        settings = [
            upstream(simulator, name="a", models=("gpt-5.4",), state=mode),
            upstream(simulator, name="b", models=("gpt-5.5",), state=mode, key="another"),
            upstream(simulator, name="c", models=("o3",), api="chat"),
        ]
        models = ["gpt-5.4", "o3", "gpt-5.5"]
        async with open_upstream_gateway(*settings, heals=QUICK) as gateway:
            for caller in models:
                for answerer in models:
                    asked: Json = {"tools": [TOOL], "stream": is_stream}
                    words = f'call weather {{"city": "{caller} {answerer}"}}'
                    called = await gateway.respond(words, model=caller, **asked)
                    [call] = [one for one in called["output"] if one["type"] == "function_call"]
                    rain = f"rain from {caller} to {answerer}"
                    output = {"type": "function_call_output", "call_id": call["call_id"]}
                    said = await gateway.respond(
                        [{**output, "output": rain}], model=answerer, **asked
                    )
                    assert text_of(said).endswith(rain)
            assert await heals(gateway) == []
            assert all(request.fault is None for request in simulator.requests())


async def test_a_server_that_wants_turns_taken_is_given_any_history() -> None:
    with ProviderSimulator(profile="strict-alternation") as simulator:
        settings = upstream(simulator, api="chat", strict_alternation=True)
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            asked: Json = {"model": "llama", "tools": [TOOL]}
            await gateway.respond('call weather {"city": "Ulm"}', **asked)
            interrupt = {"X-On-Busy": "interrupt"}
            await gateway.respond("never mind", model="llama", headers=interrupt)
            simulator.add_fault("quota", times=1)
            assert (
                await gateway.post("/v1/responses", input="x", model="llama")
            ).status_code == 429
            system = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "y"}]
            said = await gateway.respond(system, model="llama", instructions="always")
            assert said["status"] == "completed"
            first = simulator.requests()[-1].body["messages"][0]
            assert first == {"role": "system", "content": "always\n\nbe kind"}
            assert await heals(gateway) == []
            assert [r.fault for r in simulator.requests()].count(None) == 3
