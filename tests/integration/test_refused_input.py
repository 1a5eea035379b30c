"""Input that a provider refuses costs one turn, whatever the client sends afterwards."""

import json
from typing import Any

import pytest
from aiohttp import web

from holdfast.core.projection.placeholders import LEFT_OUT
from holdfast.engine.settings import HealSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.odd_server import Reply, odd_server, saying, whole
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


def _refuse(simulator: ProviderSimulator, times: int | None = None, **more: Any) -> None:
    """Refuse every request that contains the word "forbidden"."""
    error = {"status": 400, "message": "The prompt was blocked.", "type": "invalid_request_error",
             "code": "content_filter", **more}  # fmt: skip
    simulator.add_fault("error", when={"text": "forbidden"}, times=times, **error)


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


@pytest.mark.parametrize("status", [403, 451])
async def test_a_moderation_answer_with_an_unusual_status_costs_one_turn(status: int) -> None:
    with ProviderSimulator() as simulator:
        message = "Content violates usage guidelines. Failed check: SAFETY_CHECK_TYPE_BIO"
        _refuse(simulator, status=status, code="permission_denied", message=message)
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            said = [
                (await _say(gateway, [_user(text)]))[0] for text in ("hello", "forbidden", "hi")
            ]
            assert said == [200, 400, 200]


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


class _Regenerate:
    """A conversation in which asking the second question again was refused."""

    def __init__(self, gateway: UpstreamGateway) -> None:
        self.gateway = gateway
        self.history: list[Json] = []

    async def begin(self, simulator: ProviderSimulator, times: int | None = None) -> None:
        for text in ("hello", "forbidden"):
            self.history.append(_user(text))
            _, said = await _say(self.gateway, self.history)
            self.history.append(_assistant(said))
        _refuse(simulator, times)
        assert (await _say(self.gateway, self.history))[0] == 400


async def test_a_question_that_is_refused_when_it_is_asked_again_is_hidden_too(
    store_url: str,
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            await _Regenerate(gateway).begin(simulator)
            said = await _say(gateway, [_user("weather")])
            assert said == (200, "Messages seen: 3. Last text: weather")
            assert "forbidden" not in await _shown(gateway)
            assert await _say(gateway, [_user("hi")]) == (200, "Messages seen: 5. Last text: hi")


@pytest.mark.parametrize("settings", UPSTREAMS, ids=lambda one: "-".join(one.values()))
async def test_a_client_that_keeps_the_answer_to_a_refused_question_goes_on(settings: Json) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, **settings)) as gateway:
            talk = _Regenerate(gateway)
            await talk.begin(simulator)
            talk.history.append(_user("weather"))
            status, said = await _say(gateway, talk.history)
            assert (status, said) == (200, "Messages seen: 3. Last text: weather")
            talk.history += [_assistant(said), _user("hi")]
            assert await _say(gateway, talk.history) == (200, "Messages seen: 5. Last text: hi")


async def test_a_question_that_was_refused_once_when_asked_again_keeps_its_answer(
    store_url: str,
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            talk = _Regenerate(gateway)
            await talk.begin(simulator, times=1)
            status, said = await _say(gateway, [*talk.history, _user("weather")])
            assert (status, said) == (200, "Messages seen: 5. Last text: weather")
            assert (await _shown(gateway))[2:5] == [
                "forbidden", "Messages seen: 3. Last text: forbidden", "weather",
            ]  # fmt: skip


async def test_a_question_that_was_refused_once_can_be_asked_again(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            talk = _Regenerate(gateway)
            await talk.begin(simulator, times=1)
            said = await _say(gateway, talk.history[:-1])
            assert said == (200, "Messages seen: 3. Last text: forbidden")
            assert len(await _shown(gateway)) == 4


async def test_all_messages_of_a_refused_input_are_hidden(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            assert (await _say(gateway, [_user("hello")]))[0] == 200
            before = await _shown(gateway)
            assert (await _say(gateway, [_user("forbidden"), _user("please")]))[0] == 400
            assert await _shown(gateway) == before
            said = await _say(gateway, [_user("weather")])
            assert said == (200, "Messages seen: 3. Last text: weather")


async def test_a_history_that_replaces_the_log_stays_visible_when_its_question_is_refused(
    store_url: str,
) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            await _say(gateway, [_user("hello")])
            summary = [_user("Summary: we talked."), _assistant("Understood.")]
            assert (await _say(gateway, [*summary, _user("forbidden")]))[0] == 400
            assert await _shown(gateway) == ["Summary: we talked.", "Understood."]


async def test_an_earlier_message_that_was_to_blame_costs_no_second_turn(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        simulator.add_fault(
            "error", status=400, message="not here", code="unknown", param="seed", times=1
        )
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            assert (await _say(gateway, [_user("forbidden"), _user("please")]))[0] == 400
            assert await _shown(gateway) == ["forbidden", "please"]
            said = await _say(gateway, [_user("weather")])
            assert said == (200, "Messages seen: 1. Last text: weather")
            assert await _shown(gateway) == ["weather", said[1]]
            history = [_user("forbidden"), _user("please"), _user("weather"), _assistant(said[1])]
            said = await _say(gateway, [*history, _user("hi")])
            assert said == (200, "Messages seen: 3. Last text: hi")


async def test_refused_instructions_cost_one_turn(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            await _say(gateway, [_user("hello")])
            system = {"role": "system", "content": "forbidden"}
            assert (await _say(gateway, [system, _user("one")]))[0] == 400
            said = await _say(gateway, [_user("two")])
            assert said == (200, "Messages seen: 3. Last text: two")
            assert "forbidden" not in await _shown(gateway)


async def test_instructions_beside_a_refused_message_stay_in_force(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            system = {"role": "system", "content": "be brief"}
            refused = [system, _user("forbidden"), _user("please")]
            assert (await _say(gateway, refused))[0] == 400
            assert (await _say(gateway, [_user("two")]))[0] == 200
            assert (await _shown(gateway))[:2] == ["be brief", "two"]


async def test_input_that_was_not_to_blame_stays_visible(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(
            upstream(simulator), store_url=store_url, heals=HealSettings(transient_retries=0)
        ) as gateway:
            simulator.add_fault("error", status=503, times=1)
            assert (await _say(gateway, [_user("I am Ann")]))[0] == 503
            _refuse(simulator)
            assert (await _say(gateway, [_user("forbidden")]))[0] == 400
            assert await _shown(gateway) == ["I am Ann"]


async def test_what_was_sent_without_refused_input_can_be_proved() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            await _Regenerate(gateway).begin(simulator)
            answer = await gateway.post("/v1/responses", input="weather")
            path = f"/v1/turns/{answer.headers['x-turn-id']}"
            turn = (await gateway.client.get(path)).json()
            assert [heal["action"] for heal in turn["runs"][-1]["heals"]] == ["left_out"]
            shown = (await gateway.client.get(f"{path}/projection")).json()
            assert shown["proof"]["is_same"] is True
            assert "forbidden" not in json.dumps(shown["request"]["input"])


TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


@pytest.mark.parametrize("is_history", [False, True])
async def test_a_tool_output_beside_a_refused_message_stays_visible(
    store_url: str, is_history: bool
) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            asked = await gateway.respond([_user("call look {}")], tools=TOOLS)
            [call] = [item for item in asked["output"] if item["type"] == "function_call"]
            output = {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": "rain",
            }
            before = [_user("call look {}"), call] if is_history else []
            status, _ = await _say(gateway, [*before, output, _user("forbidden")])
            assert status == 400
            assert (await _say(gateway, [_user("weather")]))[0] == 200
            assert "rain" in json.dumps(simulator.requests()[-1].body)


async def test_a_refused_tool_output_costs_one_turn(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator)
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            asked = await gateway.respond([_user("call look {}")], tools=TOOLS)
            [call] = [item for item in asked["output"] if item["type"] == "function_call"]
            output = {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": "forbidden",
            }
            assert (await _say(gateway, [output]))[0] == 400
            assert (await _say(gateway, [_user("weather")]))[0] == 200


async def test_a_refused_tool_output_becomes_a_placeholder_at_its_call(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator, code="unknown", message="Your message could not be processed.")
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            asked = await gateway.respond([_user("call look {}")], tools=TOOLS)
            [call] = [item for item in asked["output"] if item["type"] == "function_call"]
            output = {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": "forbidden",
            }
            assert (await _say(gateway, [output]))[0] == 400
            for text in ("weather", "hi"):
                answer = await gateway.post("/v1/responses", input=text)
                assert answer.status_code == 200
                [sent] = [
                    item["output"]
                    for item in simulator.requests()[-1].body["input"]
                    if item.get("type") == "function_call_output"
                ]
                assert sent == LEFT_OUT
                path = f"/v1/turns/{answer.headers['x-turn-id']}/projection"
                assert (await gateway.client.get(path)).json()["proof"]["is_same"] is True


@pytest.mark.parametrize(
    "error",
    [
        {"param": "temperature", "code": "invalid_value", "message": "Invalid 'temperature'."},
        {"param": "model", "code": "model_not_found", "message": "No such model.", "status": 404},
        {"code": "invalid_api_key", "message": "Incorrect API key.", "status": 401},
        {"code": "permission_denied", "message": "Your key lacks permission.", "status": 403},
    ],
    ids=["parameter", "model", "key", "permission"],
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


async def test_input_that_comes_again_after_a_restart_takes_its_own_place(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        heals = HealSettings(transient_retries=0)
        async with open_upstream_gateway(
            upstream(simulator), store_url=store_url, heals=heals
        ) as gateway:
            await _say(gateway, [_user("hello")])
            simulator.add_fault("error", status=503, times=1)
            assert (await _say(gateway, [_user("weather")]))[0] == 503
        async with open_upstream_gateway(
            upstream(simulator), store_url=store_url, heals=heals
        ) as gateway:
            said = await _say(gateway, [_user("weather")])
            assert said == (200, "Messages seen: 3. Last text: weather")
            said = await _say(gateway, [_user("weather")])
            assert said == (200, "Messages seen: 5. Last text: weather")


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


async def test_a_text_that_no_model_wrote_does_not_protect_refused_input(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator, code="unknown", message="X is not a multimodal model")
        async with open_upstream_gateway(upstream(simulator), store_url=store_url) as gateway:
            await _say(gateway, [_user("hello")])
            assert (await _say(gateway, [_user("forbidden")]))[0] == 400
            listed = (await gateway.client.get("/v1/sessions?key=k")).json()["data"]
            said = {"type": "message", **_assistant("Your report is ready.")}
            path = f"/v1/sessions/{listed[0]['id']}/items"
            appended = await gateway.client.post(path, json={"items": [said]})
            assert appended.status_code == 200, appended.text
            before = len(simulator.requests())
            assert (await _say(gateway, [_user("weather")]))[0] == 200
            assert len(simulator.requests()) == before + 2
            assert (await _shown(gateway))[2:4] == ["Your report is ready.", "weather"]
            assert (await _say(gateway, [_user("hi")]))[0] == 200


async def test_an_outage_and_one_failure_of_the_server_hide_nothing(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        heals = HealSettings(transient_retries=0)
        async with open_upstream_gateway(
            upstream(simulator), store_url=store_url, heals=heals
        ) as gateway:
            for status in (503, 500):
                _refuse(simulator, times=1, status=status, type="server_error", code=str(status))
                before = len(simulator.requests())
                assert (await _say(gateway, [_user(f"forbidden {status}")]))[0] == status
                assert len(simulator.requests()) == before + 1
            said = await _say(gateway, [_user("weather")])
            assert said[1].endswith("Last text: weather")
            assert (await _shown(gateway))[:2] == ["forbidden 503", "forbidden 500"]


async def test_a_failure_of_the_server_that_repeats_costs_one_turn(store_url: str) -> None:
    with ProviderSimulator() as simulator:
        _refuse(simulator, status=500, type="server_error", code="crash", message="Oops.")
        heals = HealSettings(transient_retries=1, first_pause_seconds=0.001)
        async with open_upstream_gateway(
            upstream(simulator), store_url=store_url, heals=heals
        ) as gateway:
            assert (await _say(gateway, [_user("hello")]))[0] == 200
            assert (await _say(gateway, [_user("forbidden")]))[0] == 500
            assert await _say(gateway, [_user("hi")]) == (200, "Messages seen: 3. Last text: hi")
            assert "forbidden" not in await _shown(gateway)


async def test_a_fallback_model_is_sent_what_was_left_out_for_another(store_url: str) -> None:
    def say(path: str, body: Json) -> Reply:
        is_refused = body["model"] == "one" or len(server.asked) <= 2
        error = {"message": "Not with this model.", "code": "unsupported_value"}
        if is_refused:
            return web.json_response({"error": error}, status=400)
        return whole(saying("fine"))

    async with odd_server(say) as server:
        settings = server.upstream(fallback=("two",))
        async with open_upstream_gateway(settings, store_url=store_url) as gateway:
            assert (await _say(gateway, [_user("first")], model="one"))[0] == 400
            assert (await _say(gateway, [_user("second")], model="one"))[0] == 200
            sent = [(body["model"], "first" in json.dumps(body)) for body in server.asked]
            assert sent[-3:] == [("one", True), ("one", False), ("two", True)]
            assert await _shown(gateway) == ["first", "second", "fine"]
