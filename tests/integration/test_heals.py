"""A provider that fails before its first event: one heal per failure class, then the error."""

from typing import Any

import pytest

from holdfast.core.healing.policy import read_heals
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.settings import HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

Json = dict[str, Any]
QUICK = HealSettings(first_pause_seconds=0.001, busy_wait_seconds=1.0)


async def heals(gateway: UpstreamGateway, key: str = "k") -> list[tuple[str, str]]:
    """Return what was done about failures in a key's session, oldest first."""
    view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    turns = await gateway.engine.read.turns(view.session.id)
    runs = [run for turn in turns for run in await gateway.engine.read.runs(turn.turn.id)]
    return [(h.failure_class, h.action) for run in runs for h in read_heals(run.heals)]


async def told(gateway: UpstreamGateway, kind: str, key: str = "k") -> int:
    """Return how many facts of a kind a key's session has."""
    view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    events = await gateway.engine.read.events(view.session.id, after=0, limit=1000)
    return sum(event.kind == kind for event in events)


async def states(gateway: UpstreamGateway, key: str = "k") -> int:
    """Return how many things providers remember for a key's session."""
    view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    return len(await gateway.engine.read.provider_state(view.session.id))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_forgotten_response_is_replayed_once_and_only_its_session_is_touched(
    is_stream: bool,
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(
            upstream(simulator, state="chain"), heals=QUICK
        ) as gateway:
            first = await gateway.respond("one", "a", stream=is_stream)
            await gateway.respond("one", "b", stream=is_stream)
            assert await states(gateway, "a") == await states(gateway, "b") == 1
            [asked, _] = simulator.requests(operation="create")
            assert asked.body["store"] is True
            assert asked.answer_id is not None
            assert asked.answer_id != first["id"]
            simulator.forget(asked.answer_id)
            simulator.clear_record()

            said = await gateway.respond("two", "a", stream=is_stream)
            assert text_of(said) == "Messages seen: 3. Last text: two"
            refused, replayed = simulator.requests(operation="create")
            assert (refused.fault, refused.body["previous_response_id"]) == ("R02", asked.answer_id)
            assert [item["type"] for item in refused.body["input"]] == ["message"]
            assert "previous_response_id" not in replayed.body
            kinds = [item["type"] for item in replayed.body["input"]]
            assert kinds == ["message", "reasoning", "message", "message"]
            assert await heals(gateway, "a") == [("stale_state", "dropped_state")]
            assert await told(gateway, "turn.healed", "a") == 1
            assert await heals(gateway, "b") == []

            simulator.clear_record()
            await gateway.respond("three", "a", stream=is_stream)
            await gateway.respond("two", "b", stream=is_stream)
            later = simulator.requests(operation="create")
            assert [bool(r.body.get("previous_response_id")) for r in later] == [True, True]


async def test_a_second_refusal_reaches_the_caller_and_the_session_stays_usable() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(
            upstream(simulator, state="chain"), heals=QUICK
        ) as gateway:
            await gateway.respond("one")
            simulator.add_fault("R01", times=2)
            simulator.clear_record()
            failed = await gateway.post("/v1/responses", input="two")
            assert failed.status_code == 404
            assert "not found. Items are not persisted" in failed.json()["error"]["message"]
            assert len(simulator.requests()) == 2
            assert await states(gateway) == 0
            said = await gateway.respond("three")
            assert text_of(said) == "Messages seen: 4. Last text: three"


async def test_an_item_the_server_cannot_find_is_healed_in_replay_too() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            await gateway.respond("one")
            simulator.add_fault("R01", times=1)
            said = await gateway.respond("two")
            assert text_of(said) == "Messages seen: 3. Last text: two"
            assert await heals(gateway) == [("stale_state", "stripped_opaque")]
            last = simulator.requests()[-1].body["input"]
            assert [item["type"] for item in last] == ["message"] * 3


@pytest.mark.parametrize("is_stream", [False, True])
async def test_sealed_content_that_is_refused_is_left_out_once(is_stream: bool) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            await gateway.respond("one", stream=is_stream)
            simulator.add_fault("R07", times=1)
            said = await gateway.respond("two", stream=is_stream)
            assert text_of(said) == "Messages seen: 3. Last text: two"
            assert await heals(gateway) == [("foreign_opaque", "stripped_opaque")]
            assert "encrypted_content" not in str(simulator.requests()[-1].body["input"])


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_busy_conversation_is_waited_for_inside_the_turn(is_stream: bool) -> None:
    with ProviderSimulator(faults=[{"kind": "R08", "times": 3}]) as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            said = await gateway.respond("one", stream=is_stream)
            assert text_of(said) == "Messages seen: 1. Last text: one"
            assert await heals(gateway) == [("busy", "waited")] * 3


async def test_waiting_for_a_busy_conversation_has_an_end() -> None:
    settings = HealSettings(first_pause_seconds=0.001, busy_wait_seconds=0.004)
    with ProviderSimulator(faults=["R08"]) as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=settings) as gateway:
            failed = await gateway.post("/v1/responses", input="one")
            assert failed.status_code == 400
            assert failed.json()["error"]["code"] == "conversation_locked"
            assert await heals(gateway) == [("busy", "waited")] * 2


BREAKS: list[Json] = [
    {"kind": "error", "status": 500},
    {"kind": "error", "status": 503, "retry_after_seconds": 0},
    {"kind": "drop", "ending": "eof"},
    {"kind": "drop", "ending": "reset"},
    {"kind": "rate_limit", "retry_after_seconds": 0},
    {"kind": "overloaded"},
    {"kind": "cut", "event": 1, "ending": "clean"},
    {"kind": "cut", "event": 1, "ending": "reset"},
]


@pytest.mark.parametrize("fault", BREAKS, ids=lambda fault: "-".join(map(str, fault.values())))
@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_call_that_breaks_before_its_first_word_is_made_again(
    fault: Json, api: str
) -> None:
    with ProviderSimulator(faults=[{**fault, "times": 2}]) as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
            said = await gateway.respond("one", stream=True)
            assert text_of(said) == "Messages seen: 1. Last text: one"
            assert await heals(gateway) == [("transient", "retried")] * 2


async def test_after_its_retries_a_turn_fails_in_the_providers_words() -> None:
    with ProviderSimulator(faults=[{"kind": "error", "status": 500}]) as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            failed = await gateway.post("/v1/responses", input="one")
            assert failed.status_code == 500
            assert "The server had an error" in failed.json()["error"]["message"]
            assert len(simulator.requests()) == 3
            simulator.clear_faults()
            assert text_of(await gateway.respond("two")).startswith("Messages seen: 2.")


async def test_a_long_retry_after_is_returned_to_the_client_at_once() -> None:
    with ProviderSimulator(faults=[{"kind": "rate_limit", "retry_after_seconds": 60}]) as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            failed = await gateway.post("/v1/responses", input="one")
            assert (failed.status_code, failed.headers["retry-after"]) == (429, "60")
            assert len(simulator.requests()) == 1


@pytest.mark.parametrize("kind", ["quota", "R10", "A08"])
async def test_what_a_retry_cannot_help_is_not_tried_again(kind: str) -> None:
    with ProviderSimulator(faults=[kind]) as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            failed = await gateway.post("/v1/responses", input="one")
            assert failed.status_code in (400, 429)
            assert len(simulator.requests()) == 1


@pytest.mark.parametrize("ending", ["clean", "eof", "reset"])
@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_an_answer_that_breaks_off_is_a_failure_and_its_output_is_stored(
    ending: str, api: str
) -> None:
    cut = {"kind": "cut", "event": 9, "ending": ending, "times": 1}
    with ProviderSimulator(faults=[cut]) as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
            said = await gateway.respond("one two three four", model="gpt-4.1", stream=True)
            assert said["status"] == "failed"
            assert said["events"][-1]["type"] == "response.failed"
            deltas = [e["delta"] for e in said["events"] if e["type"].endswith("text.delta")]
            assert deltas
            assert text_of(said) == "".join(deltas)
            assert len(simulator.requests()) == 1
            after = await gateway.respond("and now?", model="gpt-4.1")
            assert text_of(after) == "Messages seen: 3. Last text: and now?"
            shown = simulator.requests()[-1].body
            history = shown.get("input") or shown["messages"]
            assert "".join(deltas) in str(history)


@pytest.mark.parametrize("style", ["failed", "error"])
async def test_an_error_in_mid_stream_fails_the_turn(style: str) -> None:
    fault = {"kind": "failed", "event": 8, "style": style}
    with ProviderSimulator(faults=[fault]) as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            said = await gateway.respond("one", model="gpt-4.1", stream=True)
            assert (said["status"], said["error"]["code"]) == ("failed", "server_error")
            assert "An error occurred while processing" in said["error"]["message"]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_an_incomplete_answer_is_one_and_leaves_no_state(is_stream: bool, api: str) -> None:
    state = "chain" if api == "responses" else "replay"
    with ProviderSimulator(faults=[{"kind": "incomplete", "words": 2}]) as simulator:
        settings = upstream(simulator, api=api, state=state)
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            said = await gateway.respond("one", stream=is_stream)
            assert said["status"] == "incomplete"
            assert said["incomplete_details"] == {"reason": "max_output_tokens"}
            assert await states(gateway) == 0


async def test_a_response_that_stays_queued_is_no_answer() -> None:
    with ProviderSimulator(faults=["queued"]) as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            failed = await gateway.post("/v1/responses", input="one")
            assert failed.status_code == 502
            assert failed.json()["error"]["code"] == "upstream_unfinished"


@pytest.mark.parametrize("kind", ["R03", "R04", "R05", "R06", "R09", "C01"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_form_that_is_refused_is_sent_again_in_the_plainest_form_once(
    kind: str, is_stream: bool
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(
            upstream(simulator, state="chain"), heals=QUICK
        ) as gateway:
            await gateway.respond("one", stream=is_stream)
            simulator.add_fault(kind, times=1)
            said = await gateway.respond("two", stream=is_stream)
            assert text_of(said) == "Messages seen: 3. Last text: two"
            assert await heals(gateway) == [("shape", "repaired")]
            last = simulator.requests()[-1].body
            assert "previous_response_id" not in last
            assert [item["type"] for item in last["input"]] == ["message"] * 3
            simulator.add_fault(kind)
            simulator.clear_record()
            failed = await gateway.post("/v1/responses", input="three")
            assert failed.status_code == 400
            assert len(simulator.requests()) == 2
            simulator.clear_faults()
            assert text_of(await gateway.respond("four")).startswith("Messages seen: 6.")


async def test_speakers_that_do_not_take_turns_are_healed_and_can_be_avoided_by_a_setting() -> None:
    system = {"role": "system", "content": "be kind"}
    said = [{"role": "user", "content": "one"}, system, {"role": "user", "content": "two"}]
    for strict, calls in ((False, 2), (True, 1)):
        with ProviderSimulator(profile="strict-alternation") as simulator:
            settings = upstream(simulator, api="chat", strict_alternation=strict)
            async with open_upstream_gateway(settings, heals=QUICK) as gateway:
                answer = await gateway.respond(said)
                assert text_of(answer).startswith("Messages seen: 1. Last text: one")
                assert len(simulator.requests()) == calls
                assert await heals(gateway) == [("shape", "repaired")][: calls - 1]
                await gateway.respond(said)
                assert len(simulator.requests()) == calls + 1, "it is known from then on"


async def test_a_reference_to_an_item_that_is_not_there_is_refused_once() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            first = await gateway.respond("one", None)
            behind: Json = {"previous_response_id": first["id"]}
            known = [{"type": "item_reference", "id": first["output"][-1]["id"]}]
            again = await gateway.respond(
                [*known, {"role": "user", "content": "two"}], None, **behind
            )
            assert text_of(again).startswith("Messages seen: 4.")
            lost = [{"type": "item_reference", "id": "msg_nowhere"}]
            failed = await gateway.post("/v1/responses", None, input=lost, **behind)
            assert failed.status_code == 404
            assert failed.json()["error"]["message"] == "Item with id 'msg_nowhere' not found."
