"""Unstored requests and relayed endpoints leave no rows."""

import json
from typing import Any

import httpx
import pytest

from holdfast.core.ids import DEFAULT_TENANT
from holdfast.ports.store import SessionQuery
from holdfast.providers.settings import UpstreamSettings
from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_upstreams import CHAT_TOOL, TOOL
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    read,
    text_of,
    upstream,
)

Json = dict[str, Any]
APIS = ["responses", "chat"]


async def sessions(gateway: UpstreamGateway) -> int:
    return len(await gateway.engine.read.sessions(DEFAULT_TENANT, SessionQuery()))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_unstored_response_leaves_no_row(api: str, is_stream: bool) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            asked: Json = {"store": False, "stream": is_stream, "tools": [TOOL]}
            said = await gateway.respond("hi", None, **asked)
            assert text_of(said) == "Messages seen: 1. Last text: hi"
            assert (said["status"], said["store"]) == ("completed", False)
            assert said["usage"]["input_tokens"] > 0
            if is_stream:
                numbers = [event["sequence_number"] for event in said["events"]]
                assert numbers == list(range(len(numbers)))
            assert await sessions(gateway) == 0
            gone = await gateway.client.get(f"/v1/responses/{said['id']}")
            assert gone.status_code == 404


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_unstored_chat_leaves_no_row(api: str, is_stream: bool) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            options = {"stream_options": {"include_usage": True}} if is_stream else {}
            tools = [CHAT_TOOL]
            said = await gateway.chat("hi", None, stream=is_stream, tools=tools, **options)
            called = await gateway.chat('call weather {"city": "Ulm"}', None, stream=is_stream,
                                      tools=tools)  # fmt: skip
            assert await sessions(gateway) == 0
    if not is_stream:
        assert text_of(said) == "Messages seen: 1. Last text: hi"
        [call] = called["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Ulm"}'}
        return
    assert joined(said, "content") == "Messages seen: 1. Last text: hi"
    assert said["events"][-1]["usage"]["prompt_tokens"] > 0
    parts = [d["tool_calls"][0] for d in deltas(called) if d.get("tool_calls")]
    assert parts[0]["function"]["name"] == "weather"
    assert "".join(p["function"]["arguments"] for p in parts) == '{"city": "Ulm"}'


def deltas(said: Json) -> list[Json]:
    return [chunk["choices"][0]["delta"] for chunk in said["events"] if chunk["choices"]]


def joined(said: Json, name: str) -> str:
    return "".join(delta.get(name) or "" for delta in deltas(said))


async def test_a_client_that_keeps_its_own_history_gets_its_reasoning_replayed() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            asked: Json = {"store": False, "include": ["reasoning.encrypted_content"]}
            first = await gateway.respond([{"role": "user", "content": "one"}], None, **asked)
            history = [{"role": "user", "content": "one"}, *first["output"]]
            again = [*history, {"role": "user", "content": "two"}]
            said = await gateway.respond(again, None, **asked)
            assert text_of(said) == "Messages seen: 3. Last text: two"
            sent = simulator.requests()[-1].body["input"]
            kinds = [item.get("type", "message") for item in sent]
            assert kinds == ["message", "reasoning", "message", "message"]
            other = await gateway.respond(again, None, model="gpt-5.5", **asked)
            assert text_of(other) == "Messages seen: 3. Last text: two"


async def test_a_chat_upstream_gets_the_body_and_its_answer_is_relayed_unchanged() -> None:
    with ProviderSimulator(profile="azure-like") as simulator:
        async with open_upstream_gateway(upstream(simulator, api="chat")) as gateway:
            body: Json = {
                "messages": [{"role": "user", "content": "hi"}], "n": 1, "vendor": {"x": 1},
                "temperature": 0.5,
            }  # fmt: skip
            said = await gateway.post("/v1/chat/completions", None, **body)
            assert "prompt_filter_results" in said.json()
            [request] = simulator.requests()
            assert request.body == {"model": "gpt-5.4", **body}


async def test_an_upstreams_error_is_relayed() -> None:
    with ProviderSimulator(faults=["C05"]) as simulator:
        async with open_upstream_gateway(upstream(simulator, api="chat")) as gateway:
            refused = await gateway.post(
                "/v1/chat/completions", None, messages=[{"role": "user", "content": "hi"}]
            )
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("api", APIS)
async def test_an_error_before_the_first_event_of_a_stream_has_its_own_status(api: str) -> None:
    with ProviderSimulator(faults=["quota"]) as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            refused = await gateway.post(
                "/v1/responses", None, input="hi", store=False, stream=True
            )
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "insufficient_quota"


async def test_a_truncated_upstream_stream_ends_with_an_error() -> None:
    with ProviderSimulator(faults=[{"kind": "cut", "event": 5, "ending": "eof"}]) as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            said = await gateway.respond("hi", None, model="gpt-4.1", store=False, stream=True)
            assert said["events"][-1]["type"] == "response.failed"
        async with open_upstream_gateway(upstream(simulator, api="chat")) as gateway:
            asked = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
            answer = read(await gateway.post("/v1/chat/completions", None, **asked))
            assert answer["events"][-1]["error"]["code"] == "upstream_truncated"


async def test_a_background_response_must_be_stored() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            refused = await gateway.post(
                "/v1/responses", None, input="hi", store=False, background=True
            )
            assert refused.status_code == 400
            assert simulator.requests() == []


async def test_the_demo_answers_statelessly_too() -> None:
    async with open_upstream_gateway() as gateway:
        said = await gateway.respond("hi", None, store=False)
        assert "'hi'" in text_of(said)
        assert "'hi'" in text_of(await gateway.chat("hi", None))
        assert await sessions(gateway) == 0


async def test_other_endpoints_are_relayed_unchanged(recorder_url: str) -> None:
    one = UpstreamSettings(url=f"{recorder_url}/v1", key="sk-ours", models=("text-*",))
    async with open_upstream_gateway(one) as gateway:
        answer = await gateway.client.post(
            "/v1/embeddings?x=%2F1",
            content=b'{"model": "text-1",  "input": "a"}',
            headers={
                "content-type": "application/json",
                "authorization": "Bearer sk-client",
                "cookie": "a=b",
                "x-session-key": "k",
            },
        )
        assert answer.status_code == 201
        assert answer.headers["content-type"] == "application/x-echo"
        echoed = json.loads(answer.content)
        assert echoed["path"] == "/v1/embeddings?x=%2F1"
        assert echoed["body"] == '{"model": "text-1",  "input": "a"}'
        assert echoed["headers"]["authorization"] == "Bearer sk-ours"
        assert not {"cookie", "x-session-key"} & set(echoed["headers"])
        form = await gateway.client.post("/v1/audio/transcriptions", files={"file": b"RIFF"})
        assert json.loads(form.content)["headers"]["content-type"].startswith("multipart/form-data")
        page = await gateway.client.post(
            "/v1/audio/transcriptions", files={"file": b"x"}, headers={"origin": "http://evil"}
        )
        assert page.status_code == 403
        listed = await gateway.client.get("/v1/files", params={"limit": 3})
        assert json.loads(listed.content)["path"] == "/v1/files?limit=3"
        sly = await gateway.client.get("/v1/files/%2e%2e/models")
        assert sly.status_code == 404


async def test_without_an_upstream_other_endpoints_are_404() -> None:
    async with open_upstream_gateway() as gateway:
        answer = await gateway.client.post("/v1/embeddings", json={"input": "a"})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "unknown_url"


async def test_a_rejected_upstream_key_is_not_reported_as_the_clients() -> None:
    with ProviderSimulator({"keys": ["sk-right"]}) as simulator:
        async with open_upstream_gateway(
            upstream(simulator, api="chat", key="sk-wrong")
        ) as gateway:
            messages = [{"role": "user", "content": "hi"}]
            for key in (None, "k"):
                answer: httpx.Response = await gateway.post(
                    "/v1/chat/completions", key, messages=messages
                )
                assert answer.status_code == 502
                assert answer.json()["error"]["code"] == "upstream_auth_failed"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_relayed_endpoints_reject_bodies_that_a_web_page_could_send(
    recorder_url: str, kind: str | None
) -> None:
    async with open_upstream_gateway(UpstreamSettings(url=recorder_url, key="k")) as gateway:
        headers = {"Content-Type": kind} if kind is not None else {}
        reply = await gateway.client.post(
            "/v1/embeddings", content=b'{"model":"m","input":"hi"}', headers=headers
        )
        assert reply.status_code == 415
        assert reply.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize("api", ["demo", "responses", "chat"])
@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_several_choices_are_answered_or_rejected(
    api: str, key: str | None, is_stream: bool
) -> None:
    headers = {"X-Session-Key": key} if key is not None else {}
    asked: Json = {"model": "gpt-4.1", "n": 2, "stream": is_stream}
    chat = {**asked, "messages": [{"role": "user", "content": "hi"}]}
    with ProviderSimulator() as simulator:
        upstreams = [upstream(simulator, api=api)] if api != "demo" else []
        async with open_upstream_gateway(*upstreams) as gateway:
            answers = [
                await gateway.client.post(path, json=body, headers=headers)
                for path, body in (
                    ("/v1/chat/completions", chat),
                    ("/v1/responses", {**asked, "input": "hi"}),
                )
            ]
            left = await sessions(gateway)
    if api == "chat" and key is None:
        first = answers.pop(0)
        assert first.status_code == 200
        shown = read(first)
        choices = [choice for one in shown.get("events", [shown]) for choice in one["choices"]]
        assert {choice["index"] for choice in choices} == {0, 1}
    if api == "responses":
        # The Responses API has no such field, so it is the server's to judge.
        assert answers.pop().status_code == 200
        assert left == 1
    else:
        assert left == 0
    for answer in answers:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "n"
