"""Failures that others had with single items, each against a provider that behaves as theirs did.

The numbers are those of the failure modes in the documentation.
"""

import re
from typing import Any

import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.model.synthetic_outputs import INTERRUPTED
from holdfast.core.projection.placeholders import LEFT_OUT
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_heals import QUICK, heals, told
from tests.integration.test_upstreams import TOOL
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

Json = dict[str, Any]
PICTURE = "https://pictures.example/gone.png?sig=1"


def picture(url: str = PICTURE, say: str = "what is this?") -> list[Json]:
    parts = [{"type": "input_text", "text": say}, {"type": "input_image", "image_url": url}]
    return [{"role": "user", "content": parts}]


async def aside(gateway: UpstreamGateway, key: str = "k") -> list[tuple[int, int]]:
    """Return the ranges of a key's log that are in quarantine."""
    view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    records = await gateway.engine.read.records(view.session)
    return [(one.from_seq, one.to_seq) for one in records if one.kind == "quarantine"]


REFUSALS: list[Json] = [
    {"message": "Could not process image"},
    {"message": "Invalid image data.", "code": "invalid_image", "param": "input"},
    {
        "message": "The string is not valid.",
        "code": "invalid_value",
        "param": "input[2].content[1]",
    },
    {"message": f"Error while downloading {PICTURE}.", "code": "invalid_image_url"},
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["words", "code", "place", "address"])
@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_f44_a_refused_item_fails_one_attempt_and_is_left_out_from_then_on(
    refusal: Json, api: str, is_stream: bool
) -> None:
    if "param" in refusal and api == "chat":
        refusal = {**refusal, "param": refusal["param"].replace("input", "messages")}
    with ProviderSimulator() as simulator:
        simulator.add_fault("error", status=400, when={"text": "gone.png"}, **refusal)
        async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
            await gateway.respond("hello", model="gpt-4.1", stream=is_stream)
            simulator.clear_record()
            said = await gateway.respond(picture(), model="gpt-4.1", stream=is_stream)
            assert text_of(said).startswith("Messages seen: 3. Last text: what is this?")
            assert len(simulator.requests()) == 2
            assert await heals(gateway) == [("poison", "quarantined")]
            assert await told(gateway, "items.quarantined") == 1
            assert await aside(gateway) == [(3, 3)]
            after = await gateway.respond("and now?", model="gpt-4.1", stream=is_stream)
            assert text_of(after).startswith("Messages seen: 5.")
            assert len(simulator.requests()) == 3
            last = str(simulator.requests()[-1].body)
            assert LEFT_OUT in last
            assert "what is this?" in last


async def test_f44_only_what_is_at_fault_is_left_out() -> None:
    with ProviderSimulator() as simulator:
        refusal: Json = {"message": "Invalid image data.", "code": "invalid_image"}
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            await gateway.respond(picture("https://pictures.example/good.png"), model="gpt-4.1")
            simulator.add_fault("error", status=400, when={"text": "gone.png"}, **refusal)
            await gateway.respond(picture(), model="gpt-4.1")
            assert "good.png" in str(simulator.requests()[-1].body)
            # What was taken before may be gone now: it is the next to be suspected.
            simulator.add_fault("error", status=400, when={"text": "good.png"}, **refusal)
            said = await gateway.respond("still there?", model="gpt-4.1")
            assert text_of(said).startswith("Messages seen: 5.")
            assert await aside(gateway) == [(3, 3), (1, 1)]


@pytest.mark.parametrize("mode", ["chain", "conversation"])
async def test_f44_state_that_holds_a_refused_item_is_dropped(mode: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            await gateway.respond("one", model="gpt-4.1")
            simulator.add_fault(
                "error", status=400, message="Could not process image", when={"text": "gone.png"}
            )
            said = await gateway.respond(picture(), model="gpt-4.1")
            assert text_of(said).startswith("Messages seen: 3.")
            simulator.clear_record()
            after = await gateway.respond("three", model="gpt-4.1")
            assert text_of(after).startswith("Messages seen: 5.")
            [asked] = simulator.requests(api="responses")
            assert len(asked.body["input"]) == 1


async def test_f44_a_refusal_of_which_nothing_is_known_fails_in_the_providers_words() -> None:
    with ProviderSimulator(faults=[{"kind": "A08", "times": 1}]) as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            failed = await gateway.post("/v1/responses", input="one")
            assert failed.json()["error"]["message"] == "Could not process image"
            assert text_of(await gateway.respond("two")).startswith("Messages seen: 2.")


EXPIRED: list[Json] = [
    {"message": f"Timeout while downloading {PICTURE}.", "code": None},
    {"message": "No such File object: file-gone123", "status": 404},
    {"message": "The file 'file-gone123' has expired.", "status": 400},
]


@pytest.mark.parametrize("refusal", EXPIRED, ids=["address", "file", "expired"])
@pytest.mark.parametrize("mode", ["replay", "chain"])
async def test_f52_what_has_expired_is_a_placeholder_and_never_a_failed_turn(
    refusal: Json, mode: str
) -> None:
    fault = {"status": 400, **refusal}
    document = {"type": "input_file", "file_id": "file-gone123"}
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            first = picture()
            first[0]["content"].append(document)
            await gateway.respond(first, model="gpt-4.1")
            for word in ("gone.png", "file-gone123"):
                simulator.add_fault("error", **fault, when={"text": word})
            simulator.forget()
            said = await gateway.respond("what was it?", model="gpt-4.1")
            assert text_of(said).startswith("Messages seen: 3. Last text: what was it?")
            assert await aside(gateway) == [(1, 1)]
            simulator.clear_record()
            await gateway.respond("and again?", model="gpt-4.1")
            assert len(simulator.requests()) == 1


async def test_a_fork_knows_what_was_set_aside_before_it() -> None:
    with ProviderSimulator() as simulator:
        refusal: Json = {"message": "Could not process image", "status": 400}
        simulator.add_fault("error", when={"text": "gone.png"}, **refusal)
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            first = await gateway.respond(picture(), model="gpt-4.1")
            await gateway.respond("two", model="gpt-4.1")
            simulator.clear_record()
            parent = {"previous_response_id": first["id"]}
            said = await gateway.respond("deux", None, model="gpt-4.1", **parent)
            assert text_of(said).startswith("Messages seen: 3. Last text: deux")
            assert len(simulator.requests()) == 1


async def call_of(gateway: UpstreamGateway, city: str = "Ulm", **more: Any) -> Json:
    """Return a call that the model makes."""
    asked: Json = {"model": "gpt-4.1", "tools": [TOOL], **more}
    answer = await gateway.respond(f'call weather {{"city": "{city}"}}', **asked)
    [call] = [item for item in answer["output"] if item["type"] == "function_call"]
    found: Json = call
    return found


def output_of(call: Json, said: str) -> Json:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": said}


STATES = ["replay", "chain", "conversation"]


@pytest.mark.parametrize(
    ("mode", "api"), [*((mode, "responses") for mode in STATES), ("replay", "chat")]
)
async def test_f40_a_call_that_was_never_answered_does_not_stop_the_next_turn(
    mode: str, api: str
) -> None:
    with ProviderSimulator() as simulator:
        settings = upstream(simulator, api=api, state=mode)
        async with open_upstream_gateway(settings, heals=QUICK) as gateway:
            call = await call_of(gateway)
            interrupt = {"X-On-Busy": "interrupt"}
            said = await gateway.respond("never mind", model="gpt-4.1", headers=interrupt)
            assert text_of(said).endswith("Last text: never mind")
            assert INTERRUPTED in str(simulator.requests(operation="create")[-1].body)
            assert await heals(gateway) == []
            # Late, it is told behind what the model was sent.
            late = await gateway.respond([output_of(call, "rain")], model="gpt-4.1", tools=[TOOL])
            assert late["status"] == "completed"
            last = str(simulator.requests(operation="create")[-1].body)
            assert "rain" in last
            if mode == "replay":
                assert last.index(INTERRUPTED) < last.index("never mind") < last.index("rain")
            assert all(request.fault is None for request in simulator.requests())
            items = (
                await gateway.client.get(f"/v1/sessions/{await session_id(gateway)}/items")
            ).text
            assert INTERRUPTED not in items, "nothing is made up in the log"


async def session_id(gateway: UpstreamGateway) -> str:
    listed = (await gateway.client.get("/v1/sessions?key=k")).json()
    return str(listed["data"][0]["id"])


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_f41_an_output_whose_call_is_gone_is_not_sent(api: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
            call = await call_of(gateway)
            await gateway.respond([output_of(call, "rain")], model="gpt-4.1", tools=[TOOL])
            where = f"/v1/conversations/conv_{(await session_id(gateway))[4:]}/items"
            listed = (await gateway.client.get(where)).json()["data"]
            [made] = [item for item in listed if item["type"] == "function_call"]
            assert (await gateway.client.delete(f"{where}/{made['id']}")).status_code == 200
            said = await gateway.respond("and now?", model="gpt-4.1")
            assert text_of(said).endswith("Last text: and now?")
            last = str(simulator.requests()[-1].body)
            assert "call_output" not in last
            assert "tool_call_id" not in last
            assert await heals(gateway) == []


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_f42_a_server_that_names_every_call_alike_gets_along(api: str) -> None:
    with ProviderSimulator(faults=["constant_call_ids"]) as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
            names = set()
            for city in ("Ulm", "Bonn"):
                call = await call_of(gateway, city)
                names.add(call["call_id"])
                said = await gateway.respond(
                    [output_of(call, f"rain in {city}")], model="gpt-4.1", tools=[TOOL]
                )
                assert text_of(said).endswith(f"rain in {city}")
            assert len(names) == 2
            sent = re.findall(r"call_id': '(\w+)'", str(simulator.requests()[-1].body))
            assert len(set(sent)) == 2
            assert await heals(gateway) == []


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_f42_calls_that_share_one_id_in_a_history_are_distinguished(api: str) -> None:
    history: list[Json] = []
    for city in ("Ulm", "Bonn"):
        arguments = f'{{"city": "{city}"}}'
        history += [
            {"role": "user", "content": city},
            {"type": "function_call", "call_id": "0", "name": "weather", "arguments": arguments},
            {"type": "function_call_output", "call_id": "0", "output": f"rain in {city}"},
            {"role": "assistant", "content": f"It rains in {city}."},
        ]
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
            said = await gateway.respond([*history, {"role": "user", "content": "thanks"}])
            assert text_of(said).endswith("Last text: thanks")
            body = simulator.requests()[-1].body
            if api == "responses":
                named = [i["call_id"] for i in body["input"] if "arguments" in i]
            else:
                made = [message.get("tool_calls") or [] for message in body["messages"]]
                named = [call["id"] for calls in made for call in calls]
            assert len(named) == len(set(named)) == 2


@pytest.mark.parametrize("event", range(2, 6))
async def test_f43_reasoning_goes_with_what_it_led_to_or_not_at_all(event: int) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            await gateway.respond("one")
            simulator.add_fault("cut", event=event, ending="clean", times=3)
            await gateway.respond("two", stream=True)
            simulator.clear_faults()
            said = await gateway.respond("three")
            assert text_of(said).endswith("Last text: three")
            sent = [item["type"] for item in simulator.requests()[-1].body["input"]]
            assert sent[:3] == ["message", "reasoning", "message"]
            assert simulator.requests()[-1].fault is None
            assert ("shape", "repaired") not in await heals(gateway)


async def test_f53_what_a_tool_said_is_known_in_the_next_turn() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            call = await call_of(gateway)
            await gateway.respond([output_of(call, "rain")], model="gpt-4.1", tools=[TOOL])
            await gateway.respond("what did the tool say?", model="gpt-4.1")
            sent = simulator.requests()[-1].body["input"]
            kinds = [item["type"] for item in sent]
            assert kinds == [
                "message", "function_call", "function_call_output", "message", "message",
            ]  # fmt: skip
            assert sent[1]["arguments"] == call["arguments"]
            assert sent[2]["output"] == "rain"


@pytest.mark.parametrize("event", range(2, 5))
async def test_f59_half_a_thought_is_never_sent_again(event: int) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            simulator.add_fault("cut", event=event, ending="clean", times=3)
            broken = await gateway.respond("one", stream=True)
            assert broken["status"] == "failed"
            simulator.clear_faults()
            said = await gateway.respond("two")
            assert text_of(said).endswith("Last text: two")
            sent = simulator.requests()[-1].body["input"]
            assert "reasoning" not in [item["type"] for item in sent]


@pytest.mark.parametrize("length", [40, 41, 64, 65, 116])
@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_f60_call_ids_of_any_make_are_taken_everywhere(length: int, api: str) -> None:
    name = ("toolu|a+b/c" * 12)[:length]
    history: list[Json] = [
        {"role": "user", "content": "weather?"},
        {"type": "function_call", "call_id": name, "name": "weather", "arguments": "{}"},
    ]
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api), heals=QUICK) as gateway:
            output = {"type": "function_call_output", "call_id": name, "output": "rain"}
            said = await gateway.respond([*history, output], tools=[TOOL])
            assert text_of(said).endswith("Last text: rain")
            again = await gateway.respond("thanks")
            assert text_of(again).endswith("Last text: thanks")
            assert all(request.fault is None for request in simulator.requests())


@pytest.mark.parametrize("mode", STATES)
async def test_f73_instructions_are_sent_each_time(mode: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, state=mode), heals=QUICK) as gateway:
            for said in ("one", "two"):
                await gateway.respond(said, instructions="be kind")
            simulator.forget()
            await gateway.respond("three", instructions="be kind")
            asked = simulator.requests(api="responses")
            assert {request.body["instructions"] for request in asked} == {"be kind"}


async def test_f44_whatever_is_wrong_with_an_item_its_placeholder_is_taken() -> None:
    wrong = {"role": "user", "content": [{"type": "input_hologram", "text": "x"}]}
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), heals=QUICK) as gateway:
            asked = [wrong, {"role": "user", "content": "one"}]
            said = await gateway.respond(asked, model="gpt-4.1")
            assert text_of(said).endswith("Last text: one")
            assert await heals(gateway) == [("poison", "quarantined")]
            simulator.clear_record()
            await gateway.respond("two", model="gpt-4.1")
            assert len(simulator.requests()) == 1
