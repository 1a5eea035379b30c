"""Input that a provider refuses costs one turn, whatever the client sends afterwards."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.engine.settings import HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    read,
    text_of,
    upstream,
)

Json = dict[str, Any]
UPSTREAMS = [{"api": "responses", "state": "replay"}, {"api": "responses", "state": "chain"},
             {"api": "responses", "state": "conversation"}, {"api": "chat"}]  # fmt: skip


@pytest.fixture(name="store_url", params=["sqlite", "postgres"])
def _store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'h.db'}"


def _refuse(simulator: ProviderSimulator, **more: Any) -> None:
    """Refuse every request that contains the word "forbidden"."""
    error = {"status": 400, "message": "The prompt was blocked.", "type": "invalid_request_error",
             "code": "content_filter", **more}  # fmt: skip
    simulator.add_fault("error", when={"text": "forbidden"}, **error)


def _user(text: str) -> Json:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


async def _say(gateway: UpstreamGateway, items: list[Json], **more: Any) -> tuple[int, str]:
    answer = await gateway.post("/v1/responses", input=items, **more)
    if answer.status_code != 200:
        return answer.status_code, answer.json()["error"]["code"]
    return 200, text_of(answer.json())


async def _shown(gateway: UpstreamGateway, key: str = "k", view: str = "visible") -> list[str]:
    listed = (await gateway.client.get(f"/v1/sessions?key={key}")).json()["data"]
    path = f"/v1/sessions/{listed[0]['id']}/items?limit=100&order=asc&view={view}"
    items = (await gateway.client.get(path)).json()["data"]
    said = [item.get("item", item) for item in items]
    return [
        one["content"] if isinstance(one["content"], str) else one["content"][0]["text"]
        for one in said
        if one["type"] == "message"
    ]


@pytest.mark.parametrize("settings", UPSTREAMS, ids=lambda one: "-".join(one.values()))
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_sends_only_new_items_goes_on_after_a_refusal(
    settings: Json, is_stream: bool
) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator, **settings)) as gateway:
            said = [
                await gateway.post("/v1/responses", input=text, stream=is_stream)
                for text in ("hello", "something forbidden", "weather", "hi")
            ]
            if is_stream:
                ends = [read(one)["events"][-1]["type"] for one in said]
                expected = ["response.completed"] * 4
                expected[1] = "response.failed"
                assert ends == expected
            else:
                assert [one.status_code for one in said] == [200, 400, 200, 200]
            assert await _shown(gateway) == [
                "hello", "Messages seen: 1. Last text: hello",
                "weather", "Messages seen: 3. Last text: weather",
                "hi", "Messages seen: 5. Last text: hi",
            ]  # fmt: skip
            assert "something forbidden" in await _shown(gateway, view="log")


async def test_a_conversation_goes_on_after_a_refusal(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator, code="invalid_prompt")
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            name = (await gateway.client.post("/v1/conversations", json={})).json()["id"]
            statuses = [
                (
                    await gateway.post("/v1/responses", None, input=text, conversation=name)
                ).status_code
                for text in ("hello", "forbidden", "weather", "hi")
            ]
            assert statuses == [200, 400, 200, 200]
            listed = await gateway.client.get(f"/v1/conversations/{name}/items?limit=100")
            assert "forbidden" not in listed.text


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_client_that_repeats_the_refused_prompt_in_its_history_goes_on(
    store_url: str, api: str
) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(
            upstream(simulator, api=api), store_url=store_url
        ) as gateway:
            history = [_user("hello")]
            statuses = []
            for text in ("forbidden", "weather", "hi"):
                status, said = await _say(gateway, history)
                statuses.append(status)
                history += [_assistant(said)] if status == 200 else []
                history.append(_user(text))
            status, _ = await _say(gateway, history)
            assert [*statuses, status] == [200, 400, 200, 200]
            assert await _shown(gateway) == [
                "hello", "Messages seen: 1. Last text: hello",
                "weather", "Messages seen: 3. Last text: weather",
                "hi", "Messages seen: 5. Last text: hi",
            ]  # fmt: skip
            # Each item was stored once.
            assert len(await _shown(gateway, view="log")) == 7


async def test_a_first_prompt_that_is_refused_is_recognised_without_any_answer(
    store_url: str,
) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            assert (await _say(gateway, [_user("forbidden")]))[0] == 400
            history = [_user("forbidden"), _user("weather")]
            assert (await _say(gateway, history))[0] == 200
            history += [_assistant("Messages seen: 1. Last text: weather"), _user("hi")]
            assert await _say(gateway, history) == (200, "Messages seen: 3. Last text: hi")
            assert len(await _shown(gateway, view="log")) == 5


async def test_the_refused_prompt_as_the_last_item_is_asked_again(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            _, said = await _say(gateway, [_user("hello")])
            history = [_user("hello"), _assistant(said), _user("forbidden")]
            assert (await _say(gateway, history))[0] == 400
            simulator.clear_faults()
            assert await _say(gateway, history) == (200, "Messages seen: 3. Last text: forbidden")


async def test_refused_input_is_listed_as_the_input_of_its_response() -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            answer = await gateway.post("/v1/responses", input="forbidden")
            name = answer.headers["x-turn-id"].replace("turn_", "resp_")
            listed = await gateway.client.get(f"/v1/responses/{name}/input_items")
            assert "forbidden" in listed.text


async def test_a_question_that_is_refused_when_it_is_asked_again_is_hidden_too() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            await _say(gateway, [_user("hello")])
            _, said = await _say(gateway, [_user("forbidden")])
            _refuse(simulator)
            history = [_user("hello"), _assistant("Messages seen: 1. Last text: hello")]
            again = [*history, _user("forbidden"), _assistant(said)]
            assert (await _say(gateway, again))[0] == 400
            assert (await _say(gateway, [_user("weather")]))[0] == 200


@pytest.mark.parametrize(
    "error",
    [
        {"param": "temperature", "code": "invalid_value", "message": "Invalid 'temperature'."},
        {"param": "model", "code": "model_not_found", "message": "No such model.", "status": 404},
        {"code": "invalid_api_key", "message": "Incorrect API key.", "status": 401},
    ],
    ids=["parameter", "model", "key"],
)
async def test_an_error_that_names_something_else_leaves_the_input_visible(error: Json) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator, **error)
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            assert (await _say(gateway, [_user("forbidden")]))[0] >= 400
            assert await _shown(gateway) == ["forbidden"]


async def test_input_that_comes_again_after_an_outage_takes_its_own_place(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator, status=503, type="server_error", code="overloaded", message="Down.")
        async with open_upstream_gateway(
            upstream(simulator), store_url=store_url, heals=HealSettings(transient_retries=0)
        ) as gateway:
            await _say(gateway, [_user("hello")])
            assert (await _say(gateway, [_user("forbidden")]))[0] == 503
            assert (await _shown(gateway))[-1] == "forbidden"
            assert (await _say(gateway, [_user("forbidden")]))[0] == 503
            simulator.clear_faults()
            said = await _say(gateway, [_user("forbidden")])
            assert said == (200, "Messages seen: 3. Last text: forbidden")
            # A second message with the same words is another one.
            said = await _say(gateway, [_user("forbidden")])
            assert said == (200, "Messages seen: 5. Last text: forbidden")


async def test_other_input_after_an_outage_follows_what_failed(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator, status=503, type="server_error", code="overloaded", message="Down.")
        async with open_upstream_gateway(
            upstream(simulator), store_url=store_url, heals=HealSettings(transient_retries=0)
        ) as gateway:
            assert (await _say(gateway, [_user("forbidden")]))[0] == 503
            simulator.clear_faults()
            said = await _say(gateway, [_user("and you?")])
            assert said == (200, "Messages seen: 2. Last text: and you?")
