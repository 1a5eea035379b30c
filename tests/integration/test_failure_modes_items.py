"""Failures that others had with single items, each against a provider that behaves as theirs did.

The numbers are those of the failure modes in the documentation.
"""

from typing import Any

import pytest

from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.core.placeholders import LEFT_OUT
from holdfast.testing.provider import ProviderSimulator
from tests.integration.test_heals import QUICK, heals, told
from tests.integration.upstream_house import UpstreamHouse, open_upstream_house, text_of, upstream

Json = dict[str, Any]
PICTURE = "https://pictures.example/gone.png?sig=1"


def picture(url: str = PICTURE, say: str = "what is this?") -> list[Json]:
    parts = [{"type": "input_text", "text": say}, {"type": "input_image", "image_url": url}]
    return [{"role": "user", "content": parts}]


async def aside(house: UpstreamHouse, key: str = "k") -> list[tuple[int, int]]:
    """Return the ranges of a key's log that are in quarantine."""
    view = await house.gateway.read.session(DEFAULT_TENANT, key=Key(key))
    assert view is not None
    records = await house.gateway.read.records(view.session)
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
        async with open_upstream_house(upstream(simulator, api=api), heals=QUICK) as house:
            await house.respond("hello", model="gpt-4.1", stream=is_stream)
            simulator.clear_record()
            said = await house.respond(picture(), model="gpt-4.1", stream=is_stream)
            assert text_of(said).startswith("Messages seen: 3. Last text: what is this?")
            assert len(simulator.requests()) == 2
            assert await heals(house) == [("poison", "quarantined")]
            assert await told(house, "items.quarantined") == 1
            assert await aside(house) == [(3, 3)]
            after = await house.respond("and now?", model="gpt-4.1", stream=is_stream)
            assert text_of(after).startswith("Messages seen: 5.")
            assert len(simulator.requests()) == 3
            last = str(simulator.requests()[-1].body)
            assert LEFT_OUT in last
            assert "what is this?" in last


async def test_f44_only_what_is_at_fault_is_left_out() -> None:
    with ProviderSimulator() as simulator:
        refusal: Json = {"message": "Invalid image data.", "code": "invalid_image"}
        async with open_upstream_house(upstream(simulator), heals=QUICK) as house:
            await house.respond(picture("https://pictures.example/good.png"), model="gpt-4.1")
            simulator.add_fault("error", status=400, when={"text": "gone.png"}, **refusal)
            await house.respond(picture(), model="gpt-4.1")
            assert "good.png" in str(simulator.requests()[-1].body)
            # What was taken before may be gone now: it is the next to be suspected.
            simulator.add_fault("error", status=400, when={"text": "good.png"}, **refusal)
            said = await house.respond("still there?", model="gpt-4.1")
            assert text_of(said).startswith("Messages seen: 5.")
            assert await aside(house) == [(3, 3), (1, 1)]


@pytest.mark.parametrize("mode", ["chain", "conversation"])
async def test_f44_state_that_holds_a_refused_item_is_dropped(mode: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_house(upstream(simulator, state=mode), heals=QUICK) as house:
            await house.respond("one", model="gpt-4.1")
            simulator.add_fault(
                "error", status=400, message="Could not process image", when={"text": "gone.png"}
            )
            said = await house.respond(picture(), model="gpt-4.1")
            assert text_of(said).startswith("Messages seen: 3.")
            simulator.clear_record()
            after = await house.respond("three", model="gpt-4.1")
            assert text_of(after).startswith("Messages seen: 5.")
            [asked] = simulator.requests(api="responses")
            assert len(asked.body["input"]) == 1


async def test_f44_a_refusal_of_which_nothing_is_known_fails_in_the_providers_words() -> None:
    with ProviderSimulator(faults=[{"kind": "A08", "times": 1}]) as simulator:
        async with open_upstream_house(upstream(simulator), heals=QUICK) as house:
            failed = await house.post("/v1/responses", input="one")
            assert failed.json()["error"]["message"] == "Could not process image"
            assert text_of(await house.respond("two")).startswith("Messages seen: 2.")


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
        async with open_upstream_house(upstream(simulator, state=mode), heals=QUICK) as house:
            first = picture()
            first[0]["content"].append(document)
            await house.respond(first, model="gpt-4.1")
            for word in ("gone.png", "file-gone123"):
                simulator.add_fault("error", **fault, when={"text": word})
            simulator.forget()
            said = await house.respond("what was it?", model="gpt-4.1")
            assert text_of(said).startswith("Messages seen: 3. Last text: what was it?")
            assert await aside(house) == [(1, 1)]
            simulator.clear_record()
            await house.respond("and again?", model="gpt-4.1")
            assert len(simulator.requests()) == 1


async def test_a_fork_knows_what_was_set_aside_before_it() -> None:
    with ProviderSimulator() as simulator:
        refusal: Json = {"message": "Could not process image", "status": 400}
        simulator.add_fault("error", when={"text": "gone.png"}, **refusal)
        async with open_upstream_house(upstream(simulator), heals=QUICK) as house:
            first = await house.respond(picture(), model="gpt-4.1")
            await house.respond("two", model="gpt-4.1")
            simulator.clear_record()
            parent = {"previous_response_id": first["id"]}
            said = await house.respond("deux", None, model="gpt-4.1", **parent)
            assert text_of(said).startswith("Messages seen: 3. Last text: deux")
            assert len(simulator.requests()) == 1
