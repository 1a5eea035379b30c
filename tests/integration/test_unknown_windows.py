"""Models whose window nobody has named: a large one is assumed, so no request grows for ever."""

import json
from typing import Any

import pytest

from holdfast.core.errors import InvalidSetting
from holdfast.core.ids import DEFAULT_TENANT, Key
from holdfast.engine.settings import ContextSettings, HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway, upstream

Json = dict[str, Any]
WINDOW, TURNS = 2_000, 12
ELIDE = ContextSettings(mode="elide", unknown_window_tokens=WINDOW)


async def talk(gateway: UpstreamGateway, **more: Any) -> None:
    """Say three times what the window holds."""
    for number in range(TURNS):
        await gateway.respond(f"turn {number}: " + "word " * 200, **more)


async def session_of(gateway: UpstreamGateway) -> Json:
    [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
    found: Json = session
    return found


async def compactions(gateway: UpstreamGateway) -> list[Json]:
    session = await session_of(gateway)
    listed = await gateway.client.get(f"/v1/sessions/{session['id']}/compactions")
    found: list[Json] = listed.json()["data"]
    return found


async def projection_of_last(gateway: UpstreamGateway) -> Json:
    session = await session_of(gateway)
    turns = await gateway.client.get(f"/v1/sessions/{session['id']}/turns?order=desc")
    newest = turns.json()["data"][0]["id"]
    shown: Json = (await gateway.client.get(f"/v1/turns/{newest}/projection")).json()
    return shown


def longest_sent(simulator: ProviderSimulator) -> int:
    return max(len(json.dumps(sent.body)) for sent in simulator.requests(operation="create"))


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("mode", ["model", "elide"])
async def test_a_session_without_a_known_window_is_compacted_to_the_assumed_one(
    any_store_url: str, mode: Any, api: str
) -> None:
    context = ContextSettings(mode=mode, unknown_window_tokens=WINDOW)
    with ProviderSimulator() as simulator:
        behind = upstream(simulator, api=api)
        async with open_upstream_gateway(
            behind, context=context, store_url=any_store_url
        ) as gateway:
            await talk(gateway)
            assert longest_sent(simulator) < 2.5 * WINDOW
            made = await compactions(gateway)
            assert made
            assert {one["reason"] for one in made} == {"budget"}
            assert {one["assumed_window"] for one in made} == {WINDOW}
            # Nothing is lost, and what the model was shown says why it is less.
            assert (await session_of(gateway))["turn_count"] == TURNS
            shown = await projection_of_last(gateway)
            assert shown["assumed_window"] == WINDOW
            assert shown["proof"]["is_same"] is True
            view = await gateway.engine.read.session(DEFAULT_TENANT, key=Key("k"))
            assert view is not None
            events = await gateway.engine.read.events(view.session.id, after=0, limit=1000)
            told = [json.loads(event.body) for event in events if event.kind == "session.compacted"]
            assert [one["assumed_window"] for one in told] == [WINDOW] * len(told)
            assert len(told) == len(made)


@pytest.mark.parametrize(
    "context",
    [
        ContextSettings(mode="elide", unknown_window_tokens=0),
        ContextSettings(mode="off", unknown_window_tokens=WINDOW),
        ContextSettings(mode="elide"),
    ],
    ids=["none", "off", "default"],
)
async def test_nothing_is_left_out_without_an_assumed_window_or_within_the_default(
    context: ContextSettings,
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(
            upstream(simulator, api="chat"), context=context
        ) as gateway:
            await talk(gateway)
            assert await compactions(gateway) == []
            assert (await projection_of_last(gateway))["input_count"] == 2 * TURNS - 1
            assert (await projection_of_last(gateway))["assumed_window"] is None


async def test_a_known_window_counts_instead_of_the_assumed_one() -> None:
    with ProviderSimulator() as simulator:
        behind = upstream(simulator, context_tokens=2 * WINDOW)
        async with open_upstream_gateway(behind, context=ELIDE) as gateway:
            await talk(gateway)
            made = await compactions(gateway)
            assert made
            assert {one["assumed_window"] for one in made} == {None}
            assert longest_sent(simulator) > 2.5 * WINDOW
            assert (await projection_of_last(gateway))["assumed_window"] is None


async def test_a_request_says_itself_what_happens_at_the_assumed_window() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), context=ELIDE) as gateway:
            await talk(gateway, truncation="disabled")
            assert await compactions(gateway) == []
            assert longest_sent(simulator) > 5 * WINDOW
            simulator.clear_record()
            await gateway.respond("the oldest are left out of this one", truncation="auto")
            assert await compactions(gateway) == []
            assert longest_sent(simulator) < 2.5 * WINDOW


async def test_a_model_to_fall_back_on_is_sent_no_more_than_the_assumed_window() -> None:
    with ProviderSimulator({"context": {"gpt-4.1": 100 * WINDOW}}) as simulator:
        known = upstream(
            simulator, name="known", models=("gpt-4.1",), fallback=("gpt-4o",),
            context_tokens=100 * WINDOW,
        )  # fmt: skip
        other = upstream(simulator, name="other", models=("gpt-4o",))
        once = HealSettings(transient_retries=0)
        async with open_upstream_gateway(known, other, heals=once, context=ELIDE) as gateway:
            await talk(gateway, model="gpt-4.1")
            assert await compactions(gateway) == []
            simulator.clear_record()
            simulator.add_fault("error", status=503, when={"model": "gpt-4.1"})
            await gateway.respond("who answers this", model="gpt-4.1")
            sent = simulator.requests(operation="create")
            assert [one.body["model"] for one in sent] == ["gpt-4.1", "gpt-4o"]
            assert len(json.dumps(sent[-1].body)) < 2.5 * WINDOW
            [made] = await compactions(gateway)
            assert made["assumed_window"] == WINDOW


def test_an_assumed_window_below_zero_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="unknown_window_tokens must not be negative"):
        ContextSettings(unknown_window_tokens=-1)
